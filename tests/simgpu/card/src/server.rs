//! The card's process: sockets and the clock around the machine.
//!
//! One thread and one `poll`: for what clients say, for room to answer them, for the end, until the
//! machine's next deadline. Without work there is no deadline, and the process sleeps.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use crate::clock::Clock;
use crate::frame::{Frame, Inbox};
use crate::ids::ClientId;
use crate::machine::{Card, Effect, Input};
use crate::stats::Stats;
use crate::wire::{Answer, Message, Question, Request};

/// The card with its sockets.
#[derive(Debug)]
pub struct Server {
    card: Card,
    clock: Clock,
    started_nanos: u64,
    listener: UnixListener,
    path: PathBuf,
    peers: BTreeMap<ClientId, Peer>,
    next_client: u32,
    stopping: bool,
}

#[derive(Debug)]
struct Peer {
    socket: UnixStream,
    inbox: Inbox,
    outbox: VecDeque<Frame>,
}

/// Owner of a descriptor in the poll set.
#[derive(Clone, Copy)]
enum Source {
    Ending,
    Listener,
    Peer(ClientId),
}

impl Server {
    /// Listens at `path`, where nothing may be yet.
    pub fn listen(path: &Path, card: Card) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        let started = clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(started.tv_sec).unwrap_or(0);
        let started_nanos = seconds * 1_000_000_000 + u64::try_from(started.tv_nsec).unwrap_or(0);
        Ok(Self {
            card,
            clock: Clock::start(),
            started_nanos,
            listener,
            path: path.to_owned(),
            peers: BTreeMap::new(),
            next_client: 1,
            stopping: false,
        })
    }

    /// Runs until it is told to stop or one of `endings` becomes readable.
    pub fn run(&mut self, endings: &[OwnedFd]) -> io::Result<()> {
        while !self.stopping {
            for (source, flags) in self.wait(endings)? {
                match source {
                    Source::Ending => return Ok(()),
                    Source::Listener => self.accept(),
                    Source::Peer(client) => {
                        if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                            self.listen_to(client);
                        }
                    }
                }
            }
            self.handle(Input::Tick);
            self.flush();
        }
        Ok(())
    }

    /// Sleeps until something is to be done, and answers what.
    fn wait(&mut self, endings: &[OwnedFd]) -> io::Result<Vec<(Source, PollFlags)>> {
        let due = self.card.next_deadline();
        let now = self.clock.now(due);
        let timeout = due.map(|due| timespec(due.saturating_sub(now)));
        let endings = endings.iter().map(|fd| (Source::Ending, fd.as_fd(), PollFlags::IN));
        let listener = std::iter::once((Source::Listener, self.listener.as_fd(), PollFlags::IN));
        let peers = self.peers.iter().map(|(client, peer)| {
            let flags = if peer.outbox.is_empty() {
                PollFlags::IN
            } else {
                PollFlags::IN | PollFlags::OUT
            };
            (Source::Peer(*client), peer.socket.as_fd(), flags)
        });
        let (sources, mut fds): (Vec<Source>, Vec<PollFd<'_>>) = endings
            .chain(listener)
            .chain(peers)
            .map(|(source, fd, flags)| (source, PollFd::from_borrowed_fd(fd, flags)))
            .unzip();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let happened = sources.into_iter().zip(fds).map(|(source, fd)| (source, fd.revents()));
        Ok(happened.filter(|(_, flags)| !flags.is_empty()).collect())
    }

    fn accept(&mut self) {
        while let Ok((socket, _)) = self.listener.accept() {
            let (pid, user) = rustix::net::sockopt::socket_peercred(&socket)
                .map_or((0, u32::MAX), |peer| (peer.pid.as_raw_nonzero().get(), peer.uid.as_raw()));
            if socket.set_nonblocking(true).is_err() {
                continue;
            }
            let client = ClientId(self.next_client);
            self.next_client += 1;
            self.peers
                .insert(client, Peer { socket, inbox: Inbox::default(), outbox: VecDeque::new() });
            self.handle(Input::Connected { client, pid: pid.unsigned_abs(), user });
        }
    }

    fn listen_to(&mut self, client: ClientId) {
        let Some(peer) = self.peers.get_mut(&client) else {
            return;
        };
        let open = match peer.inbox.fill(&peer.socket) {
            Ok(open) => open,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        loop {
            let Some(peer) = self.peers.get_mut(&client) else {
                return;
            };
            match peer.inbox.take::<Question>() {
                Ok(Some(frame)) if matches!(frame.head.request, Request::Stats) => {
                    self.report(client, frame.head.token);
                }
                Ok(Some(frame)) => {
                    let (question, payload) = (frame.head, frame.payload);
                    self.handle(Input::Said { client, question, payload });
                }
                Ok(None) if open => return,
                Ok(None) | Err(_) => break,
            }
        }
        self.peers.remove(&client);
        self.handle(Input::Gone(client));
    }

    /// The machine's statistics with what only the clock knows.
    pub fn stats(&self) -> Stats {
        let mut stats = self.card.stats();
        stats.started_nanos = self.started_nanos;
        stats.held_back_nanos = u64::try_from(self.clock.held_back().as_nanos()).unwrap_or(u64::MAX);
        stats
    }

    fn report(&mut self, client: ClientId, token: Option<u64>) {
        self.handle(Input::Tick);
        if let (Ok(text), Some(token)) = (serde_json::to_string(&self.stats()), token) {
            let message = Message::Answer(token, Ok(Answer::Stats(text)));
            self.say(client, &message, &[], None);
        }
    }

    fn handle(&mut self, input: Input) {
        let now = self.clock.now(self.card.next_deadline());
        self.card.handle(now, input);
        while let Some(effect) = self.card.poll_effect() {
            match effect {
                Effect::Say { client, message, payload, fd } => self.say(client, &message, &payload, fd),
                Effect::Stop => self.stopping = true,
            }
        }
    }

    fn say(&mut self, client: ClientId, message: &Message, payload: &[u8], fd: Option<OwnedFd>) {
        let Some(peer) = self.peers.get_mut(&client) else {
            return;
        };
        if let Ok(frame) = Frame::new(message, payload, fd) {
            peer.outbox.push_back(frame);
            peer.flush();
        }
    }

    fn flush(&mut self) {
        self.peers.values_mut().for_each(Peer::flush);
    }
}

impl Peer {
    /// Sends what the socket takes. A broken socket is noticed when it is read.
    fn flush(&mut self) {
        while let Some(frame) = self.outbox.front_mut() {
            if !frame.send(&self.socket).unwrap_or(true) {
                return;
            }
            self.outbox.pop_front();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}
