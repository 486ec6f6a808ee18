//! Handoffs of remapped memory: what moves off a card and onto it, and in which time.
//!
//! ```text
//!        began                                   nothing is left to move
//!   out    ├──────── first to last byte ───────┤     │
//!   in     │  ├────────── first to last byte ─────────┤
//!   both   │  ├────────────────────────────────┤       overlap = both / took
//! ```
//!
//! A direction counts as moving from its first byte to its last one, so a pause in between is part of its time.

use serde::{Deserialize, Serialize};

use crate::ids::{GpuId, SessionId};
use crate::units::{Bytes, Nanos, Percent};

/// Handoff on one card: it begins when remapped memory has to move, and ends when nothing is left to move and all
/// sessions that got the card have their memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handoff {
    /// Number that the daemon assigned to the card.
    pub gpu: GpuId,
    /// Duration of the handoff, up to now if it has not ended.
    pub took_ns: Nanos,
    /// Memory that leaves the card for host memory.
    pub out: Direction,
    /// Part of the bytes that left which crossed the bus. The rest had not changed since it came in, or was never
    /// written.
    pub copied_out_bytes: Bytes,
    /// Memory that comes onto the card.
    #[serde(rename = "in")]
    pub into: Direction,
    /// Duration for which both directions moved.
    pub both_ns: Nanos,
    /// Part of the handoff's duration in which both directions moved, in hundredths of a percent.
    pub overlap: Percent,
}

/// One direction of a handoff.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Direction {
    /// Sessions whose memory moved, with the bytes of each.
    pub sessions: Vec<SessionMove>,
    /// Bytes that have moved.
    pub bytes: Bytes,
    /// Bytes that have to move yet.
    pub rest_bytes: Bytes,
    /// Duration from the first byte to the last one, up to now if there is more to move.
    pub took_ns: Nanos,
    /// Average rate: bytes that moved in one second of that duration.
    pub bytes_per_second: Bytes,
}

/// Memory of one session that moved in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionMove {
    /// Number of the session.
    pub session: SessionId,
    /// Bytes of the session that moved.
    pub bytes: Bytes,
}

/// Handoffs of one card that `gpushare-ctl status` shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardHandoffs {
    /// Number that the daemon assigned to the card.
    pub gpu: GpuId,
    /// Handoff that has not ended; none if no memory moves.
    pub running: Option<Handoff>,
    /// Handoff that ended last; none before the first one of this daemon. If a session was asked about, only handoffs
    /// that moved its memory count.
    pub last: Option<EndedHandoff>,
}

/// Handoff that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedHandoff {
    /// Duration since the end of the handoff.
    pub ago_ns: Nanos,
    /// Bytes and durations of the handoff.
    pub handoff: Handoff,
}
