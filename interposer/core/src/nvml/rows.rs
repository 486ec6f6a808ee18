//! One row per hooked function of NVML. It has no versions to choose among: each is an export under its own name.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::library;
use crate::driver::dynlink;
use crate::driver::hook_table::Wrapper;

/// One hooked function.
#[derive(Debug)]
pub struct Row {
    name: &'static CStr,
    wrapper: Wrapper,
    real: AtomicPtr<c_void>,
}

/// All rows.
#[derive(Clone, Copy, Debug)]
pub struct Table(pub &'static [&'static Row]);

impl Row {
    /// Creates the row of an export, given with a NUL at its end.
    #[must_use]
    pub const fn new(name: &'static str, wrapper: *const c_void) -> Self {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else {
            panic!("an export is a name and a NUL")
        };
        Self { name, wrapper: Wrapper(wrapper), real: AtomicPtr::new(null_mut()) }
    }

    /// The library's own function, or null where it lacks it. Loads the library: whoever calls our function means it.
    #[must_use]
    pub fn real(&self) -> *mut c_void {
        self.resolve(false)
    }

    fn resolve(&self, loaded: bool) -> *mut c_void {
        let mut real = self.real.load(Ordering::Acquire);
        if real.is_null() {
            real = library::symbol(self.name, loaded);
            self.real.store(real, Ordering::Release);
        }
        real
    }
}

/// What our `dlsym` answers for a name of NVML, or null for "not ours, ask the real one": as for the driver's names, only
/// where the real one would have answered with the library's function or with our own export.
///
/// # Safety
/// The arguments are those of a call of `dlsym`.
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
    let (real, ours) = (row.resolve(true), row.wrapper.0.cast_mut());
    let claimed = !found.is_null() && !real.is_null() && (found == real || found == ours);
    if claimed { ours } else { null_mut() }
}
