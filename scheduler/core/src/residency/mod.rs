//! Residency: which memory of processes under the backend `remap` is on a card. It moves only by goals.
//!
//! ```text
//!   Resides, Measured ─▶ facts ─┐
//!   HostBudget ────────▶ host ──┼─▶ plan ─▶ Goal ─▶ facts, transfer (deadline)
//!   locks and queues ───────────┘  └─▶ prepare ─▶ HostTarget  └─▶ handoff: what moved, for people
//! ```
//!
//! A goal is the most bytes of a process that may be on a card. A lower one is an eviction, a higher one a
//! credit. See `docs/design/residency.md`.

pub(crate) mod facts;
pub(crate) mod handoff;
pub(crate) mod hints;
pub(crate) mod host;
pub(crate) mod plan;
pub(crate) mod prepare;
pub(crate) mod rates;
pub(crate) mod residents;
pub(crate) mod transfer;

use gpushare_proto::Bytes;

/// Size of the chunks in which memory moves.
pub(crate) const CHUNK: Bytes = Bytes::mib(128);
/// Smallest rise of a goal, unless it is the last one: the size of the first chunks of a move.
pub(crate) const GRAIN: Bytes = Bytes::mib(16);
/// Two chunks beside what may be resident, so that both directions of a handoff start at once.
const SPARE: Bytes = Bytes::mib(256);
/// Bytes of a card that stay free for the driver: kernels that are loaded late, and local memory.
const HEADROOM: Bytes = Bytes::mib(512);
/// Most bytes that a card is believed to lack, and the part of a small card. More would be seen by NVML.
const SHORTAGE: (Bytes, u64) = (Bytes::gib(1), 4);
/// Parts of a small card that are left for headroom and for spare chunks.
const PARTS: (u64, u64) = (32, 64);

/// Spare bytes of a card beside what may be resident.
pub(crate) fn spare(total: Bytes) -> Bytes {
    SPARE.min(Bytes(total.0 / PARTS.1))
}

/// Most bytes that a card is believed to lack beside all accounts.
pub(crate) fn most_shortage(total: Bytes) -> Bytes {
    SHORTAGE.0.min(Bytes(total.0 / SHORTAGE.1))
}

/// Bytes of a card that are no part of its capacity while memory moves there by goals.
pub(crate) fn clear(total: Bytes) -> Bytes {
    HEADROOM.min(Bytes(total.0 / PARTS.0)) + spare(total)
}
