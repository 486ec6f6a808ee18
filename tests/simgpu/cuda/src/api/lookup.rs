//! `cuGetProcAddress`: the newest variant that the caller knows, for the default stream it wants.
//!
//! Codes, statuses and what is written when nothing is found are those of driver 580, asked on an H100.

use crate::api::prelude::*;
use crate::api::{Pointer, Row, rows};
use crate::driver;

/// `CUdriverProcAddressQueryResult`.
const FOUND: u32 = 0;
const NOT_FOUND: u32 = 1;
const VERSION_NOT_SUFFICIENT: u32 = 2;

/// `CUdriverProcAddress_flags`.
const PER_THREAD: u64 = 2;
const KNOWN_FLAGS: u64 = 3;

api! {
    /// The first form tells a failure by its code, and leaves the pointer as it was.
    fn cuGetProcAddress("cuGetProcAddress", 11030)(
        symbol: Text, pointer: Out<*const c_void>, version: i32, flags: u64,
    ) {
        if pointer.is_null() || flags > KNOWN_FLAGS {
            return Err(Code::INVALID_VALUE);
        }
        let found = find(symbol.get()?, version, flags).map_err(|_| Code::NOT_FOUND)?;
        pointer.set(found.0)
    }

    /// The second form succeeds whatever it finds: null and a status say that there is nothing.
    fn cuGetProcAddress_v2("cuGetProcAddress", 12000)(
        symbol: Text, pointer: Out<*const c_void>, version: i32, flags: u64, status: Out<u32>,
    ) {
        if pointer.is_null() || flags > KNOWN_FLAGS {
            return Err(Code::INVALID_VALUE);
        }
        let found = find(symbol.get()?, version, flags);
        status.set_if_wanted(found.err().unwrap_or(FOUND));
        pointer.set(found.map_or(std::ptr::null(), |found| found.0))
    }

    /// Private tables of the real driver: there are none here, and this is its answer to a name it does not
    /// know.
    fn cuGetExportTable("cuGetExportTable", 3000)(_table: Out<*const c_void>, _id: In<[u8; 16]>) {
        Err(Code::INVALID_VALUE)
    }
}

/// The newest variant of a name, or the status that says why there is none. A function with a twin is its
/// twin for those who want their own default stream, and exists for them from the twin's version on.
fn find(symbol: &str, version: i32, flags: u64) -> Result<Pointer, u32> {
    let wanted = |row: &Row| match row.twin {
        Some(twin) if flags & PER_THREAD != 0 => twin,
        _ => (row.since, row.legacy),
    };
    let played = rows().filter(|row| row.base == symbol && row.since <= driver::version());
    let mut known = played.map(wanted).peekable();
    known.peek().ok_or(NOT_FOUND)?;
    let usable = known.filter(|(since, _)| *since <= version.min(driver::version()));
    usable
        .max_by_key(|(since, _)| *since)
        .map(|(_, pointer)| pointer)
        .ok_or(VERSION_NOT_SUFFICIENT)
}
