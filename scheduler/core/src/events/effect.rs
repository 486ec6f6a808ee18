//! Effects: actions that the machine asks the shell for.

use gpushare_proto::page::MemoryRefusal;
use gpushare_proto::{Bytes, ClientId, Epoch, GateWord, GpuId, RequestId};
use serde::{Deserialize, Serialize};

use super::{Notice, WaitsFor};

/// Action that the shell carries out at once and in order, before it takes another event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Store a gate word in the page, wake sleeping threads if the gate opens, and tell the process.
    Gate {
        /// Number of the process.
        client: ClientId,
        /// New gate word.
        word: GateWord,
        /// Epoch of the grant that the word belongs to.
        epoch: Epoch,
    },
    /// Store the flags of a page, such as [`gpushare_proto::page::FLAG_CONTENDED`].
    Flags {
        /// Number of the process.
        client: ClientId,
        /// All flags of the page.
        flags: u32,
    },
    /// Store the memory figures of one card in a page.
    Figures {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
        /// Quota of the session; [`Bytes::MAX`] for none.
        limit: Bytes,
        /// Bytes that the other processes of the session use.
        siblings: Bytes,
        /// Most bytes that the session may use now, whatever its quota.
        ceiling: Bytes,
    },
    /// Grant a request ([`Event::Reserve`](super::Event::Reserve)): the process gets `bytes`, and its page
    /// `extra`.
    Lease {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
        /// Number of the request.
        request: RequestId,
        /// Bytes that were asked for.
        bytes: Bytes,
        /// Bytes of free lease that go into the page in addition.
        extra: Bytes,
    },
    /// Refuse a request ([`Event::Reserve`](super::Event::Reserve)).
    Refuse {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
        /// Number of the request.
        request: RequestId,
        /// Limit that was exceeded, with figures.
        refusal: MemoryRefusal,
    },
    /// Take up to `bytes` of free lease out of the page and answer with
    /// [`Event::Recalled`](super::Event::Recalled).
    Recall {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
        /// Most bytes to take.
        bytes: Bytes,
    },
    /// Tell a process its place in the queue and the reason for its wait.
    Queued {
        /// Number of the process.
        client: ClientId,
        /// Number of sessions that come first.
        ahead: u32,
        /// Reason for the wait.
        reason: WaitsFor,
    },
    /// Kill a process ([`crate::config::StuckPolicy::Kill`]).
    Kill {
        /// Number of the process.
        client: ClientId,
    },
    /// Report something in the log.
    Notice(Notice),
    /// Add free lease to a page, from bytes that came back by [`Event::Returned`](super::Event::Returned).
    Extend {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
        /// Number of bytes.
        bytes: Bytes,
    },
    /// Answer whether a card has room for a process's driver memory ([`Event::Room`](super::Event::Room)).
    Room {
        /// Number of the process.
        client: ClientId,
        /// Number of the card.
        gpu: GpuId,
        /// Number of the request.
        request: RequestId,
        /// Bytes of the card that are free, or free if all movable memory leaves.
        bytes: Bytes,
    },
}
