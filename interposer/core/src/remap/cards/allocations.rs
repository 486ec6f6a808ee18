//! Allocations and frees on one card: the mark of the gate before a block that would be a hole, and the driver calls of
//! the calling thread.

use std::time::Duration;

use gpushare_proto::Bytes;
use gpushare_proto::page::GoalNumber;
use gpushare_sys::unwind::uncancelled;

use super::{Card, NotAllocated, Want};
use crate::driver::types::CUdeviceptr;
use crate::remap::blocks::{Allocation, AllocationError, Backing, needed};
use crate::remap::lanes::Moving;
use crate::remap::swap::UNLIMITED;
use crate::remap::vmm::{Span, VmmError, perform};

/// Longest wait of an allocation for the mark of the gate. The mark takes some microseconds unless work may be in flight.
const MARK_PATIENCE: Duration = Duration::from_millis(100);

/// Allocation that needs the mark of the gate.
struct Marking<'a>(&'a Card);

impl<'a> Marking<'a> {
    fn begin(card: &'a Card) -> Self {
        card.lanes.change(|moving| moving.blocks.engine().wait_for_mark(true));
        Self(card)
    }
}

impl Drop for Marking<'_> {
    fn drop(&mut self) {
        self.0.lanes.change(|moving| moving.blocks.engine().wait_for_mark(false));
    }
}

impl Card {
    pub(super) fn allocate(&self, size: Bytes, want: &mut Option<Want>) -> Result<CUdeviceptr, NotAllocated> {
        loop {
            let _marked = self.mark_for(size);
            let reserve = |whole| self.hardware.reserve(whole);
            let begun = self.lanes.change_with_addresses(reserve, |moving: &mut Moving, addresses| {
                if let Some(lost) = moving.blocks.engine().lost() {
                    return Err(AllocationError::Driver(lost).into());
                }
                if moving.blocks.engine().may_be_hole(needed(size)) {
                    return Err(NotAllocated::NotNow(needed(size)));
                }
                let begun = moving.blocks.begin(size, |whole| addresses.take(whole))?;
                moving.bound_pool();
                if let Some(want) = want.take() {
                    want.end_within();
                }
                Ok(begun)
            })?;
            match begun {
                Allocation::Ready(address) => return Ok(address),
                // A thread that ended in the middle would leave a call that is never answered.
                Allocation::Backing(backing) => match uncancelled(|| self.back(backing)) {
                    Ok(Some(address)) => return Ok(address),
                    Ok(None) => {}
                    Err(AllocationError::Driver(VmmError::OutOfMemory)) if self.follows_goals() => {
                        return Err(NotAllocated::CardFull(needed(size)));
                    }
                    Err(error) => return Err(error.into()),
                },
            }
        }
    }

    /// Lets the gate be marked for a block that would be a hole, and waits for that a moment. The mark stays until the
    /// returned guard is dropped, and as long as there are holes.
    fn mark_for(&self, size: Bytes) -> Option<Marking<'_>> {
        let may_be_hole = |moving: &mut Moving| moving.blocks.engine().may_be_hole(needed(size));
        if !self.lanes.look(may_be_hole) {
            return None;
        }
        let marking = Marking::begin(self);
        self.lanes
            .wait_within(MARK_PATIENCE, |moving| (!may_be_hole(moving)).then_some(()));
        Some(marking)
    }

    /// Whether the daemon in force gives goals, so that it can tell other processes to give room. This holds also
    /// before its first goal.
    pub(super) fn follows_goals(&self) -> bool {
        self.lanes.look(|moving| moving.blocks.engine().goal() != UNLIMITED)
    }

    /// Whether the daemon has given a goal.
    pub(super) fn has_goal(&self) -> bool {
        self.lanes
            .look(|moving| moving.blocks.engine().goal().number != GoalNumber::NONE)
    }

    /// Makes the driver calls for a new block. Returns `None` if the allocation begins again: another
    /// thread has taken its place, or the goal has no room for all of it any more.
    fn back(&self, backing: Backing) -> Result<Option<CUdeviceptr>, AllocationError> {
        while let Some((chunk, call)) = self.lanes.change(|moving| moving.blocks.take(&backing)) {
            let answer = perform(call, chunk, &self.hardware);
            self.lanes.change(|moving| moving.blocks.done(chunk, answer));
        }
        let range = backing.range();
        let result = self.lanes.change(|moving| moving.blocks.finish(backing));
        if result.is_err() {
            // What an unused block keeps is of use to the next attempt.
            self.end_unused();
        }
        if !matches!(result, Ok(Some(_))) {
            // What is given back takes room, and the daemon would count it against the next request.
            self.wait_for_free(range);
        }
        result
    }

    pub(super) fn free(&self, address: CUdeviceptr) -> bool {
        let block = self.lanes.change(|moving| {
            let block = moving.blocks.around(address).filter(|block| block.address == address)?;
            moving.blocks.end(address).then_some(())?;
            moving.bound_pool();
            Some(block)
        });
        let Some(block) = block else { return false };
        // The driver's own free returns the memory before it returns.
        self.wait_for_free(block);
        true
    }

    /// Gives back shared blocks that are not used.
    pub(super) fn end_unused(&self) {
        let unused = self.lanes.change(|moving| moving.blocks.end_unused());
        unused.into_iter().for_each(|block| self.wait_for_free(block));
    }

    /// Waits until the driver has taken back what is freed of a range.
    fn wait_for_free(&self, range: Span) {
        self.lanes
            .wait_for(|moving| (!moving.blocks.engine().is_freeing(range)).then_some(()));
    }
}
