//! What happens to the machine, and what it wants done.

use std::fmt;

use crate::gpu_set::GpuSet;
use gpushare_proto::admin::Setting;
use gpushare_proto::page::MemoryRefusal;
use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, ClientId, Epoch, GateWord, GpuId, Nanos, Percent, RequestId, SessionId};
use serde::{Deserialize, Serialize};

use crate::config::Tuning;

/// What a session may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// Everything that it has quota and turns for.
    #[default]
    Good,
    /// Nothing is granted to it; it keeps what it has and may ask for memory.
    Paused,
    /// Nothing is granted to it and it gets no more memory; it keeps what it has.
    Over,
}

/// Something happened. The shell has already established who a peer is; everything else in here may be
/// a lie, a repetition or out of order, and no event may panic the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A card exists. Repeats are ignored.
    GpuFound {
        /// Its number.
        gpu: GpuId,
        /// Its memory.
        total: Bytes,
    },
    /// A session exists.
    SessionOpened {
        /// Its number.
        session: SessionId,
        /// Its quota on each card.
        limit: Option<Bytes>,
        /// Whether it may be larger than a card's capacity.
        oversubscribe: bool,
    },
    /// What a session may have on one card, where that is not what it may have on each.
    Quota {
        /// The session.
        session: SessionId,
        /// The card.
        gpu: GpuId,
        /// How much; none for no limit of its own.
        limit: Option<Bytes>,
    },
    /// What a session may do from now on.
    Standing {
        /// The session.
        session: SessionId,
        /// Which it is.
        standing: Standing,
    },
    /// A session will get no more clients.
    SessionClosed {
        /// Its number.
        session: SessionId,
    },
    /// A process joined a session.
    ClientJoined {
        /// The process.
        client: ClientId,
        /// Its session.
        session: SessionId,
        /// For one that comes back from the last daemon: the epoch it says it holds. Who was awaited runs on; who was not must
        /// let its work end first.
        holding: Option<Epoch>,
    },
    /// A process is dead, by the kernel's word.
    ClientGone {
        /// The process.
        client: ClientId,
    },
    /// A process is about to use a card, or one that is dead has left memory there.
    Attached {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// For one that comes back: the bytes it says it uses. Booked even beyond the quota.
        used: Bytes,
    },
    /// How many contexts a process has on a card.
    Contexts {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// Live contexts.
        live: u32,
    },
    /// What lies free in the process's page, clamped by the shell to what was leased. Sent before any
    /// other event of that client that depends on it, and now and then.
    LeaseSeen {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// Leased bytes that are not used.
        free: Bytes,
    },
    /// A process asks for bytes beyond its lease.
    Reserve {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// Comes back in the answer.
        request: RequestId,
        /// Bytes.
        bytes: Bytes,
    },
    /// Answers [`Effect::Recall`]: the shell took these bytes out of the page. Arrives before the next outside event.
    Recalled {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// Bytes taken back.
        bytes: Bytes,
    },
    /// A process has more free lease than is useful.
    Trim {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
    },
    /// A thread sleeps at the gate.
    Wait {
        /// The process.
        client: ClientId,
        /// The word it saw.
        word: GateWord,
    },
    /// Memory is in after a grant.
    Entered {
        /// The process.
        client: ClientId,
        /// The word that granted.
        word: GateWord,
        /// Bytes asked to move.
        moved: Bytes,
        /// Time it took.
        took: Nanos,
    },
    /// A process let go.
    Released {
        /// The process.
        client: ClientId,
        /// The word that closed its gate, or the open one under which it went idle.
        word: GateWord,
        /// From the gate's closing to the end of the last work.
        drain: Nanos,
    },
    /// A client of the last daemon is dead and will not come back.
    ExpectedGone {
        /// The process.
        client: ClientId,
    },
    /// The administrator changed a setting.
    Set(Setting),
    /// Nothing but time: the deadline was reached.
    Tick,
    /// As [`Self::Reserve`], for bytes that never move: they count as fixed as soon as they are given.
    ReserveFixed {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// Comes back in the answer.
        request: RequestId,
        /// Bytes.
        bytes: Bytes,
    },
    /// How many of a process's bytes never move.
    Fixed {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// Bytes; believed up to what was leased.
        bytes: Bytes,
    },
    /// A process gives back bytes that never moved, past its page.
    Returned {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// Bytes, clamped by the shell to what was leased.
        bytes: Bytes,
    },
    /// A process asks for physical room for the driver's own memory.
    Room {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// Comes back in the answer.
        request: RequestId,
        /// How much the driver may need.
        bytes: Bytes,
    },
    /// What a process's contexts and the rest of the driver's memory take beside what it allocated, as measured.
    Overhead {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// Bytes; none if it cannot be measured any more.
        bytes: Option<Bytes>,
    },
    /// What a process does with its memory is not seen any more: it must stay where it is, for good.
    Unevictable {
        /// The process.
        client: ClientId,
    },
    /// A session's share of the time where sessions take turns.
    Share {
        /// The session.
        session: SessionId,
        /// 1 to 10,000; 100 is usual.
        weight: u32,
        /// Its class.
        priority: Priority,
    },
    /// How much of the time a session may hold the lock on one card.
    Compute {
        /// The session.
        session: SessionId,
        /// The card.
        gpu: GpuId,
        /// How much; none for no limit.
        limit: Option<Percent>,
    },
    /// A process says that it refused an allocation by itself, because it is larger than the whole quota.
    RefusedHere {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// What the allocation needed.
        bytes: Bytes,
    },
    /// What a client of the last daemon used of a card, as that daemon wrote it down. Of whom nothing is said before it may come
    /// back, that one may use any card.
    ExpectedUses {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// Bytes.
        bytes: Bytes,
    },
    /// A process that lost its connection and lives is back, with another page: its gate is as it was, nothing lies free, and
    /// what never moves is to be said anew.
    ClientReturned {
        /// The process.
        client: ClientId,
        /// Whether a thread of it sleeps at the gate.
        waiting: bool,
    },
    /// What a process that is back says it uses. Booked even beyond the quota where that is more than was known; never less.
    StillUses {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// Bytes.
        bytes: Bytes,
    },
    /// A setting that is the same for all cards is another one from now on.
    Tune(Tuning),
    /// A process is dead, by the kernel's word, and its memory is on the cards still: another process has their files open.
    /// [`Self::ClientGone`] follows when it is not.
    ClientEnded {
        /// The process.
        client: ClientId,
    },
}

impl Event {
    /// The process that it is about.
    pub(crate) const fn client(&self) -> Option<ClientId> {
        match *self {
            Self::GpuFound { .. }
            | Self::SessionOpened { .. }
            | Self::Quota { .. }
            | Self::Standing { .. }
            | Self::Share { .. }
            | Self::Compute { .. }
            | Self::SessionClosed { .. }
            | Self::ExpectedGone { .. }
            | Self::ExpectedUses { .. }
            | Self::Set(_)
            | Self::Tune(_)
            | Self::Tick => None,
            Self::ClientJoined { client, .. }
            | Self::ClientGone { client }
            | Self::ClientEnded { client }
            | Self::Attached { client, .. }
            | Self::Contexts { client, .. }
            | Self::LeaseSeen { client, .. }
            | Self::Reserve { client, .. }
            | Self::Recalled { client, .. }
            | Self::Trim { client, .. }
            | Self::Wait { client, .. }
            | Self::Entered { client, .. }
            | Self::Released { client, .. }
            | Self::ReserveFixed { client, .. }
            | Self::Fixed { client, .. }
            | Self::Returned { client, .. }
            | Self::Room { client, .. }
            | Self::Overhead { client, .. }
            | Self::Unevictable { client }
            | Self::RefusedHere { client, .. }
            | Self::ClientReturned { client, .. }
            | Self::StillUses { client, .. } => Some(client),
        }
    }

    /// The session that it is about, where it names no process.
    pub(crate) const fn session(&self) -> Option<SessionId> {
        match *self {
            Self::SessionOpened { session, .. }
            | Self::Quota { session, .. }
            | Self::Standing { session, .. }
            | Self::Share { session, .. }
            | Self::Compute { session, .. }
            | Self::SessionClosed { session } => Some(session),
            _ => None,
        }
    }
}

/// Something must be done. The shell does it at once and in order, before it takes another event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Store the word in the page, wake its sleepers if it opens, and tell the process.
    Gate {
        /// The process.
        client: ClientId,
        /// The new word.
        word: GateWord,
        /// The grant it belongs to.
        epoch: Epoch,
    },
    /// Store the page's flags ([`gpushare_proto::page::FLAG_CONTENDED`], [`gpushare_proto::page::FLAG_WANTED`]).
    Flags {
        /// The process.
        client: ClientId,
        /// The flags.
        flags: u32,
    },
    /// Store what the process is told about a card: its session's limit, ceiling and its siblings' use.
    Figures {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// The session's quota; [`Bytes::MAX`] for none.
        limit: Bytes,
        /// Bytes used by other processes of the session.
        siblings: Bytes,
        /// The most that one session may use now.
        ceiling: Bytes,
    },
    /// Answer a [`Event::Reserve`]: `bytes` go to the asker, `extra` into its page.
    Lease {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// The question.
        request: RequestId,
        /// What was asked for.
        bytes: Bytes,
        /// What goes into the page besides.
        extra: Bytes,
    },
    /// Answer a [`Event::Reserve`] with a refusal.
    Refuse {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// The question.
        request: RequestId,
        /// Why.
        refusal: MemoryRefusal,
    },
    /// Take up to `bytes` of free lease out of the page and answer with [`Event::Recalled`].
    Recall {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// At most so much.
        bytes: Bytes,
    },
    /// Tell a process what its sleeping threads wait for.
    Queued {
        /// The process.
        client: ClientId,
        /// Sessions ahead of it.
        ahead: u32,
        /// For whom or what.
        reason: WaitsFor,
    },
    /// End a process ([`crate::config::StuckPolicy::Kill`]).
    Kill {
        /// The process.
        client: ClientId,
    },
    /// Say something in the log.
    Notice(Notice),
    /// Put bytes into the page that nobody asked for: they came back by [`Event::Returned`].
    Extend {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// Bytes.
        bytes: Bytes,
    },
    /// Answer a [`Event::Room`].
    Room {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// The question.
        request: RequestId,
        /// What is free beside all that cannot move.
        bytes: Bytes,
    },
}

/// For what a session waits that wants its turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitsFor {
    /// Nothing: it is the next.
    #[default]
    Turn,
    /// These hold the lock, one at least.
    Holders(Vec<SessionId>),
    /// A holder does not let go.
    Stuck {
        /// The holder.
        session: SessionId,
        /// What that one waits for.
        reason: String,
    },
    /// So many processes of the last daemon that may use its cards are awaited.
    Return(u32),
    /// Somebody must let the session go on.
    Pardon(Standing),
    /// It has used up its compute limit for now.
    Limit(Percent),
}

impl WaitsFor {
    /// So many holders are named.
    const NAMED: usize = 5;

    /// In words, with the names that only the shell knows.
    #[must_use]
    pub fn words(&self, name: impl Fn(SessionId) -> String) -> String {
        match self {
            Self::Turn => "its turn is next".to_owned(),
            Self::Holders(holders) => {
                let named = holders.iter().take(Self::NAMED);
                let names = named.map(|id| name(*id)).collect::<Vec<_>>().join(", ");
                match holders.len().saturating_sub(Self::NAMED) {
                    0 => format!("held by {names}"),
                    more => format!("held by {names} and {more} more"),
                }
            }
            Self::Stuck { session, reason } => {
                format!("session {} does not let go: {reason}", name(*session))
            }
            Self::Pardon(Standing::Paused) => {
                "the session is paused, until `gpushare-ctl session resume`".to_owned()
            }
            Self::Pardon(_) => {
                "the session has expired or was revoked; `gpushare-ctl session renew` lets it go on"
                    .to_owned()
            }
            Self::Limit(limit) => format!("its compute limit of {limit} is used up for now"),
            Self::Return(0) => "the scheduler restarted and is about to go on".to_owned(),
            Self::Return(1) => "the scheduler restarted and waits for 1 process to return".to_owned(),
            Self::Return(n) => format!("the scheduler restarted and waits for {n} processes to return"),
        }
    }
}

/// With numbers for names.
impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words(|session| session.to_string()))
    }
}

/// What an operator should be able to read in the log afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// A card changed its mode.
    ModeChanged {
        /// The card.
        gpu: GpuId,
        /// The new mode.
        mode: gpushare_proto::admin::Mode,
        /// Why.
        reason: String,
    },
    /// A session got the lock in serialized mode.
    Granted {
        /// The session.
        session: SessionId,
        /// Its grant.
        epoch: Epoch,
        /// Its quantum.
        quantum: Nanos,
        /// The cards that it takes turns on.
        gpus: GpuSet,
        /// Since it queued up.
        waited: Nanos,
    },
    /// The memory of a session that got the lock in serialized mode is in: it goes on.
    Entered {
        /// The session.
        session: SessionId,
        /// The cards that it takes turns on.
        gpus: GpuSet,
        /// Since it queued up.
        waited: Nanos,
        /// Since the last session to make room was told to, or since it queued up, whichever came later.
        handoff: Nanos,
    },
    /// A session let go.
    Dropped {
        /// The session.
        session: SessionId,
        /// Its grant.
        epoch: Epoch,
        /// The cards that it takes turns on.
        gpus: GpuSet,
        /// Its drain; none if it went idle before it was told to let go.
        drain: Option<Nanos>,
    },
    /// A drop was late while a thread slept at the session's gate, and was reopened.
    DropReopened {
        /// The session.
        session: SessionId,
        /// Tries so far.
        tries: u32,
    },
    /// A session does not let go.
    Stuck {
        /// The session.
        session: SessionId,
        /// What it waits for.
        reason: String,
    },
    /// Memory was refused.
    Refused {
        /// The process.
        client: ClientId,
        /// Its session.
        session: SessionId,
        /// The card.
        gpu: GpuId,
        /// The figures.
        refusal: MemoryRefusal,
    },
    /// All clients of the last daemon are back or dead: grants begin.
    Recovered {
        /// How long that took.
        after: Nanos,
    },
    /// A client of the last daemon lives and does not come back.
    Overdue {
        /// The process.
        client: ClientId,
        /// How long it was awaited.
        after: Nanos,
    },
}
