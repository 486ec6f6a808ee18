//! Hooks of memory that is shared with other processes. The driver cannot share managed memory, so such
//! programs need `--backend native`. Shared memory is charged to the process that created it.

use std::sync::atomic::AtomicBool;

use super::addresses::look;
use super::identity::moves;
use crate::driver::types::{CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS, CUdeviceptr, CUresult};
use crate::memory::allocations::Origin;
use crate::process::stderr;
use crate::remap::pins::Reason;
use crate::state::State;

/// `cuIpcGetMemHandle`, `cuMemGetHandleForAddressRange`: refuses managed memory in place of device memory,
/// and prints the reason.
pub fn hand_out(address: CUdeviceptr, real: impl FnOnce() -> CUresult) -> CUresult {
    if moves(address).is_none() {
        return real();
    }
    refuse();
    CUDA_ERROR_NOT_SUPPORTED
}

/// `cuPointerSetAttribute`: prints a reason if the call fails for memory that gpushare can move. Remapped memory with
/// an attribute of its pages stays on the card from then on.
pub fn prepare(address: CUdeviceptr, real: impl FnOnce() -> CUresult) -> CUresult {
    let Some((start, block)) = moves(address) else { return real() };
    look(|| {
        let result = real();
        match State::existing() {
            Some(state) if result == CUDA_SUCCESS && block.origin == Origin::Remapped => {
                // Before this thread leaves the gate, so that the memory stays.
                state.memory.remap.pin(block.device, start, Reason::SyncMemops);
            }
            _ if result != CUDA_SUCCESS => refuse(),
            _ => {}
        }
        result
    })
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
