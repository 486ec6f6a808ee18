//! Lines on stderr for the user. Printing never panics and never touches stdout. A closed stderr, or a pipe
//! without a reader, is no error. A full pipe, whose reader has stalled, delays the host only for a moment:
//! then the line is lost.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fmt, io};

use gpushare_sys::unwind::uncancelled;

/// Longest time for which a line waits for room in a full pipe.
const PATIENCE: Duration = Duration::from_millis(100);

/// Prints one line that begins with "gpushare: ".
pub fn print(line: fmt::Arguments<'_>) {
    write_quietly(libc::STDERR_FILENO, &format!("gpushare: {line}\n"), PATIENCE);
}

/// Prints one line like [`print`], but without any wait. Returns `false` if stderr has no room.
pub(crate) fn print_at_once(line: fmt::Arguments<'_>) -> bool {
    write_quietly(libc::STDERR_FILENO, &format!("gpushare: {line}\n"), Duration::ZERO)
}

/// Writes `text` and takes back the SIGPIPE that a pipe without a reader raises, since our line must not end
/// the host. Waits for room for at most `patience`, and returns `false` if there is none. A failed write is
/// ignored.
fn write_quietly(descriptor: c_int, text: &str, patience: Duration) -> bool {
    // SAFETY: each set is initialised by the call that it is given to first; the buffer is valid for its
    // length.
    uncancelled(|| unsafe {
        // A pipe with room for any byte takes a line at once, which is shorter than PIPE_BUF.
        let mut room = libc::pollfd { fd: descriptor, events: libc::POLLOUT, revents: 0 };
        let patience = c_int::try_from(patience.as_millis()).unwrap_or(c_int::MAX);
        if libc::poll(&raw mut room, 1, patience) != 1 {
            return false;
        }
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
        true
    })
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
    fn a_full_pipe_loses_a_line_and_stops_nobody() {
        let (mut reader, writer) = io::pipe().unwrap();
        let line = "x".repeat(4095) + "\n";
        let lines = (0..1_000).take_while(|_| write_quietly(writer.as_raw_fd(), &line, Duration::ZERO));
        let written = lines.count();
        assert!((1..1_000).contains(&written), "{written} lines");
        assert!(!write_quietly(writer.as_raw_fd(), &line, Duration::from_millis(1)));
        io::Read::read_exact(&mut reader, &mut vec![0; line.len()]).unwrap();
        assert!(write_quietly(writer.as_raw_fd(), &line, Duration::ZERO));
    }

    #[test]
    fn a_pipe_without_a_reader_does_not_end_the_host() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        // SAFETY: sets a disposition, which the child alone has; a test binary ignores the signal otherwise.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                write_quietly(writer.as_raw_fd(), "a line\n", PATIENCE);
                libc::_exit(7);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            status
        };
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 7));
    }
}
