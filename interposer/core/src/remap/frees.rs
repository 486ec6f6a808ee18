//! Frees that wait for work in flight before their memory is used again.
//!
//! The driver's own free waits for the work of the context, and programs rely on that. So a freed block keeps
//! its addresses and its bytes until a *mark* behind that work is reached:
//!
//! ```text
//!   cuMemFree ──▶ a mark behind the context's work ──▶ reached? ──▶ memory may be used again
//!            └──▶ aside, while a capture runs: no mark may be recorded then ── capture ends ──▶ a mark
//!   process drained: nothing is in flight, so no mark is needed
//! ```
//!
//! Marks of one place (a context, or one of its streams) are reached in their order, so that only the first
//! one of each place needs a look.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::driver::types::CUdeviceptr;

/// Frees that wait. `P` is a place in the order of work, `M` a mark that is recorded there.
#[derive(Debug)]
pub struct Frees<P, M> {
    places: BTreeMap<P, Waiting<M>>,
    addresses: BTreeSet<CUdeviceptr>,
}

#[derive(Debug)]
struct Waiting<M> {
    marked: VecDeque<(M, Vec<CUdeviceptr>)>,
    /// Frees during a capture, which have no mark yet.
    aside: Vec<CUdeviceptr>,
}

/// Frees that are over: addresses whose memory may be used again, and marks that are no longer needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over<M> {
    /// Addresses of the freed blocks, in the order of their frees at each place.
    pub addresses: Vec<CUdeviceptr>,
    /// Marks, for their owner to destroy.
    pub marks: Vec<M>,
}

impl<M> Default for Over<M> {
    fn default() -> Self {
        Self { addresses: Vec::new(), marks: Vec::new() }
    }
}

impl<P, M> Default for Frees<P, M> {
    fn default() -> Self {
        Self { places: BTreeMap::new(), addresses: BTreeSet::new() }
    }
}

impl<P: Ord + Copy, M> Frees<P, M> {
    /// Adds a free behind `mark`; without a mark the free is put aside. Returns `false` for an address that was
    /// freed already.
    pub fn add(&mut self, place: P, address: CUdeviceptr, mark: Option<M>) -> bool {
        if !self.addresses.insert(address) {
            return false;
        }
        let new = || Waiting { marked: VecDeque::new(), aside: Vec::new() };
        let waiting = self.places.entry(place).or_insert_with(new);
        match mark {
            // It stands behind what was put aside, too.
            Some(mark) => {
                let mut addresses = std::mem::take(&mut waiting.aside);
                addresses.push(address);
                waiting.marked.push_back((mark, addresses));
            }
            None => waiting.aside.push(address),
        }
        true
    }

    /// Returns the places with frees that were put aside. Once no capture runs, each needs a mark.
    pub fn unmarked(&self) -> impl Iterator<Item = P> + '_ {
        self.places
            .iter()
            .filter(|(_, waiting)| !waiting.aside.is_empty())
            .map(|(&place, _)| place)
    }

    /// Gives the frees of a place that were put aside a mark. Returns the mark if there are none.
    pub fn mark(&mut self, place: P, mark: M) -> Option<M> {
        let Some(waiting) = self.places.get_mut(&place).filter(|waiting| !waiting.aside.is_empty()) else {
            return Some(mark);
        };
        waiting.marked.push_back((mark, std::mem::take(&mut waiting.aside)));
        None
    }

    /// Removes and returns the frees whose marks are reached, as `is_reached` says.
    pub fn take_reached(&mut self, mut is_reached: impl FnMut(P, &M) -> bool) -> Over<M> {
        let mut over = Over::default();
        for (&place, waiting) in &mut self.places {
            while let Some((mark, addresses)) =
                waiting.marked.pop_front_if(|(mark, _)| is_reached(place, mark))
            {
                over.addresses.extend(addresses);
                over.marks.push(mark);
            }
        }
        self.forget(&over.addresses);
        over
    }

    /// Removes and returns the frees of all places for which `is_over` holds: nothing is in flight there, by a
    /// proof of idleness or by the end of the context.
    pub fn take_all(&mut self, is_over: impl Fn(P) -> bool) -> Over<M> {
        let mut over = Over::default();
        for (_, waiting) in self.places.iter_mut().filter(|(place, _)| is_over(**place)) {
            for (mark, addresses) in waiting.marked.drain(..) {
                over.addresses.extend(addresses);
                over.marks.push(mark);
            }
            over.addresses.append(&mut waiting.aside);
        }
        self.forget(&over.addresses);
        over
    }

    fn forget(&mut self, addresses: &[CUdeviceptr]) {
        for address in addresses {
            self.addresses.remove(address);
        }
        self.places
            .retain(|_, waiting| !(waiting.marked.is_empty() && waiting.aside.is_empty()));
    }

    /// Returns whether the block at `address` was freed and still waits.
    pub fn has(&self, address: CUdeviceptr) -> bool {
        self.addresses.contains(&address)
    }

    /// Returns the blocks that wait.
    pub fn addresses(&self) -> impl Iterator<Item = CUdeviceptr> + '_ {
        self.addresses.iter().copied()
    }

    /// Returns whether no free waits.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frees(list: &[(u8, CUdeviceptr, Option<u32>)]) -> Frees<u8, u32> {
        let mut frees = Frees::default();
        for &(place, address, mark) in list {
            assert!(frees.add(place, address, mark));
        }
        frees
    }

    fn reached(frees: &mut Frees<u8, u32>, marks: &[u32]) -> Vec<CUdeviceptr> {
        let over = frees.take_reached(|_, mark| marks.contains(mark));
        assert!(over.marks.iter().all(|mark| marks.contains(mark)));
        over.addresses
    }

    #[test]
    fn frees_of_a_place_end_in_their_order_and_places_apart() {
        let mut frees = frees(&[(1, 0x10, Some(1)), (1, 0x20, Some(2)), (2, 0x30, Some(3))]);
        assert_eq!(reached(&mut frees, &[2, 3]), [0x30], "the first of place 1 is not reached");
        assert_eq!([0x10, 0x20, 0x30].map(|address| frees.has(address)), [true, true, false]);
        assert_eq!(reached(&mut frees, &[1, 2]), [0x10, 0x20]);
        assert!(frees.is_empty());
    }

    #[test]
    fn a_block_is_freed_once() {
        let mut frees = frees(&[(1, 0x10, Some(1))]);
        assert!(!frees.add(2, 0x10, Some(2)));
        assert_eq!(reached(&mut frees, &[1]), [0x10]);
        assert!(frees.add(2, 0x10, Some(2)), "the address was used again");
    }

    #[test]
    fn frees_during_a_capture_wait_for_a_mark_after_it() {
        let mut frees = frees(&[(1, 0x10, None), (1, 0x20, None), (2, 0x30, Some(3))]);
        assert_eq!(reached(&mut frees, &[1, 2, 3]), [0x30]);
        assert_eq!(frees.unmarked().collect::<Vec<_>>(), [1]);
        assert_eq!(frees.mark(1, 5), None);
        assert_eq!(frees.mark(1, 6), Some(6), "nothing is aside any more");
        assert_eq!(frees.mark(7, 8), Some(8));
        assert_eq!(reached(&mut frees, &[6]), [0_u64; 0]);
        assert_eq!(reached(&mut frees, &[5]), [0x10, 0x20]);
    }

    #[test]
    fn a_mark_after_a_capture_covers_the_frees_before_it() {
        let mut frees = frees(&[(1, 0x10, None), (1, 0x20, Some(4))]);
        assert_eq!(frees.unmarked().count(), 0);
        assert_eq!(reached(&mut frees, &[4]), [0x10, 0x20]);
    }

    #[test]
    fn a_drained_place_needs_no_marks_and_returns_them() {
        let list = [(1, 0x10, Some(1)), (1, 0x20, None), (2, 0x30, Some(3))];
        let mut frees = frees(&list);
        let over = frees.take_all(|place| place == 1);
        assert_eq!(over, Over { addresses: vec![0x10, 0x20], marks: vec![1] });
        assert_eq!(frees.addresses().collect::<Vec<_>>(), [0x30]);
        assert_eq!(frees.take_all(|_| true), Over { addresses: vec![0x30], marks: vec![3] });
        assert!(frees.is_empty());
    }
}
