//! Symbol lookup past gpushare's own exports: the C library's `dlsym`, and the handles of the libraries
//! behind the hooks.
//!
//! The library exports `dlsym`, so a plain call would find itself. Since 2.34, glibc has no internal name for
//! it. `dlvsym`, which gpushare does not export, finds the next `dlsym` in the search order. Symbols of the
//! driver are looked up in its own handle, never with `RTLD_NEXT`: another interposer that forwards to its
//! next would loop.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Type of the C library's `dlsym(3)`.
pub type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// Symbol versions under which glibc exports `dlsym`. They differ by architecture and age.
const VERSIONS: [&CStr; 3] = [c"GLIBC_2.2.5", c"GLIBC_2.34", c"GLIBC_2.17"];

static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Returns the C library's `dlsym`, or `None` if its symbol version is unknown.
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

/// Looks the symbol `name` up in the library `handle`, past the exports of gpushare.
///
/// # Safety
/// `handle` is a library handle that `dlsym(3)` accepts.
pub unsafe fn symbol_in(handle: *mut c_void, name: &CStr) -> *mut c_void {
    match real_dlsym() {
        // SAFETY: the caller vouches for the handle, the type for the name.
        Some(dlsym) => unsafe { dlsym(handle, name.as_ptr()) },
        None => null_mut(),
    }
}

/// Real library (CUDA driver or NVML) that gpushare's hooks call. Its handle is never closed.
#[derive(Debug)]
pub struct Library {
    file: &'static CStr,
    handle: AtomicPtr<c_void>,
}

/// The CUDA driver library, `libcuda.so.1`.
pub static LIBCUDA: Library = Library::new(c"libcuda.so.1");
/// The NVIDIA Management Library (NVML), `libnvidia-ml.so.1`.
pub static LIBNVML: Library = Library::new(c"libnvidia-ml.so.1");

impl Library {
    const fn new(file: &'static CStr) -> Self {
        Self { file, handle: AtomicPtr::new(null_mut()) }
    }

    /// Returns the address of the symbol `name`, and loads the library if necessary. Null if either is
    /// missing.
    pub fn symbol(&self, name: &CStr) -> *mut c_void {
        self.find(name, 0)
    }

    /// Returns the address of the symbol `name` if the library is loaded already, and null otherwise.
    pub fn symbol_if_loaded(&self, name: &CStr) -> *mut c_void {
        self.find(name, libc::RTLD_NOLOAD)
    }

    fn find(&self, name: &CStr, flags: c_int) -> *mut c_void {
        let mut handle = self.handle.load(Ordering::Acquire);
        if handle.is_null() {
            // SAFETY: the name ends with a NUL. A library is found by it whatever path it was loaded from.
            handle = unsafe { libc::dlopen(self.file.as_ptr(), libc::RTLD_LAZY | flags) };
            self.handle.store(handle, Ordering::Release);
        }
        if handle.is_null() {
            return null_mut();
        }
        // SAFETY: the handle came from `dlopen` and is never closed.
        unsafe { symbol_in(handle, name) }
    }
}

/// Converts a literal that ends with a NUL to a C string.
///
/// # Panics
/// The literal has no NUL at its end. In a constant the compiler reports the panic.
pub const fn name(with_end: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(with_end.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name has one NUL, at its end"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_dlsym_is_found_and_works() {
        // SAFETY: RTLD_DEFAULT is a handle that dlsym takes.
        let found = unsafe { symbol_in(libc::RTLD_DEFAULT, c"getpid") };
        assert!(!found.is_null());
        // SAFETY: RTLD_DEFAULT is a handle that dlsym takes.
        assert!(unsafe { symbol_in(libc::RTLD_DEFAULT, c"no_such_symbol") }.is_null());
    }
}
