//! Repacking: slots without bytes change their places, so that they fill whole regions.
//!
//! A chunk keeps its slot while it is on the card. If many chunks are freed, the slots of others are left one in each
//! region: no region has room for a large slot, and none is unused. The pool is at its bound then, so it cannot grow
//! either.

use std::cmp::Reverse;

use gpushare_proto::Bytes;

use super::{Pool, REGION, Region, Slot, State};

impl Pool {
    /// Returns whether used regions have more room left than well packed slots leave: a sixteenth, and a region.
    pub fn is_sparse(&self) -> bool {
        let (mut taken, mut left) = (Bytes::ZERO, Bytes::ZERO);
        for region in self.regions.values().filter(|region| !region.is_unused()) {
            left += region.left();
            taken += REGION - region.left();
        }
        left > Bytes(taken.0 / 16) + REGION
    }

    /// Takes slots whose bytes nobody needs, and returns others of the same sizes in the same order, packed into as few
    /// regions as it can. A slot for which there is no room is missing.
    pub fn repack(&mut self, slots: Vec<Slot>) -> Vec<Option<Slot>> {
        let mut order: Vec<_> = slots.iter().map(Slot::size).enumerate().collect();
        // The largest first: what is small fits beside it.
        order.sort_by_key(|&(_, size)| Reverse(size));
        slots.into_iter().for_each(|slot| self.free(slot));
        let mut packed: Vec<_> = order.iter().map(|_| None).collect();
        for (index, size) in order {
            packed[index] = self.take(size);
        }
        self.shrink();
        packed
    }
}

impl Region {
    /// Bytes that no slot has, whether or not the region is usable now.
    fn left(&self) -> Bytes {
        match &self.state {
            State::Ready(_, slots) => Bytes(slots.total_available()),
            State::Nothing | State::Touched(_) => REGION,
        }
    }
}
