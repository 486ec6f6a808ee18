//! Entry points of driver functions that no hook stands for. Each looks whether calls have to wait, and jumps to the
//! driver's function.
//!
//! ```text
//!   program ─▶ entry point i ── HOLD = 0 ──▶ jump to TARGETS[i]
//!                    │ HOLD = 1
//!                    ▼
//!              save the arguments ─▶ wait ─▶ restore them ─▶ jump to TARGETS[i]
//! ```
//!
//! The driver's function finds registers and stack as the program left them, so an entry point needs no type. It does
//! not return to gpushare, so it cannot count the calls under way. `park` proves without a count that none is between
//! the look and the driver.

use std::arch::{global_asm, naked_asm};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::facts::{NOTED, Noted};
use super::hold::{HOLD, wait};

/// Number of entry points. The driver has some 700 functions.
const COUNT: usize = 1024;
/// Distance between two entry points, in bytes.
const STRIDE: usize = 32;

/// The driver's functions, by the number of their entry point.
static TARGETS: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(null_mut()) }; COUNT];

/// Returns the entry point of a function of the driver, which may be null. Every call with the same function returns
/// the same one.
///
/// Allocates nothing and takes no lock, since an allocator may call `dlsym`.
pub(crate) fn entry_of(function: *mut c_void) -> *mut c_void {
    if function.is_null() {
        return function;
    }
    for (number, slot) in TARGETS.iter().enumerate() {
        let mut known = slot.load(Ordering::Acquire);
        if known.is_null() {
            let taken = slot.compare_exchange(known, function, Ordering::AcqRel, Ordering::Acquire);
            known = taken.map_or_else(|other| other, |_| function);
        }
        if known == function {
            // SAFETY: the block of entry points is that long.
            return unsafe { first().byte_add(number * STRIDE) };
        }
    }
    NOTED.note(Noted::Unseen);
    function
}

/// Returns the driver's function behind an entry point, and any other address as it is.
pub fn function_behind(address: *mut c_void) -> *mut c_void {
    let distance = address.addr().wrapping_sub(first().addr());
    match TARGETS.get(distance / STRIDE) {
        Some(target) if distance.is_multiple_of(STRIDE) => target.load(Ordering::Acquire),
        _ => address,
    }
}

fn first() -> *mut c_void {
    unsafe extern "C" {
        #[link_name = "gpushare_entry_points"]
        static FIRST: u8;
    }
    (&raw const FIRST).cast_mut().cast()
}

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.gpushare_entry_points, \"ax\", @progbits",
    ".p2align 5",
    ".hidden gpushare_entry_points",
    ".globl gpushare_entry_points",
    "gpushare_entry_points:",
    ".set gpushare_entry, 0",
    ".rept {count}",
    ".p2align 5",
    "cmpl $0, {hold}(%rip)",
    "jne 2f",
    "jmpq *{targets}+8*gpushare_entry(%rip)",
    "2:",
    "pushq $gpushare_entry",
    "jmp {waits}",
    ".set gpushare_entry, gpushare_entry + 1",
    ".endr",
    ".p2align 5",
    ".popsection",
    count = const COUNT,
    hold = sym HOLD,
    targets = sym TARGETS,
    waits = sym waits,
    options(att_syntax),
);

/// Waits with the arguments of a call saved, and goes on to the driver's function whose number lies on the stack.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn waits() {
    naked_asm!(
        // The number and the return address lie on the stack, which is aligned to 16 with both.
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "push rax",
        "push r10",
        "sub rsp, 128",
        "movups [rsp], xmm0",
        "movups [rsp + 16], xmm1",
        "movups [rsp + 32], xmm2",
        "movups [rsp + 48], xmm3",
        "movups [rsp + 64], xmm4",
        "movups [rsp + 80], xmm5",
        "movups [rsp + 96], xmm6",
        "movups [rsp + 112], xmm7",
        "call {wait}",
        "movups xmm0, [rsp]",
        "movups xmm1, [rsp + 16]",
        "movups xmm2, [rsp + 32]",
        "movups xmm3, [rsp + 48]",
        "movups xmm4, [rsp + 64]",
        "movups xmm5, [rsp + 80]",
        "movups xmm6, [rsp + 96]",
        "movups xmm7, [rsp + 112]",
        "add rsp, 128",
        "pop r10",
        "pop rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "pop r11",
        "push rax",
        "lea rax, [rip + {targets}]",
        "mov r11, [rax + r11 * 8]",
        "pop rax",
        "jmp r11",
        wait = sym wait_in_entry,
        targets = sym TARGETS,
    )
}

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text.gpushare_entry_points, \"ax\", @progbits",
    ".p2align 5",
    ".hidden gpushare_entry_points",
    ".globl gpushare_entry_points",
    "gpushare_entry_points:",
    ".set gpushare_entry, 0",
    ".rept {count}",
    "adrp x16, {hold}",
    "ldr w17, [x16, #:lo12:{hold}]",
    "cbnz w17, 2f",
    "adrp x16, {targets}+8*gpushare_entry",
    "ldr x16, [x16, #:lo12:{targets}+8*gpushare_entry]",
    "br x16",
    "2:",
    "mov x17, #gpushare_entry",
    "b {waits}",
    ".set gpushare_entry, gpushare_entry + 1",
    ".endr",
    ".popsection",
    count = const COUNT,
    hold = sym HOLD,
    targets = sym TARGETS,
    waits = sym waits,
);

/// Waits with the arguments of a call saved, and goes on to the driver's function whose number is in x17.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn waits() {
    naked_asm!(
        "stp x29, x30, [sp, #-224]!",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "stp x6, x7, [sp, #64]",
        "stp x8, x17, [sp, #80]",
        "stp q0, q1, [sp, #96]",
        "stp q2, q3, [sp, #128]",
        "stp q4, q5, [sp, #160]",
        "stp q6, q7, [sp, #192]",
        "bl {wait}",
        "ldp q6, q7, [sp, #192]",
        "ldp q4, q5, [sp, #160]",
        "ldp q2, q3, [sp, #128]",
        "ldp q0, q1, [sp, #96]",
        "ldp x8, x17, [sp, #80]",
        "ldp x6, x7, [sp, #64]",
        "ldp x4, x5, [sp, #48]",
        "ldp x2, x3, [sp, #32]",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #224",
        "adrp x16, {targets}",
        "add x16, x16, #:lo12:{targets}",
        "ldr x16, [x16, x17, lsl #3]",
        "br x16",
        wait = sym wait_in_entry,
        targets = sym TARGETS,
    )
}

extern "C" fn wait_in_entry() {
    wait();
}

#[cfg(test)]
mod tests {
    use super::super::hold::testing::Held;
    use super::*;

    type Many = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, f64, f64) -> f64;

    unsafe extern "C" fn sum(
        a: u64,
        b: u64,
        c: u64,
        d: u64,
        e: u64,
        f: u64,
        g: u64,
        h: u64,
        x: f64,
        y: f64,
    ) -> f64 {
        [a, b, c, d, e, f, g, h].iter().map(|&number| number as f64).sum::<f64>() + x * y
    }

    fn called(function: Many) -> f64 {
        let entry = entry_of(function as *mut c_void);
        // SAFETY: an entry point goes on to the function, with these arguments.
        unsafe {
            let entry = std::mem::transmute::<*mut c_void, Many>(entry);
            entry(1, 2, 3, 4, 5, 6, 7, 8, 0.5, 200.0)
        }
    }

    #[test]
    fn an_entry_point_goes_on_with_all_arguments() {
        assert_eq!(called(sum), 136.0);
        let entry = entry_of(sum as *mut c_void);
        assert_eq!(entry, entry_of(sum as *mut c_void));
        assert_ne!(entry, entry_of(called as *mut c_void));
        assert!(entry_of(null_mut()).is_null());
        assert_eq!(function_behind(entry), sum as *mut c_void);
        assert_eq!(function_behind(sum as *mut c_void), sum as *mut c_void, "no entry point");
    }

    #[test]
    fn the_way_through_a_wait_keeps_all_arguments() {
        let number = (entry_of(sum as *mut c_void).addr() - first().addr()) / STRIDE;
        assert!(number < COUNT);
        std::thread::scope(|scope| {
            let held = Held::begin();
            let call = scope.spawn(|| called(sum));
            while !super::super::hold::is_awaited() {
                std::thread::yield_now();
            }
            assert!(!call.is_finished());
            drop(held);
            assert_eq!(call.join().unwrap(), 136.0);
        });
    }
}
