//! The way around our own `dlsym`: the C library's real one, and the real driver's handle.
//!
//! Our library exports `dlsym`, so a plain call would come back to us. glibc has no internal name for it
//! since 2.34; `dlvsym`, which we do not export, finds it after us in the search order. The driver's
//! symbols are looked up in libcuda's own handle, never with `RTLD_NEXT`: another interposer
//! behind us that forwards to its next would loop.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

/// `dlsym(3)`.
pub type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// Versions under which glibc exports `dlsym`, by architecture and age.
const VERSIONS: [&CStr; 3] = [c"GLIBC_2.2.5", c"GLIBC_2.34", c"GLIBC_2.17"];

static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static LIBCUDA: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// The C library's `dlsym`, or `None` where it has another version than we know.
#[must_use]
pub fn real_dlsym() -> Option<Dlsym> {
    let mut address = REAL.load(Ordering::Acquire);
    if address.is_null() {
        address = VERSIONS
            .iter()
            // SAFETY: both strings are NUL-terminated literals; RTLD_NEXT is resolved for this library.
            .map(|version| unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) })
            .find(|found| !found.is_null())?;
        REAL.store(address, Ordering::Release);
    }
    // SAFETY: glibc's `dlsym` has exactly this type.
    Some(unsafe { std::mem::transmute::<*mut c_void, Dlsym>(address) })
}

/// Looks `name` up in `handle`, past our own exports.
///
/// # Safety
/// `handle` is one that `dlsym(3)` takes.
#[must_use]
pub unsafe fn symbol_in(handle: *mut c_void, name: &CStr) -> *mut c_void {
    match real_dlsym() {
        // SAFETY: the caller vouches for the handle, the type for the name.
        Some(dlsym) => unsafe { dlsym(handle, name.as_ptr()) },
        None => null_mut(),
    }
}

/// The real driver's handle, or null where there is no driver.
#[must_use]
pub fn libcuda() -> *mut c_void {
    let known = LIBCUDA.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a literal name; the library is loaded already unless a caller linked only to us.
    let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY) };
    LIBCUDA.store(handle, Ordering::Release);
    handle
}

/// The real driver's handle, or null where it is not loaded; never loads it.
#[must_use]
pub fn loaded_libcuda() -> *mut c_void {
    let known = LIBCUDA.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a literal name.
    let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    LIBCUDA.store(handle, Ordering::Release);
    handle
}

/// The real driver's `name`, or null.
#[must_use]
pub fn driver_symbol(name: &CStr) -> *mut c_void {
    let handle = libcuda();
    if handle.is_null() {
        return null::<c_void>().cast_mut();
    }
    // SAFETY: the handle came from `dlopen` and is never closed.
    unsafe { symbol_in(handle, name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_dlsym_is_found_and_works() {
        // SAFETY: RTLD_DEFAULT is a handle that dlsym takes.
        let found = unsafe { symbol_in(libc::RTLD_DEFAULT, c"getpid") };
        assert!(!found.is_null());
        // SAFETY: as above.
        assert!(unsafe { symbol_in(libc::RTLD_DEFAULT, c"no_such_symbol") }.is_null());
    }
}
