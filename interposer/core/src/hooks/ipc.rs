//! Memory that is handed to other processes. What we rewrote may move, and the driver hands out none of it: programs that
//! share memory so need `--backend native`. What another process opens is charged to the one that made it.

use std::sync::atomic::AtomicBool;

use super::identity::rewritten;
use crate::driver::types::{CUDA_ERROR_NOT_SUPPORTED, CUdeviceptr, CUresult};
use crate::process::stderr;

/// `cuIpcGetMemHandle`, `cuMemGetHandleForAddressRange`.
pub fn hand_out(address: CUdeviceptr, real: impl FnOnce() -> CUresult) -> CUresult {
    if rewritten(address).is_none() {
        return real();
    }
    refuse();
    CUDA_ERROR_NOT_SUPPORTED
}

/// `cuPointerSetAttribute`: what prepares memory for other devices fails for managed memory.
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
            "this program shares memory of the card with another process or device, which memory that moves cannot; \
             start it with `gpushare-ctl run --backend native` (or GPUSHARE_BACKEND=native), then its memory stays on the card"
        ),
    );
}
