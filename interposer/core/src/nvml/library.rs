//! The real NVML: the functions behind our hooks, and the few that we ask ourselves.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use gpushare_proto::GpuUuid;

use super::types::{Device, NO_INSTANCE, NVML_SUCCESS, NvmlReturn, Sample};
use crate::driver::dynlink;

/// Room for `NVML_DEVICE_UUID_V2_BUFFER_SIZE`.
const UUID_ROOM: usize = 96;

static LIBRARY: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// The real library's `name`, or null: without the library in the process too, if it is only to be `loaded` already.
pub(super) fn symbol(name: &CStr, loaded: bool) -> *mut c_void {
    let library = library(if loaded { libc::RTLD_NOLOAD } else { 0 });
    if library.is_null() {
        return null_mut();
    }
    // SAFETY: the handle came from `dlopen` and is never closed.
    unsafe { dynlink::symbol_in(library, name) }
}

fn library(flags: c_int) -> *mut c_void {
    let known = LIBRARY.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a literal name. Whatever path it was loaded from, it is found by this one.
    let library = unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_LAZY | flags) };
    LIBRARY.store(library, Ordering::Release);
    library
}

/// The identity of a device; `None` for what is none, or where NVML is not initialised.
pub(super) fn uuid(device: Device) -> Option<GpuUuid> {
    type GetUuid = unsafe extern "C" fn(Device, *mut c_char, c_uint) -> NvmlReturn;
    let get_uuid = symbol(c"nvmlDeviceGetUUID", true);
    if get_uuid.is_null() {
        return None;
    }
    let mut text = [0; UUID_ROOM];
    // SAFETY: the library's export of this name has this type (NVML API); it writes within the room it is given.
    let result = unsafe {
        let get_uuid = std::mem::transmute::<*mut c_void, GetUuid>(get_uuid);
        get_uuid(device, text.as_mut_ptr(), (UUID_ROOM - 1) as c_uint)
    };
    if result != NVML_SUCCESS {
        return None;
    }
    // SAFETY: the last byte of the buffer is never written.
    unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().ok()?.parse().ok()
}

/// The identities of the MIG instances of a divided GPU; none of anything else.
pub(super) fn instances(device: Device) -> Vec<GpuUuid> {
    type GetMost = unsafe extern "C" fn(Device, *mut c_uint) -> NvmlReturn;
    type GetInstance = unsafe extern "C" fn(Device, c_uint, *mut Device) -> NvmlReturn;
    let get_most = symbol(c"nvmlDeviceGetMaxMigDeviceCount", true);
    let get_instance = symbol(c"nvmlDeviceGetMigDeviceHandleByIndex", true);
    if get_most.is_null() || get_instance.is_null() {
        return Vec::new();
    }
    // SAFETY: the library's exports of these names have these types (NVML API).
    let (get_most, get_instance) = unsafe {
        (
            std::mem::transmute::<*mut c_void, GetMost>(get_most),
            std::mem::transmute::<*mut c_void, GetInstance>(get_instance),
        )
    };
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

/// The numbers of GPU instance and compute instance of a MIG instance's device.
pub(super) fn instance(device: Device) -> (c_uint, c_uint) {
    type GetId = unsafe extern "C" fn(Device, *mut c_uint) -> NvmlReturn;
    let ask = |name| {
        let get_id = symbol(name, true);
        let mut id = NO_INSTANCE;
        if !get_id.is_null() {
            // SAFETY: the library's exports of these names have this type (NVML API), and write one integer.
            unsafe { std::mem::transmute::<*mut c_void, GetId>(get_id)(device, &raw mut id) };
        }
        id
    };
    (ask(c"nvmlDeviceGetGpuInstanceId"), ask(c"nvmlDeviceGetComputeInstanceId"))
}

/// `nvmlDeviceGetProcessUtilization`.
pub(super) type GetSamples = unsafe extern "C-unwind" fn(Device, *mut Sample, *mut c_uint, u64) -> NvmlReturn;

/// The function that knows the card's utilization by process, where the library has it.
pub(super) fn get_samples() -> Option<GetSamples> {
    let found = symbol(c"nvmlDeviceGetProcessUtilization", true);
    // SAFETY: the library's export of this name has this type (NVML API); null becomes `None`.
    unsafe { std::mem::transmute::<*mut c_void, Option<GetSamples>>(found) }
}
