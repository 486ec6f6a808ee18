//! Events that the scheduler's decision machine is told, and effects that it asks for.

mod effect;
mod frost;
mod notice;
mod waits_for;

use gpushare_proto::admin::Setting;
use gpushare_proto::page::GoalNumber;
use gpushare_proto::session::Priority;
use gpushare_proto::tenant::Residence;
use gpushare_proto::{Bytes, ClientId, Epoch, GateWord, GpuId, Nanos, Percent, RequestId, SessionId};
use serde::{Deserialize, Serialize};

pub use self::effect::Effect;
pub use self::frost::{FreezeEnd, Obstacle, ThawEnd, ThawWait};
pub use self::notice::Notice;
pub(crate) use self::waits_for::Place;
pub use self::waits_for::{Lack, WaitsFor};
use crate::config::Tuning;
use crate::session::share::UserId;

/// Returns the number of refusals that a recording without a number means.
pub(crate) const fn once() -> u64 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(crate) const fn is_once(times: &u64) -> bool {
    *times == 1
}

/// Permission of a session to run and to allocate memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// The session may run, and may allocate within its quota.
    #[default]
    Good,
    /// The session gets no turn. It keeps its memory and may allocate more.
    Paused,
    /// The session expired or was revoked: it gets no turn and no more memory, but keeps the memory it has.
    Over,
}

/// Fact that the daemon reports to the scheduler's decision machine.
///
/// The daemon has established which process an event is about. Every other claim may be a lie, a repetition
/// or out of order. No event may make the decision machine panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A card exists. The decision machine ignores repetitions.
    GpuFound {
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Total memory of the card, in bytes.
        total: Bytes,
    },
    /// A session was opened, or its limits changed.
    SessionOpened {
        /// Identifier of the session that the event is about.
        session: SessionId,
        /// Memory quota of the session on each card; `None` for no limit.
        limit: Option<Bytes>,
        /// Whether the session may use more memory than a card's capacity.
        oversubscribe: bool,
    },
    /// A session was given a memory quota for one card only.
    Quota {
        /// Identifier of the session that the event is about.
        session: SessionId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Memory quota of the session on that card; `None` for no limit.
        limit: Option<Bytes>,
    },
    /// The permission of a session to run and to allocate memory changed.
    Standing {
        /// Identifier of the session that the event is about.
        session: SessionId,
        /// Permission that the session has from now on.
        standing: Standing,
    },
    /// A session was closed and will get no more processes.
    SessionClosed {
        /// Identifier of the session that the event is about.
        session: SessionId,
    },
    /// A process connected to the daemon and joined a session.
    ClientJoined {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Identifier of the session that the process joins.
        session: SessionId,
        /// Epoch (number) of the grant that a process says it holds from the last daemon. An expected process
        /// runs on; the work of any other process must end first.
        holding: Option<Epoch>,
    },
    /// A process is dead, as the kernel reports, and its memory on all cards is free.
    ClientGone {
        /// Identifier of the process that the event is about.
        client: ClientId,
    },
    /// A process is about to use a card, or a dead process left memory there.
    Attached {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Bytes that a process says it already uses when it comes back. They are booked even beyond the
        /// quota.
        used: Bytes,
    },
    /// The number of CUDA contexts of a process on a card changed.
    Contexts {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Number of the process's live CUDA contexts on the card.
        live: u32,
    },
    /// The daemon read a process's free lease in the memory that both share. It is read before every event
    /// that depends on it, and from time to time.
    LeaseSeen {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Number of leased bytes that the process does not use, at most the number of leased bytes.
        free: Bytes,
    },
    /// A process asks for more bytes of movable memory than it has leased.
    Reserve {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Identifier of the request, which the answer repeats.
        request: RequestId,
        /// Number of bytes that the process asks for.
        bytes: Bytes,
    },
    /// A process asks for bytes of remapped memory in chunks that it has already.
    ReservePiece {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Identifier of the request, which the answer repeats.
        request: RequestId,
        /// Number of bytes that the process asks for.
        bytes: Bytes,
    },
    /// Answer to [`Effect::Recall`]: the daemon took free lease out of a process's shared page. The answer
    /// comes before any other event.
    Recalled {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Number of leased bytes that were taken back from the process.
        bytes: Bytes,
    },
    /// A process has more free lease (leased bytes that it does not use) than is useful.
    Trim {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
    },
    /// A thread of a process found the gate closed and sleeps there.
    Wait {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Gate word that the sleeping thread had read.
        word: GateWord,
    },
    /// A process has brought its memory onto its cards after a grant.
    Entered {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Gate word that announced the grant.
        word: GateWord,
        /// Bytes that the process asked the driver to move.
        moved: Bytes,
        /// Duration of the move of the process's memory.
        took: Nanos,
    },
    /// A process has no work in flight any more: it drained after a drop, or went idle.
    Released {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Gate word that closed the gate, or the open word under which the process went idle.
        word: GateWord,
        /// Duration from the closing of the gate to the end of the last work.
        drain: Nanos,
    },
    /// A process that the last daemon knew is dead and will not come back.
    ExpectedGone {
        /// Identifier of the process that the event is about.
        client: ClientId,
    },
    /// The administrator changed a setting of one card or of all cards.
    Set(Setting),
    /// The decision machine's deadline ([`crate::Core::next_deadline`]) was reached.
    Tick,
    /// A process asks for bytes of fixed memory, which never leaves the card. The bytes count as fixed as
    /// soon as they are leased.
    ReserveFixed {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Identifier of the request, which the answer repeats.
        request: RequestId,
        /// Number of bytes that the process asks for.
        bytes: Bytes,
    },
    /// A process reports how many of its bytes are fixed (never leave the card).
    Fixed {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Number of fixed bytes; the decision machine believes it up to the number of leased bytes.
        bytes: Bytes,
    },
    /// A process gives fixed bytes back by a message, not by its shared page.
    Returned {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Number of bytes that are given back, at most the number of leased bytes.
        bytes: Bytes,
    },
    /// A process asks for room on a card for memory that the driver itself needs, after a driver call found
    /// none.
    Room {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Identifier of the request, which the answer repeats.
        request: RequestId,
        /// Number of bytes on the card that the driver may need for itself.
        bytes: Bytes,
    },
    /// The daemon measured the memory that CUDA contexts and the driver take for a process, beside
    /// allocations.
    Overhead {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Number of measured bytes; `None` if measuring is no longer possible.
        bytes: Option<Bytes>,
    },
    /// The weight or the priority class of a session changed.
    Share {
        /// Identifier of the session that the event is about.
        session: SessionId,
        /// Weight from 1 to 10,000; the default is 100.
        weight: u32,
        /// Priority class of the session: high, normal or low.
        priority: Priority,
    },
    /// A session belongs to a user, who shares the time of a class with other users and divides it among its
    /// sessions. A session without this event counts by itself.
    Owner {
        /// Identifier of the session that the event is about.
        session: SessionId,
        /// Number of the session's user.
        user: UserId,
        /// Weight of the user from 1 to 10,000; the default is 100. It applies to all sessions of the user.
        weight: u32,
    },
    /// The compute limit of a session on one card changed.
    Compute {
        /// Identifier of the session that the event is about.
        session: SessionId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Largest share of the time in which the session may hold the lock; `None` for no limit.
        limit: Option<Percent>,
    },
    /// A process refused an allocation without asking, since the allocation exceeds the session's whole
    /// quota, and perhaps further ones before the daemon heard of that.
    RefusedHere {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Number of bytes that the first refused allocation needed.
        bytes: Bytes,
        /// Number of refused allocations, one in recordings that do not say.
        #[serde(default = "once", skip_serializing_if = "is_once")]
        times: u64,
    },
    /// The last daemon recorded memory of an expected process on a card. An expected process without such a
    /// record may use any card, until it is overdue.
    ExpectedUses {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Number of bytes that the process used on the card.
        bytes: Bytes,
    },
    /// A process that had lost its connection is back with a new shared page. Its gate is as before and its
    /// free lease is gone. The process reports its fixed bytes again.
    ClientReturned {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Whether a thread of the process sleeps at the gate.
        waiting: bool,
    },
    /// A returning process reports how much memory it uses. A larger amount than booked is booked even beyond
    /// the quota; a smaller one changes nothing.
    StillUses {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Number of bytes that the process uses on the card.
        bytes: Bytes,
    },
    /// The administrator changed a setting that is the same for all cards.
    Tune(Tuning),
    /// A process is dead, but another process keeps its card files open, so its memory is not free yet.
    /// [`Self::ClientGone`] follows when the memory is free.
    ClientEnded {
        /// Identifier of the process that the event is about.
        client: ClientId,
    },
    /// The last daemon recorded how far a session was beyond a card's floor ([`crate::Core::leads`]). The
    /// event comes before the session is back on the card.
    Lead {
        /// Identifier of the session that the event is about.
        session: SessionId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Distance in nanoseconds of a session of weight 100 and normal priority; negative behind the floor.
        lead_ns: i64,
    },
    /// The last daemon recorded how far a user was beyond a class's floor on a card
    /// ([`crate::Core::user_leads`]). The event comes after [`Self::Owner`] and before a session of the user is
    /// back on the card.
    UserLead {
        /// Number of the user that the event is about.
        user: UserId,
        /// Priority class in which the user was ahead.
        priority: Priority,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Distance in nanoseconds of a user of weight 100 in the normal class; negative behind the floor.
        lead_ns: i64,
    },
    /// The work in flight of a process that was told to drain is expected to end within two milliseconds.
    NearlyDrained {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Gate word that closed the gate.
        word: GateWord,
    },
    /// The movable memory of a process is remapped: it moves by goals ([`Effect::Goal`]). The event comes before
    /// the process uses any card.
    Remaps {
        /// Identifier of the process that the event is about.
        client: ClientId,
    },
    /// A process reports where its remapped memory is.
    Resides {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Number of the latest goal under which the process acts: it creates nothing more under earlier ones.
        seen: GoalNumber,
        /// Bytes of that memory, as the process says.
        residence: Residence,
    },
    /// A process could not move memory as a goal asked.
    MoveFailed {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Number of the goal.
        number: GoalNumber,
        /// Bytes for which the card had no memory although the goal had room. Zero if the move failed for another
        /// reason, and in recordings that do not say.
        #[serde(default)]
        refused: Bytes,
    },
    /// NVML showed remapped memory that a process does not report, or no longer. Without this event the process's own
    /// reports count alone.
    Measured {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Least number of remapped bytes on the card: the figure less contexts and fixed bytes. Zero while the reports
        /// and goals explain the figure, since a figure is old when the next report comes.
        bytes: Bytes,
    },
    /// The budget for host memory of all processes changed.
    HostBudget {
        /// Number of bytes in which evicted memory of all cards may live.
        bytes: Bytes,
    },
    /// NVML's figure for a card's free memory was read. The daemon asks NVML for the dead processes themselves instead,
    /// and does not send this event.
    CardFree {
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Number of free bytes of the card.
        bytes: Bytes,
    },
    /// NVML was asked whether a card is in persistence mode. One of which it says nothing counts as in that mode.
    Persistence {
        /// Identifier of the card that the event is about.
        gpu: GpuId,
        /// Whether the card is in persistence mode.
        is_on: bool,
    },
    /// A session is to be frozen, or no longer. The decision machine refuses it if a process cannot be frozen.
    Freeze {
        /// Identifier of the session that the event is about.
        session: SessionId,
        /// Whether the session is to be frozen.
        wanted: bool,
    },
    /// The idle time after which a session is frozen has changed.
    FreezeAfter {
        /// Identifier of the session that the event is about.
        session: SessionId,
        /// Time for which the session must have been idle; `None` if it is not frozen for that.
        idle: Option<Nanos>,
    },
    /// A process was examined: what keeps it from being frozen, if anything does.
    Freezable {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// Reason why the process cannot be frozen; `None` if it can.
        obstacle: Option<Obstacle>,
    },
    /// A thread of a process waits with a call of the driver, since the process is frozen or about to be.
    Called {
        /// Identifier of the process that the event is about.
        client: ClientId,
    },
    /// No thread of a process is in the driver, and none enters it any more.
    Parked {
        /// Identifier of the process that the event is about.
        client: ClientId,
    },
    /// An attempt to freeze a process has ended ([`Effect::Freeze`]).
    FreezeEnded {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// How the attempt ended.
        end: FreezeEnd,
    },
    /// An attempt to thaw a process has ended ([`Effect::Thaw`]).
    ThawEnded {
        /// Identifier of the process that the event is about.
        client: ClientId,
        /// How the attempt ended.
        end: ThawEnd,
    },
    /// The last daemon has frozen a process, or has begun to.
    FoundFrozen {
        /// Identifier of the process that the event is about.
        client: ClientId,
    },
    /// The last daemon had frozen a process once, or had tried to. The process may be expected or back.
    FrozenBefore {
        /// Identifier of the process that the event is about.
        client: ClientId,
    },
}

impl Event {
    /// Returns the process that the event is about.
    pub(crate) const fn client(&self) -> Option<ClientId> {
        match *self {
            Self::GpuFound { .. }
            | Self::SessionOpened { .. }
            | Self::Quota { .. }
            | Self::Standing { .. }
            | Self::Share { .. }
            | Self::Owner { .. }
            | Self::Compute { .. }
            | Self::Lead { .. }
            | Self::UserLead { .. }
            | Self::SessionClosed { .. }
            | Self::ExpectedGone { .. }
            | Self::ExpectedUses { .. }
            | Self::HostBudget { .. }
            | Self::CardFree { .. }
            | Self::Persistence { .. }
            | Self::Freeze { .. }
            | Self::FreezeAfter { .. }
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
            | Self::NearlyDrained { client, .. }
            | Self::ReservePiece { client, .. }
            | Self::ReserveFixed { client, .. }
            | Self::Fixed { client, .. }
            | Self::Returned { client, .. }
            | Self::Room { client, .. }
            | Self::Overhead { client, .. }
            | Self::RefusedHere { client, .. }
            | Self::ClientReturned { client, .. }
            | Self::Remaps { client }
            | Self::Resides { client, .. }
            | Self::MoveFailed { client, .. }
            | Self::Measured { client, .. }
            | Self::Freezable { client, .. }
            | Self::Called { client }
            | Self::Parked { client }
            | Self::FreezeEnded { client, .. }
            | Self::ThawEnded { client, .. }
            | Self::FoundFrozen { client }
            | Self::FrozenBefore { client }
            | Self::StillUses { client, .. } => Some(client),
        }
    }

    /// Returns the session that the event is about, if the event names no process.
    pub(crate) const fn session(&self) -> Option<SessionId> {
        match *self {
            Self::SessionOpened { session, .. }
            | Self::Quota { session, .. }
            | Self::Standing { session, .. }
            | Self::Share { session, .. }
            | Self::Owner { session, .. }
            | Self::Compute { session, .. }
            | Self::Lead { session, .. }
            | Self::Freeze { session, .. }
            | Self::FreezeAfter { session, .. }
            | Self::SessionClosed { session } => Some(session),
            _ => None,
        }
    }
}
