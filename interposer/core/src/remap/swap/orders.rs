//! Orders: the next step for a lane.

use gpushare_proto::Bytes;

use super::chunks::Sum;
use super::{Engine, Entry, Guard, Phase, Trouble};
use crate::driver::types::CUdeviceptr;
use crate::remap::chunk::Aim;
use crate::remap::host::{Pool, Slot, Supply};
use crate::remap::vmm::{Call, Span, Tier};

/// Lane of steps that are taken one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Calls of virtual memory management, one at a time.
    Calls,
    /// Beginnings of copies.
    Copies,
    /// Digests of chunks, several at a time.
    Digests,
}

/// Step that a lane is to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Marks the gate as evicting (`true`) or removes the mark. [`Engine::note_guard`] takes the result.
    Guard(bool),
    /// Makes a driver call for the chunk at `span`. [`Engine::done`] takes the answer.
    Call(Span, Call),
}

impl Lane {
    /// All lanes.
    pub const ALL: [Self; 3] = [Self::Calls, Self::Copies, Self::Digests];

    pub(super) const fn of(call: Call) -> Self {
        match call {
            Call::Copy(..) => Self::Copies,
            Call::Digest => Self::Digests,
            _ => Self::Calls,
        }
    }
}

impl Engine {
    /// Returns the next step for a lane; `None` until something changes. Chunks take their slots from `pool`,
    /// and freed ones put them back.
    pub fn next(&mut self, lane: Lane, pool: &mut Pool) -> Option<Order> {
        self.settle();
        self.end_freed(pool);
        self.hand_out_slots(pool);
        match lane {
            Lane::Calls if self.is_calling => return None,
            Lane::Copies if self.copies() >= super::DEPTH => return None,
            Lane::Calls | Lane::Copies | Lane::Digests => {}
        }
        if let Some(order) = self.guard_order(lane) {
            return Some(order);
        }
        let address = self.first_in_turn(lane)?;
        let number = self.goal.number;
        let (span, call) = self.chunks.change(address, |entry| {
            entry.created_under = number;
            Some((entry.chunk.span(), entry.chunk.take()?))
        })??;
        self.is_calling |= lane == Lane::Calls;
        Some(Order::Call(span, call))
    }

    /// Returns the chunk whose turn it is in a lane.
    fn first_in_turn(&self, lane: Lane) -> Option<CUdeviceptr> {
        let room = self.goal.bytes - self.present();
        let first = self.chunks.ready(lane).find(|entry| self.may_take(entry, room))?;
        Some(first.chunk.span().address)
    }

    /// Returns whether the next call of a chunk may be made now.
    fn may_take(&self, entry: &Entry, room: Bytes) -> bool {
        let Some(call) = entry.chunk.next() else { return false };
        if entry.lent > 0 && matches!(call, Call::Unmap | Call::Release(_)) {
            return false;
        }
        let is_freed = entry.chunk.aim() == Aim::Gone;
        let may_move = match self.phase {
            Phase::Drained | Phase::Entering => self.lost.is_none(),
            Phase::Open | Phase::Parked => false,
        };
        match call {
            Call::Release(_) => true,
            Call::Unmap => is_freed || (may_move && self.guard == Guard::Set),
            Call::Create(Tier::Device) => may_move && room >= entry.chunk.span().size,
            Call::Copy(..) | Call::Create(Tier::Host) | Call::Map(_) | Call::SetAccess | Call::Digest => {
                may_move
            }
        }
    }

    /// Sets the guard before the first hole is made, also by an allocation, and removes it when there is none
    /// or the memory is lost.
    fn guard_order(&mut self, lane: Lane) -> Option<Order> {
        if lane != Lane::Calls || !matches!(self.phase, Phase::Drained | Phase::Entering) {
            return None;
        }
        let is_needed =
            self.lost.is_none() && (self.waiting_for_mark > 0 || self.chunks.count(Sum::Away) > 0);
        let (from, to) = if is_needed {
            (Guard::Clear, Guard::Setting)
        } else {
            (Guard::Set, Guard::Clearing)
        };
        if self.guard != from {
            return None;
        }
        self.guard = to;
        self.is_calling = true;
        Some(Order::Guard(is_needed))
    }

    /// Removes freed chunks of which nothing is left, and puts their slots back.
    fn end_freed(&mut self, pool: &mut Pool) {
        for address in self.chunks.ending() {
            // Memory of the host needs no second copy in a slot.
            let ended = self.chunks.change(address, |Entry { chunk, .. }| {
                let slot = chunk.take_spare_slot(false);
                (slot, chunk.is_gone().then(|| (chunk.span(), chunk.is_adopted())))
            });
            let Some((slot, gone)) = ended else { continue };
            self.is_changed = true;
            slot.into_iter().for_each(|slot| pool.put(slot));
            if let Some((span, is_adopted)) = gone {
                self.chunks.remove(address);
                // The addresses of adopted memory are the program's.
                self.gone.extend((!is_adopted).then_some(span));
            }
        }
    }

    /// Returns whether looks for orders have changed something since the last call, so that another lane may
    /// have an order now.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// Gives slots to chunks that leave. Those for which there is no host memory stay where they are.
    fn hand_out_slots(&mut self, pool: &mut Pool) {
        let has_new_victims = std::mem::take(&mut self.has_new_victims);
        let has_new_wants = self.chunks.take_new_wants();
        let is_known = self.missing == self.chunks.bytes(Sum::Wanting)
            && (self.missing.is_zero() || pool.changes() == self.supplied_at);
        if is_known && !has_new_victims && !has_new_wants {
            return;
        }
        let sizes = pool.sizes();
        if has_new_victims && pool.is_sparse() {
            self.repack_slots(pool);
        }
        self.supply_slots(pool);
        self.missing = self.chunks.bytes(Sum::Wanting);
        self.supplied_at = pool.changes();
        self.is_changed |= pool.sizes() != sizes;
    }

    fn supply_slots(&mut self, pool: &mut Pool) {
        loop {
            let missing = self.give_slots(pool);
            // A goal that has risen again needs no more slots.
            pool.call_off(missing);
            if missing.is_zero() {
                return;
            }
            let supply = pool.demand(missing);
            if pool.is_growing() {
                return;
            }
            if supply != Supply::Coming {
                let kept = self.take_kept_slots(missing);
                if kept.is_empty() {
                    return self.do_without_slots();
                }
                kept.into_iter().for_each(|slot| pool.put(slot));
            }
        }
    }

    /// Lets chunks that leave change their slots, so that those fill whole regions and others have room for
    /// large slots.
    fn repack_slots(&mut self, pool: &mut Pool) {
        let (mut addresses, mut slots) = (Vec::new(), Vec::new());
        self.chunks.change_all(|Entry { chunk, .. }| {
            if let Some(slot) = chunk.take_stale_slot() {
                addresses.push(chunk.span().address);
                slots.push(slot);
            }
        });
        for (address, slot) in addresses.into_iter().zip(pool.repack(slots)) {
            if let Some(slot) = slot {
                self.give_slot(address, slot, pool);
            }
        }
    }

    /// Gives slots to chunks that leave, in their order. Returns the bytes for which there were none.
    fn give_slots(&mut self, pool: &mut Pool) -> Bytes {
        let mut too_large = Bytes::MAX;
        for address in self.chunks.wanting() {
            let Some(size) = self.chunks.get(address).map(|entry| entry.chunk.span().size) else {
                continue;
            };
            // What had no room for a smaller slot has none for this one.
            let slot = if size < too_large { pool.take(size) } else { None };
            match slot {
                Some(slot) => self.give_slot(address, slot, pool),
                None => too_large = too_large.min(size),
            }
        }
        self.chunks.bytes(Sum::Wanting)
    }

    fn give_slot(&mut self, address: CUdeviceptr, slot: Slot, pool: &mut Pool) {
        match self.chunks.change(address, |entry| entry.chunk.give_slot(slot)) {
            Some(Some(unused)) => pool.put(unused),
            _ => self.is_changed = true,
        }
    }

    fn do_without_slots(&mut self) {
        self.is_settled = false;
        for address in self.chunks.wanting() {
            self.chunks.change(address, |entry| {
                entry.trouble = Some(Trouble::NoSlot);
                if let Some(tier) = entry.chunk.tier() {
                    entry.chunk.set_aim(Aim::At(tier));
                }
            });
        }
    }

    /// Chunks that the application has not freed.
    pub(super) fn live(&self) -> impl Iterator<Item = &Entry> {
        let is_live = |entry: &&Entry| !entry.is_unborn && entry.chunk.aim() != Aim::Gone;
        self.chunks.values().filter(is_live)
    }

    /// Number of copies that are under way or begin.
    pub(super) const fn copies(&self) -> usize {
        self.chunks.count(Sum::Copies) as usize
    }
}

impl Entry {
    /// Whether a call has to wait for a retry: it failed before, or several calls of the chunk did.
    pub(super) fn is_stuck(&self, call: Call) -> bool {
        let has_failed = matches!(self.trouble, Some(Trouble::Driver(failed, _)) if is_same(failed, call));
        has_failed || self.failures >= 2
    }
}

/// Whether two calls do the same, whatever their handle or slot.
fn is_same(one: Call, other: Call) -> bool {
    std::mem::discriminant(&one) == std::mem::discriminant(&other)
}
