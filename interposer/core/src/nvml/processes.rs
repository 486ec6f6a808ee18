//! NVML's lists of processes on a card, limited to the processes of the caller's session.

use std::ffi::c_uint;
use std::ptr::null_mut;

use gpushare_proto::tenant::ProcessMemory;

use super::library::{self, whole};
use super::session::Card;
use super::types::{
    Device, NO_INSTANCE, NVML_ERROR_INSUFFICIENT_SIZE, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_FOUND,
    NVML_SUCCESS, NvmlReturn, Process1, Process2, ProcessDetail, ProcessDetailList, Sample, SampleInfo,
};

/// Entry of an NVML list that names a process.
pub trait Entry: Copy + Default {
    /// Returns the pid of the process that the entry names.
    fn pid(&self) -> c_uint;
}

/// Entry of an NVML list of processes that use memory.
pub trait Listed: Entry {
    /// Creates the entry of a process of the session, with the numbers of its GPU instance and compute
    /// instance.
    fn own(process: &ProcessMemory, instance: (c_uint, c_uint)) -> Self;
}

type List<T> = unsafe extern "C-unwind" fn(Device, *mut c_uint, *mut T) -> NvmlReturn;

/// `nvmlDeviceGetComputeRunningProcesses` and its newer forms: lists the session's processes, with the bytes
/// that the daemon counts.
pub unsafe fn running<T: Listed>(
    real: List<T>,
    device: Device,
    count: *mut c_uint,
    infos: *mut T,
) -> NvmlReturn {
    let card = if count.is_null() { None } else { Card::of(device) };
    // SAFETY: the caller's own arguments.
    let Some(card) = card else { return unsafe { real(device, count, infos) } };
    if !card.is_kept() {
        // SAFETY: the caller's own arguments.
        return unsafe { own(real, device, count, infos) };
    }
    let mut none = 0;
    // SAFETY: with no room given, the library writes only the count.
    match unsafe { real(device, &raw mut none, null_mut()) } {
        NVML_SUCCESS | NVML_ERROR_INSUFFICIENT_SIZE => {}
        refused => return refused,
    }
    let instance = match card.uuid.is_instance() {
        true => library::instance(device),
        false => (NO_INSTANCE, NO_INSTANCE),
    };
    let own: Vec<T> = card.processes().iter().map(|process| T::own(process, instance)).collect();
    // SAFETY: the caller's array.
    unsafe { hand_over(&own, count, infos) }
}

/// Lists that the daemon does not keep (graphics processes, MPS clients, accounted pids): NVML's own lists
/// without processes of other sessions.
pub unsafe fn own<T: Entry>(real: List<T>, device: Device, count: *mut c_uint, infos: *mut T) -> NvmlReturn {
    let card = if count.is_null() { None } else { Card::of(device) };
    // SAFETY: the caller's own arguments.
    let Some(card) = card else { return unsafe { real(device, count, infos) } };
    // SAFETY: `whole` provides the room that it passes.
    let all = whole(|room, entries| unsafe { real(device, room, entries) });
    // SAFETY: the caller's array.
    all.map_or_else(|refused| refused, |all| unsafe { hand_over(&kept(&card, all), count, infos) })
}

/// `nvmlDeviceGetRunningProcessDetailList`: lists the session's processes only.
pub unsafe fn details(
    real: unsafe extern "C-unwind" fn(Device, *mut ProcessDetailList) -> NvmlReturn,
    device: Device,
    list: *mut ProcessDetailList,
) -> NvmlReturn {
    let card = if list.is_null() { None } else { Card::of(device) };
    // SAFETY: the caller's own arguments.
    let Some(card) = card else { return unsafe { real(device, list) } };
    // SAFETY: not null; the caller provides it to be read and written.
    let asked = unsafe { &mut *list };
    let all = whole(|room, processes| {
        // SAFETY: `whole` provides the room that it passes, and the list is made here.
        unsafe {
            let mut whole = ProcessDetailList { count: room.read(), processes, ..*asked };
            let result = real(device, &raw mut whole);
            room.write(whole.count);
            result
        }
    });
    let booked = |mut entry: ProcessDetail| {
        let books = card.processes();
        let is_it = |process: &&ProcessMemory| [process.pid, process.outer_pid].contains(&entry.pid);
        let process = books.iter().find(is_it);
        entry.used = process.map_or(entry.used, |process| process.used.0);
        entry
    };
    let own = all.map(|all| kept(&card, all).into_iter().map(booked).collect::<Vec<_>>());
    // SAFETY: the caller's array.
    own.map_or_else(
        |refused| refused,
        |own| unsafe { hand_over(&own, &raw mut asked.count, asked.processes) },
    )
}

/// `nvmlDeviceGetAccountingStats`: refuses processes of other sessions.
pub unsafe fn accounting<T>(
    real: unsafe extern "C-unwind" fn(Device, c_uint, *mut T) -> NvmlReturn,
    device: Device,
    pid: c_uint,
    stats: *mut T,
) -> NvmlReturn {
    if Card::of(device).is_some_and(|card| !card.owns(pid)) {
        return NVML_ERROR_NOT_FOUND;
    }
    // SAFETY: the caller's own arguments.
    unsafe { real(device, pid, stats) }
}

pub(super) fn kept<T: Entry>(card: &Card, all: Vec<T>) -> Vec<T> {
    all.into_iter().filter(|entry| card.owns(entry.pid())).collect()
}

/// Writes a list as NVML does: always the length, and the entries if the caller's array is long enough.
///
/// # Safety
/// `count` is readable and writable, and `entries` has room for as many as it says.
pub(super) unsafe fn hand_over<T: Copy>(own: &[T], count: *mut c_uint, entries: *mut T) -> NvmlReturn {
    // SAFETY: the caller's promise.
    let room = unsafe { count.read() } as usize;
    // SAFETY: the caller's promise. The number of processes of a card fits.
    unsafe { count.write(own.len() as c_uint) };
    if own.len() > room {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    if own.is_empty() {
        return NVML_SUCCESS;
    }
    if entries.is_null() {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    // SAFETY: the comparison above showed that there is room.
    unsafe { entries.copy_from_nonoverlapping(own.as_ptr(), own.len()) };
    NVML_SUCCESS
}

impl Entry for c_uint {
    fn pid(&self) -> c_uint {
        *self
    }
}

macro_rules! entries {
    ($($entry:ty)*) => {$(
        impl Entry for $entry {
            fn pid(&self) -> c_uint {
                self.pid
            }
        }
    )*};
}

entries! { Process1 Process2 ProcessDetail Sample SampleInfo }

impl Listed for Process1 {
    fn own(process: &ProcessMemory, _: (c_uint, c_uint)) -> Self {
        Self { pid: process.pid, used: process.used.0 }
    }
}

impl Listed for Process2 {
    fn own(process: &ProcessMemory, (gpu_instance, compute_instance): (c_uint, c_uint)) -> Self {
        Self { pid: process.pid, used: process.used.0, gpu_instance, compute_instance }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three(count: *mut c_uint, entries: *mut c_uint) -> NvmlReturn {
        // SAFETY: the callers below give the room that they state.
        unsafe { hand_over(&[7, 8, 9], count, entries) }
    }

    #[test]
    fn a_list_is_read_whole_however_long_it_is() {
        assert_eq!(whole(three), Ok(vec![7, 8, 9]));
        assert_eq!(whole::<c_uint>(|_, _| NVML_SUCCESS), Ok(vec![]));
        assert_eq!(whole::<c_uint>(|_, _| 3), Err(3));
    }

    #[test]
    fn who_gives_too_little_room_is_told_how_much_it_takes() {
        let (mut count, mut entries) = (2, [0; 4]);
        assert_eq!(three(&raw mut count, entries.as_mut_ptr()), NVML_ERROR_INSUFFICIENT_SIZE);
        assert_eq!((count, entries), (3, [0; 4]));
        count = 4;
        assert_eq!(three(&raw mut count, entries.as_mut_ptr()), NVML_SUCCESS);
        assert_eq!((count, entries), (3, [7, 8, 9, 0]));
        assert_eq!(three(&raw mut count, null_mut()), NVML_ERROR_INVALID_ARGUMENT);
    }
}
