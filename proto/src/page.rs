//! The page that one client shares with the daemon: what must be fast in the process is leased here.
//!
//! ```text
//!   byte 0     gate     who may submit work: a change number and a state in one futex word
//!        4     flags    whether others use the card, whether others wait for it
//!        8     layout   version of this layout
//!        12    drain    how long a drop of this process should take
//!        64    gpus[0]  bytes of quota the process may still take without asking, and what it is told
//!        128   gpus[1]  ...
//! ```
//!
//! The daemon writes everything; the process may only change the gate's *state* under the same change
//! number, and take from or put back to `free`, both by compare-and-swap. The daemon treats the page as hostile:
//! a process that writes anything else here harms nobody's books but its own.

use std::sync::atomic::{AtomicU32, AtomicU64};

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// Size of the shared page, in bytes.
pub const PAGE_SIZE: usize = 4096;
/// How many cards one daemon manages.
pub const MAX_GPUS: usize = 16;
/// Version of this layout, in [`Page::layout`].
pub const PAGE_LAYOUT: u32 = 1;

/// Another session uses a card of this one: bound the work in flight, wait for streams outside the gate.
pub const FLAG_CONTENDED: u32 = 1;
/// Another session waits for the lock: give it back when idle.
pub const FLAG_WANTED: u32 = 2;
/// The session has a compute limit: bound the work in flight, so that its turns end when they should.
pub const FLAG_LIMITED: u32 = 4;

/// What a thread that arrives at the gate may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum GateState {
    /// Sleep; ask for the lock.
    Closed = 0,
    /// Sleep; the lock is ours, a mover brings the memory in and opens.
    Moving = 1,
    /// Pass.
    Open = 2,
    /// A mover is proving that nothing is in flight to give the lock back early: set [`Self::Open`] again, then pass.
    Idle = 3,
}

/// The gate in 32 bits: a change number that the daemon raises at every change, and a [`GateState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GateWord(pub u32);

impl GateWord {
    /// The word for change number `change` (its low 30 bits count) in `state`.
    #[must_use]
    pub const fn new(change: u32, state: GateState) -> Self {
        Self((change << 2) | state as u32)
    }

    /// The state.
    #[must_use]
    pub const fn state(self) -> GateState {
        match self.0 & 3 {
            0 => GateState::Closed,
            1 => GateState::Moving,
            2 => GateState::Open,
            _ => GateState::Idle,
        }
    }

    /// The change number.
    #[must_use]
    pub const fn change(self) -> u32 {
        self.0 >> 2
    }

    /// The same change in another state, as the process may write it.
    #[must_use]
    pub const fn with(self, state: GateState) -> Self {
        Self::new(self.change(), state)
    }

    /// The word that follows this one when the daemon changes the gate to `state`.
    #[must_use]
    pub const fn next(self, state: GateState) -> Self {
        Self::new(self.change().wrapping_add(1), state)
    }
}

/// One card's row in the page.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct LeaseRow {
    /// Bytes the process may still take.
    pub free: AtomicU64,
    /// The session's quota on this card; `u64::MAX` for none.
    pub limit: AtomicU64,
    /// Bytes that other processes of the same session use on this card.
    pub siblings: AtomicU64,
    /// The most that one session may use on this card at present, quota or not.
    pub ceiling: AtomicU64,
}

impl LeaseRow {
    /// A row that leases nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            free: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
            siblings: AtomicU64::new(0),
            ceiling: AtomicU64::new(u64::MAX),
        }
    }
}

/// The whole page. Lives in a sealed memory file that both sides map (`gpushare-sys`).
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Page {
    /// A [`GateWord`].
    pub gate: AtomicU32,
    /// [`FLAG_CONTENDED`], [`FLAG_WANTED`], [`FLAG_LIMITED`].
    pub flags: AtomicU32,
    /// [`PAGE_LAYOUT`].
    pub layout: AtomicU32,
    /// What a drop of this process should take, in microseconds; zero from a daemon that does not say.
    pub drain_target: AtomicU32,
    /// One row per card, by `GpuId`.
    pub gpus: [LeaseRow; MAX_GPUS],
}

impl Page {
    /// A page whose gate is in `state`, for a process that shares with nobody, and for tests.
    #[must_use]
    pub const fn new(state: GateState) -> Self {
        Self {
            gate: AtomicU32::new(GateWord::new(0, state).0),
            flags: AtomicU32::new(0),
            layout: AtomicU32::new(PAGE_LAYOUT),
            drain_target: AtomicU32::new(0),
            gpus: [const { LeaseRow::new() }; MAX_GPUS],
        }
    }
}

const _: () = assert!(size_of::<Page>() <= PAGE_SIZE);

/// A refusal of memory, with what an operator needs to understand it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryRefusal {
    /// What was asked for.
    pub requested: Bytes,
    /// The limit that it would pass.
    pub limit: Bytes,
    /// What is used under that limit.
    pub used: Bytes,
    /// Which limit that is.
    pub by: LimitKind,
}

impl MemoryRefusal {
    /// Whether it is because the session's time is over, or it was revoked: then it has a quota of nothing, and no session
    /// is made with one.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        self.by == LimitKind::Session && self.limit.is_zero()
    }
}

/// Which limit refuses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// The session's own memory quota.
    Session,
    /// One session may not be larger than the card's capacity (`--oversubscribe` lifts it).
    Capacity,
    /// The card's `managed_limit`: all managed memory of all sessions together.
    ManagedLimit,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_word_keeps_its_parts() {
        let word = GateWord::new(7, GateState::Moving);
        assert_eq!((word.change(), word.state()), (7, GateState::Moving));
        assert_eq!(word.with(GateState::Open), GateWord::new(7, GateState::Open));
        assert_eq!(word.next(GateState::Closed), GateWord::new(8, GateState::Closed));
        let last = GateWord::new(u32::MAX >> 2, GateState::Open);
        assert_eq!(last.next(GateState::Closed), GateWord::new(0, GateState::Closed));
    }

    #[test]
    fn the_layout_is_the_one_every_released_library_maps() {
        assert_eq!(std::mem::offset_of!(Page, gate), 0);
        assert_eq!(std::mem::offset_of!(Page, flags), 4);
        assert_eq!(std::mem::offset_of!(Page, layout), 8);
        assert_eq!(std::mem::offset_of!(Page, drain_target), 12);
        assert_eq!(std::mem::offset_of!(Page, gpus), 64);
        assert_eq!(size_of::<LeaseRow>(), 64);
    }
}
