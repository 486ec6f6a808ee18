//! The link: one thread that hears what the daemon says, and the questions that wait for its answers.
//! It never calls CUDA.
//!
//! Most of what the daemon decides it writes into the page, where the sleepers and the mover see it; the
//! link only carries what has no place there: answers, reasons, and the daemon's coming and going. When
//! the connection is lost the process runs on under the page it has, and the link says hello again until
//! a daemon answers.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gpushare_proto::page::MemoryRefusal;
use gpushare_proto::tenant::{Failure, GpuInfo, TenantReply, TenantRequest, Welcome};
use gpushare_proto::{Bytes, ClientId, Epoch, GpuId, GpuUuid, RequestId, SessionId};

use crate::connection::{self, Connection};
use crate::driver::types::CUdevice;
use crate::driver::unknown::UNKNOWN;
use crate::leases::Kind;
use crate::{lifecycle, lock};

/// How long a question waits for a daemon that is restarting.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the driver's own memory waits for a daemon that is restarting.
const ROOM_PATIENCE: Duration = Duration::from_secs(2);

/// The sending side, and what is expected back.
#[derive(Debug)]
pub struct Link {
    sender: Mutex<Option<UnixStream>>,
    /// How many of the unknown functions this daemon was told of; changed with the sender locked.
    told_unknown: AtomicUsize,
    next_request: AtomicU64,
    questions: Mutex<BTreeMap<Key, Question>>,
    answered: Condvar,
    identity: Mutex<Identity>,
}

/// Who the process is to the daemon.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its number.
    pub client: ClientId,
    /// Its session.
    pub session: SessionId,
    /// The session's name.
    pub name: String,
    /// The grant it holds, as last told.
    pub epoch: Option<Epoch>,
    /// What its sleeping threads wait for, as last told.
    pub waits_for: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Memory(RequestId),
    Room(RequestId),
    Card(GpuUuid),
}

/// A question, and its answer once there is one.
#[derive(Debug)]
struct Question {
    subject: Subject,
    answer: Option<Answer>,
    /// Nobody waits any more: memory that comes must go back.
    abandoned: bool,
}

#[derive(Clone, Debug)]
enum Subject {
    Memory { device: CUdevice, bytes: Bytes, kind: Kind },
    Room { device: CUdevice, bytes: Bytes },
    Card(GpuInfo),
}

#[derive(Debug)]
enum Answer {
    Memory(Result<Bytes, MemoryRefusal>),
    Room(Bytes),
    Card(Result<GpuId, Failure>),
}

/// Why a question has no good answer.
#[derive(Debug)]
pub enum AskError {
    /// The daemon did not answer within 30 seconds.
    Silence,
    /// It said no to memory.
    Memory(MemoryRefusal),
    /// It said no to a card.
    Card(Failure),
}

impl Link {
    /// A link over a connection that was welcomed.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new(connection: &Connection, welcome: &Welcome) -> std::io::Result<Self> {
        let link = Self {
            sender: Mutex::new(None),
            told_unknown: AtomicUsize::new(0),
            next_request: AtomicU64::new(1),
            questions: Mutex::new(BTreeMap::new()),
            answered: Condvar::new(),
            identity: Mutex::new(Identity {
                client: welcome.client,
                session: welcome.session,
                name: welcome.name.clone(),
                epoch: None,
                waits_for: "the scheduler".to_owned(),
            }),
        };
        link.plug(connection, welcome, |_| None)?;
        Ok(link)
    }

    /// Sends through `connection` from now on, and repeats the questions that are open. `gpu` knows the
    /// daemon's present number of a device.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn plug(
        &self,
        connection: &Connection,
        welcome: &Welcome,
        gpu: impl Fn(CUdevice) -> Option<GpuId>,
    ) -> std::io::Result<()> {
        let sender = connection.sender()?;
        lifecycle::guard_sockets([connection.descriptor(), sender.as_raw_fd()]);
        {
            let mut identity = lock(&self.identity);
            identity.client = welcome.client;
            identity.session = welcome.session;
            identity.name.clone_from(&welcome.name);
        }
        // Both locks: a question is either repeated here or sent by whoever asks it, never both.
        let questions = lock(&self.questions);
        for (key, question) in questions.iter().filter(|(_, question)| question.answer.is_none()) {
            if let Some(request) = question.subject.request(*key, &gpu) {
                // A connection that broke again is noticed by the reading side.
                let _ = connection::send(&sender, &request);
            }
        }
        self.told_unknown.store(0, Ordering::Relaxed);
        self.send_unknown(&sender);
        *lock(&self.sender) = Some(sender);
        Ok(())
    }

    /// The connection is lost: nothing is sent until [`Self::plug`].
    pub fn unplug(&self) {
        // First: a number that is closed may be somebody else's when the process forks.
        lifecycle::guard_sockets([-1, -1]);
        *lock(&self.sender) = None;
    }

    /// Tells the daemon something, and says whether it went out. Without a daemon it is dropped: a returning
    /// process tells everything.
    pub fn tell(&self, request: &TenantRequest) -> bool {
        // A broken connection is noticed, and answered, by the reading side.
        lock(&self.sender).as_ref().is_some_and(|sender| {
            // First: what the daemon decides on this message must mind them.
            self.send_unknown(sender);
            connection::send(sender, request).is_ok()
        })
    }

    /// Tells the daemon something of which nothing depends, if that takes no waiting: for neither another thread nor the
    /// daemon. Whether it went out.
    pub fn tell_at_once(&self, request: &TenantRequest) -> bool {
        let Ok(sender) = self.sender.try_lock() else { return false };
        sender
            .as_ref()
            .is_some_and(|sender| connection::send_at_once(sender, request).is_ok())
    }

    /// Tells of functions that were handed out and that nobody here knows. Every other message does so too.
    pub fn tell_unknown(&self) {
        if let Some(sender) = lock(&self.sender).as_ref() {
            self.send_unknown(sender);
        }
    }

    fn send_unknown(&self, sender: &UnixStream) {
        let told = self.told_unknown.load(Ordering::Relaxed);
        for slot in told.. {
            let Some((name, version)) = UNKNOWN.get(slot) else { break };
            // As above: the next daemon is told of all.
            let _ = connection::send(sender, &TenantRequest::UnknownFunction { name, version });
            self.told_unknown.store(slot + 1, Ordering::Relaxed);
        }
    }

    /// Asks for memory beyond the lease. When this returns, [`Self::hear`] has counted it already.
    ///
    /// # Errors
    /// [`AskError::Memory`], or silence.
    pub fn ask_memory(&self, device: CUdevice, gpu: GpuId, bytes: Bytes, kind: Kind) -> Result<(), AskError> {
        let key = Key::Memory(self.next_request());
        match self.ask(key, Subject::Memory { device, bytes, kind }, |_| Some(gpu), PATIENCE)? {
            Answer::Memory(answer) => answer.map(|_| ()).map_err(AskError::Memory),
            Answer::Room(_) | Answer::Card(_) => Err(AskError::Silence),
        }
    }

    /// Asks for physical room for what the driver takes for itself; how much there is. Nobody waits long for it: the
    /// driver has the last word. A daemon that left such a question open is not asked again before it answers that one,
    /// so that one that hangs costs a program this wait once and not with every module.
    ///
    /// # Errors
    /// Silence.
    pub fn ask_room(&self, device: CUdevice, gpu: GpuId, bytes: Bytes) -> Result<Bytes, AskError> {
        if self.owes_room() {
            return Err(AskError::Silence);
        }
        let key = Key::Room(self.next_request());
        match self.ask(key, Subject::Room { device, bytes }, |_| Some(gpu), ROOM_PATIENCE)? {
            Answer::Room(bytes) => Ok(bytes),
            Answer::Memory(_) | Answer::Card(_) => Err(AskError::Silence),
        }
    }

    /// Whether somebody has given up waiting for room, and the answer has not come since.
    fn owes_room(&self) -> bool {
        let questions = lock(&self.questions);
        questions
            .iter()
            .any(|(key, question)| matches!(key, Key::Room(_)) && question.abandoned)
    }

    fn next_request(&self) -> RequestId {
        RequestId(self.next_request.fetch_add(1, Ordering::Relaxed))
    }

    /// Announces a card and asks for its number.
    ///
    /// # Errors
    /// [`AskError::Card`], or silence.
    pub fn ask_card(&self, info: GpuInfo) -> Result<GpuId, AskError> {
        match self.ask(Key::Card(info.uuid), Subject::Card(info), |_| None, PATIENCE)? {
            Answer::Card(answer) => answer.map_err(AskError::Card),
            Answer::Memory(_) | Answer::Room(_) => Err(AskError::Silence),
        }
    }

    fn ask(
        &self,
        key: Key,
        subject: Subject,
        gpu: impl Fn(CUdevice) -> Option<GpuId>,
        patience: Duration,
    ) -> Result<Answer, AskError> {
        let deadline = Instant::now() + patience;
        let mut questions = lock(&self.questions);
        if let Some(request) = subject.request(key, gpu) {
            self.tell(&request);
        }
        questions.insert(key, Question { subject, answer: None, abandoned: false });
        loop {
            if questions.get(&key).is_some_and(|question| question.answer.is_some()) {
                let answer = questions.remove(&key).and_then(|question| question.answer);
                return answer.ok_or(AskError::Silence);
            }
            let Some(rest) = deadline.checked_duration_since(Instant::now()) else {
                if let Some(question) = questions.get_mut(&key) {
                    question.abandoned = true;
                }
                return Err(AskError::Silence);
            };
            questions = self
                .answered
                .wait_timeout(questions, rest)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Takes in one message. Memory that is the process's from now on goes through `count` at once, before
    /// anybody can ask what is used; what nobody waits for any more goes to `surplus` after that.
    pub fn hear(
        &self,
        reply: TenantReply,
        count: impl Fn(CUdevice, Bytes, Kind),
        surplus: impl Fn(CUdevice, Bytes, Kind),
    ) {
        let (key, answer) = match reply {
            TenantReply::Reserved { request, bytes } => (Key::Memory(request), Answer::Memory(Ok(bytes))),
            TenantReply::Refused { request, refusal } => (Key::Memory(request), Answer::Memory(Err(refusal))),
            TenantReply::Headroom { request, bytes } => (Key::Room(request), Answer::Room(bytes)),
            TenantReply::Attached { uuid, gpu } => (Key::Card(uuid), Answer::Card(Ok(gpu))),
            TenantReply::Gate { epoch, .. } => return lock(&self.identity).epoch = Some(epoch),
            TenantReply::Queued { ahead, reason } => {
                let sessions = if ahead == 1 { "session" } else { "sessions" };
                return lock(&self.identity).waits_for = format!("{reason} ({ahead} {sessions} ahead)");
            }
            // The only question that fails with words is for a card, one at a time.
            TenantReply::Error(failure) => match self.open_card() {
                Some(key) => (key, Answer::Card(Err(failure))),
                None => return,
            },
            // Answers to a tool's questions, which we never ask.
            TenantReply::Welcome(_)
            | TenantReply::Ready { .. }
            | TenantReply::Session { .. }
            | TenantReply::OwnSession(_)
            | TenantReply::Gpus(_)
            | TenantReply::SessionMemory(_)
            | TenantReply::DryRun(_) => return,
        };
        let mut questions = lock(&self.questions);
        let Some(question) = questions.get_mut(&key) else { return };
        let given = match (&question.subject, &answer) {
            (&Subject::Memory { device, kind, .. }, &Answer::Memory(Ok(bytes))) => {
                Some((device, bytes, kind))
            }
            _ => None,
        };
        if let Some((device, bytes, kind)) = given {
            count(device, bytes, kind);
        }
        if question.abandoned {
            questions.remove(&key);
            if let Some((device, bytes, kind)) = given {
                surplus(device, bytes, kind);
            }
        } else {
            question.answer = Some(answer);
            self.answered.notify_all();
        }
    }

    fn open_card(&self) -> Option<Key> {
        let questions = lock(&self.questions);
        let open = questions
            .iter()
            .find(|(key, question)| matches!(key, Key::Card(_)) && question.answer.is_none());
        open.map(|(&key, _)| key)
    }

    /// Who we are.
    #[must_use]
    pub fn identity(&self) -> Identity {
        lock(&self.identity).clone()
    }
}

impl Subject {
    /// The message for this question; `None` if it names a device that the daemon does not know yet.
    fn request(&self, key: Key, gpu: impl Fn(CUdevice) -> Option<GpuId>) -> Option<TenantRequest> {
        match (self, key) {
            (&Self::Memory { device, bytes, kind }, Key::Memory(request)) => {
                let gpu = gpu(device)?;
                Some(match kind {
                    Kind::Movable => TenantRequest::Reserve { request, gpu, bytes },
                    Kind::Fixed => TenantRequest::ReserveFixed { request, gpu, bytes },
                })
            }
            (&Self::Room { device, bytes }, Key::Room(request)) => {
                Some(TenantRequest::Headroom { request, gpu: gpu(device)?, bytes })
            }
            (Self::Card(info), _) => Some(TenantRequest::Attach(info.clone())),
            (Self::Memory { .. } | Self::Room { .. }, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::RawFd;
    use std::sync::MutexGuard;

    use gpushare_proto::tenant::PROTOCOL;
    use gpushare_sys::fd;

    use super::*;

    /// A process has one link, whose sockets lifecycle.rs knows: of two tests that have one each waits for the other.
    static ONE: Mutex<()> = Mutex::new(());

    fn link() -> (MutexGuard<'static, ()>, Link, Connection, UnixStream) {
        let alone = lock(&ONE);
        let (ours, daemon) = UnixStream::pair().unwrap();
        let connection = Connection::new(ours).unwrap();
        let welcome = Welcome {
            protocol: PROTOCOL,
            client: ClientId(1),
            session: SessionId(1),
            name: "test".to_owned(),
            gpus: Vec::new(),
        };
        let link = Link::new(&connection, &welcome).unwrap();
        (alone, link, connection, daemon)
    }

    #[test]
    fn a_daemon_that_owes_an_answer_about_room_is_asked_for_none_until_it_gives_it() {
        let (_alone, link, _connection, _daemon) = link();
        let subject = Subject::Room { device: 0, bytes: Bytes(1) };
        let given_up = link.ask(Key::Room(RequestId(7)), subject, |_| Some(GpuId(0)), Duration::ZERO);
        assert!(matches!(given_up, Err(AskError::Silence)));
        assert!(matches!(link.ask_room(0, GpuId(0), Bytes(1)), Err(AskError::Silence)));
        assert_eq!(link.next_request(), RequestId(1), "it was not asked");

        let answer = TenantReply::Headroom { request: RequestId(7), bytes: Bytes(1) };
        link.hear(answer, |_, _, _| (), |_, _, _| ());
        assert!(!link.owes_room());
    }

    /// Which of the descriptors the child of a fork has.
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
    fn the_child_of_a_fork_closes_our_sockets_and_nobody_elses() {
        lifecycle::watch();
        let (_alone, link, connection, _daemon) = link();
        let sender = lock(&link.sender).as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let sockets = [connection.descriptor(), sender];
        assert_eq!(in_child(sockets), [false, false]);

        link.unplug();
        drop(connection);
        let others = [(); 2].map(|()| fd::move_high(File::open("/dev/null").unwrap().into()));
        let numbers = [others[0].as_raw_fd(), others[1].as_raw_fd()];
        assert_eq!(numbers, sockets, "the lowest free numbers above the low ones");
        assert_eq!(in_child(numbers), [true, true]);
    }
}
