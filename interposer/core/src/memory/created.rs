//! Memory that the application creates by handle and maps itself (`cuMemCreate`), on cards whose memory is
//! remapped.

use gpushare_proto::{Backend, Bytes};

use super::Memory;
use super::handles::{Adopted, Charge, Ended, Handles, Locked};
use crate::daemon::MemoryKind;
use crate::driver::contexts::Contexts;
use crate::driver::types::{
    AllocationProperties, CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS, CUdevice, CUmemHandle, CUresult,
};
use crate::driver::unknown::UNKNOWN;
use crate::driver::{Driver, rdma};
use crate::remap::chunk::Backing;
use crate::remap::space::GRANULE;
use crate::remap::swap::CHUNK;
use crate::remap::vmm::Span;
use crate::remap::{NotAllocated, Want};

impl Memory {
    /// Returns whether gpushare could move memory of the current device that is created so. It can create no
    /// piece again that is larger than a chunk, and does not see who else reaches memory for RDMA. A function
    /// that gpushare does not know would not understand a name.
    pub(crate) fn can_move(&self, device: CUdevice, size: Bytes, properties: &AllocationProperties) -> bool {
        let is_piece = size <= CHUNK && size.0.is_multiple_of(GRANULE.0) && !size.is_zero();
        is_piece
            && properties.is_plain()
            && self.driver.current_device() == Some(device)
            && self.backend_on(device) == Backend::Remap
            && UNKNOWN.is_empty()
            && !(properties.is_for_rdma() && rdma::may_happen())
    }

    /// Creates memory that has a name by `create`, which returns the driver's handle. Returns the name. The
    /// quota is reserved.
    pub(crate) fn create_own(
        &'static self,
        parts: (&'static Driver, &'static Contexts),
        charge: Charge,
        properties: AllocationProperties,
        want: &mut Option<Want>,
        create: impl FnOnce() -> Result<CUmemHandle, CUresult>,
    ) -> Result<CUmemHandle, NotAllocated> {
        let Charge { device, bytes, .. } = charge;
        self.begin_remap(parts, device)?;
        let mut name = Err(NotAllocated::Failed(CUDA_ERROR_NOT_SUPPORTED));
        self.remap.create(device, bytes, want, || {
            // Locked only now, since the wait for room may be long.
            let mut handles = self.handles();
            match create() {
                Ok(handle) => {
                    name = Ok(handles.create_own(handle, charge, properties));
                    CUDA_SUCCESS
                }
                Err(error) => error,
            }
        })?;
        name
    }

    /// Gives adopted memory back to the driver, so that names mean handles. The thread is inside the gate.
    ///
    /// # Errors
    /// The memory is lost with its context. All of it is adopted as before.
    pub(crate) fn give_to_driver(&self, handles: &mut Handles, adopted: &[Adopted]) -> Result<(), CUresult> {
        for (count, memory) in adopted.iter().enumerate() {
            match self.remap.give_up(memory.device, memory.span.address) {
                Ok(backing) => handles.give_to_driver(*memory, backing),
                Err(error) => {
                    self.adopt_again(handles, &adopted[..count]);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Adopts memory again that was given back to the driver for a call that has changed nothing.
    pub(crate) fn adopt_again(&self, handles: &mut Handles, given: &[Adopted]) {
        for &Adopted { device, span, .. } in given {
            self.adopt(handles, span, device);
        }
    }

    /// Moves what is mapped in a range from now on, which is for the kernels of `device` alone, as far as it
    /// has no other use.
    pub(crate) fn adopt(&self, handles: &mut Handles, range: Span, device: CUdevice) {
        for adoptable in handles.adoptable_in(range, device) {
            // The driver knows the memory now. While it is away, the driver does not.
            self.mapped.note(adoptable.span, || self.driver.facts(adoptable.span, device));
            self.remap
                .adopt(device, adoptable.span, adoptable.backing, adoptable.properties);
            handles.note_adopted(adoptable);
        }
    }

    /// Unmaps adopted memory, wherever it is, and ends what has no further use. After a failure all of it
    /// counts as mapped, and the call may be made again.
    ///
    /// # Errors
    /// Result for the application.
    pub(crate) fn unmap_adopted(&self, mut handles: Locked<'_>, adopted: &[Adopted]) -> Result<(), CUresult> {
        // Memory that has ended already ends again without a failure.
        let mut ends = adopted
            .iter()
            .map(|memory| self.remap.end_adopted(memory.device, memory.span.address));
        ends.try_for_each(|end| end)?;
        let ended: Vec<_> = adopted
            .iter()
            .flat_map(|memory| self.note_unmapped(&mut handles, memory.span))
            .collect();
        drop(handles);
        self.end_pieces(ended);
        Ok(())
    }

    /// Notes that the application has unmapped a range. Returns the pieces that have no further use.
    pub(crate) fn note_unmapped(&self, handles: &mut Handles, range: Span) -> Vec<Ended> {
        self.mapped.forget(range);
        handles.unmap(range.address, range.size)
    }

    /// Gives back what belongs to pieces of memory that have no further use: handles that gpushare keeps, and
    /// quota.
    pub(crate) fn end_pieces(&self, pieces: impl IntoIterator<Item = Ended>) {
        for Ended { charge: Charge { device, bytes, kind }, held } in pieces {
            if let (Some(Backing { tier, handle }), Some(release)) = (held, self.driver.mem_release) {
                // SAFETY: gpushare's own reference, which nobody uses any more.
                unsafe { release(handle) };
                self.remap.end_created(device, tier, bytes);
            }
            self.give_back(device, bytes, kind);
        }
    }
}

impl Charge {
    /// Charge of memory that gpushare can move.
    pub(crate) const fn movable(device: CUdevice, bytes: Bytes) -> Self {
        Self { device, bytes, kind: MemoryKind::Movable }
    }

    /// Charge of memory that stays on the card.
    pub(crate) const fn fixed(device: CUdevice, bytes: Bytes) -> Self {
        Self { device, bytes, kind: MemoryKind::Fixed }
    }
}
