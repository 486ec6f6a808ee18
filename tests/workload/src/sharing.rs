//! What a program may tell gpushare itself, where that is loaded: found as any program finds it, by `dlsym`
//! in the whole process.

use std::ffi::c_int;

use libloading::os::unix::Library;

use crate::driver::Handle;
use crate::error::CudaError;

const MARK: &str = "gpushare_mark_communication";

/// Says that a stream carries communication, or no more.
pub fn mark_communication(stream: Handle, on: bool) -> Result<(), CudaError> {
    let process = Library::this();
    // SAFETY: gpushare documents this signature.
    let mark = unsafe { process.get::<unsafe extern "C" fn(Handle, c_int) -> c_int>(MARK.as_bytes()) };
    let mark = mark.map_err(|_| CudaError::Missing(MARK))?;
    // SAFETY: takes a handle by value.
    match unsafe { mark(stream, c_int::from(on)) } {
        0 => Ok(()),
        code => Err(CudaError::Driver { call: MARK, code, name: "an error".to_owned() }),
    }
}
