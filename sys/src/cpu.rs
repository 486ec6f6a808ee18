//! Turns of a thread on its processor.

use std::io;

use gpushare_proto::Nanos;

/// Asks for turns of `length` on the processor, for this thread and for threads that it starts later.
///
/// A thread with short turns gets as much time as others, and waits less for a thread with longer ones. Linux
/// ends a turn at its next tick or at a wake-up, so turns may last longer than this. Kernels before 6.12 keep
/// turns of one length for all.
///
/// # Errors
/// Error of the kernel, or `Unsupported` where the thread is not one of Linux's fair scheduler.
pub fn ask_for_turns_of(length: Nanos) -> io::Result<()> {
    let mut attributes = attributes()?;
    if !matches!(i32::try_from(attributes.sched_policy), Ok(libc::SCHED_OTHER | libc::SCHED_BATCH)) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    attributes.sched_runtime = length.0;
    let no_flags = 0;
    // SAFETY: the kernel reads the structure, which says its own size.
    checked(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, no_flags) })
}

/// Returns how Linux schedules this thread.
fn attributes() -> io::Result<libc::sched_attr> {
    // SAFETY: it consists of integers, for which zero is a value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let (size, no_flags) = (size_of_val(&attributes), 0);
    // SAFETY: the kernel writes at most `size` bytes.
    checked(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, no_flags) })?;
    Ok(attributes)
}

fn checked(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn turns_are_as_long_as_asked_for_in_threads_that_start_later_too() {
        let asked = Nanos(200_000);
        let before = attributes().unwrap();
        ask_for_turns_of(asked).unwrap();
        let later = || attributes().unwrap();
        for after in [later(), thread::spawn(later).join().unwrap()] {
            assert_eq!(after.sched_nice, before.sched_nice);
            // Kernels before Linux 6.12 say none.
            assert!(before.sched_runtime == 0 || after.sched_runtime == asked.0, "{}", after.sched_runtime);
        }
    }
}
