//! Interrupts: at the program's request, the threads that wait at the gate give up, so that Ctrl-C ends a
//! wait for the card.
//!
//! ```text
//!   Ctrl-C ─▶ the program's signal handler ─▶ a byte in its pipe ─▶ a thread of ours reads it
//!                                                                      │ interrupt
//!                              hook returns INTERRUPTED ◀── waiting threads give up
//! ```
//!
//! Only programs that ask for it are interrupted (`gpushare_interrupt_on`). A signal alone interrupts
//! nothing: it may be a timer's, and it ends only the sleep of the thread that handled it. The thread that
//! waits is often another one, as in a backward pass of PyTorch.
//!
//! A request ends the waits of all threads, and those that begin until the program has heard of the signal, at
//! most for a second. A library may launch again in another way after its first call failed, as PyTorch's matrix
//! product does. Or no thread waits yet, and the program is about to launch. A program that reports that its
//! handler runs (`gpushare_interrupt_over`) can launch from there on.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use gpushare_proto::Nanos;
use gpushare_sys::pipe;

use crate::driver::types::{CUDA_ERROR_NOT_PERMITTED, CUresult};
use crate::process::{lock, spawn};

/// Result of a call whose wait at the gate was interrupted. The driver has not seen the call.
///
/// The driver itself returns this code for calls from a host function, and its context stays usable. The
/// runtime has the same number, keeps it only until the next `cudaGetLastError`, and PyTorch reports it.
/// Other codes are taken for more than they are: `NOT_READY` for no error, `OUT_OF_MEMORY` and
/// `LAUNCH_OUT_OF_RESOURCES` for a reason to try again in another way, `LAUNCH_FAILED` and `LAUNCH_TIMEOUT`
/// for the loss of the context.
pub const INTERRUPTED: CUresult = CUDA_ERROR_NOT_PERMITTED;

/// Longest time for which a request ends waits that begin.
const LASTS: Nanos = Nanos::from_secs(1);
/// Longest wait for the thread that reads the pipe, and the pause between two looks.
const READ_LIMIT: Duration = Duration::from_millis(100);
const READ_PAUSE: Duration = Duration::from_micros(50);

/// Interrupts of this process.
pub(crate) static INTERRUPTS: Interrupts = Interrupts::new();

/// Requests of the program to end the waits at the gate.
#[derive(Debug)]
pub(crate) struct Interrupts {
    /// Number of requests so far.
    count: AtomicU64,
    /// Point in time on the monotonic clock until which waits end at once, in nanoseconds; 0 for none.
    until: AtomicU64,
    /// Pipe that is read at present. A lock that cannot be taken at once is a failure, so the child of a fork
    /// cannot hang on it.
    watched: Mutex<Option<Arc<Watched>>>,
}

/// Pipe of signal numbers, one byte each, as the program's signal handler writes them.
#[derive(Debug)]
struct Watched {
    pipe: OwnedFd,
    signal: u8,
    /// Pipe that gets all bytes after us.
    next: Mutex<Option<OwnedFd>>,
    /// Whether the pipe has ended, and with it the thread that reads.
    ended: AtomicBool,
    /// Held while bytes are read and what they ask for is done.
    reading: Mutex<()>,
    /// Process whose thread reads. The child of a fork has no such thread.
    pid: u32,
}

impl Interrupts {
    const fn new() -> Self {
        Self { count: AtomicU64::new(0), until: AtomicU64::new(0), watched: Mutex::new(None) }
    }

    /// Returns the number of requests so far, which a thread reads before it waits.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Requests that waits end; the caller wakes the waiting threads next.
    pub(crate) fn request(&self, now: Nanos) {
        self.until.store((now + LASTS).0, Ordering::SeqCst);
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Lets waits begin again. Those that a request ended still end.
    pub(crate) fn forget(&self) {
        self.until.store(0, Ordering::SeqCst);
    }

    /// Lets waits begin again once everything in the pipe is read, since the program has heard of those signals.
    pub(crate) fn end(&self) {
        self.end_within(READ_LIMIT);
    }

    fn end_within(&self, limit: Duration) {
        let watched = self.watched.try_lock().ok().and_then(|watched| watched.clone());
        if let Some(watched) = watched.filter(|watched| watched.is_read()) {
            watched.wait_until_read(limit);
        }
        self.forget();
    }

    /// Returns whether a wait that began when there were `before` requests must end.
    pub(super) fn ends(&self, before: u64, now: impl FnOnce() -> Nanos) -> bool {
        if self.count() != before {
            return true;
        }
        let until = self.until.load(Ordering::SeqCst);
        until != 0 && now().0 < until
    }

    /// Calls `interrupt` from now on whenever `signal` is read from `pipe`, and writes all bytes on to
    /// `next`, unless that is negative. A further call for the same pipe only changes `next`. Each call
    /// lets waits begin again.
    ///
    /// The thread that reads ends with the pipe, when its last writer closes it.
    ///
    /// # Errors
    /// Error of the kernel: a descriptor is not open, or the thread cannot be started.
    pub(crate) fn watch(
        &self,
        pipe: RawFd,
        signal: u8,
        next: RawFd,
        interrupt: impl Fn() + Send + 'static,
    ) -> io::Result<()> {
        self.forget();
        let pipe = pipe::duplicate(pipe)?;
        let next = if next < 0 { None } else { Some(pipe::duplicate(next)?) };
        let mut watched = self
            .watched
            .try_lock()
            .map_err(|_| io::Error::from(io::ErrorKind::WouldBlock))?;
        if let Some(known) = watched.as_ref().filter(|known| known.is_of(&pipe, signal)) {
            *lock(&known.next) = next;
            return Ok(());
        }
        let new = Arc::new(Watched {
            pipe,
            signal,
            next: Mutex::new(next),
            ended: AtomicBool::new(false),
            reading: Mutex::new(()),
            pid: std::process::id(),
        });
        let reader = new.clone();
        spawn("gpushare-signal", move || reader.read(interrupt))?;
        *watched = Some(new);
        Ok(())
    }
}

impl Watched {
    fn is_of(&self, pipe: &OwnedFd, signal: u8) -> bool {
        self.is_read() && self.signal == signal && pipe::is_same(&self.pipe, pipe)
    }

    /// Whether a thread of this process reads.
    fn is_read(&self) -> bool {
        self.pid == std::process::id() && !self.ended.load(Ordering::Acquire)
    }

    /// Waits until everything in the pipe has been read and done, at most for `limit`.
    fn wait_until_read(&self, limit: Duration) {
        let since = Instant::now();
        while since.elapsed() < limit {
            if self.reading.try_lock().is_ok_and(|_reading| pipe::is_empty(&self.pipe)) {
                return;
            }
            thread::sleep(READ_PAUSE);
        }
    }

    fn read(&self, interrupt: impl Fn()) {
        let mut bytes = [0; 64];
        while pipe::wait(&self.pipe).is_ok() {
            let _reading = lock(&self.reading);
            let Ok(count @ 1..) = pipe::read(&self.pipe, &mut bytes) else { break };
            let heard = &bytes[..count];
            if heard.contains(&self.signal) {
                interrupt();
            }
            if let Some(next) = &*lock(&self.next) {
                pipe::write(next, heard);
            }
        }
        self.ended.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::from_secs(10);

    #[test]
    fn a_request_ends_all_waits_for_a_second() {
        let interrupts = Interrupts::new();
        let before = interrupts.count();
        assert!(!interrupts.ends(before, || NOW));
        interrupts.request(NOW);
        let after = interrupts.count();
        assert!(interrupts.ends(before, || NOW) && interrupts.ends(before, || NOW + LASTS));
        assert!(interrupts.ends(after, || NOW) && interrupts.ends(after, || NOW), "a library tries again");
        assert!(!interrupts.ends(after, || NOW + LASTS), "it is old");
    }

    #[test]
    fn waits_may_begin_again_once_the_program_has_heard() {
        let interrupts = Interrupts::new();
        let before = interrupts.count();
        interrupts.request(NOW);
        interrupts.end();
        assert!(interrupts.ends(before, || NOW), "it began before");
        assert!(!interrupts.ends(interrupts.count(), || NOW));
    }

    /// The program's handler may run before the thread has read the signal's byte.
    #[test]
    fn a_signal_in_the_pipe_is_read_before_its_request_is_over() -> io::Result<()> {
        use std::io::Write as _;
        use std::os::fd::AsRawFd as _;

        static OWN: Interrupts = Interrupts::new();
        let (reader, mut writer) = io::pipe()?;
        OWN.watch(reader.as_raw_fd(), 2, -1, || {
            thread::sleep(Duration::from_millis(5));
            OWN.request(NOW);
        })?;
        for number in 1..=20 {
            writer.write_all(&[2])?;
            OWN.end_within(Duration::from_secs(60));
            assert_eq!(OWN.count(), number);
            assert!(!OWN.ends(number, || NOW));
        }
        Ok(())
    }

    #[test]
    fn the_signal_in_the_pipe_interrupts_and_every_byte_goes_on() -> io::Result<()> {
        use std::io::{Read as _, Write as _};
        use std::os::fd::AsRawFd as _;
        use std::sync::mpsc;

        let interrupts = Interrupts::new();
        let (reader, mut writer) = io::pipe()?;
        let [(mut first, first_end), (mut second, second_end)] = [io::pipe()?, io::pipe()?];
        let (heard, interrupted) = mpsc::channel();
        let watch = |next: RawFd| {
            let heard = heard.clone();
            interrupts.watch(reader.as_raw_fd(), 2, next, move || {
                let _ = heard.send(());
            })
        };
        let mut byte = [0];
        watch(first_end.as_raw_fd())?;
        writer.write_all(&[14])?;
        first.read_exact(&mut byte)?;
        assert_eq!((byte, interrupted.try_recv().is_err()), ([14], true));
        watch(second_end.as_raw_fd())?;
        writer.write_all(&[2])?;
        second.read_exact(&mut byte)?;
        assert_eq!((byte, interrupted.try_recv()), ([2], Ok(())));
        // The reader ends with the pipe, and with it the last sender.
        drop((writer, heard));
        assert!(interrupted.recv().is_err());
        assert!(interrupts.watch(-1, 2, -1, || {}).is_err());
        Ok(())
    }
}
