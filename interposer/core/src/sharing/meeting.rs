//! Meeting of an importer and an exporter, which have heard of each other from the daemon.
//!
//! The importer listens at an abstract socket with a random name. Its name can be read by every process of the
//! network namespace, so others may connect, or listen there later. The exporter proves first that it is meant, and
//! only then the importer does. So a stranger at either side learns nothing by which it could pass for the other.

use std::io;
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
/// Longest wait for the proof of whoever connects. A stranger must not use up the wait for the exporter.
const PROOF_PATIENCE: Duration = Duration::from_secs(1);

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
        Ok(Self { listener: UnixListener::bind_addr(&address(&meeting)?)?, meeting })
    }

    /// Returns what the exporter must know of the meeting.
    pub fn meeting(&self) -> Meeting {
        self.meeting
    }

    /// Waits for the exporter, up to `patience`.
    ///
    /// # Errors
    /// Error of the socket; `WouldBlock` after `patience`.
    pub fn accept(&self, patience: Duration) -> io::Result<UnixStream> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let stream = socket::accept_within(&self.listener, left)?;
            if is_proved(&stream, self.meeting.exporter, PROOF_PATIENCE).unwrap_or(false) {
                socket::send_all_with_fd(&stream, &self.meeting.importer.0, None)?;
                return prepared(stream);
            }
        }
    }
}

/// Joins a meeting as the exporter.
///
/// # Errors
/// Error of the socket, also if nobody waits there or a stranger does.
pub fn join(meeting: &Meeting) -> io::Result<UnixStream> {
    let stream = UnixStream::connect_addr(&address(meeting)?)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    socket::send_all_with_fd(&stream, &meeting.exporter.0, None)?;
    match is_proved(&stream, meeting.importer, PATIENCE)? {
        true => prepared(stream),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

fn address(meeting: &Meeting) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name([PREFIX, &meeting.socket].concat())
}

fn is_proved(stream: &UnixStream, secret: Secret, patience: Duration) -> io::Result<bool> {
    stream.set_read_timeout(Some(patience))?;
    let mut proof = [0; 16];
    socket::recv_all_with_fd(stream, &mut proof)?;
    // Whoever guesses has one try, so the time of the comparison tells nothing of use.
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
