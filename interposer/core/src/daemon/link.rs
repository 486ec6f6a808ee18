//! Link to the daemon, which outlives connections: the sending side, the process's identity, and the
//! questions that threads ask the daemon.
//!
//! The daemon writes most of its decisions into the shared page, where sleeping threads and the drainer see
//! them. The link carries the rest: answers, reasons, and the loss of a connection. Without a connection the
//! process goes on with the present page. Nothing in this module calls CUDA.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gpushare_proto::page::FEATURE_PIECES;
use gpushare_proto::sharing::{ExportName, Meeting};
use gpushare_proto::tenant::{GpuInfo, TenantReply, TenantRequest, Welcome};
use gpushare_proto::{Bytes, ClientId, Epoch, GpuId, SessionId};

use super::MemoryKind;
use super::connection::{self, Connection};
pub use super::questions::{AskError, Grant};
use super::questions::{Questions, Subject};
use crate::driver::types::CUdevice;
use crate::driver::unknown::UNKNOWN;
use crate::gate::page;
use crate::process::{fork, lock};

/// Longest time for which a question waits for a daemon that restarts.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time for which a question for headroom (free memory for the driver itself) waits.
const HEADROOM_PATIENCE: Duration = Duration::from_secs(2);

/// Link of the process to the daemon, which outlives single connections.
#[derive(Debug)]
pub struct Link {
    sender: Mutex<Option<UnixStream>>,
    /// Number of unknown driver functions reported to the present daemon; changed with the sender locked.
    sent_unknown: AtomicUsize,
    questions: Questions,
    identity: Mutex<Identity>,
}

/// Identity of the process at the daemon, and the daemon's latest messages about its grants.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub client: ClientId,
    pub session: SessionId,
    pub name: String,
    /// Number of the latest grant of the lock; `None` before the first.
    pub epoch: Option<Epoch>,
    /// Reason, as text, why threads sleep at the closed gate.
    pub waits_for: String,
}

impl Link {
    /// Creates a link over a connection on which the daemon sent its welcome.
    pub fn new(connection: &Connection, welcome: &Welcome) -> std::io::Result<Self> {
        let link = Self {
            sender: Mutex::new(None),
            sent_unknown: AtomicUsize::new(0),
            questions: Questions::default(),
            identity: Mutex::new(Identity {
                client: welcome.client,
                session: welcome.session,
                name: welcome.name.clone(),
                epoch: None,
                waits_for: "the scheduler".to_owned(),
            }),
        };
        link.plug(connection, welcome, |_| None, || ())?;
        Ok(link)
    }

    /// Sends through `connection` from now on. Repeats unanswered questions there, with the new card numbers
    /// from `gpu`. Puts the daemon's page in force by `enforce`, while every other message waits: one about the new
    /// page must not be lost for want of a connection. `send_if` keeps one about the old page from the new
    /// daemon.
    pub fn plug(
        &self,
        connection: &Connection,
        welcome: &Welcome,
        gpu: impl Fn(CUdevice) -> Option<GpuId>,
        enforce: impl FnOnce(),
    ) -> std::io::Result<()> {
        let sender = connection.sender()?;
        fork::guard_connection([connection.descriptor(), sender.as_raw_fd()]);
        let mut identity = lock(&self.identity);
        (identity.client, identity.session) = (welcome.client, welcome.session);
        identity.name.clone_from(&welcome.name);
        drop(identity);
        // With both locks held, a question is either repeated here or sent by its own thread.
        let open = self.questions.lock();
        for request in open.requests(gpu) {
            // The reading side notices a connection that broke again.
            let _ = connection::send(&sender, &request);
        }
        self.sent_unknown.store(0, Ordering::Relaxed);
        self.send_unknown_by(&sender);
        let mut plugged = lock(&self.sender);
        enforce();
        *plugged = Some(sender);
        Ok(())
    }

    /// Discards messages until the next [`Self::plug`], after the connection was lost.
    pub fn unplug(&self) {
        // First, since another thread may open a file under a number that is closed.
        fork::guard_connection([-1, -1]);
        *lock(&self.sender) = None;
    }

    /// Returns whether there is a connection, also while a thread sends through it.
    pub fn is_connected(&self) -> bool {
        self.sender.try_lock().map_or(true, |sender| sender.is_some())
    }

    /// Sends a message; returns whether the message went out. Without a connection the message is discarded,
    /// since the process tells the next daemon its whole state.
    pub fn send(&self, request: &TenantRequest) -> bool {
        self.send_if(request, || true)
    }

    /// Sends a message if `holds` is still true once no other connection can be plugged in before.
    pub(crate) fn send_if(&self, request: &TenantRequest, holds: impl FnOnce() -> bool) -> bool {
        let sender = lock(&self.sender);
        // The reading side notices a broken connection and connects anew.
        sender.as_ref().filter(|_| holds()).is_some_and(|sender| {
            // First, since the daemon's decision on this message depends on them.
            self.send_unknown_by(sender);
            connection::send(sender, request).is_ok()
        })
    }

    /// Sends a message unless that would block; returns whether the message went out.
    pub fn try_send(&self, request: &TenantRequest) -> bool {
        self.try_send_if(request, || true)
    }

    /// Sends a message unless that would block, if `holds` is still true once no other connection can be plugged in
    /// before. Returns whether the message went out.
    pub(crate) fn try_send_if(&self, request: &TenantRequest, holds: impl FnOnce() -> bool) -> bool {
        let Ok(sender) = self.sender.try_lock() else { return false };
        let send = |sender| connection::send_at_once(sender, request).is_ok();
        sender.as_ref().filter(|_| holds()).is_some_and(send)
    }

    /// Tells the daemon which unknown driver functions the program looked up. Every other message does so
    /// too.
    pub fn send_unknown(&self) {
        if let Some(sender) = lock(&self.sender).as_ref() {
            self.send_unknown_by(sender);
        }
    }

    fn send_unknown_by(&self, sender: &UnixStream) {
        let sent = self.sent_unknown.load(Ordering::Relaxed);
        for slot in sent.. {
            let Some((name, version)) = UNKNOWN.get(slot) else { break };
            // The next daemon is told of all if the connection breaks.
            let _ = connection::send(sender, &TenantRequest::UnknownFunction { name, version });
            self.sent_unknown.store(slot + 1, Ordering::Relaxed);
        }
    }

    /// Asks the daemon for memory beyond the lease. When this returns, [`Self::receive`] has counted the
    /// granted memory.
    pub fn ask_memory(
        &self,
        device: CUdevice,
        gpu: GpuId,
        bytes: Bytes,
        kind: MemoryKind,
    ) -> Result<(), AskError> {
        self.ask(Subject::Memory(Grant { device, bytes, kind }), Some(gpu), PATIENCE)
            .map(drop)
    }

    /// Asks the daemon for memory beyond the lease that is in chunks which the process has already, otherwise like
    /// [`Self::ask_memory`]. A daemon that knows no pieces is asked for memory.
    pub fn ask_piece(&self, device: CUdevice, gpu: GpuId, bytes: Bytes) -> Result<(), AskError> {
        let piece = Grant { device, bytes, kind: MemoryKind::Movable };
        let subject = match page().features.load(Ordering::Relaxed) & FEATURE_PIECES {
            0 => Subject::Memory(piece),
            _ => Subject::Piece(piece),
        };
        self.ask(subject, Some(gpu), PATIENCE).map(drop)
    }

    /// Asks the daemon for headroom: free memory that the driver takes for itself. Fails while an earlier
    /// such question is unanswered, so that a daemon that hangs delays a program only once.
    pub fn ask_headroom(&self, device: CUdevice, gpu: GpuId, bytes: Bytes) -> Result<(), AskError> {
        if self.questions.lock().owes_headroom() {
            return Err(AskError::Silence);
        }
        self.ask(Subject::Headroom { device, bytes }, Some(gpu), HEADROOM_PATIENCE)
            .map(drop)
    }

    /// Announces a card to the daemon and asks for the daemon's number of that card.
    pub fn ask_card(&self, info: GpuInfo) -> Result<GpuId, AskError> {
        self.ask(Subject::Card(info), None, PATIENCE)?.ok_or(AskError::Silence)
    }

    /// Asks the daemon to tell the exporter of memory where this process waits for it.
    pub fn ask_import(&self, export: ExportName, meeting: Meeting) -> Result<(), AskError> {
        self.ask(Subject::Import(export, meeting), None, PATIENCE).map(drop)
    }

    fn ask(
        &self,
        subject: Subject,
        gpu: Option<GpuId>,
        patience: Duration,
    ) -> Result<Option<GpuId>, AskError> {
        self.questions.ask(subject, gpu, patience, |request| self.send(request))
    }

    /// Processes one message of the daemon. `count` counts granted memory before any thread can read the
    /// figures. Returns granted memory for which no thread waits any more.
    pub fn receive(&self, reply: TenantReply, count: impl FnOnce(Grant)) -> Option<Grant> {
        match reply {
            TenantReply::Gate { epoch, .. } => lock(&self.identity).epoch = Some(epoch),
            TenantReply::Queued { ahead, reason } => {
                let sessions = if ahead == 1 { "session" } else { "sessions" };
                lock(&self.identity).waits_for = format!("{reason} ({ahead} {sessions} ahead)");
            }
            reply => return self.questions.answer(reply, count),
        }
        None
    }

    pub(crate) fn identity(&self) -> Identity {
        lock(&self.identity).clone()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::File;
    use std::os::fd::RawFd;
    use std::sync::MutexGuard;
    use std::time::Instant;

    use gpushare_proto::RequestId;
    use gpushare_proto::tenant::PROTOCOL;
    use gpushare_sys::fd;

    use super::*;

    static ONE: Mutex<()> = Mutex::new(());

    /// Link to a daemon that the test plays. There is one at a time.
    pub(crate) fn link() -> (MutexGuard<'static, ()>, Link, Connection, UnixStream) {
        let alone = lock(&ONE);
        let (ours, daemon) = UnixStream::pair().unwrap();
        let connection = Connection::new(ours).unwrap();
        let link = Link::new(&connection, &welcome()).unwrap();
        (alone, link, connection, daemon)
    }

    fn welcome() -> Welcome {
        Welcome {
            protocol: PROTOCOL,
            client: ClientId(1),
            session: SessionId(1),
            name: "test".to_owned(),
            gpus: Vec::new(),
        }
    }

    #[test]
    fn a_message_about_an_old_page_does_not_reach_the_next_daemon() {
        let (_alone, link, _connection, mut daemon) = link();
        daemon.set_nonblocking(true).unwrap();
        assert!(!link.send_if(&TenantRequest::Reconciled, || false));
        let read = std::io::Read::read(&mut daemon, &mut [0]);
        assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        assert!(link.send_if(&TenantRequest::Reconciled, || true));
        assert_eq!(std::io::Read::read(&mut daemon, &mut [0]).unwrap(), 1);
    }

    #[test]
    fn a_message_about_a_new_page_waits_for_its_connection() {
        let (_alone, link, _connection, _daemon) = link();
        link.unplug();
        let (ours, mut daemon) = UnixStream::pair().unwrap();
        let connection = Connection::new(ours).unwrap();
        assert!(!link.is_connected());
        let mut waits = false;
        // A link without a connection whose sender is locked counts as connected, since a message waits for it.
        link.plug(&connection, &welcome(), |_| None, || waits = link.is_connected())
            .unwrap();
        assert!(waits);
        assert!(link.send(&TenantRequest::Reconciled));
        assert_eq!(std::io::Read::read(&mut daemon, &mut [0]).unwrap(), 1);
    }

    #[test]
    fn a_handler_of_a_signal_that_interrupts_a_message_sends_none() {
        let (_alone, link, _connection, mut daemon) = link();
        daemon.set_nonblocking(true).unwrap();
        let sender = lock(&link.sender);
        assert!(!link.try_send(&TenantRequest::Called));
        drop(sender);
        assert!(!link.try_send_if(&TenantRequest::Called, || false));
        let read = std::io::Read::read(&mut daemon, &mut [0]);
        assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        assert!(link.try_send(&TenantRequest::Called));
    }

    #[test]
    fn a_daemon_that_owes_an_answer_about_headroom_is_not_asked() {
        let (_alone, link, _connection, _daemon) = link();
        let subject = Subject::Headroom { device: 0, bytes: Bytes(1) };
        let given_up = link.ask(subject, Some(GpuId(0)), Duration::ZERO);
        assert!(matches!(given_up, Err(AskError::Silence)));
        assert!(matches!(link.ask_headroom(0, GpuId(0), Bytes(1)), Err(AskError::Silence)));
        assert_eq!(link.questions.lock().requests(|_| Some(GpuId(0))).count(), 1, "only the first");

        let answer = TenantReply::Headroom { request: RequestId(1), bytes: Bytes(1) };
        assert_eq!(link.receive(answer, |_| ()), None);
        assert!(!link.questions.lock().owes_headroom());
    }

    extern "C" fn fork_child() {
        fork::close_sockets();
    }

    extern "C" fn at_exit() {}

    fn in_child(descriptors: [RawFd; 2]) -> [bool; 2] {
        let mut status = 0;
        // SAFETY: the child makes only system calls.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let open = descriptors.map(|descriptor| libc::fcntl(descriptor, libc::F_GETFD) >= 0);
                libc::_exit(i32::from(open[0]) | (i32::from(open[1]) << 1));
            }
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        assert!(libc::WIFEXITED(status));
        [1, 2].map(|bit| libc::WEXITSTATUS(status) & bit != 0)
    }

    #[test]
    fn the_child_of_a_fork_closes_only_our_sockets() {
        fork::register(fork_child, at_exit);
        let (_alone, link, connection, _daemon) = link();
        let sender = lock(&link.sender).as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let sockets = [connection.descriptor(), sender];
        assert_eq!(in_child(sockets), [false, false]);

        link.unplug();
        drop(connection);
        // Descriptors of others with the same numbers, which another test may have for a moment.
        let deadline = Instant::now() + Duration::from_secs(60);
        let others = loop {
            let others = [(); 2].map(|()| fd::move_high(File::open("/dev/null").unwrap().into()));
            if others.each_ref().map(AsRawFd::as_raw_fd) == sockets {
                break others;
            }
            assert!(Instant::now() < deadline, "the lowest free numbers above the low ones");
        };
        assert_eq!(in_child(others.each_ref().map(AsRawFd::as_raw_fd)), [true, true]);
    }
}
