//! Process list of a card as `nvidia-smi` asks for it: libnvidia-ml makes a control call of the driver's
//! resource manager by `ioctl`. gpushare's own `ioctl` is found first and removes processes of other sessions
//! from that answer.
//!
//! ```text
//!   ioctl(REQUEST) ─▶ the real one ─▶ 0 and a control call ─▶ GET_PIDS of the known size ─▶ own pids stay
//!        any other ─▶ the real one ─▶ unchanged answer
//! ```
//!
//! libnvidia-ml then asks for the memory of each process in this list. An answer of another size comes from
//! an unknown driver version and stays unchanged: a longer list is better than a wrong one.

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use gpushare_sys::unwind::uncancelled;

use super::session::Members;
use crate::driver::dynlink;
use crate::process::panics::guest_or;

/// `ioctl(2)` with one pointer argument. It is variadic in C; on the supported platforms such an argument is
/// passed like any other.
pub type Ioctl = unsafe extern "C-unwind" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// Request number `NV_ESC_RM_CONTROL` with a [`Control`].
const REQUEST: c_uint = 0xc020_462a;
/// Command `NV2080_CTRL_CMD_GPU_GET_PIDS`.
const GET_PIDS: u32 = 0x2080_018d;
/// `NV2080_CTRL_GPU_GET_PIDS_MAX_COUNT`: most pids in an answer.
const ROOM: usize = 950;

/// `NVOS54_PARAMETERS`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Control {
    client: u32,
    object: u32,
    command: u32,
    flags: u32,
    parameters: *mut c_void,
    size: u32,
    status: u32,
}

/// `NV2080_CTRL_GPU_GET_PIDS_PARAMS`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Pids {
    kind: u32,
    class: u32,
    count: u32,
    pids: [u32; ROOM],
}

static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Returns the next `ioctl` after gpushare's: the C library's, or another library's in front of it.
#[inline]
pub fn real() -> Ioctl {
    let known = REAL.load(Ordering::Relaxed);
    if known.is_null() {
        return find();
    }
    // SAFETY: only `find` stores there, and it stores a function of this type.
    unsafe { transmute::<*mut c_void, Ioctl>(known) }
}

#[cold]
fn find() -> Ioctl {
    // SAFETY: `RTLD_NEXT` is a handle that dlsym takes; it is resolved for this library.
    let next = keeping_errno(|| unsafe { dynlink::symbol_in(libc::RTLD_NEXT, c"ioctl") });
    let real = if next.is_null() { by_number as *mut c_void } else { next };
    REAL.store(real, Ordering::Relaxed);
    // SAFETY: every `ioctl` of a C library can be called with this type, and `by_number` has it.
    unsafe { transmute::<*mut c_void, Ioctl>(real) }
}

/// Makes the system call itself, where no other `ioctl` is found.
unsafe extern "C-unwind" fn by_number(file: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's own arguments.
    let result: c_long = unsafe { libc::syscall(libc::SYS_ioctl, file, request, argument) };
    // The kernel answers an `int`.
    result as c_int
}

/// Returns whether an answered `ioctl` may be a control call. The kernel reads only the lower 32 bits of a
/// request.
#[inline]
pub const fn is_of_interest(request: c_ulong, result: c_int) -> bool {
    request as c_uint == REQUEST && result == 0
}

/// Removes processes of other sessions from the answer to an `ioctl`, if it is a list of pids for a process
/// in a session.
///
/// # Safety
/// `argument` belongs to an `ioctl` for which [`is_of_interest`] is true.
#[cold]
pub unsafe fn answered(argument: *mut c_void) {
    // `ioctl` must neither be a cancellation point nor change errno after a success.
    keeping_errno(|| {
        uncancelled(|| {
            // SAFETY: the caller's promise.
            guest_or(|| unsafe { take_strangers_out(argument) }, || ());
        });
    });
}

/// # Safety
/// `argument` belongs to an `ioctl` for which [`is_of_interest`] is true.
unsafe fn take_strangers_out(argument: *mut c_void) {
    // SAFETY: the driver has just written its status there.
    let Some(answer) = (unsafe { pids_in(argument) }) else { return };
    if let Some(members) = Members::of_caller() {
        keep(answer, |pid| members.has(pid));
    }
}

/// Returns the list of pids in the answer to a control call; `None` for other answers.
///
/// # Safety
/// `argument` is null or belongs to a control call.
unsafe fn pids_in<'answer>(argument: *mut c_void) -> Option<&'answer mut Pids> {
    // SAFETY: the caller's promise.
    let control = unsafe { argument.cast::<Control>().as_ref() }?;
    let is_list =
        control.command == GET_PIDS && control.size as usize == size_of::<Pids>() && control.status == 0;
    let pids = control.parameters.cast::<Pids>();
    if !is_list || !pids.is_aligned() {
        return None;
    }
    // SAFETY: the driver has just written this many bytes there, and the caller reads them only afterwards.
    unsafe { pids.as_mut() }
}

fn keep(answer: &mut Pids, is_own: impl Fn(u32) -> bool) {
    let Some(listed) = answer.pids.get_mut(..answer.count as usize) else { return };
    let mut kept = 0;
    for at in 0..listed.len() {
        let pid = std::mem::take(&mut listed[at]);
        if is_own(pid) {
            listed[kept] = pid;
            kept += 1;
        }
    }
    answer.count = kept as u32;
}

fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: errno of this thread, which lives as long as the thread.
    unsafe {
        let errno = libc::__errno_location();
        let before = errno.read();
        let made = work();
        errno.write(before);
        made
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    fn list(own: &[u32]) -> Box<Pids> {
        let mut answer = Box::new(Pids { kind: 0, class: 0xcbc0, count: own.len() as u32, pids: [0; ROOM] });
        answer.pids[..own.len()].copy_from_slice(own);
        answer
    }

    fn call(pids: &mut Pids) -> Control {
        Control {
            client: 1,
            object: 2,
            command: GET_PIDS,
            flags: 0,
            parameters: (&raw mut *pids).cast(),
            size: size_of::<Pids>() as u32,
            status: 0,
        }
    }

    fn is_seen(control: &mut Control) -> bool {
        // SAFETY: the tests' own calls.
        unsafe { pids_in((&raw mut *control).cast()) }.is_some()
    }

    #[test]
    fn layouts_are_those_that_were_seen_on_a_card() {
        assert_eq!((size_of::<Control>(), size_of::<Pids>()), (32, 3812));
        assert_eq!((offset_of!(Control, parameters), offset_of!(Control, status)), (16, 28));
    }

    #[test]
    fn strangers_go_and_the_others_stay_in_their_order() {
        let mut answer = list(&[599, 7, 8, 600, 9]);
        keep(&mut answer, |pid| pid < 100);
        assert_eq!((answer.count, &answer.pids[..6]), (3, &[7, 8, 9, 0, 0, 0][..]));
        assert_eq!((answer.kind, answer.class), (0, 0xcbc0));
        keep(&mut answer, |_| false);
        assert_eq!((answer.count, answer.pids), (0, [0; ROOM]));
    }

    #[test]
    fn a_full_list_is_read_to_its_end_and_one_that_cannot_be_is_left_alone() {
        let mut answer = list(&[1; ROOM]);
        keep(&mut answer, |_| true);
        assert_eq!((answer.count as usize, answer.pids), (ROOM, [1; ROOM]));
        answer.count += 1;
        keep(&mut answer, |_| false);
        assert_eq!((answer.count as usize, answer.pids), (ROOM + 1, [1; ROOM]));
    }

    #[test]
    fn only_a_good_answer_of_the_known_size_is_looked_at() {
        let mut pids = list(&[1]);
        let good = call(&mut pids);
        assert!(is_seen(&mut good.clone()));
        let others = [
            Control { command: 0x2080_018e, ..good },
            Control { size: good.size - 4, ..good },
            Control { size: good.size + 4, ..good },
            Control { status: 0x1f, ..good },
            Control { parameters: null_mut(), ..good },
            Control { parameters: good.parameters.wrapping_byte_add(1), ..good },
        ];
        for mut other in others {
            assert!(!is_seen(&mut other), "{other:?}");
        }
        // SAFETY: null is nothing to look at.
        assert!(unsafe { pids_in(null_mut()) }.is_none());
    }

    #[test]
    fn a_process_outside_a_session_sees_all_pids() {
        let mut pids = list(&[599, 600]);
        let mut control = call(&mut pids);
        // SAFETY: a whole call.
        unsafe { answered((&raw mut control).cast()) };
        assert_eq!((pids.count, &pids.pids[..2]), (2, &[599, 600][..]));
    }

    #[test]
    fn a_request_is_known_by_the_32_bits_that_the_kernel_reads() {
        assert!(is_of_interest(0xc020_462a, 0));
        assert!(is_of_interest(0xffff_ffff_c020_462a, 0));
        assert!(!is_of_interest(0xc020_462a, -1) && !is_of_interest(0xc020_462b, 0));
    }

    #[test]
    fn the_real_one_works_and_so_does_its_number() {
        let mut ends = [0; 2];
        // SAFETY: two descriptors, three bytes, one integer; the first pipe end is open, -1 is none.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            assert_eq!(libc::write(ends[1], c"abc".as_ptr().cast(), 3), 3);
            for ioctl in [real(), by_number as Ioctl] {
                let mut waiting: c_int = 0;
                assert_eq!(ioctl(ends[0], libc::FIONREAD, (&raw mut waiting).cast()), 0);
                assert_eq!(waiting, 3);
                assert_eq!(ioctl(-1, libc::FIONREAD, (&raw mut waiting).cast()), -1);
                assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
            }
            assert_eq!(ends.map(|end| libc::close(end)), [0, 0]);
        }
    }
}
