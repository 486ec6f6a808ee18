//! Memory that the program creates by handle and maps itself, as one card counts and moves it.

use std::time::Duration;

use gpushare_proto::Bytes;
use gpushare_sys::unwind::uncancelled;

use super::{NotAllocated, Remap, Want};
use crate::driver::rdma;
use crate::driver::types::{
    AllocationProperties, CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED,
    CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, CUdevice, CUdeviceptr, CUresult,
};
use crate::process::is_exiting;
use crate::remap::blocks::AllocationError;
use crate::remap::chunk::Backing;
use crate::remap::lanes::Moving;
use crate::remap::pins::Reason;
use crate::remap::vmm::{Span, Tier, VmmError};

/// Longest wait for steps of a chunk that are under way.
const PATIENCE: Duration = Duration::from_secs(2);

impl Remap {
    /// Runs `create`, which creates memory of a card by handle, within the goal. A `want` of the caller ends
    /// once the memory is being made.
    ///
    /// # Errors
    /// As [`Self::allocate`]. A process that overflows the card gets no such memory beyond it.
    pub(crate) fn create(
        &self,
        device: CUdevice,
        size: Bytes,
        want: &mut Option<Want>,
        create: impl FnOnce() -> CUresult,
    ) -> Result<(), NotAllocated> {
        let card = self.card(device).ok_or(NotAllocated::Failed(CUDA_ERROR_NOT_SUPPORTED))?;
        card.lanes.change(|moving| {
            let engine = moving.blocks.engine();
            if let Some(lost) = engine.lost() {
                return Err(AllocationError::Driver(lost).into());
            }
            if !engine.begin_loose(size) {
                return Err(match engine.overflows() {
                    true => NotAllocated::Failed(CUDA_ERROR_OUT_OF_MEMORY),
                    false => NotAllocated::NotNow(size),
                });
            }
            if let Some(want) = want.take() {
                want.end_within();
            }
            Ok(())
        })?;
        // A thread that ended in the middle would leave memory that is counted for ever.
        let result = uncancelled(create);
        if result == CUDA_SUCCESS {
            return Ok(());
        }
        card.lanes.change(|moving| moving.blocks.engine().end_loose(Tier::Device, size));
        // What an unused block keeps is of use to the next attempt.
        self.end_unused(device);
        match result {
            CUDA_ERROR_OUT_OF_MEMORY if card.follows_goals() => Err(NotAllocated::CardFull(size)),
            error => Err(NotAllocated::Failed(error)),
        }
    }

    /// Notes that memory of [`Self::create`] was given back to the driver.
    pub(crate) fn end_created(&self, device: CUdevice, tier: Tier, size: Bytes) {
        if let Some(card) = self.card(device) {
            card.lanes.change(|moving| moving.blocks.engine().end_loose(tier, size));
        }
    }

    /// Moves memory of [`Self::create`] from now on, which is mapped at `span` for the card alone.
    pub(crate) fn adopt(
        &self,
        device: CUdevice,
        span: Span,
        backing: Backing,
        properties: AllocationProperties,
    ) {
        let Some(card) = self.card(device) else { return };
        card.hardware.note_adopted(span.address, properties);
        card.lanes.change(|moving| {
            moving.blocks.adopt(span, backing);
            moving.bound_pool();
        });
    }

    /// Returns whether a card moves memory of [`Self::create`].
    pub(crate) fn has_adopted(&self, device: CUdevice) -> bool {
        self.card(device).is_some_and(|card| card.hardware.has_adopted())
    }

    /// Keeps memory that other devices of the bus may reach where it is, if they can do that by now.
    pub(super) fn keep_reachable(&self) {
        for (_, card) in self.cards() {
            let reachable = card.hardware.adopted_for_rdma();
            if !reachable.is_empty() && rdma::may_happen() {
                card.lanes.change(|moving| {
                    for address in reachable {
                        moving.blocks.pin(address, Reason::NamedToDevice);
                    }
                });
            }
        }
    }

    /// Leaves adopted memory to the program, where it is mapped. The thread is inside the gate, so the memory is not
    /// away. Memory that is mapped from the host stays there.
    ///
    /// # Errors
    /// The memory is lost with its context, or something is wrong with it.
    pub(crate) fn give_up(&self, device: CUdevice, address: CUdeviceptr) -> Result<Backing, CUresult> {
        let card = self.card(device).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let give_up = |moving: &mut Moving| match moving.blocks.give_up(address) {
            Some((backing, slot)) => {
                slot.into_iter().for_each(|slot| moving.pool.put(slot));
                Some(Ok(backing))
            }
            None => {
                let engine = moving.blocks.engine();
                let ended = engine
                    .end_of(address)
                    .map(|end| end.map_or_else(VmmError::result, |()| CUDA_ERROR_INVALID_VALUE));
                let lost = engine.lost().map(VmmError::result);
                // Nothing moves any more.
                let parked = is_exiting().then_some(CUDA_ERROR_DEINITIALIZED);
                ended.or(lost).or(parked).map(Err)
            }
        };
        let backing = card.lanes.wait_within(PATIENCE, give_up).unwrap_or(Err(CUDA_ERROR_UNKNOWN))?;
        card.hardware.forget_adopted(address);
        card.lanes.change(Moving::bound_pool);
        Ok(backing)
    }

    /// Unmaps adopted memory and gives it back, wherever it is. Waits until the driver has nothing of it.
    ///
    /// # Errors
    /// The driver's result. It still has something of the memory, and the call may be made again.
    pub(crate) fn end_adopted(&self, device: CUdevice, address: CUdeviceptr) -> Result<(), CUresult> {
        let Some(card) = self.card(device) else { return Ok(()) };
        card.lanes.change(|moving| moving.blocks.engine().free(address));
        let ended = card.lanes.wait_for(|moving| moving.blocks.engine().end_of(address));
        ended.map_err(VmmError::result)?;
        card.hardware.forget_adopted(address);
        card.lanes.change(|moving| {
            moving.blocks.forget(address);
            moving.bound_pool();
        });
        Ok(())
    }
}
