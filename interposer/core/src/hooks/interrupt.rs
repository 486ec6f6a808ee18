//! Functions by which the program ends the waits of its threads at the closed gate (`gate/interrupt.rs`).

use std::ffi::c_int;

use gpushare_sys::clock;

use crate::driver::types::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM, CUDA_SUCCESS, CUresult};
use crate::gate::interrupt::INTERRUPTS;
use crate::gate::wake_sleepers;

/// Ends the waits of all threads, and those that begin within a second or until [`interrupt_over`].
pub fn interrupt() -> CUresult {
    INTERRUPTS.request(clock::monotonic());
    wake_sleepers();
    CUDA_SUCCESS
}

/// Lets waits begin again, once the signals that the program has heard of have been read from its pipe.
pub fn interrupt_over() -> CUresult {
    INTERRUPTS.end();
    CUDA_SUCCESS
}

/// Ends the waits of all threads whenever `signal` is read from `pipe`, and writes every byte of it on to
/// `next`, unless that is negative.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a number that is no signal's, `CUDA_ERROR_OPERATING_SYSTEM` if a descriptor
/// is not open or the thread that reads cannot be started.
pub fn interrupt_on(pipe: c_int, signal: c_int, next: c_int) -> CUresult {
    let Ok(signal @ 1..=64) = u8::try_from(signal) else { return CUDA_ERROR_INVALID_VALUE };
    match INTERRUPTS.watch(pipe, signal, next, || {
        interrupt();
    }) {
        Ok(()) => CUDA_SUCCESS,
        Err(_) => CUDA_ERROR_OPERATING_SYSTEM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_numbers_are_refused() {
        assert_eq!(interrupt_on(0, 0, -1), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(interrupt_on(0, 65, -1), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(interrupt_on(-1, 2, -1), CUDA_ERROR_OPERATING_SYSTEM);
    }
}
