//! Facts about a session's refusals and waits, for `gpushare-ctl explain`, which makes sentences of them.

use serde::{Deserialize, Serialize};

use crate::page::MemoryRefusal;
use crate::views::SessionView;
use crate::{Bytes, ClientId, GpuId, GpuUuid, Nanos, Percent, SessionId};

/// Number of refused memory requests that the daemon remembers per session.
pub const KEPT_REFUSALS: usize = 8;

/// Answer to `gpushare-ctl explain`: a session's refused memory requests and its present wait for the lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// State of the session, as `gpushare-ctl status` shows it.
    pub session: SessionView,
    /// Latest refused memory requests, oldest first, at most [`KEPT_REFUSALS`]. A daemon starts with none.
    pub refusals: Vec<RefusalView>,
    /// Memory limits of the session on each card that the session uses; on all cards if there is none.
    pub cards: Vec<CardLimitsView>,
    /// Wait of the session for the lock; none if the session does not wait.
    pub wait: Option<WaitView>,
}

/// A memory request that the daemon refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalView {
    /// Duration since the refusal.
    pub ago_ns: Nanos,
    /// Client id of the process that asked for memory.
    pub client: ClientId,
    /// Pid of the process that asked for memory, in the daemon's PID namespace.
    pub pid: u32,
    /// Number that the daemon assigned to the card.
    pub gpu: GpuId,
    /// Limit that the request would exceed, with the bytes requested and the bytes in use.
    pub refusal: MemoryRefusal,
}

/// Memory on a card that belonged to a dead process and that the driver has not freed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrphanView {
    /// Former pid of the dead process.
    pub pid: u32,
    /// Number that the daemon assigned to the card.
    pub gpu: GpuId,
    /// Bytes that the daemon has booked for the dead process.
    pub bytes: Bytes,
    /// Duration since the end of the process.
    pub ago_ns: Nanos,
}

/// Memory limits of a session on one card, and the bytes that count against each limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardLimitsView {
    /// Number that the daemon assigned to the card.
    pub gpu: GpuId,
    /// UUID of the card.
    pub uuid: GpuUuid,
    /// Memory quota of the session on the card; none for no limit.
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

/// Wait of a session for the lock: the reason, and the sessions whose turns come first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitView {
    /// Reason why the session waits for the lock.
    pub reason: WaitReason,
    /// Sessions that hold the lock on the waiting session's cards.
    pub holders: Vec<HolderView>,
    /// Sessions that get the lock earlier than the waiting session, in order.
    pub ahead: Vec<AheadView>,
    /// Expected duration of the lock's handoff: drain of work in flight and move of the session's memory.
    pub handoff_ns: Nanos,
    /// Expected duration until the session's turn, if each session that comes first uses its whole turn. None
    /// if the daemon cannot estimate the duration.
    pub about_ns: Option<Nanos>,
}

/// Reason why a session waits for the lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// The session gets the lock next.
    Turn,
    /// Other sessions hold the lock.
    Holders,
    /// A session that holds the lock does not give the lock back.
    Stuck {
        /// Number of the session that does not give the lock back.
        session: SessionId,
        /// Name of the session that does not give the lock back.
        name: String,
        /// State of the session that does not give the lock back, in words.
        reason: String,
    },
    /// The daemon has restarted and waits until the processes of the previous daemon reconnect.
    Recovering {
        /// Number of processes that have neither reconnected nor ended.
        processes: u32,
    },
    /// The session is paused, expired or revoked, as the session's `standing` says.
    Standing,
    /// The session has used up its compute limit for the present.
    Limit {
        /// Largest share of each card's time that the session may use.
        limit: Percent,
    },
    /// The session has the lock, and a part of its memory is not on its cards.
    Memory {
        /// Bytes that are not on the cards.
        missing_bytes: Bytes,
        /// Reason why they are not there, in words.
        reason: String,
    },
    /// Processes of the session are frozen and come back.
    Thaw {
        /// Cause of the wait, in words.
        reason: String,
    },
}

/// A session that holds the lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderView {
    /// Number of the session that holds the lock.
    pub session: SessionId,
    /// Name of the session that holds the lock.
    pub name: String,
    /// Remaining duration of the session's turn; zero once the daemon has asked for the lock back.
    pub rest_ns: Nanos,
}

/// A session whose turn comes before that of the waiting session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AheadView {
    /// Number of the session whose turn comes first.
    pub session: SessionId,
    /// Name of the session whose turn comes first.
    pub name: String,
    /// Expected duration of the turn that comes first.
    pub turn_ns: Nanos,
}
