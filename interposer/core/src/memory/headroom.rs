//! Headroom: free memory of a card that the driver takes for its own use (contexts, code, arrays, memory by
//! handle).
//!
//! After a driver call found no memory, the process asks the daemon for headroom. If fixed memory leaves enough
//! of the card, an allocation is repeated once, since the driver itself moves managed memory away.
//!
//! A program that gets no memory for an allocation may free some of its own. It can do nothing about a context or about
//! code, so such calls are repeated for a while. Meanwhile the driver may take back the memory of a program that has
//! just died, and remapped memory of others may leave.

use std::thread;
use std::time::{Duration, Instant};

use gpushare_proto::Bytes;
use gpushare_sys::unwind::{cancellation_point, uncancelled};

use super::Memory;
use crate::driver::types::{CUDA_ERROR_OUT_OF_MEMORY, CUdevice, CUresult};
use crate::process::is_exiting;

/// Least memory with which it is worth while to repeat a call that creates a context or loads code.
const DRIVER: Bytes = Bytes::mib(64);
/// Longest time for which such a call is repeated. A driver took 60 to 80 ms to take back 32 GiB of a killed program.
const PATIENCE: Duration = Duration::from_secs(3);
/// Pause between two of these calls.
const PAUSE: Duration = Duration::from_millis(20);
/// Time after which the daemon is asked again.
const AGAIN: Duration = Duration::from_secs(1);

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

    /// Calls the driver, which needs memory for a context or for code. While it has none, tells the daemon and calls
    /// again, for about [`PATIENCE`]. Whether the card has room by the accounts of the daemon is not decisive: they
    /// count the memory of programs that have just died, or whose return the daemon awaits.
    pub(crate) fn call_for_the_driver(
        &self,
        device: CUdevice,
        mut call: impl FnMut() -> CUresult,
    ) -> CUresult {
        let mut result = call();
        let begun = Instant::now();
        while result == CUDA_ERROR_OUT_OF_MEMORY && begun.elapsed() < PATIENCE && !is_exiting() {
            let has_freed = self.collect_frees();
            if self.daemon.link().is_none() {
                return if has_freed { call() } else { result };
            }
            self.ask_headroom(device, DRIVER);
            result = self.call_with_pauses(&mut call);
        }
        result
    }

    /// Calls the driver until it has memory, the daemon is to be asked again, or the process exits.
    fn call_with_pauses(&self, mut call: impl FnMut() -> CUresult) -> CUresult {
        let begun = Instant::now();
        loop {
            let result = call();
            if result != CUDA_ERROR_OUT_OF_MEMORY || begun.elapsed() >= AGAIN || is_exiting() {
                return result;
            }
            uncancelled(|| thread::sleep(PAUSE));
            cancellation_point();
            self.collect_frees();
        }
    }

    /// Tells the daemon that the driver has no memory for `bytes`. Returns whether the card has room for them beside
    /// fixed memory.
    pub(crate) fn ask_headroom(&self, device: CUdevice, bytes: Bytes) -> bool {
        let asked = self.daemon.link().zip(self.lease.gpu(device));
        asked.is_some_and(|(link, gpu)| link.ask_headroom(device, gpu, bytes).is_ok())
    }
}
