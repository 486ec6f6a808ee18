//! Utilization of a card, limited to the processes of the caller's session.

use std::ffi::c_uint;

use gpushare_proto::Nanos;
use gpushare_sys::clock;

use super::library::{self, GetSamples, whole};
use super::processes::{hand_over, kept};
use super::session::{Card, Members};
use super::shares::{KEPT, KEPT_WITHOUT_SAMPLES, SHARES, Share};
use super::types::{
    Device, NVML_ERROR_INSUFFICIENT_SIZE, NVML_ERROR_NOT_FOUND, NVML_SUCCESS, NvmlReturn, Sample,
    SampleInfos, Utilization,
};
use crate::state::inquiry;

/// Number of samples that NVML seldom has more of, so that one question suffices.
const USUAL: usize = 1024;

/// `nvmlDeviceGetUtilizationRates`: returns the session's part of the card's own figure. Returns the whole
/// figure where NVML has none per process (MIG, some virtual GPUs).
pub unsafe fn rates(
    real: unsafe extern "C-unwind" fn(Device, *mut Utilization) -> NvmlReturn,
    device: Device,
    rates: *mut Utilization,
) -> NvmlReturn {
    // SAFETY: the caller's own arguments.
    let result = unsafe { real(device, rates) };
    if result != NVML_SUCCESS || rates.is_null() || !inquiry::is_in_session() {
        return result;
    }
    // SAFETY: not null, and the library just wrote it.
    let card = unsafe { rates.read() };
    if card != (Utilization { gpu: 0, memory: 0 }) {
        let own = SHARES.get(device, clock::monotonic(), || share(device)).of(card);
        // SAFETY: not null, so writable.
        unsafe { rates.write(own) };
    }
    result
}

/// Returns the session's present part in the work on a card, by NVML's samples of about one second, and the
/// time for which to keep it.
fn share(device: Device) -> (Share, Nanos) {
    let asked = Members::of_caller().zip(library::get_samples());
    let Some((members, get_samples)) = asked else { return (Share::WHOLE, KEPT) };
    let share = match all_samples(device, get_samples) {
        Ok(all) => Share::of_samples(&all, |sample| members.has(sample.pid)),
        Err(NVML_ERROR_NOT_FOUND) => None,
        Err(_) => return (Share::WHOLE, KEPT),
    };
    if let Some(share) = share {
        return (share, KEPT);
    }
    let strangers = library::running(device).into_iter().any(|process| !members.has(process.pid));
    (if strangers { Share::NOTHING } else { Share::WHOLE }, KEPT_WITHOUT_SAMPLES)
}

fn all_samples(device: Device, get_samples: GetSamples) -> Result<Vec<Sample>, NvmlReturn> {
    let mut samples = vec![Sample::default(); USUAL];
    let mut count = USUAL as c_uint;
    // SAFETY: the room is as large as the count says.
    match unsafe { get_samples(device, samples.as_mut_ptr(), &raw mut count, 0) } {
        NVML_SUCCESS => {
            samples.truncate(count as usize);
            Ok(samples)
        }
        NVML_ERROR_INSUFFICIENT_SIZE => whole(|count, samples| {
            // SAFETY: `whole` provides the room that it passes.
            unsafe { get_samples(device, samples, count, 0) }
        }),
        refused => Err(refused),
    }
}

/// `nvmlDeviceGetProcessUtilization`: returns the samples of the session's processes only.
pub unsafe fn samples(
    real: GetSamples,
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
