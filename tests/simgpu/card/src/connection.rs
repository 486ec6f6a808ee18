//! The client's end of the socket, shared by all threads of a process.
//!
//! There is no thread for reading. Whoever waits for an answer reads, for everybody: the first one to come
//! takes the inbox, hands what it reads to the thread whose token it carries, and leaves the inbox to the
//! next one when its own answer is there. So a lone thread pays for no hand-over.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

use crate::frame::{Frame, Inbox, Received};
use crate::ids::{ClientId, GpuIndex, HostCallId};
use crate::stats::Stats;
use crate::wire::{Answer, Description, Failure, Message, Question, Refusable, Request, Role};

/// Why the card gave no good answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The card refused.
    #[error("the simulated card refuses: {0:?}")]
    Refused(Failure),
    /// The card is gone, or says what makes no sense.
    #[error("the simulated card cannot be reached: {0}")]
    Lost(#[from] io::Error),
}

/// A good answer and what came with it.
#[derive(Debug)]
pub struct Reply {
    /// The answer.
    pub answer: Answer,
    /// Bytes of a download.
    pub payload: Vec<u8>,
    /// Memory of an allocation.
    pub fd: Option<OwnedFd>,
}

/// A connection to the card.
#[derive(Debug)]
pub struct Connection {
    socket: UnixStream,
    id: ClientId,
    board: Option<OwnedFd>,
    sending: Mutex<()>,
    inbox: Mutex<Inbox>,
    arrived: Mutex<Arrived>,
    news: Condvar,
    next_token: AtomicU64,
}

/// Answers that are there and have not been fetched.
type Arrived = HashMap<u64, Parcel>;
type Parcel = (Result<Answer, Failure>, Vec<u8>, Option<OwnedFd>);

impl Connection {
    /// Connects and says what for.
    pub fn open(path: &Path, role: Role) -> Result<Self, CallError> {
        let mut connection = Self {
            socket: UnixStream::connect(path)?,
            id: ClientId(0),
            board: None,
            sending: Mutex::default(),
            inbox: Mutex::default(),
            arrived: Mutex::default(),
            news: Condvar::new(),
            next_token: AtomicU64::new(1),
        };
        let reply = connection.call(Request::Hello(role), &[])?;
        if let Answer::Welcome(id) = reply.answer {
            (connection.id, connection.board) = (id, reply.fd);
        }
        Ok(connection)
    }

    /// This connection's number.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// The memfd of a driver's [board](crate::board).
    pub fn board(&self) -> Option<&OwnedFd> {
        self.board.as_ref()
    }

    /// Says something that needs no answer.
    pub fn tell(&self, request: Request, payload: &[u8]) -> Result<(), CallError> {
        self.send(&Question { token: None, request }, payload)
    }

    /// Asks and waits for the answer.
    pub fn call(&self, request: Request, payload: &[u8]) -> Result<Reply, CallError> {
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        self.send(&Question { token: Some(token), request }, payload)?;
        let (result, payload, fd) = self.wait(token)?;
        let answer = result.map_err(CallError::Refused)?;
        Ok(Reply { answer, payload, fd })
    }

    /// Waits for the next host function to call, on a connection of [`Role::Callbacks`].
    pub fn next_call(&self) -> Result<(HostCallId, u64), CallError> {
        let mut inbox = lock(&self.inbox);
        loop {
            if let Message::Call(function, call) = self.receive(&mut inbox)?.head {
                return Ok((function, call));
            }
        }
    }

    fn send(&self, question: &Question, payload: &[u8]) -> Result<(), CallError> {
        let mut frame = Frame::new(question, payload, None)?;
        let _turn = lock(&self.sending);
        frame.send(self.socket.as_fd())?;
        Ok(())
    }

    fn wait(&self, token: u64) -> Result<Parcel, CallError> {
        let mut arrived = lock(&self.arrived);
        loop {
            if let Some(mine) = arrived.remove(&token) {
                return Ok(mine);
            }
            let inbox = match self.inbox.try_lock() {
                Ok(inbox) => Some(inbox),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            let Some(inbox) = inbox else {
                arrived = self.news.wait(arrived).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(arrived);
            let mut reader = Reader { inbox: Some(inbox), connection: self };
            let received = reader.receive();
            arrived = lock(&self.arrived);
            reader.leave();
            let received = received?;
            if let Message::Answer(token, result) = received.head {
                arrived.insert(token, (result, received.payload, received.fd));
            }
        }
    }

    fn receive(&self, inbox: &mut Inbox) -> io::Result<Received<Message>> {
        loop {
            if let Some(frame) = inbox.take()? {
                return Ok(frame);
            }
            wait_for_bytes(&self.socket);
            if !inbox.fill(self.socket.as_fd())? {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
        }
    }
}

/// The thread that reads for everybody.
struct Reader<'a> {
    inbox: Option<MutexGuard<'a, Inbox>>,
    connection: &'a Connection,
}

impl Reader<'_> {
    fn receive(&mut self) -> io::Result<Received<Message>> {
        let inbox = self.inbox.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        self.connection.receive(inbox)
    }

    /// Gives the inbox up before the others are woken, so that one of them finds it free. Called with what
    /// has arrived locked, so that nobody goes to sleep in between.
    fn leave(&mut self) {
        self.inbox = None;
        self.connection.news.notify_all();
    }
}

impl Drop for Reader<'_> {
    /// The thread was cancelled while it waited: another one reads on.
    fn drop(&mut self) {
        if self.inbox.is_some() {
            let _arrived = lock(&self.connection.arrived);
            self.leave();
        }
    }
}

#[allow(unsafe_code, reason = "rustix's poll is no place where a thread may be cancelled")]
/// Waits until there is something to read. A thread may be cancelled here, as in the waits of the real
/// driver.
fn wait_for_bytes(socket: &UnixStream) {
    // As libc declares it, except that a thread which is cancelled in it unwinds.
    unsafe extern "C-unwind" {
        fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: libc::c_int) -> libc::c_int;
    }
    let mut readable = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, ours. Whatever ends the wait, the caller reads.
    unsafe { poll(&raw mut readable, 1, -1) };
}

/// Connection that looks at the card without using it: of a test, a demo or NVML.
#[derive(Debug)]
pub struct Observer(Connection);

impl Observer {
    /// Connects.
    pub fn connect(path: &Path) -> Result<Self, CallError> {
        Connection::open(path, Role::Observer).map(Self)
    }

    /// Description of the card.
    pub fn describe(&self) -> Result<Description, CallError> {
        match self.0.call(Request::Describe, &[])?.answer {
            Answer::Description(description) => Ok(*description),
            other => Err(unexpected(&other)),
        }
    }

    /// Statistics of the card so far.
    pub fn stats(&self) -> Result<Stats, CallError> {
        match self.0.call(Request::Stats, &[])?.answer {
            Answer::Stats(text) => {
                serde_json::from_str(&text).map_err(|error| io::Error::other(error).into())
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Resets a GPU that fell off the bus.
    pub fn reset(&self, gpu: GpuIndex) -> Result<(), CallError> {
        self.0.call(Request::Reset(gpu), &[]).map(|_| ())
    }

    /// Lets a GPU fall off the bus, until it is reset.
    pub fn fall_off(&self, gpu: GpuIndex) -> Result<(), CallError> {
        self.0.call(Request::FallOff(gpu), &[]).map(|_| ())
    }

    /// Lets a GPU report an Xid.
    pub fn xid(&self, gpu: GpuIndex, xid: u64) -> Result<(), CallError> {
        self.0.call(Request::Xid(gpu, xid), &[]).map(|_| ())
    }

    /// Sets whether a GPU is in persistence mode.
    pub fn set_persistence(&self, gpu: GpuIndex, is_on: bool) -> Result<(), CallError> {
        self.0.call(Request::SetPersistence(gpu, is_on), &[]).map(|_| ())
    }

    /// Lets the next `count` calls of a process fail for want of memory.
    pub fn refuse(&self, pid: u32, call: Refusable, count: u32) -> Result<(), CallError> {
        self.0.call(Request::Refuse { pid, call, count }, &[]).map(|_| ())
    }

    /// Ends the card. Answered before it is gone; its socket file goes with it.
    pub fn shutdown(&self) -> Result<(), CallError> {
        self.0.call(Request::Shutdown, &[]).map(|_| ())
    }
}

fn unexpected(answer: &Answer) -> CallError {
    io::Error::other(format!("answered {answer:?}")).into()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
