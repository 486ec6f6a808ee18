//! Headroom: free memory of a card that the driver takes for its own use (contexts, code, arrays, memory by
//! handle).
//!
//! After a driver call found no memory, the process asks the daemon for headroom. If fixed memory leaves enough
//! of the card, the call is repeated once, since the driver itself moves managed memory away.

use gpushare_proto::Bytes;

use super::Memory;
use crate::driver::types::{CUDA_ERROR_OUT_OF_MEMORY, CUdevice, CUresult};

/// Least memory with which it is worth while to repeat a call that creates a context or loads code.
pub(crate) const DRIVER: Bytes = Bytes::mib(64);

impl Memory {
    /// Calls the driver. If the driver has no memory and the daemon says that the card has room for `bytes`,
    /// calls once more.
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

    /// Tells the daemon that the driver has no memory for `bytes`. Returns whether the card has room for them beside
    /// fixed memory.
    pub(crate) fn ask_headroom(&self, device: CUdevice, bytes: Bytes) -> bool {
        let asked = self.daemon.link().zip(self.lease.gpu(device));
        asked.is_some_and(|(link, gpu)| link.ask_headroom(device, gpu, bytes).is_ok())
    }
}
