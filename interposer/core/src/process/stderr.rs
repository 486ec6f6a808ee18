//! Lines on stderr for the user. Printing never panics and never touches stdout. A closed stderr, or a pipe
//! without a reader, is no error.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, io};

use gpushare_sys::unwind::uncancelled;

/// Prints one line that begins with "gpushare: ".
pub fn print(line: fmt::Arguments<'_>) {
    write_quietly(libc::STDERR_FILENO, &format!("gpushare: {line}\n"));
}

/// Writes `text` and takes back the SIGPIPE that a pipe without a reader raises, since our line must not end
/// the host. A failed write is ignored.
fn write_quietly(descriptor: c_int, text: &str) {
    // SAFETY: each set is initialised by the call that it is given to first; the buffer is valid for its
    // length.
    uncancelled(|| unsafe {
        let (mut pipe, mut before, mut pending) = (zeroed(), zeroed(), zeroed());
        libc::sigemptyset(&raw mut pipe);
        libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
        libc::sigpending(&raw mut pending);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut before);
        let written = libc::write(descriptor, text.as_ptr().cast(), text.len());
        let raised = written < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EPIPE);
        // A signal that was pending before is the host's own.
        if raised && libc::sigismember(&raw const pending, libc::SIGPIPE) == 0 {
            let at_once: libc::timespec = zeroed();
            libc::sigtimedwait(&raw const pipe, null_mut(), &raw const at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
    });
}

/// Prints a line once: only if the flag `printed` is not set yet.
pub fn print_once(printed: &AtomicBool, line: fmt::Arguments<'_>) {
    if !printed.swap(true, Ordering::Relaxed) {
        print(line);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_pipe_without_a_reader_does_not_end_the_host() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        // SAFETY: sets a disposition, which the child alone has; a test binary ignores the signal otherwise.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                write_quietly(writer.as_raw_fd(), "a line\n");
                libc::_exit(7);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            status
        };
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 7));
    }
}
