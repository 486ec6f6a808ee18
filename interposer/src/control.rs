//! `ioctl`: every call goes to the C library. One answer of the NVIDIA driver is corrected afterwards (see
//! `gpushare_client::nvml::control`).
//!
//! Every program calls `ioctl`. A call that is not about NVIDIA costs one load, one comparison and one jump.

use std::ffi::{c_int, c_ulong, c_void};

use gpushare_client::nvml::control::{answered, is_of_interest, real};

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ioctl(file: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's own arguments.
    let result = unsafe { real()(file, request, argument) };
    if is_of_interest(request, result) {
        // SAFETY: a control call that the driver answered.
        unsafe { answered(argument) };
    }
    result
}
