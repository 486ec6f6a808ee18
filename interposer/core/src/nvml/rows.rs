//! Hook table of NVML: one row per hooked function. Each function has one exported form.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::driver::dynlink::{self, LIBNVML, Library};
use crate::driver::hook_table::Wrapper;

/// Row of the hook table of NVML: one hooked function.
#[derive(Debug)]
pub struct Row {
    name: &'static CStr,
    wrapper: Wrapper,
    real: AtomicPtr<c_void>,
}

/// Hook table of NVML, with a row for each hooked function.
#[derive(Clone, Copy, Debug)]
pub struct Table(pub &'static [&'static Row]);

impl Row {
    /// Creates the row of an exported function, given as a name with a NUL at its end.
    pub const fn new(name: &'static str, wrapper: *const c_void) -> Self {
        Self {
            name: dynlink::name(name),
            wrapper: Wrapper(wrapper),
            real: AtomicPtr::new(null_mut()),
        }
    }

    /// Returns NVML's own function, or null if the library lacks it. Loads NVML, because the program calls
    /// the function.
    pub fn real(&self) -> *mut c_void {
        self.resolve(Library::symbol)
    }

    fn resolve(&self, find: impl FnOnce(&'static Library, &CStr) -> *mut c_void) -> *mut c_void {
        let mut real = self.real.load(Ordering::Acquire);
        if real.is_null() {
            real = find(&LIBNVML, self.name);
            self.real.store(real, Ordering::Release);
        }
        real
    }
}

/// Returns gpushare's function for a hooked function of NVML, and null if the real `dlsym` must answer.
/// Replaces only NVML's own function, or gpushare's export of the same name.
///
/// # Safety
/// The arguments belong to a call of `dlsym`.
pub unsafe fn dlsym_answer(table: Table, handle: *mut c_void, name: *const c_char) -> *mut c_void {
    if name.is_null() || handle == libc::RTLD_NEXT {
        return null_mut();
    }
    // SAFETY: not null, so NUL-terminated by the contract of dlsym.
    let name = unsafe { CStr::from_ptr(name) };
    if !name.to_bytes().starts_with(b"nvmlDevice") {
        return null_mut();
    }
    let Some(row) = table.0.iter().find(|row| row.name == name) else { return null_mut() };
    // SAFETY: the caller's handle.
    let found = unsafe { dynlink::symbol_in(handle, name) };
    let (real, ours) = (row.resolve(Library::symbol_if_loaded), row.wrapper.0.cast_mut());
    let claimed = !found.is_null() && !real.is_null() && (found == real || found == ours);
    if claimed { ours } else { null_mut() }
}
