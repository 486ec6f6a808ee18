//! Stops panics of gpushare in the hooks, and lets all other unwinding pass.
//!
//! A hook stands between the application and the driver. A panic of gpushare must not leave the hook. Other
//! unwinding must pass: of a thread cancelled inside a driver call (`pthread_cancel`), or of a C++ exception
//! in a callback. [`std::panic::catch_unwind`] aborts the process on both. So [`stop_panics`] puts a frame of
//! its own on the stack, whose personality routine claims only gpushare's panics:
//!
//! ```text
//!   application ─▶ hook ─▶ frame ─▶ our code ─▶ the driver
//!                            │          └ panic          claimed, raised again where std catches it
//!                            └ anything else             passes; values are dropped on its way
//! ```
//!
//! Rust's reference does not define forced unwinding through frames with values to drop. Rust's personality
//! routine runs their landing pads as the Itanium C++ ABI requires. Unit tests and end-to-end tests check
//! that.
//!
//! A function of the C library that Rust declares as `extern "C"` must not be a cancellation point, because
//! unwinding through it aborts. So gpushare makes such calls [`uncancelled`], and its waits have an explicit
//! [`cancellation_point`].

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work`, and returns `None` after a panic. Any other unwinding passes through.
#[inline]
pub fn stop_panics<T, F: FnOnce() -> T>(work: F) -> Option<T> {
    let mut slot = Slot { work: ManuallyDrop::new(work) };
    // SAFETY: `run` gets the slot of its own type, which outlives the call.
    let panic = unsafe { claim_panics(run::<T, F>, (&raw mut slot).cast()) };
    if !panic.is_null() {
        end(panic);
        return None;
    }
    // SAFETY: `run` returned, so it has stored the result there.
    Some(ManuallyDrop::into_inner(unsafe { slot.made }))
}

/// Memory that contains the work first, and its result afterwards.
union Slot<T, F> {
    work: ManuallyDrop<F>,
    made: ManuallyDrop<T>,
}

unsafe extern "C-unwind" fn run<T, F: FnOnce() -> T>(slot: *mut c_void) {
    // SAFETY: `stop_panics` passes its own slot with the work in it, which is taken once.
    let (slot, work) = unsafe {
        let slot = slot.cast::<Slot<T, F>>();
        (slot, ManuallyDrop::take(&mut (*slot).work))
    };
    let made = Slot { made: ManuallyDrop::new(work()) };
    // SAFETY: the same slot, whose work was taken above.
    unsafe { slot.write(made) };
}

/// Ends a panic: raises it again and lets std catch it in this frame.
#[cold]
fn end(panic: *mut c_void) {
    // SAFETY: the exception comes from the personality routine below, which hands it to no other code.
    let raise = || unsafe { _Unwind_RaiseException(panic) };
    // Dropping a payload may panic too. That panic is dropped as well.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(catch_unwind(AssertUnwindSafe(raise)))));
}

/// Ends the calling thread if `pthread_cancel` has cancelled that thread.
#[inline]
pub fn cancellation_point() {
    // SAFETY: has no argument. If it does not return, values alive here are dropped.
    unsafe { pthread_testcancel() }
}

/// Runs `work` with cancellation of the thread disabled.
pub fn uncancelled<T>(work: impl FnOnce() -> T) -> T {
    const DISABLED: c_int = 1;
    let mut before = 0;
    // SAFETY: writes one integer.
    unsafe { pthread_setcancelstate(DISABLED, &raw mut before) };
    let _held = Held(before);
    work()
}

/// Guard that restores the thread's earlier state of cancellation.
struct Held(c_int);

impl Drop for Held {
    fn drop(&mut self) {
        let mut ours = 0;
        // SAFETY: writes one integer.
        unsafe { pthread_setcancelstate(self.0, &raw mut ours) };
    }
}

// Functions of the unwinder (Itanium C++ ABI, "Exception Handling") and of POSIX threads.
unsafe extern "C-unwind" {
    fn _Unwind_RaiseException(exception: *mut c_void) -> c_int;
    fn pthread_testcancel();
}
unsafe extern "C" {
    fn _Unwind_GetLanguageSpecificData(context: *mut c_void) -> usize;
    fn _Unwind_SetGR(context: *mut c_void, register: c_int, value: usize);
    fn _Unwind_SetIP(context: *mut c_void, address: usize);
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

const SEARCH_PHASE: c_int = 1;
const FORCE_UNWIND: c_int = 8;
const HANDLER_FOUND: c_int = 6;
const INSTALL_CONTEXT: c_int = 7;
const CONTINUE_UNWIND: c_int = 8;
/// Class of Rust's exceptions: vendor and language.
const RUST: u64 = u64::from_ne_bytes(*b"MOZ\0RUST");

/// Claims panics of this copy of std. Panics of another copy, in an application written in Rust, pass.
unsafe extern "C" fn personality(
    _version: c_int,
    actions: c_int,
    class: u64,
    exception: *mut c_void,
    context: *mut c_void,
) -> c_int {
    if class != RUST || actions & FORCE_UNWIND != 0 || !std::thread::panicking() {
        return CONTINUE_UNWIND;
    }
    if actions & SEARCH_PHASE != 0 {
        return HANDLER_FOUND;
    }
    // SAFETY: the context is the unwinder's own. The frame's language specific data is the address to
    // continue at, and the result register gets the exception.
    unsafe {
        _Unwind_SetGR(context, 0, exception.expose_provenance());
        _Unwind_SetIP(context, _Unwind_GetLanguageSpecificData(context));
    }
    INSTALL_CONTEXT
}

/// Calls `call(data)`, and returns null or the panic that it raised.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn claim_panics(
    call: unsafe extern "C-unwind" fn(*mut c_void),
    data: *mut c_void,
) -> *mut c_void {
    naked_asm!(
        ".cfi_startproc",
        // 0x1b: four bytes, relative to their own place.
        ".cfi_personality 0x1b, {personality}",
        ".cfi_lsda 0x1b, .Lgpushare_panic_claimed",
        "sub rsp, 8", // the stack is aligned to 16 at the call
        ".cfi_adjust_cfa_offset 8",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "xor eax, eax",
        ".Lgpushare_panic_claimed:",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        personality = sym personality,
    )
}

/// Calls `call(data)`, and returns null or the panic that it raised.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn claim_panics(
    call: unsafe extern "C-unwind" fn(*mut c_void),
    data: *mut c_void,
) -> *mut c_void {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_personality 0x1b, {personality}",
        ".cfi_lsda 0x1b, .Lgpushare_panic_claimed",
        "stp x29, x30, [sp, #-16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x29, -16",
        ".cfi_offset x30, -8",
        "mov x8, x0",
        "mov x0, x1",
        "blr x8",
        "mov x0, xzr",
        ".Lgpushare_panic_claimed:",
        "ldp x29, x30, [sp], #16",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "ret",
        ".cfi_endproc",
        personality = sym personality,
    )
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::mem::transmute;
    use std::ptr::null_mut;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    struct Guest<'a>(&'a Cell<u32>);

    impl Drop for Guest<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[test]
    fn what_goes_well_comes_out() {
        let text = String::from("kept");
        assert_eq!(stop_panics(|| text), Some(String::from("kept")));
    }

    #[test]
    fn a_panic_stops_and_what_it_passed_is_dropped() {
        let drops = Cell::new(0);
        let outcome = stop_panics(|| {
            let _guest = Guest(&drops);
            std::panic::resume_unwind(Box::new("a payload"));
        });
        assert_eq!((outcome, drops.get(), thread::panicking()), (None::<()>, 1, false));
        // And again, inside another one.
        let outcome = stop_panics(|| stop_panics(|| std::panic::resume_unwind(Box::new(1))).is_none());
        assert_eq!((outcome, thread::panicking()), (Some(true), false));
    }

    #[test]
    fn a_panic_whose_payload_panics_stops_too() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                std::panic::resume_unwind(Box::new(()));
            }
        }
        assert_eq!(stop_panics(|| std::panic::resume_unwind(Box::new(Bomb))), None::<()>);
        assert!(!thread::panicking());
    }

    static INSIDE: AtomicU32 = AtomicU32::new(0);
    static DROPPED: AtomicU32 = AtomicU32::new(0);
    static CAME_OUT: AtomicU32 = AtomicU32::new(0);

    extern "C-unwind" fn waits_to_be_cancelled(_: *mut c_void) -> *mut c_void {
        struct Noted;
        impl Drop for Noted {
            fn drop(&mut self) {
                DROPPED.fetch_add(1, Ordering::SeqCst);
            }
        }
        let _outer = Noted;
        let outcome = stop_panics(|| {
            let _inner = Noted;
            INSIDE.store(1, Ordering::SeqCst);
            loop {
                uncancelled(|| {
                    // Would end the thread if cancellation were not disabled.
                    cancellation_point();
                    thread::yield_now();
                });
                cancellation_point();
            }
        });
        CAME_OUT.store(u32::from(outcome.is_none()), Ordering::SeqCst);
        null_mut()
    }

    #[test]
    fn a_cancelled_thread_passes_and_drops_what_it_had() {
        const CANCELED: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);
        // SAFETY: the thread is joined here. Its function may unwind, unlike the declared type, because a
        // thread is cancelled that way.
        let ended = unsafe {
            let mut thread = std::mem::zeroed();
            let start = transmute::<
                extern "C-unwind" fn(*mut c_void) -> *mut c_void,
                extern "C" fn(*mut c_void) -> *mut c_void,
            >(waits_to_be_cancelled);
            assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), start, null_mut()), 0);
            while INSIDE.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            assert_eq!(libc::pthread_cancel(thread), 0);
            let mut ended = null_mut();
            assert_eq!(libc::pthread_join(thread, &raw mut ended), 0);
            ended
        };
        assert_eq!(ended, CANCELED);
        assert_eq!(DROPPED.load(Ordering::SeqCst), 2);
        assert_eq!(CAME_OUT.load(Ordering::SeqCst), 0, "the frame did not stop it");
    }
}
