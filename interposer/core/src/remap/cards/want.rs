//! Wish of an allocation: bytes for which it waits, as the daemon hears of them.

use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;

use gpushare_proto::Bytes;

use super::Card;

/// Bytes for which an allocation waits. The daemon hears of them until the value is dropped.
#[derive(Debug)]
pub(crate) struct Want {
    card: &'static Card,
    bytes: Bytes,
}

impl Want {
    pub(super) fn begin(card: &'static Card, bytes: Bytes) -> Self {
        card.wanted.fetch_add(bytes.0, Ordering::Relaxed);
        card.lanes.change(|_| ());
        Self { card, bytes }
    }

    /// Ends the wish within a change of the lanes, which wakes them: from now on the engine counts the bytes.
    pub(super) fn end_within(self) {
        // The drop would begin another change, and wait for this one.
        ManuallyDrop::new(self).subtract();
    }

    fn subtract(&self) {
        self.card.wanted.fetch_sub(self.bytes.0, Ordering::Relaxed);
    }
}

impl Drop for Want {
    fn drop(&mut self) {
        self.subtract();
        self.card.lanes.change(|_| ());
    }
}
