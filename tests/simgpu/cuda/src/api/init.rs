//! Start, version, names of errors.

use crate::api::prelude::*;
use crate::codes::describe;
use crate::driver;

api! {
    fn cuInit("cuInit", 2000)(flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        driver::init()
    }

    fn cuDriverGetVersion("cuDriverGetVersion", 2020)(version: Out<i32>) {
        version.set(driver::version())
    }

    fn cuGetErrorName("cuGetErrorName", 6000)(error: u32, name: Out<*const c_char>) {
        let found = describe(error).map(|(name, _)| name.as_ptr());
        name.set(found.unwrap_or(std::ptr::null()))?;
        found.map(|_| ()).ok_or(Code::INVALID_VALUE)
    }

    fn cuGetErrorString("cuGetErrorString", 6000)(error: u32, text: Out<*const c_char>) {
        let found = describe(error).map(|(_, text)| text.as_ptr());
        text.set(found.unwrap_or(std::ptr::null()))?;
        found.map(|_| ()).ok_or(Code::INVALID_VALUE)
    }
}
