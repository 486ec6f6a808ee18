//! Chunks of a card by address, with the sums and queues that follow from their states. So a step of the engine costs no
//! look at all chunks, of which a process may have thousands.
//!
//! Entries change only by [`Chunks::change`] and [`Chunks::change_all`]. These compare the marks of an entry before and
//! after, and note the difference.

use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::Bytes;

use super::aims::DEVICE;
use super::{Entry, Lane};
use crate::driver::types::CUdeviceptr;
use crate::remap::chunk::{Aim, Place};
use crate::remap::vmm::{Call, Span, Tier};

/// Sum over all chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sum {
    /// Bytes of all handles on the card, also of those that are being created.
    Present,
    /// Bytes of the card that are taken, or will be.
    Held,
    /// Bytes of the card that are taken, or will be, and that nothing takes away.
    Committed,
    /// Bytes that are mapped from the host, or will be.
    HostMapped,
    /// Present bytes that must not move.
    Immovable,
    /// Bytes without a handle on the card that are not freed and have memory.
    Hosted,
    /// Of them, bytes that work reaches.
    Mapped,
    /// Bytes without a handle on the card that are not freed and have no memory.
    Unbacked,
    /// Bytes of chunks of which a call or a copy is under way.
    Moving,
    /// Bytes of slots.
    Slots,
    /// Bytes of slots of chunks that have no handle on the card.
    NeededSlots,
    /// Bytes that are not freed.
    Live,
    /// Bytes of chunks that want a slot.
    Wanting,
    /// Number of copies that are under way or begin.
    Copies,
    /// Number of chunks that are or may become holes.
    Away,
    /// Number of chunks that are mapped from the host and may come to the card.
    Promotable,
    /// Number of chunks that wait since a step failed.
    Troubled,
    /// Number of sums.
    Count,
}

/// Facts about one entry that the sums and queues are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Marks {
    sums: [u64; Sum::Count as usize],
    turn: u64,
    /// Lane of the next call.
    lane: Option<Lane>,
    wants_slot: bool,
    /// Whether the chunk or its slot may be given back.
    is_ending: bool,
    is_creating: bool,
}

#[derive(Debug, Default)]
pub(super) struct Chunks {
    entries: BTreeMap<CUdeviceptr, Entry>,
    index: Index,
}

/// Sums and queues of the entries.
#[derive(Debug, Default, PartialEq, Eq)]
struct Index {
    sums: [u64; Sum::Count as usize],
    /// Chunks with a next call, in the order of work, by lane.
    ready: [BTreeSet<(u64, CUdeviceptr)>; Lane::ALL.len()],
    /// Chunks that want a slot, in the order of work.
    wanting: BTreeSet<(u64, CUdeviceptr)>,
    ending: BTreeSet<CUdeviceptr>,
    creating: BTreeSet<CUdeviceptr>,
    /// Whether chunks have begun to want slots since [`Chunks::take_new_wants`].
    has_new_wants: bool,
}

impl Chunks {
    pub(super) fn get(&self, address: CUdeviceptr) -> Option<&Entry> {
        self.entries.get(&address)
    }

    pub(super) fn values(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.values()
    }

    pub(super) fn range(
        &self,
        range: impl std::ops::RangeBounds<CUdeviceptr>,
    ) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.range(range).map(|(_, entry)| entry)
    }

    pub(super) fn addresses(&self) -> Vec<CUdeviceptr> {
        self.entries.keys().copied().collect()
    }

    pub(super) fn insert(&mut self, address: CUdeviceptr, entry: Entry) {
        self.remove(address);
        self.index.add(address, &entry.marks());
        self.entries.insert(address, entry);
    }

    pub(super) fn remove(&mut self, address: CUdeviceptr) {
        if let Some(entry) = self.entries.remove(&address) {
            self.index.subtract(address, &entry.marks());
        }
    }

    /// Changes the entry at an address. Returns `None` if there is none.
    pub(super) fn change<T>(
        &mut self,
        address: CUdeviceptr,
        change: impl FnOnce(&mut Entry) -> T,
    ) -> Option<T> {
        let entry = self.entries.get_mut(&address)?;
        Some(self.index.follow(address, entry, change))
    }

    /// Changes all entries.
    pub(super) fn change_all(&mut self, mut change: impl FnMut(&mut Entry)) {
        for (&address, entry) in &mut self.entries {
            self.index.follow(address, entry, &mut change);
        }
    }

    /// Returns a sum of bytes.
    pub(super) const fn bytes(&self, sum: Sum) -> Bytes {
        Bytes(self.index.sums[sum as usize])
    }

    /// Returns a sum of numbers.
    pub(super) const fn count(&self, sum: Sum) -> u64 {
        self.index.sums[sum as usize]
    }

    /// Returns the entries that have a call for a lane, in the order of work.
    pub(super) fn ready(&self, lane: Lane) -> impl Iterator<Item = &Entry> {
        self.index.ready[lane as usize]
            .iter()
            .filter_map(|(_, address)| self.get(*address))
    }

    /// Returns the addresses of chunks that want a slot, in the order of work.
    pub(super) fn wanting(&self) -> Vec<CUdeviceptr> {
        self.index.wanting.iter().map(|(_, address)| *address).collect()
    }

    /// Returns whether chunks have begun to want slots since the last call.
    pub(super) fn take_new_wants(&mut self) -> bool {
        std::mem::take(&mut self.index.has_new_wants)
    }

    /// Returns the addresses of chunks that end, or whose slot is not needed since the host maps their memory.
    pub(super) fn ending(&self) -> Vec<CUdeviceptr> {
        self.index.ending.iter().copied().collect()
    }

    /// Returns the entries whose handle is being created on the card or the host.
    pub(super) fn creating(&self) -> impl Iterator<Item = &Entry> {
        self.index.creating.iter().filter_map(|address| self.get(*address))
    }

    /// Panics if the sums and queues do not follow from the entries.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut fresh = Index::default();
        for (&address, entry) in &self.entries {
            fresh.add(address, &entry.marks());
        }
        fresh.has_new_wants = self.index.has_new_wants;
        assert_eq!(fresh, self.index);
    }
}

impl Index {
    fn follow<T>(
        &mut self,
        address: CUdeviceptr,
        entry: &mut Entry,
        change: impl FnOnce(&mut Entry) -> T,
    ) -> T {
        let before = entry.marks();
        let result = change(entry);
        let after = entry.marks();
        if before != after {
            self.subtract(address, &before);
            self.add(address, &after);
        }
        result
    }

    fn add(&mut self, address: CUdeviceptr, marks: &Marks) {
        self.sums.iter_mut().zip(&marks.sums).for_each(|(sum, part)| *sum += part);
        let key = (marks.turn, address);
        if let Some(lane) = marks.lane {
            self.ready[lane as usize].insert(key);
        }
        if marks.wants_slot {
            self.wanting.insert(key);
            self.has_new_wants = true;
        }
        if marks.is_ending {
            self.ending.insert(address);
        }
        if marks.is_creating {
            self.creating.insert(address);
        }
    }

    fn subtract(&mut self, address: CUdeviceptr, marks: &Marks) {
        self.sums.iter_mut().zip(&marks.sums).for_each(|(sum, part)| *sum -= part);
        let key = (marks.turn, address);
        if let Some(lane) = marks.lane {
            self.ready[lane as usize].remove(&key);
        }
        if marks.wants_slot {
            self.wanting.remove(&key);
        }
        if marks.is_ending {
            self.ending.remove(&address);
        }
        if marks.is_creating {
            self.creating.remove(&address);
        }
    }
}

impl Entry {
    fn marks(&self) -> Marks {
        let Self { chunk, trouble, is_unborn, .. } = self;
        let (Span { size, .. }, footprint, aim) = (chunk.span(), chunk.footprint(), chunk.aim());
        let is_freed = aim == Aim::Gone;
        let is_live = !is_unborn && !is_freed;
        let is_off_card = footprint.device.is_zero() && !is_freed;
        let is_empty = chunk.place() == Place::Empty;
        let wants_slot = chunk.wants_slot() && !is_unborn;
        let asked = chunk.asked();
        let next = chunk.next().filter(|call| !is_unborn && !self.is_stuck(*call));
        let mut sums = [0; Sum::Count as usize];
        let mut add = |sum: Sum, amount: u64| sums[sum as usize] += amount;
        let held = if aim == DEVICE { size } else { footprint.device };
        let is_host_mapped = aim == Aim::At(Tier::Host) || !footprint.host_handle.is_zero();
        let is_reached = chunk.tier() == Some(Tier::Host) && !chunk.is_hole();
        let is_copying = chunk.is_copying() || matches!(asked, Some(Call::Copy(..)));
        let if_so = |is_so: bool, bytes: Bytes| if is_so { bytes.0 } else { 0 };
        add(Sum::Present, footprint.device.0);
        add(Sum::Held, held.0);
        add(Sum::Committed, if_so(aim == DEVICE, size));
        add(Sum::HostMapped, if_so(is_host_mapped, size));
        add(Sum::Immovable, if_so(chunk.is_immovable(), footprint.device));
        add(Sum::Hosted, if_so(is_off_card && !is_empty, size));
        add(Sum::Mapped, if_so(is_off_card && is_reached, size));
        add(Sum::Unbacked, if_so(is_off_card && is_empty, size));
        add(Sum::Moving, if_so(chunk.is_busy(), size));
        add(Sum::Slots, footprint.slot.0);
        add(Sum::NeededSlots, if_so(is_off_card, footprint.slot));
        add(Sum::Live, if_so(!is_freed, size));
        add(Sum::Wanting, if_so(wants_slot, size));
        add(Sum::Copies, u64::from(is_copying));
        add(Sum::Away, u64::from(is_live && (chunk.is_hole() || chunk.is_leaving())));
        add(Sum::Promotable, u64::from(self.is_promotable()));
        add(Sum::Troubled, u64::from(trouble.is_some() && !is_unborn));
        Marks {
            sums,
            turn: self.turn,
            lane: next.map(Lane::of),
            wants_slot,
            is_ending: matches!(aim, Aim::Gone | Aim::At(Tier::Host))
                && (chunk.has_spare_slot(false) || chunk.is_gone()),
            is_creating: matches!(asked, Some(Call::Create(_))),
        }
    }
}
