//! Utilization of a card, limited to the processes of the caller's session.

use std::ffi::c_uint;

use super::library::{self, GetSamples};
use super::processes::{hand_over, kept, whole};
use super::session::Card;
use super::types::{
    Device, NVML_ERROR_NOT_FOUND, NVML_SUCCESS, NvmlReturn, Sample, SampleInfos, Utilization,
};

/// `nvmlDeviceGetUtilizationRates`: returns the sum over the session's processes, at most the card's own
/// figure. Returns the card's figure where NVML has none per process (MIG, some virtual GPUs).
pub unsafe fn rates(
    real: unsafe extern "C-unwind" fn(Device, *mut Utilization) -> NvmlReturn,
    device: Device,
    rates: *mut Utilization,
) -> NvmlReturn {
    // SAFETY: the caller's own arguments.
    let result = unsafe { real(device, rates) };
    let card = if result == NVML_SUCCESS && !rates.is_null() { Card::of(device) } else { None };
    let Some((card, get_samples)) = card.zip(library::get_samples()) else { return result };
    // SAFETY: `whole` provides the room that it passes. NVML keeps samples of about one second, all of which
    // are read.
    let own = match whole(|count, samples| unsafe { get_samples(device, samples, count, 0) }) {
        Ok(all) => kept(&card, all),
        Err(NVML_ERROR_NOT_FOUND) => Vec::new(),
        Err(_) => return result,
    };
    let sum = |part: fn(&Sample) -> c_uint| newest(&own).map(part).fold(0, c_uint::saturating_add);
    // SAFETY: not null, and the library just wrote it.
    unsafe {
        let all = rates.read();
        rates.write(Utilization {
            gpu: all.gpu.min(sum(|sample| sample.sm)),
            memory: all.memory.min(sum(|sample| sample.memory)),
        });
    }
    result
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

fn newest(samples: &[Sample]) -> impl Iterator<Item = &Sample> {
    let is_last = |sample: &Sample| {
        samples
            .iter()
            .filter(|other| other.pid == sample.pid)
            .all(|other| other.timestamp < sample.timestamp || std::ptr::eq(other, sample))
    };
    samples.iter().filter(move |sample| is_last(sample))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_process_its_last_sample_counts() {
        let sample = |pid, timestamp, sm| Sample { pid, timestamp, sm, ..Sample::default() };
        let samples = [sample(1, 10, 90), sample(2, 10, 5), sample(1, 20, 30)];
        let sm: Vec<_> = newest(&samples).map(|sample| (sample.pid, sample.sm)).collect();
        assert_eq!(sm, [(2, 5), (1, 30)]);
    }
}
