//! Facts about a session's refusals and waits, for `gpushare-ctl explain`, which makes sentences of them.

use serde::{Deserialize, Serialize};

use crate::page::MemoryRefusal;
use crate::views::SessionView;
use crate::{Bytes, ClientId, GpuId, GpuUuid, Nanos, Percent, SessionId};

/// Number of refusals that the daemon keeps per session.
pub const KEPT_REFUSALS: usize = 8;

/// Refusals and present wait of one session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The session as `gpushare-ctl status` shows it.
    pub session: SessionView,
    /// Latest refusals of the session, oldest first, at most [`KEPT_REFUSALS`]; lost when the daemon ends.
    pub refusals: Vec<RefusalView>,
    /// Limits of the session on each card that it uses, or on all cards if it uses none.
    pub cards: Vec<CardLimitsView>,
    /// Present wait of the session; none if it does not wait.
    pub wait: Option<WaitView>,
}

/// One refusal of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalView {
    /// Time since the refusal.
    pub ago_ns: Nanos,
    /// Client id of the process that asked.
    pub client: ClientId,
    /// Pid of the process that asked, in the daemon's PID namespace.
    pub pid: u32,
    /// The daemon's number of the card.
    pub gpu: GpuId,
    /// Limit that refused the request, with the bytes in use and asked for.
    pub refusal: MemoryRefusal,
}

/// Memory of a dead process on a card that the driver has not freed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrphanView {
    /// Former pid of the dead process.
    pub pid: u32,
    /// The daemon's number of the card.
    pub gpu: GpuId,
    /// Bytes that the daemon has booked for the dead process.
    pub bytes: Bytes,
    /// Time since the end of the process.
    pub ago_ns: Nanos,
}

/// Limits of a session on one card, each with the bytes in use that count against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardLimitsView {
    /// The daemon's number of the card.
    pub gpu: GpuId,
    /// Identity of the card.
    pub uuid: GpuUuid,
    /// Quota of the session on the card; none for no limit.
    pub limit_bytes: Option<Bytes>,
    /// Bytes that the session uses on the card.
    pub used_bytes: Bytes,
    /// Capacity of the card: bytes that may be resident at the same time. A session without `--oversubscribe`
    /// may not exceed it.
    pub capacity_bytes: Bytes,
    /// Limit on the managed memory of all sessions on the card together.
    pub managed_limit_bytes: Bytes,
    /// Bytes that all sessions use on the card.
    pub all_used_bytes: Bytes,
}

/// Wait of a session: the reason and the turns that come first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitView {
    /// Reason of the wait.
    pub reason: WaitReason,
    /// Sessions that hold the lock on the waiting session's cards.
    pub holders: Vec<HolderView>,
    /// Sessions whose turn comes first, in order.
    pub ahead: Vec<AheadView>,
    /// Expected time of a handoff: the drain of the work in flight and the move of the session's memory to
    /// the card.
    pub handoff_ns: Nanos,
    /// Expected time until the session's turn if the holders and all sessions ahead use their whole turns,
    /// one after the other; none if the daemon cannot know it.
    pub about_ns: Option<Nanos>,
}

/// Reason why a session waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// No obstacle: the session is next.
    Turn,
    /// Other sessions hold the lock.
    Holders,
    /// A holder does not give the lock back.
    Stuck {
        /// Number of the stuck holder.
        session: SessionId,
        /// Name of the stuck holder.
        name: String,
        /// State of the stuck holder, in words.
        reason: String,
    },
    /// The daemon has restarted and awaits the processes of before.
    Recovering {
        /// Number of awaited processes.
        processes: u32,
    },
    /// The session is paused, expired or revoked; its `standing` says which.
    Standing,
    /// The session has used up its compute limit for now.
    Limit {
        /// Compute limit: share of the card's time.
        limit: Percent,
    },
}

/// A session that holds the lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderView {
    /// Number of the holder.
    pub session: SessionId,
    /// Name of the holder.
    pub name: String,
    /// Rest of the holder's turn; zero once it was asked to give the lock back.
    pub rest_ns: Nanos,
}

/// A session whose turn comes before that of the waiting session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AheadView {
    /// Number of the session ahead.
    pub session: SessionId,
    /// Name of the session ahead.
    pub name: String,
    /// Expected length of the turn of the session ahead.
    pub turn_ns: Nanos,
}
