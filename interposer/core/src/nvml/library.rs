//! Functions of the real NVML that gpushare calls itself. No function here loads the library.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::ptr::null_mut;

use gpushare_proto::GpuUuid;

use super::types::{Device, NO_INSTANCE, NVML_ERROR_INSUFFICIENT_SIZE, NVML_SUCCESS, NvmlReturn};
use crate::driver::dynlink::LIBNVML;

/// `NVML_DEVICE_UUID_V2_BUFFER_SIZE`: bytes of the longest UUID, its end included.
const UUID_BYTES: usize = 96;
/// Number of times that NVML is asked again for a list because the list grew meanwhile.
const TRIES: u32 = 8;
/// Spare entries for processes that start while a list is being read.
const SPARE: c_uint = 16;

/// Returns the UUID of a device; `None` if the handle is invalid or NVML is not initialised.
pub(super) fn uuid(device: Device) -> Option<GpuUuid> {
    type GetUuid = unsafe extern "C" fn(Device, *mut c_char, c_uint) -> NvmlReturn;
    let mut text = [0; UUID_BYTES];
    // SAFETY: the export has this type (NVML API), and writes no more than it is told.
    let result = unsafe {
        function::<GetUuid>(c"nvmlDeviceGetUUID")?(device, text.as_mut_ptr(), (UUID_BYTES - 1) as c_uint)
    };
    if result != NVML_SUCCESS {
        return None;
    }
    // SAFETY: the last byte of the buffer is never written.
    unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().ok()?.parse().ok()
}

/// Returns the UUIDs of a GPU's MIG instances; empty for a GPU that is not partitioned.
pub(super) fn instances(device: Device) -> Vec<GpuUuid> {
    type GetMost = unsafe extern "C" fn(Device, *mut c_uint) -> NvmlReturn;
    type GetInstance = unsafe extern "C" fn(Device, c_uint, *mut Device) -> NvmlReturn;
    // SAFETY: the exports have these types (NVML API).
    let functions = unsafe {
        function::<GetMost>(c"nvmlDeviceGetMaxMigDeviceCount")
            .zip(function::<GetInstance>(c"nvmlDeviceGetMigDeviceHandleByIndex"))
    };
    let Some((get_most, get_instance)) = functions else { return Vec::new() };
    let mut most = 0;
    // SAFETY: writes one integer.
    if unsafe { get_most(device, &raw mut most) } != NVML_SUCCESS {
        return Vec::new();
    }
    let instance = |index| {
        let mut instance = null_mut();
        // SAFETY: writes one handle.
        let result = unsafe { get_instance(device, index, &raw mut instance) };
        (result == NVML_SUCCESS).then_some(instance)
    };
    (0..most).filter_map(instance).filter_map(uuid).collect()
}

/// Returns the numbers of the GPU instance and the compute instance of a MIG device.
pub(super) fn instance(device: Device) -> (c_uint, c_uint) {
    type GetId = unsafe extern "C" fn(Device, *mut c_uint) -> NvmlReturn;
    let ask = |name| {
        let mut id = NO_INSTANCE;
        // SAFETY: the exports have this type (NVML API), and write one integer.
        unsafe { function::<GetId>(name).map(|get_id| get_id(device, &raw mut id)) };
        id
    };
    (ask(c"nvmlDeviceGetGpuInstanceId"), ask(c"nvmlDeviceGetComputeInstanceId"))
}

/// Reads a whole list from NVML, in an array as long as NVML demands.
pub(super) fn whole<T: Copy + Default>(
    ask: impl Fn(*mut c_uint, *mut T) -> NvmlReturn,
) -> Result<Vec<T>, NvmlReturn> {
    let mut count = 0;
    match ask(&raw mut count, null_mut()) {
        NVML_SUCCESS if count == 0 => return Ok(Vec::new()),
        NVML_SUCCESS | NVML_ERROR_INSUFFICIENT_SIZE => {}
        refused => return Err(refused),
    }
    for _ in 0..TRIES {
        let room = count.saturating_add(SPARE);
        let mut entries = vec![T::default(); room as usize];
        count = room;
        match ask(&raw mut count, entries.as_mut_ptr()) {
            NVML_SUCCESS => {
                entries.truncate(count as usize);
                return Ok(entries);
            }
            NVML_ERROR_INSUFFICIENT_SIZE => {}
            refused => return Err(refused),
        }
    }
    Err(NVML_ERROR_INSUFFICIENT_SIZE)
}

/// Returns NVML's function of this name, if the loaded library has that function.
///
/// # Safety
/// `F` is the function's type.
unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let found = LIBNVML.symbol_if_loaded(name);
    // SAFETY: the caller's promise; not null.
    (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
}
