//! What a program may tell us itself, by functions of ours that it finds with `dlsym` where gpushare is loaded.

use std::ffi::c_int;

use gpushare_client::cuda::{CUresult, CUstream};
use gpushare_client::guest::guest;
use gpushare_client::marked::mark;

/// `int gpushare_mark_communication(CUstream stream, int on)`: the stream carries communication with other cards from now on, or no
/// more. Answers a `CUresult`.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn gpushare_mark_communication(stream: CUstream, on: c_int) -> CUresult {
    guest(|| mark(stream, on != 0))
}
