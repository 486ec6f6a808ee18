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

/// `cuMemGetInfo` of CUDA 2: as much of it as 32 bits can say.
///
/// # Safety
/// Both pointers are null or writable, as the driver's function demands.
pub unsafe fn get_info_narrow(free: *mut u32, total: *mut u32, real: impl FnOnce() -> CUresult) -> CUresult {
    let result = real();
    let told = shared().and_then(|(state, device)| {
        let card = state.total(device)?;
        state.look_at_pools(device);
        let figures = state.leases.figures(device)?;
        Some((figures.free(card), figures.total(card)))
    });
    if let (CUDA_SUCCESS, Some(told), false, false) = (result, told, free.is_null(), total.is_null()) {
        // SAFETY: both are writable.
        unsafe {
            free.write(narrow(told.0));
            total.write(narrow(told.1));
        }
    }
    result
}

/// `cuDeviceTotalMem` of CUDA 2.
///
/// # Safety
/// `total` is null or writable, as the driver's function demands.
pub unsafe fn total_mem_narrow(total: *mut u32, device: CUdevice, real: impl FnOnce() -> CUresult) -> CUresult {
    let result = real();
    let card = State::get().and_then(|state| state.total(device));
    if let (CUDA_SUCCESS, Some(card), false) = (result, card, total.is_null()) {
        // SAFETY: writable.
        unsafe { total.write(narrow(size(device, card))) };
    }
    result
}

fn narrow(bytes: Bytes) -> u32 {
    u32::try_from(bytes.0).unwrap_or(u32::MAX)
}

fn size(device: CUdevice, card: Bytes) -> Bytes {
    let Some(state) = State::get() else { return card };
    if let Some(figures) = state.leases.figures(device) {
        return figures.total(card);
    }
    let told = account::present().zip(state.uuid(device));
    told.map_or(card, |(account, uuid)| account::total(&account, uuid).min(card))
}
