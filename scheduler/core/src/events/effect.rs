//! Effects: actions that the decision machine asks the daemon around it for.

use gpushare_proto::page::{GoalNumber, MemoryRefusal};
use gpushare_proto::{Bytes, ClientId, Epoch, GateWord, GpuId, Nanos, RequestId};
use serde::{Deserialize, Serialize};

use super::{Notice, WaitsFor};

/// Action for the daemon, which carries out all actions at once and in order before it reports another event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Stores a gate word in a process's shared page, wakes sleeping threads if the gate opens, and tells the
    /// process.
    Gate {
        /// Identifier of the process that the action is about.
        client: ClientId,
        /// New gate word of the process.
        word: GateWord,
        /// Epoch (number) of the grant that the gate word belongs to.
        epoch: Epoch,
    },
    /// Stores the flags of a process's shared page, such as [`gpushare_proto::page::FLAG_CONTENDED`].
    Flags {
        /// Identifier of the process that the action is about.
        client: ClientId,
        /// All flags of the process's shared page.
        flags: u32,
    },
    /// Stores the memory figures of one card in a process's shared page.
    Figures {
        /// Identifier of the process that the action is about.
        client: ClientId,
        /// Identifier of the card that the action is about.
        gpu: GpuId,
        /// Memory quota of the session on the card; [`Bytes::MAX`] for no limit.
        limit: Bytes,
        /// Number of bytes that the other processes of the session use on the card.
        siblings: Bytes,
        /// Largest number of bytes that the session may use on the card now, apart from its quota.
        ceiling: Bytes,
    },
    /// Grants a memory request ([`Event::Reserve`](super::Event::Reserve)): the process may use `bytes`, and
    /// `extra` bytes of free lease are added to its shared page.
    Lease {
        /// Identifier of the process that the action is about.
        client: ClientId,
        /// Identifier of the card that the action is about.
        gpu: GpuId,
        /// Identifier of the request that the action is about.
        request: RequestId,
        /// Number of bytes that the process asked for.
        bytes: Bytes,
        /// Number of bytes of free lease that are added to the process's shared page.
        extra: Bytes,
    },
    /// Refuses a memory request ([`Event::Reserve`](super::Event::Reserve)).
    Refuse {
        /// Identifier of the process that the action is about.
        client: ClientId,
        /// Identifier of the card that the action is about.
        gpu: GpuId,
        /// Identifier of the request that the action is about.
        request: RequestId,
        /// Limit that the request would exceed, with figures.
        refusal: MemoryRefusal,
    },
    /// Takes up to `bytes` of free lease out of a process's shared page, and answers with
    /// [`Event::Recalled`](super::Event::Recalled).
    Recall {
        /// Identifier of the process that the action is about.
        client: ClientId,
        /// Identifier of the card that the action is about.
        gpu: GpuId,
        /// Largest number of bytes to take out of the shared page.
        bytes: Bytes,
    },
    /// Tells a waiting process its session's place in the queue and the reason for the wait.
    Queued {
        /// Identifier of the process that the action is about.
        client: ClientId,
        /// Number of waiting sessions that come before the process's session.
        ahead: u32,
        /// Reason why the session waits.
        reason: WaitsFor,
    },
    /// Kills a process of a session that does not give the lock back ([`crate::config::StuckPolicy::Kill`]).
    Kill {
        /// Identifier of the process that the action is about.
        client: ClientId,
    },
    /// Writes a decision to the daemon's log.
    Notice(Notice),
    /// Adds free lease to a process's shared page, from bytes that came back by
    /// [`Event::Returned`](super::Event::Returned).
    Extend {
        /// Identifier of the process that the action is about.
        client: ClientId,
        /// Identifier of the card that the action is about.
        gpu: GpuId,
        /// Number of leased bytes to add to the shared page.
        bytes: Bytes,
    },
    /// Answers how much room a card has for driver memory of a process ([`Event::Room`](super::Event::Room)).
    Room {
        /// Identifier of the process that the action is about.
        client: ClientId,
        /// Identifier of the card that the action is about.
        gpu: GpuId,
        /// Identifier of the request that the action is about.
        request: RequestId,
        /// Number of bytes on the card that are free, or would be free if all movable memory left.
        bytes: Bytes,
    },
    /// Stores the target for the length of a process's work in flight in its shared page.
    DrainTarget {
        /// Identifier of the process that the action is about.
        client: ClientId,
        /// Duration after which the work in flight should have ended once the gate is closed.
        target: Nanos,
    },
    /// Stores a goal in a process's shared page. A process that sent [`Event::Remaps`](super::Event::Remaps) moves
    /// memory out of the card while more is resident, and creates no more than that. For managed memory of another
    /// process the goal is a hint, and [`Bytes::MAX`] lifts it.
    Goal {
        /// Identifier of the process that the action is about.
        client: ClientId,
        /// Identifier of the card that the action is about.
        gpu: GpuId,
        /// Number of the goal, higher than that of all goals before.
        number: GoalNumber,
        /// Most movable bytes of the process that may be on the card.
        bytes: Bytes,
    },
    /// Stores in a process's shared page how much host memory it should have ready for what leaves a card. Only a
    /// process that sent [`Event::Remaps`](super::Event::Remaps) gets one.
    HostTarget {
        /// Identifier of the process that the action is about.
        client: ClientId,
        /// Identifier of the card that the action is about.
        gpu: GpuId,
        /// Bytes of host memory, used and unused.
        bytes: Bytes,
    },
    /// Freezes a process by the driver's checkpoint, and reports the end by
    /// [`Event::FreezeEnded`](super::Event::FreezeEnded).
    Freeze {
        /// Identifier of the process that the action is about.
        client: ClientId,
    },
    /// Thaws a process, in whatever state it is, and reports the end by
    /// [`Event::ThawEnded`](super::Event::ThawEnded).
    Thaw {
        /// Identifier of the process that the action is about.
        client: ClientId,
    },
}
