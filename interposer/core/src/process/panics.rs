//! Panics of the library end in the hook and never reach the application. Other unwinding, such as a
//! cancelled thread or an exception of a callback, passes through (`gpushare_sys::unwind` tells them apart).

use gpushare_sys::unwind::stop_panics;

use super::stderr;
use crate::driver::types::{CUDA_ERROR_UNKNOWN, CUresult};

/// Runs a hook. A panic inside becomes `CUDA_ERROR_UNKNOWN` and a line on stderr.
#[inline]
pub fn guest(hook: impl FnOnce() -> CUresult) -> CUresult {
    guest_or(hook, || CUDA_ERROR_UNKNOWN)
}

/// Runs `work`. If `work` panics, prints a line and returns `otherwise()`.
#[inline]
pub fn guest_or<T>(work: impl FnOnce() -> T, otherwise: impl FnOnce() -> T) -> T {
    stop_panics(work).unwrap_or_else(|| {
        report();
        otherwise()
    })
}

#[cold]
fn report() {
    stderr::print(format_args!("internal error in a CUDA call; please report it"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::types::CUDA_SUCCESS;

    #[test]
    fn a_panic_in_a_hook_is_an_error_code() {
        assert_eq!(guest(|| std::panic::resume_unwind(Box::new(()))), CUDA_ERROR_UNKNOWN);
        assert_eq!(guest(|| CUDA_SUCCESS), CUDA_SUCCESS);
    }
}
