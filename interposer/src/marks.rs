//! Functions of gpushare that a program may call. It finds them with `dlsym` where gpushare is loaded.

use std::ffi::c_int;

use gpushare_client::driver::types::{CUresult, CUstream};
use gpushare_client::hooks::marks::mark;
use gpushare_client::process::panics::guest;

/// `int gpushare_mark_communication(CUstream stream, int on)`: marks or unmarks `stream` as one that carries
/// communication with other cards. Returns a `CUresult`.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn gpushare_mark_communication(stream: CUstream, on: c_int) -> CUresult {
    guest(|| mark(stream, on != 0))
}
