//! What the machine wants done.

use gpushare_proto::page::MemoryRefusal;
use gpushare_proto::{Bytes, ClientId, Epoch, GateWord, GpuId, RequestId};
use serde::{Deserialize, Serialize};

use super::{Notice, WaitsFor};

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
    /// Answer a [`Event::Reserve`](super::Event::Reserve): `bytes` go to the asker, `extra` into its page.
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
    /// Answer a [`Event::Reserve`](super::Event::Reserve) with a refusal.
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
    /// Take up to `bytes` of free lease out of the page and answer with [`Event::Recalled`](super::Event::Recalled).
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
    /// Put bytes into the page that nobody asked for: they came back by [`Event::Returned`](super::Event::Returned).
    Extend {
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// Bytes.
        bytes: Bytes,
    },
    /// Answer a [`Event::Room`](super::Event::Room).
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
