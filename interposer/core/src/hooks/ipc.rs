//! Hooks of memory that is shared with other processes. The driver cannot share managed memory, so such
//! programs need `--backend native`. Shared memory is charged to the process that created it.

use std::sync::atomic::AtomicBool;

use super::identity::rewritten;
use crate::driver::types::{CUDA_ERROR_NOT_SUPPORTED, CUdeviceptr, CUresult};
use crate::process::stderr;

/// `cuIpcGetMemHandle`, `cuMemGetHandleForAddressRange`: refuses managed memory in place of device memory,
/// and prints the reason.
pub fn hand_out(address: CUdeviceptr, real: impl FnOnce() -> CUresult) -> CUresult {
    if rewritten(address).is_none() {
        return real();
    }
    refuse();
    CUDA_ERROR_NOT_SUPPORTED
}

/// `cuPointerSetAttribute`: prints a reason if the call fails for managed memory in place of device memory.
pub fn prepare(address: CUdeviceptr, real: impl FnOnce() -> CUresult) -> CUresult {
    let result = real();
    if result != 0 && rewritten(address).is_some() {
        refuse();
    }
    result
}

fn refuse() {
    static PRINTED: AtomicBool = AtomicBool::new(false);
    stderr::print_once(
        &PRINTED,
        format_args!(
            "this program shares device memory with another process or device, but memory that gpushare can move \
             cannot be shared; start it with `gpushare-ctl run --backend native` (or GPUSHARE_BACKEND=native), \
             then its memory stays on the card"
        ),
    );
}
