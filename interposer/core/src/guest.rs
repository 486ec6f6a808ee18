//! What a panic of ours becomes: never the application's. What unwinds through us for reasons of the application's
//! own (`gpushare_sys::unwind` tells which) is none of our business and passes.

use gpushare_sys::unwind::stop_panics;

use crate::driver::types::{CUDA_ERROR_UNKNOWN, CUresult};
use crate::notice;

/// Runs a hook. A panic becomes an error code and a line.
#[inline]
pub fn guest(hook: impl FnOnce() -> CUresult) -> CUresult {
    guest_or(hook, || CUDA_ERROR_UNKNOWN)
}

/// Runs what has another answer than an error code for a panic.
#[inline]
pub fn guest_or<T>(work: impl FnOnce() -> T, otherwise: impl FnOnce() -> T) -> T {
    match stop_panics(work) {
        Some(made) => made,
        None => {
            apologise();
            otherwise()
        }
    }
}

#[cold]
fn apologise() {
    notice::say(format_args!("internal error in a CUDA call; please report it"));
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
