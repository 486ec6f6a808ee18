//! Samples of the work of processes, limited to the processes of the caller's session.

use std::ffi::c_uint;

use super::library::whole;
use super::processes::{hand_over, kept};
use super::session::Card;
use super::types::{Device, NVML_ERROR_NOT_FOUND, NVML_SUCCESS, NvmlReturn, Sample, SampleInfos};

/// `nvmlDeviceGetProcessUtilization`: returns the samples of the session's processes only.
pub unsafe fn samples(
    real: unsafe extern "C-unwind" fn(Device, *mut Sample, *mut c_uint, u64) -> NvmlReturn,
    device: Device,
    samples: *mut Sample,
    count: *mut c_uint,
    last_seen: u64,
) -> NvmlReturn {
    let card = if count.is_null() { None } else { Card::of(device) };
    // SAFETY: the caller's own arguments.
    let Some(card) = card else { return unsafe { real(device, samples, count, last_seen) } };
    // SAFETY: `whole` provides the room that it passes.
    let all = whole(|room, samples| unsafe { real(device, samples, room, last_seen) });
    // SAFETY: the caller's array.
    all.map_or_else(|refused| refused, |all| unsafe { hand_over_some(&kept(&card, all), count, samples) })
}

/// `nvmlDeviceGetProcessesUtilizationInfo`: returns the samples of the session's processes only.
pub unsafe fn infos(
    real: unsafe extern "C-unwind" fn(Device, *mut SampleInfos) -> NvmlReturn,
    device: Device,
    infos: *mut SampleInfos,
) -> NvmlReturn {
    let card = if infos.is_null() { None } else { Card::of(device) };
    // SAFETY: the caller's own arguments.
    let Some(card) = card else { return unsafe { real(device, infos) } };
    // SAFETY: not null; the caller provides it to be read and written.
    let asked = unsafe { &mut *infos };
    let all = whole(|room, samples| {
        // SAFETY: `whole` provides the room that it passes, and the list is made here.
        unsafe {
            let mut whole = SampleInfos { count: room.read(), samples, ..*asked };
            let result = real(device, &raw mut whole);
            room.write(whole.count);
            result
        }
    });
    // SAFETY: the caller's array.
    all.map_or_else(
        |refused| refused,
        |all| unsafe { hand_over_some(&kept(&card, all), &raw mut asked.count, asked.samples) },
    )
}

/// Writes a list of samples. An empty list gives the error `NVML_ERROR_NOT_FOUND`, as in NVML.
///
/// # Safety
/// `count` and `samples` must be as [`hand_over`] requires.
unsafe fn hand_over_some<T: Copy>(own: &[T], count: *mut c_uint, samples: *mut T) -> NvmlReturn {
    // SAFETY: the caller's promise.
    match unsafe { hand_over(own, count, samples) } {
        NVML_SUCCESS if own.is_empty() => NVML_ERROR_NOT_FOUND,
        result => result,
    }
}
