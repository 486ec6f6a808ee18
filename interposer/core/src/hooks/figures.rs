//! Hooks that report a card's memory: the session's quota as the card's size, and the session's allocations
//! as used memory. NVML reports the same (`nvml::memory`).
//!
//! gpushare asks the driver once for the size of each card, and answers later calls itself. In unusual cases
//! the driver answers, with its own error.

use gpushare_proto::Bytes;

use super::allocation::shared;
use crate::driver::types::{CUDA_SUCCESS, CUdevice, CUresult};
use crate::memory::lease::Figures;
use crate::state::State;
use crate::state::inquiry;

/// `cuMemGetInfo`: reports the session's free memory and quota.
pub unsafe fn get_info(free: *mut usize, total: *mut usize, real: impl FnOnce() -> CUresult) -> CUresult {
    let wanted = !free.is_null() && !total.is_null();
    if wanted && let Some((card, figures)) = known() {
        // SAFETY: both are not null, so writable.
        unsafe { tell(free, total, card, figures) };
        return CUDA_SUCCESS;
    }
    let result = real();
    if let (CUDA_SUCCESS, true, Some((state, device))) = (result, wanted, shared()) {
        state.memory.reclaim(device);
        if let Some(figures) = state.memory.lease.figures(device) {
            // SAFETY: both are writable, and the driver just wrote them.
            unsafe {
                let card = Bytes(total.read() as u64);
                state.memory.lease.set_card_size(device, card);
                tell(free, total, card, figures);
            }
        }
    }
    result
}

/// Returns the card's size and the session's memory figures; `None` if the driver must answer.
fn known() -> Option<(Bytes, Figures)> {
    let state = State::existing()?;
    let device = state.driver.current_device()?;
    let card = state.memory.lease.card_size(device)?;
    state.memory.reclaim(device);
    Some((card, state.memory.lease.figures(device)?))
}

/// # Safety
/// Both pointers are writable.
unsafe fn tell(free: *mut usize, total: *mut usize, card: Bytes, figures: Figures) {
    // SAFETY: the caller's promise.
    unsafe {
        total.write(figures.total(card).0 as usize);
        free.write(figures.free(card).0 as usize);
    }
}

/// `cuDeviceTotalMem`: reports the session's quota. A framework calls this before its first context, without
/// a connection. Then the daemon is asked with the session's token.
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

/// `cuMemGetInfo` of CUDA 2: reports the same, at most the largest 32-bit number.
pub unsafe fn get_info_narrow(free: *mut u32, total: *mut u32, real: impl FnOnce() -> CUresult) -> CUresult {
    let result = real();
    let told = shared().and_then(|(state, device)| {
        let card = state.driver.total(device)?;
        state.memory.reclaim(device);
        let figures = state.memory.lease.figures(device)?;
        Some((figures.free(card), figures.total(card)))
    });
    if let (CUDA_SUCCESS, Some(told), false, false) = (result, told, free.is_null(), total.is_null()) {
        // SAFETY: both are not null, so writable.
        unsafe {
            free.write(narrow(told.0));
            total.write(narrow(told.1));
        }
    }
    result
}

/// `cuDeviceTotalMem` of CUDA 2: reports the same, at most the largest 32-bit number.
pub unsafe fn total_mem_narrow(
    total: *mut u32,
    device: CUdevice,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = real();
    let card = State::get().and_then(|state| state.driver.total(device));
    if let (CUDA_SUCCESS, Some(card), false) = (result, card, total.is_null()) {
        // SAFETY: not null, so writable.
        unsafe { total.write(narrow(size(device, card))) };
    }
    result
}

fn narrow(bytes: Bytes) -> u32 {
    u32::try_from(bytes.0).unwrap_or(u32::MAX)
}

fn size(device: CUdevice, card: Bytes) -> Bytes {
    let Some(state) = State::get() else { return card };
    if let Some(figures) = state.memory.lease.figures(device) {
        return figures.total(card);
    }
    let told = inquiry::session_memory().zip(state.driver.uuid(device));
    told.map_or(card, |(session, uuid)| inquiry::total(&session, uuid).min(card))
}
