//! Why a session was refused memory and why it waits: the facts. Sentences are made of them by whoever shows them.

use serde::{Deserialize, Serialize};

use crate::admin::SessionView;
use crate::page::MemoryRefusal;
use crate::{Bytes, ClientId, GpuId, GpuUuid, Nanos, Percent, SessionId};

/// How many refusals of a session the daemon keeps.
pub const KEPT_REFUSALS: usize = 8;

/// What is known of one session's refusals and waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The session as `status` has it.
    pub session: SessionView,
    /// The latest refusals, oldest first, at most [`KEPT_REFUSALS`]. They end with the daemon.
    pub refusals: Vec<RefusalView>,
    /// What limits it on the cards that it uses, or on all if it uses none.
    pub cards: Vec<CardLimitsView>,
    /// For what it waits; none if it does not.
    pub wait: Option<WaitView>,
}

/// One refusal of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalView {
    /// How long ago.
    pub ago_ns: Nanos,
    /// The process that asked.
    pub client: ClientId,
    /// Its pid, as the kernel told the daemon.
    pub pid: u32,
    /// The card.
    pub gpu: GpuId,
    /// The figures.
    pub refusal: MemoryRefusal,
}

/// What a dead process has on a card until the driver takes it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrphanView {
    /// The pid that it had.
    pub pid: u32,
    /// The card.
    pub gpu: GpuId,
    /// How much, as the books have it.
    pub bytes: Bytes,
    /// How long ago it ended.
    pub ago_ns: Nanos,
}

/// What limits a session on one card, each with what is used under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardLimitsView {
    /// The card.
    pub gpu: GpuId,
    /// Its identity.
    pub uuid: GpuUuid,
    /// The session's quota here; none for no limit.
    pub limit_bytes: Option<Bytes>,
    /// What the session uses here.
    pub used_bytes: Bytes,
    /// What may be resident together, which no session may exceed that was not made with `--oversubscribe`.
    pub capacity_bytes: Bytes,
    /// The most managed memory of all sessions together.
    pub managed_limit_bytes: Bytes,
    /// What all sessions use.
    pub all_used_bytes: Bytes,
}

/// For what a session waits, and what lies before its turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitView {
    /// For what.
    pub reason: WaitReason,
    /// The sessions that hold the lock on its cards.
    pub holders: Vec<HolderView>,
    /// The sessions whose turn comes first, in order.
    pub ahead: Vec<AheadView>,
    /// What a change of turns is expected to take: the work in flight that ends, and the session's own memory that comes in.
    pub handoff_ns: Nanos,
    /// How long until its turn if the one before lets go when its time is over and all those ahead use their turns to
    /// the end, one after the other; none where that depends on nothing that the daemon knows.
    pub about_ns: Option<Nanos>,
}

/// For what a session waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// Nothing: it is the next.
    Turn,
    /// Others hold the lock.
    Holders,
    /// A holder does not let go.
    Stuck {
        /// The holder.
        session: SessionId,
        /// Its name.
        name: String,
        /// What that one waits for.
        reason: String,
    },
    /// After a restart of the daemon its former processes are awaited.
    Recovering {
        /// So many.
        processes: u32,
    },
    /// Somebody must let the session go on: its standing says who.
    Standing,
    /// It has used up its compute limit for now.
    Limit {
        /// How much of the time it may have.
        limit: Percent,
    },
}

/// A session that has the lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderView {
    /// Its number.
    pub session: SessionId,
    /// Its name.
    pub name: String,
    /// What is left of its time; zero when it was told to let go.
    pub rest_ns: Nanos,
}

/// A session whose turn comes first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AheadView {
    /// Its number.
    pub session: SessionId,
    /// Its name.
    pub name: String,
    /// How long its turn is expected to be.
    pub turn_ns: Nanos,
}
