//! Free leased bytes in a row of the shared page. Daemon and client change them only by compare-and-swap.
//!
//! ```text
//!   daemon ── put ──▶ ┌──────┐ ── take (all or nothing) ──▶ an allocation
//!   daemon ◀ take_up_to┤ free ├ ◀── put ──────────────────── a free
//!                     └──────┘
//! ```
//!
//! Every byte that leaves the row goes to exactly one taker. The number protects no other memory, so relaxed
//! ordering suffices.

use std::sync::atomic::Ordering::Relaxed;

use gpushare_proto::Bytes;
use gpushare_proto::page::LeaseRow;

/// Takes `bytes` of quota out of the row, all or nothing. Returns whether the bytes were taken.
#[must_use]
pub fn take(row: &LeaseRow, bytes: Bytes) -> bool {
    row.free
        .fetch_update(Relaxed, Relaxed, |free| free.checked_sub(bytes.0))
        .is_ok()
}

/// Puts `bytes` into the row. The sum saturates instead of wrapping, so a forged row gains nothing.
pub fn put(row: &LeaseRow, bytes: Bytes) {
    let _ = row
        .free
        .fetch_update(Relaxed, Relaxed, |free| Some(free.saturating_add(bytes.0)));
}

/// Takes at most `bytes` out of the row, and returns the number taken.
#[must_use]
pub fn take_up_to(row: &LeaseRow, bytes: Bytes) -> Bytes {
    let before = row
        .free
        .fetch_update(Relaxed, Relaxed, |free| Some(free.saturating_sub(bytes.0)));
    match before {
        Ok(free) | Err(free) => Bytes(free.min(bytes.0)),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn row(free: u64) -> LeaseRow {
        let row = LeaseRow::default();
        put(&row, Bytes(free));
        row
    }

    #[test]
    fn a_lease_is_taken_whole_or_not_at_all() {
        let row = row(10);
        assert!(!take(&row, Bytes(11)));
        assert!(take(&row, Bytes(10)));
        assert!(!take(&row, Bytes(1)));
        assert!(take(&row, Bytes::ZERO));
    }

    #[test]
    fn a_recall_takes_what_is_there() {
        let row = row(10);
        assert_eq!(take_up_to(&row, Bytes(4)), Bytes(4));
        assert_eq!(take_up_to(&row, Bytes(100)), Bytes(6));
        assert_eq!(take_up_to(&row, Bytes(100)), Bytes::ZERO);
    }

    #[test]
    fn a_forged_row_does_not_wrap() {
        let row = row(u64::MAX);
        put(&row, Bytes(1));
        assert_eq!(take_up_to(&row, Bytes::MAX), Bytes::MAX);
    }

    #[test]
    fn takers_and_a_recall_never_get_more_than_was_put() {
        const PUT: u64 = 40_000;
        let row = row(PUT);
        let taken: u64 = thread::scope(|scope| {
            let takers: Vec<_> = (1..=4)
                .map(|size| {
                    let row = &row;
                    scope.spawn(move || {
                        let mut taken = 0;
                        while take(row, Bytes(size)) {
                            taken += size;
                        }
                        taken
                    })
                })
                .collect();
            let recalled: u64 = (0..100).map(|_| take_up_to(&row, Bytes(7)).0).sum();
            recalled + takers.into_iter().map(|taker| taker.join().unwrap()).sum::<u64>()
        });
        let left = take_up_to(&row, Bytes::MAX).0;
        assert_eq!(taken + left, PUT);
    }
}
