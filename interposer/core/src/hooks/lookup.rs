//! Hooks of `dlsym` and `cuGetProcAddress`, by which an application finds driver functions.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering};

use gpushare_symbols::{is_driver_name, place_of};

use crate::driver::dynlink::{self, LIBCUDA};
use crate::driver::hook_table::{Answer, Asked, Lookup, Table};
use crate::driver::types::{CUDA_SUCCESS, CUresult};
use crate::driver::unknown::UNKNOWN;
use crate::freeze::entry::entry_of;
use crate::freeze::facts::{NOTED, Noted};
use crate::state::State;

/// Returns gpushare's function for a hooked driver symbol and the entry point of one that is not hooked, and null if
/// the real `dlsym` must answer.
///
/// Only the driver's own function or gpushare's export is replaced, because other libraries may have
/// functions of the same name. A name without the driver's prefix is rejected first, without a lookup.
///
/// # Safety
/// The arguments are those of a call of `dlsym`.
pub unsafe fn dlsym_answer(table: &Table, handle: *mut c_void, name: *const c_char) -> *mut c_void {
    if name.is_null() {
        return null_mut();
    }
    // SAFETY: not null, so NUL-terminated by the contract of dlsym.
    let name = unsafe { CStr::from_ptr(name) };
    if !is_driver_name(name.to_bytes()) {
        return null_mut();
    }
    if place_of(name.to_bytes()).is_none() {
        // SAFETY: the caller's handle.
        unsafe { note_if_drivers(handle, name) };
        return null_mut();
    }
    // RTLD_NEXT depends on the caller, which only the real function sees after a jump.
    if handle == libc::RTLD_NEXT {
        if !LIBCUDA.symbol_if_loaded(name).is_null() {
            NOTED.note(Noted::Unseen);
        }
        return null_mut();
    }
    // SAFETY: the caller's handle.
    let found = unsafe { dynlink::symbol_in(handle, name) };
    let Some(row) = table.by_export(name) else {
        let is_drivers = !found.is_null() && found == LIBCUDA.symbol_if_loaded(name);
        return if is_drivers { entry_of(found) } else { null_mut() };
    };
    let ours = row.wrapper.0.cast_mut();
    let claimed = !found.is_null() && !row.real().is_null() && (found == row.real() || found == ours);
    if claimed { ours } else { null_mut() }
}

/// Records a name that the symbol list lacks, if the real `dlsym` will find a driver function of that name.
///
/// # Safety
/// `handle` is one that `dlsym` takes.
unsafe fn note_if_drivers(handle: *mut c_void, name: &CStr) {
    let theirs = LIBCUDA.symbol_if_loaded(name);
    // SAFETY: the caller's promise.
    let found = || unsafe { dynlink::symbol_in(handle, name) };
    // RTLD_NEXT finds the driver's function if the driver has one.
    if !theirs.is_null() && (handle == libc::RTLD_NEXT || found() == theirs) {
        UNKNOWN.note(name.to_bytes(), 0);
    }
}

/// `cuGetProcAddress`: replaces the driver's answer by gpushare's function for the same variant, if gpushare
/// hooks that variant, and by an entry point if it does not.
pub unsafe fn get_proc_address(
    table: &Table,
    symbol: *const c_char,
    answer: *mut *mut c_void,
    version: c_int,
    flags: u64,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = real();
    if result != CUDA_SUCCESS || symbol.is_null() || answer.is_null() {
        return result;
    }
    // SAFETY: the driver just wrote `answer` and read `symbol`.
    let (found, base) = unsafe { (answer.read(), CStr::from_ptr(symbol)) };
    if found.is_null() {
        return result;
    }
    match table.by_answer(Asked { base, version, flags }, found, &Real) {
        // SAFETY: writable, because the driver just wrote there.
        Answer::Hooked(row) => unsafe { answer.write(row.wrapper.0.cast_mut()) },
        // SAFETY: writable, because the driver just wrote there.
        Answer::Driver => unsafe { answer.write(entry_of(found)) },
        Answer::Unknown => {
            UNKNOWN.note(base.to_bytes(), u32::try_from(version).unwrap_or(0));
            if let Some(link) = State::existing().and_then(|state| state.daemon.link()) {
                link.send_unknown();
            }
        }
    }
    result
}

struct Real;

/// Type of `cuGetProcAddress` of CUDA 11.3, which every supported driver has.
type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> CUresult;

impl Lookup for Real {
    fn version(&self) -> c_int {
        static VERSION: AtomicI32 = AtomicI32::new(0);
        match VERSION.load(Ordering::Relaxed) {
            0 => {
                let version = State::get().map_or(0, |state| state.driver.version());
                VERSION.store(version, Ordering::Relaxed);
                version
            }
            version => version,
        }
    }

    fn export(&self, name: &CStr) -> *mut c_void {
        LIBCUDA.symbol(name)
    }

    fn ask(&self, asked: Asked<'_>) -> *mut c_void {
        let address = LIBCUDA.symbol(c"cuGetProcAddress");
        // SAFETY: the driver's export of this name has this type (CUDA driver API); null becomes `None`.
        let ask = unsafe { std::mem::transmute::<*mut c_void, Option<GetProcAddress>>(address) };
        let mut found = null_mut();
        let code = ask.map(|ask| {
            // SAFETY: a NUL-terminated name and a writable pointer.
            unsafe { ask(asked.base.as_ptr(), &raw mut found, asked.version, asked.flags) }
        });
        if code == Some(CUDA_SUCCESS) { found } else { null_mut() }
    }
}
