//! Pipes of the program in whose process gpushare is: duplicates of them, and reading and writing that
//! neither fails on a signal nor depends on whether the program made them non-blocking.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::fd::move_high;

/// Returns a duplicate of a descriptor, which stays valid when the program closes its own.
///
/// # Errors
/// The descriptor is not open, or the process has too many.
pub fn duplicate(descriptor: RawFd) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: the kernel checks the number; a descriptor that is not open is an error.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    borrowed.try_clone_to_owned().map(move_high)
}

/// Returns whether two descriptors are of the same pipe, socket or file.
pub fn is_same(one: &impl AsFd, other: &impl AsFd) -> bool {
    let identity = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    match (identity(one.as_fd()), identity(other.as_fd())) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// Waits for bytes and reads them; returns their number, 0 at the end of the pipe.
///
/// # Errors
/// Error of the kernel; the descriptor cannot be read.
pub fn read(pipe: &impl AsFd, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        match rustix::io::read(pipe, &mut *bytes) {
            Ok(count) => return Ok(count),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(pipe)?,
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Waits until a pipe has bytes, or its end.
///
/// # Errors
/// Error of the kernel; the descriptor is no pipe, for example.
pub fn wait(pipe: &impl AsFd) -> io::Result<()> {
    loop {
        match poll(&mut [PollFd::new(pipe, PollFlags::IN)], None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Returns whether all bytes of a pipe have been read.
pub fn is_empty(pipe: &impl AsFd) -> bool {
    rustix::io::ioctl_fionread(pipe).is_ok_and(|unread| unread == 0)
}

/// Writes bytes into a pipe without waiting. What does not fit, and what nobody will read, is lost: a full
/// pipe wakes its reader anyway.
pub fn write(pipe: &impl AsFd, bytes: &[u8]) {
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut room = [PollFd::new(pipe, PollFlags::OUT)];
    if poll(&mut room, Some(&now)) == Ok(1) {
        let _ = rustix::io::write(pipe, bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;

    use rustix::fs::{OFlags, fcntl_setfl};

    use super::*;

    #[test]
    fn a_duplicate_outlives_the_original_and_is_known_as_the_same() {
        let (reader, mut writer) = io::pipe().unwrap();
        let ours = duplicate(reader.as_raw_fd()).unwrap();
        assert!(is_same(&ours, &reader) && !is_same(&ours, &io::pipe().unwrap().0));
        drop(reader);
        writer.write_all(b"ab").unwrap();
        let mut bytes = [0; 4];
        assert_eq!(read(&ours, &mut bytes).unwrap(), 2);
        drop(writer);
        assert_eq!(read(&ours, &mut bytes).unwrap(), 0);
        assert!(duplicate(-1).is_err());
    }

    #[test]
    fn a_pipe_is_empty_once_all_its_bytes_are_read() {
        let (reader, mut writer) = io::pipe().unwrap();
        assert!(is_empty(&reader));
        writer.write_all(b"ab").unwrap();
        wait(&reader).unwrap();
        assert!(!is_empty(&reader));
        assert_eq!(read(&reader, &mut [0; 4]).unwrap(), 2);
        assert!(is_empty(&reader));
    }

    #[test]
    fn a_full_pipe_is_not_waited_for() {
        let (mut reader, writer) = io::pipe().unwrap();
        let full = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
        for _ in 0..full / 64 + 2 {
            write(&writer, &[7; 64]);
        }
        drop(writer);
        let mut heard = Vec::new();
        io::Read::read_to_end(&mut reader, &mut heard).unwrap();
        assert!((64..=full).contains(&heard.len()) && heard.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn a_pipe_that_does_not_block_is_waited_for() {
        let (reader, mut writer) = io::pipe().unwrap();
        fcntl_setfl(&reader, OFlags::NONBLOCK).unwrap();
        std::thread::scope(|scope| {
            let heard = scope.spawn(|| read(&reader, &mut [0; 4]).unwrap());
            writer.write_all(b"abc").unwrap();
            assert_eq!(heard.join().unwrap(), 3);
        });
    }
}
