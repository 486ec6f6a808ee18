//! Headroom: free memory of the card that the driver takes for its own use (contexts, code, arrays, memory by
//! handle).
//!
//! The daemon is told before such memory is taken, and asked again where the driver has none. A driver moves
//! managed memory out of the way by itself, so a call that found no memory is made once more after the
//! answer.

use gpushare_proto::Bytes;

use super::Memory;
use crate::driver::types::{CUDA_ERROR_OUT_OF_MEMORY, CUdevice, CUresult};

/// Assumed size of a context until it is measured.
pub(crate) const CONTEXT: Bytes = Bytes::mib(700);
/// Assumed size of a green context beside its primary one.
pub(crate) const GREEN_CONTEXT: Bytes = Bytes::mib(16);
/// Assumed size of a module with what its kernels need.
pub(crate) const MODULE: Bytes = Bytes::mib(64);

impl Memory {
    /// Asks for headroom for the driver's memory, then calls as [`Self::call_with_headroom`].
    pub(crate) fn ask_and_call(
        &self,
        device: CUdevice,
        bytes: Bytes,
        call: impl FnMut() -> CUresult,
    ) -> CUresult {
        self.ask_headroom(device, bytes);
        self.call_with_headroom(device, bytes, call)
    }

    /// Calls; where the driver is out of memory, asks for headroom and calls once more.
    #[inline]
    pub(crate) fn call_with_headroom(
        &self,
        device: CUdevice,
        bytes: Bytes,
        mut call: impl FnMut() -> CUresult,
    ) -> CUresult {
        match call() {
            CUDA_ERROR_OUT_OF_MEMORY if self.ask_headroom(device, bytes) => call(),
            result => result,
        }
    }

    fn ask_headroom(&self, device: CUdevice, bytes: Bytes) -> bool {
        let asked = self.daemon.link().zip(self.lease.gpu(device));
        asked.is_some_and(|(link, gpu)| link.ask_headroom(device, gpu, bytes).is_ok())
    }
}
