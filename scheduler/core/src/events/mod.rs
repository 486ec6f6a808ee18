//! Events that the machine is told, and effects that it asks for.

mod effect;
mod notice;
mod waits_for;

use gpushare_proto::admin::Setting;
use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, ClientId, Epoch, GateWord, GpuId, Nanos, Percent, RequestId, SessionId};
use serde::{Deserialize, Serialize};

pub use self::effect::Effect;
pub use self::notice::Notice;
pub(crate) use self::waits_for::Place;
pub use self::waits_for::WaitsFor;
use crate::config::Tuning;

/// Permission of a session to run and to grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// The session may run, and may allocate within its quota.
    #[default]
    Good,
    /// The session gets no turn. It keeps its memory and may allocate more.
    Paused,
    /// The session expired or was revoked: it gets no turn and no more memory, and keeps what it has.
    Over,
}

/// Fact that the shell tells the machine.
///
/// The shell has established which process speaks. Everything else may be a lie, a repetition or out of
/// order, and no event may panic the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A card exists. The machine ignores repetitions.
    GpuFound {
        /// Number of the card.
        gpu: GpuId,
        /// Total memory of the card.
        total: Bytes,
    },
    /// A session exists, or has new limits.
    SessionOpened {
        /// Number of the session.
        session: SessionId,
        /// Quota of the session on each card; `None` for no limit.
        limit: Option<Bytes>,
        /// Whether the session may use more memory than a card's capacity.
        oversubscribe: bool,
    },
    /// A session has a quota of its own on one card.
    Quota {
        /// Number of the session.
        session: SessionId,
        /// Number of the card.
        gpu: GpuId,
        /// Quota on that card; `None` for no limit.
        limit: Option<Bytes>,
    },
    /// The permission of a session changed.
    Standing {
        /// Number of the session.
        session: SessionId,
        /// Permission from now on.
        standing: Standing,
    },
    /// A session will get no more clients.
    SessionClosed {
        /// Number of the session.
        session: SessionId,
    },
    /// A process joined a session.
    ClientJoined {
        /// Number of the process.
        client: ClientId,
        /// Number of the session that the process joins.
        session: SessionId,
        /// Epoch of the grant that a process of the last daemon says it holds. An expected process runs on;
        /// the work of any other must end first.
        holding: Option<Epoch>,
    },
    /// A process is dead, as the kernel reports, and its memory is free.
    ClientGone {
        /// Number of the process.
        client: ClientId,
    },
    /// A process is about to use a card, or a dead one left memory there.
    Attached {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
        /// Bytes that a returning process says it uses. They are booked even beyond the quota.
        used: Bytes,
    },
    /// The number of a process's contexts on a card changed.
    Contexts {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
        /// Number of live contexts.
        live: u32,
    },
    /// The shell looked at the free lease in a process's page. It does so before every event that depends on
    /// it, and now and then.
    LeaseSeen {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
        /// Leased bytes that the process does not use, at most what was leased.
        free: Bytes,
    },
    /// A process asks for bytes of managed memory beyond its lease.
    Reserve {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
        /// Number that the answer repeats.
        request: RequestId,
        /// Number of bytes.
        bytes: Bytes,
    },
    /// Answer to [`Effect::Recall`]: the shell took bytes out of a page. It comes before any other event.
    Recalled {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
        /// Bytes that were taken back.
        bytes: Bytes,
    },
    /// A process has more free lease than is useful.
    Trim {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
    },
    /// A thread of a process sleeps at the gate.
    Wait {
        /// Number of the process.
        client: ClientId,
        /// Gate word that the thread saw.
        word: GateWord,
    },
    /// A process has brought its memory in after a grant.
    Entered {
        /// Number of the process.
        client: ClientId,
        /// Gate word of the grant.
        word: GateWord,
        /// Bytes that the process asked the driver to move.
        moved: Bytes,
        /// Duration of the move.
        took: Nanos,
    },
    /// A process has no work in flight any more: it drained, or went idle.
    Released {
        /// Number of the process.
        client: ClientId,
        /// Gate word that closed the gate, or the open one under which the process went idle.
        word: GateWord,
        /// Time from the closing of the gate to the end of the last work.
        drain: Nanos,
    },
    /// An expected process of the last daemon is dead.
    ExpectedGone {
        /// Number of the process.
        client: ClientId,
    },
    /// The administrator changed a setting of one card or of all.
    Set(Setting),
    /// The deadline of the machine was reached.
    Tick,
    /// A process asks for bytes that never move. They count as fixed as soon as they are leased.
    ReserveFixed {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
        /// Number that the answer repeats.
        request: RequestId,
        /// Number of bytes.
        bytes: Bytes,
    },
    /// A process says how many of its bytes never move.
    Fixed {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
        /// Fixed bytes; the machine believes them up to what was leased.
        bytes: Bytes,
    },
    /// A process gives fixed bytes back directly, not by its page.
    Returned {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
        /// Bytes that are given back, at most what was leased.
        bytes: Bytes,
    },
    /// A process asks for physical room for the driver's own memory.
    Room {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
        /// Number that the answer repeats.
        request: RequestId,
        /// Bytes of the card that the driver may need for itself.
        bytes: Bytes,
    },
    /// Memory that contexts and the driver take for a process, beside its allocations, was measured.
    Overhead {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
        /// Measured bytes; `None` if they cannot be measured any more.
        bytes: Option<Bytes>,
    },
    /// A process uses driver functions that the library does not know. It is reported as not evictable from now on;
    /// no decision depends on that.
    Unevictable {
        /// Number of the process.
        client: ClientId,
    },
    /// The weight or the priority of a session changed.
    Share {
        /// Number of the session.
        session: SessionId,
        /// Weight from 1 to 10,000; the default is 100.
        weight: u32,
        /// Priority class of the session.
        priority: Priority,
    },
    /// The compute limit of a session on one card changed.
    Compute {
        /// Number of the session.
        session: SessionId,
        /// Number of the card.
        gpu: GpuId,
        /// Largest share of the time with the lock; `None` for no limit.
        limit: Option<Percent>,
    },
    /// A process refused an allocation by itself, because it exceeds the whole quota.
    RefusedHere {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
        /// Bytes that the allocation needed.
        bytes: Bytes,
    },
    /// Memory that an expected process used on a card, as the last daemon recorded. A process without a
    /// record may use any card.
    ExpectedUses {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
        /// Number of bytes.
        bytes: Bytes,
    },
    /// A process that had lost its connection is back with a new page. Its gate is as it was, its free lease
    /// is gone, and it reports its fixed bytes again.
    ClientReturned {
        /// Number of the process.
        client: ClientId,
        /// Whether a thread of the process sleeps at the gate.
        waiting: bool,
    },
    /// A returning process says how much it uses. More than is known is booked even beyond the quota; less
    /// changes nothing.
    StillUses {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
        /// Number of bytes.
        bytes: Bytes,
    },
    /// A setting that is the same for all cards changed.
    Tune(Tuning),
    /// A process is dead, but another process keeps the card's files open, so its memory is not free yet.
    /// [`Self::ClientGone`] follows when it is.
    ClientEnded {
        /// Number of the process.
        client: ClientId,
    },
}

impl Event {
    /// Process that the event is about.
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

    /// Session that the event is about, if it names no process.
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
