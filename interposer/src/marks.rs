//! Functions of gpushare that a program may call. It finds them with `dlsym` where gpushare is loaded.

use std::ffi::c_int;

use gpushare_client::driver::types::{CUresult, CUstream};
use gpushare_client::hooks::interrupt::{interrupt, interrupt_on, interrupt_over};
use gpushare_client::hooks::marks::mark;
use gpushare_client::hooks::waits::{release, waiting};
use gpushare_client::process::panics::guest;

/// `int gpushare_mark_communication(CUstream stream, int on)`: marks or unmarks `stream` as one that carries
/// communication with other cards. Returns a `CUresult`.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn gpushare_mark_communication(stream: CUstream, on: c_int) -> CUresult {
    guest(|| mark(stream, on != 0))
}

/// `int gpushare_interrupt(void)`: ends the waits of all threads at the closed gate, and those that begin
/// within a second or until `gpushare_interrupt_over`. Each call that waits returns 800
/// (`CUDA_ERROR_NOT_PERMITTED`) and has no effect.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn gpushare_interrupt() -> CUresult {
    guest(interrupt)
}

/// `int gpushare_interrupt_on(int pipe, int signal, int next)`: does so from now on whenever `signal` is
/// read from `pipe`, one byte for each signal, and writes every byte on to `next` (-1 for none). Starts a
/// thread that reads, which ends with the pipe. A further call for the same pipe changes `next` and lets waits
/// begin again. Returns a `CUresult`.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn gpushare_interrupt_on(pipe: c_int, signal: c_int, next: c_int) -> CUresult {
    guest(|| interrupt_on(pipe, signal, next))
}

/// `int gpushare_interrupt_over(void)`: lets waits begin again, since the program has heard of the signal: its
/// handler runs. Waits until the signals in the pipe have been read, at most for 0.1 s. Returns a `CUresult`.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn gpushare_interrupt_over() -> CUresult {
    guest(interrupt_over)
}

/// `uint64_t gpushare_waiting(void)`: returns for how long a thread of the process has waited for the card,
/// in nanoseconds; 0 if none waits.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn gpushare_waiting() -> u64 {
    waiting()
}

/// `int gpushare_release(void)`: gives the card back as soon as no work is in flight. A launch before that
/// keeps it. Returns a `CUresult`.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn gpushare_release() -> CUresult {
    guest(release)
}
