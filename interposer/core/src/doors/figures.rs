//! What CUDA tells about a card's memory: the session's quota as the card's size, what the session has as what is used.
//! NVML tells the same (`nvml::memory`).

use gpushare_proto::Bytes;

use super::allocation::shared;
use crate::account;
use crate::cuda::{CUDA_SUCCESS, CUdevice, CUresult};
use crate::process::State;

/// `cuMemGetInfo`.
///
/// # Safety
/// Both pointers are null or writable, as the driver's function demands.
pub unsafe fn get_info(free: *mut usize, total: *mut usize, real: impl FnOnce() -> CUresult) -> CUresult {
    let result = real();
    let figures = shared().and_then(|(state, device)| {
        state.look_at_pools(device);
        state.leases.figures(device)
    });
    if let (CUDA_SUCCESS, Some(figures), false, false) = (result, figures, free.is_null(), total.is_null()) {
        // SAFETY: both are writable, and the driver just wrote both.
        unsafe {
            let card = Bytes(total.read() as u64);
            total.write(figures.total(card).0 as usize);
            free.write(figures.free(card).0 as usize);
        }
    }
    result
}

/// `cuDeviceTotalMem`. Frameworks ask before their first context, when the process is no client yet: then the daemon
/// is asked by the session's token.
///
/// # Safety
/// `total` is null or writable, as the driver's function demands.
pub unsafe fn total_mem(total: *mut usize, device: CUdevice, real: impl FnOnce() -> CUresult) -> CUresult {
    let result = real();
    if result == CUDA_SUCCESS && !total.is_null() {
        // SAFETY: writable, and the driver just wrote it.
        unsafe {
            let card = Bytes(total.read() as u64);
            total.write(size(device, card).0 as usize);
        }
    }
    result
}

fn size(device: CUdevice, card: Bytes) -> Bytes {
    let Some(state) = State::get() else { return card };
    if let Some(figures) = state.leases.figures(device) {
        return figures.total(card);
    }
    let told = account::present().zip(state.uuid(device));
    told.map_or(card, |(account, uuid)| account::total(&account, uuid).min(card))
}
