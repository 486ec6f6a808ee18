//! Meeting of an importer and an exporter, which have heard of each other from the daemon.
//!
//! The importer listens at an abstract socket with a random name. Its name can be read by every process of the
//! network namespace, so others may connect, or listen there later. The exporter proves first that it is meant, and
//! only then the importer does. So a stranger at either side learns nothing by which it could pass for the other.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use gpushare_proto::sharing::{Meeting, Secret};
use gpushare_sys::{fd, socket};

use crate::process::random;

/// Beginning of the sockets' names.
const PREFIX: &[u8] = b"gpushare-import-";
/// Longest wait of one side for the next bytes of the other.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for the whole proof of whoever connects.
const PROOF_PATIENCE: Duration = Duration::from_secs(1);
/// Most connections whose proof is awaited at once. The oldest gives way to a new one.
const MOST_CALLERS: usize = 64;

/// Importer's side of a meeting.
#[derive(Debug)]
pub struct Waiting {
    listener: UnixListener,
    meeting: Meeting,
}

impl Waiting {
    /// Begins to wait.
    ///
    /// # Errors
    /// The system gives no socket or no random bytes.
    pub fn begin() -> io::Result<Self> {
        let draw = || random().ok_or(io::ErrorKind::Unsupported);
        let meeting = Meeting { socket: draw()?, exporter: Secret(draw()?), importer: Secret(draw()?) };
        let address = SocketAddr::from_abstract_name(name(&meeting))?;
        Ok(Self { listener: UnixListener::bind_addr(&address)?, meeting })
    }

    /// Returns what the exporter must know of the meeting.
    pub fn meeting(&self) -> Meeting {
        self.meeting
    }

    /// Waits for the exporter, up to `patience`. Strangers that connect beside it do not hold it up.
    ///
    /// # Errors
    /// Error of the socket; `WouldBlock` after `patience`.
    pub fn accept(&self, patience: Duration) -> io::Result<UnixStream> {
        let end = Instant::now() + patience;
        self.listener.set_nonblocking(true)?;
        let mut callers: VecDeque<Caller> = VecDeque::new();
        loop {
            let now = Instant::now();
            if now >= end {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let wake = callers.iter().map(|caller| caller.until).fold(end, Instant::min);
            let mut sockets = vec![self.listener.as_fd()];
            sockets.extend(callers.iter().map(|caller| caller.stream.as_fd()));
            let ready = socket::await_any(&sockets, Some(wake - now));
            let heard = callers.iter_mut().zip(&ready[1..]).filter(|(_, is_ready)| **is_ready);
            heard.for_each(|(caller, _)| caller.hear());
            let proves = |caller: &Caller| caller.proof() == Some(self.meeting.exporter);
            if let Some(Caller { stream, .. }) =
                callers.iter().position(proves).and_then(|at| callers.remove(at))
            {
                stream.set_nonblocking(false)?;
                stream.set_write_timeout(Some(PATIENCE))?;
                socket::send_all_with_fd(&stream, &self.meeting.importer.0, None)?;
                return prepared(stream);
            }
            callers.retain(|caller| !caller.has_failed && caller.proof().is_none() && now < caller.until);
            if ready[0] {
                callers.extend(self.next_caller()?);
                callers.drain(..callers.len().saturating_sub(MOST_CALLERS));
            }
        }
    }

    fn next_caller(&self) -> io::Result<Option<Caller>> {
        match self.listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                Ok(Some(Caller::new(stream)))
            }
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(cause) => Err(cause),
        }
    }
}

/// Connection whose proof has not come yet. Whoever guesses has one try, so the time of the comparison tells nothing
/// of use.
#[derive(Debug)]
struct Caller {
    stream: UnixStream,
    until: Instant,
    bytes: Vec<u8>,
    has_failed: bool,
}

impl Caller {
    fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            until: Instant::now() + PROOF_PATIENCE,
            bytes: Vec::new(),
            has_failed: false,
        }
    }

    /// Reads the bytes that have come.
    fn hear(&mut self) {
        let mut bytes = [0; 16];
        let left = &mut bytes[self.bytes.len()..];
        match socket::recv_with_fd(&self.stream, left) {
            Ok((0, _)) => self.has_failed = true,
            Ok((count, _)) => self.bytes.extend_from_slice(&left[..count]),
            Err(cause) => self.has_failed = cause.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// Returns the proof once all of it has come.
    fn proof(&self) -> Option<Secret> {
        self.bytes.as_slice().try_into().ok().map(Secret)
    }
}

/// Joins a meeting as the exporter.
///
/// # Errors
/// Error of the socket, also if nobody waits there or a stranger does.
pub fn join(meeting: &Meeting) -> io::Result<UnixStream> {
    let stream = socket::connect_abstract(&name(meeting), PATIENCE)?;
    socket::send_all_with_fd(&stream, &meeting.exporter.0, None)?;
    match is_proved(&stream, meeting.importer, PATIENCE)? {
        true => prepared(stream),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

fn name(meeting: &Meeting) -> Vec<u8> {
    [PREFIX, &meeting.socket].concat()
}

fn is_proved(stream: &UnixStream, secret: Secret, patience: Duration) -> io::Result<bool> {
    stream.set_read_timeout(Some(patience))?;
    let mut proof = [0; 16];
    socket::recv_all_with_fd(stream, &mut proof)?;
    Ok(Secret(proof) == secret)
}

/// Moves a socket that stays open away from the program's descriptors, and bounds its waits.
fn prepared(stream: UnixStream) -> io::Result<UnixStream> {
    let stream = UnixStream::from(fd::move_high(stream.into()));
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_two_meet_although_a_stranger_comes_first() {
        let waiting = Waiting::begin().unwrap();
        let meeting = waiting.meeting();
        let stranger = Meeting { exporter: Secret([0; 16]), ..meeting };
        let exporter = thread::spawn(move || {
            let refused = join(&stranger).map(drop).unwrap_err();
            (refused.kind(), join(&meeting).unwrap())
        });
        let importer = waiting.accept(LONG).unwrap();
        let (refused, exporter) = exporter.join().unwrap();
        assert_eq!(refused, io::ErrorKind::UnexpectedEof, "it hears no proof");
        socket::send_all_with_fd(&exporter, b"hello", None).unwrap();
        let mut heard = [0; 5];
        socket::recv_all_with_fd(&importer, &mut heard).unwrap();
        assert_eq!(&heard, b"hello");
    }

    #[test]
    fn strangers_that_say_nothing_or_little_do_not_hold_the_exporter_up() {
        let waiting = Waiting::begin().unwrap();
        let meeting = waiting.meeting();
        let connect = || socket::connect_abstract(&name(&meeting), PATIENCE).unwrap();
        let strangers: Vec<_> = (0..20).map(|_| connect()).collect();
        for stranger in strangers.iter().step_by(2) {
            socket::send_all_with_fd(stranger, &meeting.exporter.0[..15], None).unwrap();
        }
        let exporter = thread::spawn(move || join(&meeting).map(drop));
        let began = Instant::now();
        waiting.accept(LONG).unwrap();
        exporter.join().unwrap().unwrap();
        assert!(began.elapsed() < LONG / 2, "20 strangers would take 20 s one after the other");
        drop(strangers);
    }

    #[test]
    fn a_stranger_that_waits_in_the_importers_place_gets_nothing() {
        let waiting = Waiting::begin().unwrap();
        let meeting = Meeting { importer: Secret([1; 16]), ..waiting.meeting() };
        let exporter = thread::spawn(move || join(&meeting).map(drop).unwrap_err().kind());
        let _stream = waiting.accept(LONG).unwrap();
        assert_eq!(exporter.join().unwrap(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn an_exporter_that_does_not_come_is_given_up() {
        let waiting = Waiting::begin().unwrap();
        let late = waiting.accept(Duration::from_millis(20)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::WouldBlock);
        let meeting = waiting.meeting();
        drop(waiting);
        assert_eq!(join(&meeting).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
