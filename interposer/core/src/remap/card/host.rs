//! Host memory of one card, registered with the real driver.

use std::ffi::c_void;
use std::ptr::with_exposed_provenance_mut;

use gpushare_proto::Bytes;

use super::{OnCard, room};
use crate::driver::types::{
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, CUDA_SUCCESS,
};
use crate::process::lock;
use crate::remap::host::{HostError, HostMemory};
use crate::remap::regions;
use crate::remap::vmm::HostAddress;

/// Memory that all contexts may use as registered (`CU_MEMHOSTREGISTER_PORTABLE`).
const REGISTER_PORTABLE: u32 = 1;
/// Memory from which the card only reads (`CU_MEMHOSTREGISTER_READ_ONLY`).
const REGISTER_TO_READ: u32 = 8;

impl OnCard {
    /// Registers memory with the driver in a live context of the card.
    fn register_with(
        &self,
        flags: u32,
        HostAddress(address): HostAddress,
        size: Bytes,
    ) -> Result<(), HostError> {
        let memory: *mut c_void = with_exposed_provenance_mut(address as usize);
        let register = |context| {
            // SAFETY: the memory is a mapping of gpushare's own, which lives until it is unregistered.
            let call = || unsafe { (self.calls.register)(memory, size.0 as usize, flags) };
            let registered = match call() {
                // Left from a context that has ended.
                CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => {
                    // SAFETY: gpushare alone registers this memory, and nothing relies on that by now.
                    unsafe { (self.calls.unregister)(memory) };
                    call()
                }
                result => result,
            };
            match registered {
                CUDA_SUCCESS => {
                    // The context does not end before.
                    lock(&self.registered).insert(HostAddress(address), context);
                    Ok(())
                }
                error => Err(error),
            }
        };
        let registered = self.contexts.call_in(self.driver, self.device, register);
        registered.map_err(HostError::Refused)
    }
}

impl HostMemory for OnCard {
    fn touch(&self, size: Bytes) -> Result<HostAddress, HostError> {
        let region = lock(&self.regions).take()?;
        let HostAddress(first) = region;
        match room::touch(size, |offset, part| regions::touch(HostAddress(first + offset.0), part)) {
            Ok(()) => Ok(region),
            Err(error) => {
                // Parts of it may be touched. If they stay, the region is as good for the next touch.
                let _ = regions::drop_pages(region, size);
                lock(&self.regions).give(region);
                Err(error)
            }
        }
    }

    fn register(&self, address: HostAddress, size: Bytes) -> Result<(), HostError> {
        self.register_with(REGISTER_PORTABLE, address, size)
    }

    fn register_to_read(&self, address: HostAddress, size: Bytes) -> Result<(), HostError> {
        self.register_with(REGISTER_PORTABLE | REGISTER_TO_READ, address, size)
    }

    fn end_copy(&self, address: HostAddress, _: Bytes) {
        self.sharing.unmap(address);
    }

    fn unregister(&self, region: HostAddress, _: Bytes) -> Result<(), HostError> {
        let is_registered = || lock(&self.registered).contains_key(&region);
        let unregister = |_| {
            // SAFETY: no slot of the memory is taken, so no copy uses it.
            match unsafe { (self.calls.unregister)(with_exposed_provenance_mut(region.0 as usize)) } {
                CUDA_SUCCESS | CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED => {
                    lock(&self.registered).remove(&region);
                    Ok(())
                }
                error => Err(error),
            }
        };
        match self.contexts.call_in(self.driver, self.device, unregister) {
            // Its context has ended, perhaps since the task began.
            Err(_) if !is_registered() => Ok(()),
            result => result.map_err(HostError::Refused),
        }
    }

    fn unmap(&self, region: HostAddress, size: Bytes) -> Result<(), HostError> {
        regions::drop_pages(region, size)?;
        lock(&self.regions).give(region);
        Ok(())
    }
}
