//! `ioctl`: passed on as it came, but for one answer of the NVIDIA driver's (`gpushare_client::nvml::control` says which).
//! Every program calls it, so all others cost a load, a comparison and a jump.

use std::ffi::{c_int, c_ulong, c_void};

use gpushare_client::nvml::control::{answered, is_of_interest, real};

/// `ioctl(2)`.
///
/// # Safety
/// As ioctl(2).
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
