//! Headroom: free memory of a card that the driver takes for its own use (contexts, code, arrays, memory by
//! handle).
//!
//! The process announces such memory to the daemon first, and asks again if the driver found none. A driver
//! call that found no memory is repeated once after the answer. The driver itself moves managed memory away.

use gpushare_proto::Bytes;

use super::Memory;
use crate::driver::types::{CUDA_ERROR_OUT_OF_MEMORY, CUdevice, CUresult};

/// Assumed size of a context until one is measured.
pub(crate) const CONTEXT: Bytes = Bytes::mib(700);
/// Assumed size of a green context, besides its primary context.
pub(crate) const GREEN_CONTEXT: Bytes = Bytes::mib(16);
/// Assumed size of a module, including what its kernels need.
pub(crate) const MODULE: Bytes = Bytes::mib(64);

impl Memory {
    /// Asks the daemon for headroom, then proceeds like [`Self::call_with_headroom`].
    pub(crate) fn ask_and_call(
        &self,
        device: CUdevice,
        bytes: Bytes,
        call: impl FnMut() -> CUresult,
    ) -> CUresult {
        self.ask_headroom(device, bytes);
        self.call_with_headroom(device, bytes, call)
    }

    /// Calls the driver. If the driver has no memory, asks the daemon for headroom and calls once more.
    #[inline]
    pub(crate) fn call_with_headroom(
        &self,
        device: CUdevice,
        bytes: Bytes,
        mut call: impl FnMut() -> CUresult,
    ) -> CUresult {
        match call() {
            CUDA_ERROR_OUT_OF_MEMORY if self.collect_frees() | self.ask_headroom(device, bytes) => call(),
            result => result,
        }
    }

    fn ask_headroom(&self, device: CUdevice, bytes: Bytes) -> bool {
        let asked = self.daemon.link().zip(self.lease.gpu(device));
        asked.is_some_and(|(link, gpu)| link.ask_headroom(device, gpu, bytes).is_ok())
    }
}
