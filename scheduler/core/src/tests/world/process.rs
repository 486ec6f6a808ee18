//! Simulated process of the tests: its habits, its memory and its work in flight.

use std::collections::BTreeMap;

use gpushare_proto::page::{GoalNumber, flag_overflows};
use gpushare_proto::{Bytes, GpuId, Nanos};

use super::ms;
use crate::session::drop::LEAD;
use crate::{FreezeEnd, ThawEnd};

/// Behaviour of a process.
#[derive(Clone, Copy, Debug)]
pub(in crate::tests) struct Habits {
    /// Time from the closing of its gate to the end of its work in flight.
    pub(in crate::tests) drain: Nanos,
    /// Time before that end at which it reports that it is nearly drained.
    pub(in crate::tests) lead: Nanos,
    /// Time from a grant until its memory is in.
    pub(in crate::tests) moves: Nanos,
    /// Whether a thread always wants to submit work.
    pub(in crate::tests) busy: bool,
    /// Whether the process answers at all.
    pub(in crate::tests) answers: bool,
    /// How the next attempts to freeze and to thaw it end.
    pub(in crate::tests) ends: (FreezeEnd, ThawEnd),
}

impl Default for Habits {
    fn default() -> Self {
        Self {
            drain: ms(2),
            lead: LEAD,
            moves: ms(20),
            busy: false,
            answers: true,
            ends: (FreezeEnd::Frozen, ThawEnd::Thawed),
        }
    }
}

/// Size of the chunks of remapped memory.
const CHUNK: u64 = Bytes::mib(128).0;

/// Memory of a process on a card.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    pub(super) free: Bytes,
    pub(super) used: Bytes,
    /// Used bytes that never move.
    pub(super) fixed: Bytes,
    /// Fixed bytes that the machine was told of.
    pub(super) told: Bytes,
    /// Bytes by which remapped blocks are rounded up, as far as that can be.
    pub(super) rounding: Bytes,
    /// Least number of bytes of remapped chunks, however much is freed: shared blocks that are partly free stay.
    pub(super) scattered: Bytes,
}

/// Remapped memory of a process on a card, with the goal in its page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Swap {
    pub(super) goal: Option<(GoalNumber, Bytes)>,
    pub(super) resident: Bytes,
    pub(super) hosted: Bytes,
    pub(super) pinned: Bytes,
    pub(super) prepared: Bytes,
    /// Host memory that should be ready, as the page says.
    pub(super) host_target: Bytes,
    /// Hosted bytes that are mapped from the host.
    pub(super) mapped: Bytes,
    /// Bytes that were copied out so far.
    pub(super) copied_out: Bytes,
}

#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) flags: u32,
    pub(super) memory: BTreeMap<GpuId, Memory>,
    /// Remapped memory of a process that moves it by goals.
    pub(super) swaps: Option<BTreeMap<GpuId, Swap>>,
    /// Whether the open request is for bytes that never move.
    pub(super) asks_fixed: bool,
    pub(super) habits: Habits,
    /// Whether the process may have work on a card: from an open gate until it reports the end of its work.
    pub(super) in_flight: bool,
}

impl Process {
    pub(super) fn on(&self, gpu: GpuId) -> Memory {
        self.memory.get(&gpu).copied().unwrap_or_default()
    }

    /// Used bytes that can move.
    pub(super) fn movable(&self, gpu: GpuId) -> Bytes {
        let memory = self.on(gpu);
        memory.used - memory.fixed
    }

    /// Used bytes that can move, in whole chunks.
    pub(super) fn chunks(&self, gpu: GpuId) -> Bytes {
        let movable = self.movable(gpu);
        let rounded = movable + self.on(gpu).rounding.min(Bytes(movable.0 / 4));
        let whole = Bytes(rounded.0.checked_next_multiple_of(CHUNK).unwrap_or(u64::MAX));
        whole.max(self.on(gpu).scattered)
    }

    /// Whether used bytes of a remapping process are neither on its cards nor mapped from the host.
    pub(super) fn has_holes(&self) -> bool {
        self.swaps
            .iter()
            .flatten()
            .any(|(&gpu, swap)| swap.resident + swap.mapped < self.chunks(gpu))
    }

    /// Whether memory that is mapped from the host is to come to its card before the gate opens.
    pub(super) fn awaits_room(&self) -> bool {
        let overflows = |gpu: GpuId| self.flags & flag_overflows(gpu) != 0;
        self.swaps
            .iter()
            .flatten()
            .any(|(&gpu, swap)| !swap.mapped.is_zero() && !overflows(gpu))
    }

    pub(super) fn used(&self) -> Bytes {
        self.memory.values().map(|memory| memory.used).sum()
    }
}
