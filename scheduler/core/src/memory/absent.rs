//! Absent memory: memory on a card that no grant and no drop can move, since its processes do not answer.
//!
//! ```text
//!   stuck holder      asked for the lock, and late      its working set
//!   overdue process   did not return after a restart    the bytes that the last daemon recorded
//! ```
//!
//! With the policy `run_others`, sessions run that fit beside the absent memory; those that do not fit wait
//! for it. With the other policies no memory is absent: a stuck holder is a holder, and an overdue process
//! keeps its cards. Fixed memory and the memory that dead processes left are not absent. They reduce the
//! card's capacity for every session.

use gpushare_proto::Bytes;

/// Absent memory on one card, and the holders to which it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Absent {
    /// Number of stuck holders.
    pub(crate) holders: usize,
    /// Sum of the working sets of stuck holders.
    pub(crate) held: Bytes,
    /// Bytes of stuck holders and of overdue processes.
    pub(crate) bytes: Bytes,
}

impl Absent {
    pub(crate) const NONE: Self = Self { holders: 0, held: Bytes::ZERO, bytes: Bytes::ZERO };
}
