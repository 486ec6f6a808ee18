//! What happens to the machine, and what it wants done.

mod effect;
mod notice;
mod waits_for;

use gpushare_proto::admin::Setting;
use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, ClientId, Epoch, GateWord, GpuId, Nanos, Percent, RequestId, SessionId};
use serde::{Deserialize, Serialize};

pub use self::effect::Effect;
pub use self::notice::Notice;
pub use self::waits_for::WaitsFor;
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
