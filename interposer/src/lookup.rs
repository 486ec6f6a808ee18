//! `dlsym` and `cuGetProcAddress`: return gpushare's function in place of a hooked driver function.

use std::arch::naked_asm;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use gpushare_client::driver::dynlink;
use gpushare_client::freeze::entry::function_behind;
use gpushare_client::hooks::lookup::{dlsym_answer, get_proc_address};
use gpushare_client::nvml::rows as nvml;
use gpushare_client::process::panics::guest_or;

use crate::TABLE;
use crate::hook::{Pointer, hooks};
use crate::nvml::NVML;

hooks! {
    [get_proc_address: &TABLE, symbol, answer, version, flags] cuGetProcAddress(
        symbol: *const c_char, answer: *mut Pointer, version: c_int, flags: u64
    );
    [get_proc_address: &TABLE, symbol, answer, version, flags] cuGetProcAddress_v2(
        symbol: *const c_char, answer: *mut Pointer, version: c_int, flags: u64, status: *mut c_int
    );
}

/// `void *gpushare_function_behind(void *address)`: returns the driver's function that an answer of `dlsym` or
/// `cuGetProcAddress` leads to without a hook, and any other address as it is. For tests and debuggers.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn gpushare_function_behind(address: *mut c_void) -> *mut c_void {
    function_behind(address)
}

/// Target of the jump in [`dlsym`] when a name is not hooked.
static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(no_dlsym as *mut c_void);

/// `dlsym(3)`: returns gpushare's function for a hooked name, and jumps to the real `dlsym` otherwise.
///
/// `RTLD_NEXT` and `RTLD_DEFAULT` depend on the caller, which the real function finds by its return address.
/// Therefore registers and stack must stay unchanged: the code jumps and never calls.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8", // the stack is aligned to 16 at the call
        "call {answer}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2:",
        "jmp qword ptr [rip + {real}]",
        answer = sym answer,
        real = sym REAL_DLSYM,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {answer}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cbz x16, 2f",
        "mov x0, x16",
        "ret",
        "2:",
        "adrp x16, {real}",
        "ldr x16, [x16, #:lo12:{real}]",
        "br x16",
        answer = sym answer,
        real = sym REAL_DLSYM,
    )
}

/// Returns gpushare's function or null, and sets [`REAL_DLSYM`] if possible.
unsafe extern "C" fn answer(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    if REAL_DLSYM.load(Ordering::Relaxed) == no_dlsym as *mut c_void
        && let Some(real) = dynlink::real_dlsym()
    {
        REAL_DLSYM.store(real as *mut c_void, Ordering::Relaxed);
    }
    let answer = || {
        // SAFETY: the caller's own arguments.
        let ours = unsafe { dlsym_answer(&TABLE, handle, name) };
        if ours.is_null() {
            // SAFETY: the caller's own arguments.
            unsafe { nvml::dlsym_answer(NVML, handle, name) }
        } else {
            ours
        }
    };
    guest_or(answer, std::ptr::null_mut)
}

/// Stands for `dlsym` if the C library's own cannot be found. Returns null.
unsafe extern "C" fn no_dlsym(_: *mut c_void, _: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}
