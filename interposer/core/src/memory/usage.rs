//! Number of bytes that the process uses on one device, and how many of them the daemon knows to be fixed.
//!
//! Invariant, tested in `lease.rs`: `reported ≤ fixed − debt of fixed bytes` in every interleaving.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use gpushare_proto::Bytes;

use crate::daemon::MemoryKind;
use crate::process::lock;

#[derive(Debug, Default)]
pub(super) struct Usage {
    pub(super) used: AtomicU64,
    pub(super) peak: AtomicU64,
    /// Number of bytes in use that never leave the card.
    fixed: AtomicU64,
    /// Number of fixed bytes that were reported to the daemon, or are being reported.
    reported: AtomicU64,
    /// Held while `reported` changes and the report is sent, so that reports keep their order.
    reporting: Mutex<()>,
    /// Debts of the card, one for each [`MemoryKind`]: bytes in use without a lease.
    pub(super) debts: [AtomicU64; 2],
    /// Size of the card that the driver's `cuMemGetInfo` returned; 0 before the driver was asked.
    pub(super) card_size: AtomicU64,
}

impl Usage {
    pub(super) fn add(&self, bytes: Bytes, kind: MemoryKind) {
        let used = self.used.fetch_add(bytes.0, Ordering::Relaxed) + bytes.0;
        // Most of the time there is no new peak, and one load is all.
        if used > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(used, Ordering::Relaxed);
        }
        if kind == MemoryKind::Fixed {
            self.fixed.fetch_add(bytes.0, Ordering::SeqCst);
        }
    }

    pub(super) fn add_granted(&self, bytes: Bytes, kind: MemoryKind) {
        self.add(bytes, kind);
        if kind == MemoryKind::Fixed {
            self.reported.fetch_add(bytes.0, Ordering::SeqCst);
        }
    }

    pub(super) fn remove(&self, bytes: Bytes, kind: MemoryKind) {
        self.used.fetch_sub(bytes.0, Ordering::Relaxed);
        if kind == MemoryKind::Fixed {
            self.fixed.fetch_sub(bytes.0, Ordering::SeqCst);
        }
    }

    pub(super) fn debt(&self, kind: MemoryKind) -> Bytes {
        Bytes(self.debts[kind as usize].load(Ordering::SeqCst))
    }

    /// Subtracts at most `bytes` from a debt; returns the number subtracted.
    pub(super) fn pay_debt(&self, bytes: Bytes, kind: MemoryKind) -> Bytes {
        let debt = &self.debts[kind as usize];
        if bytes.is_zero() || debt.load(Ordering::SeqCst) == 0 {
            return Bytes::ZERO;
        }
        let before =
            debt.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |debt| Some(debt.saturating_sub(bytes.0)));
        let (Ok(before) | Err(before)) = before;
        Bytes(before.min(bytes.0))
    }

    /// Returns the number of bytes in use that never leave the card.
    pub(super) fn fixed(&self) -> Bytes {
        Bytes(self.fixed.load(Ordering::SeqCst))
    }

    pub(super) fn leased_fixed(&self) -> u64 {
        let fixed = self.fixed().0;
        fixed.saturating_sub(self.debt(MemoryKind::Fixed).0)
    }

    /// Returns reported bytes to the daemon by `send`, after `free` fixed bytes were freed. Returns their
    /// number.
    pub(super) fn return_reported(&self, free: Bytes, send: impl FnOnce(Bytes) -> bool) -> Bytes {
        if self.reported.load(Ordering::SeqCst) <= self.leased_fixed() {
            return Bytes::ZERO;
        }
        let _in_order = lock(&self.reporting);
        let reported = self.reported.load(Ordering::SeqCst);
        let back = free.min(Bytes(reported.saturating_sub(self.leased_fixed())));
        if !back.is_zero() {
            self.reported.fetch_sub(back.0, Ordering::SeqCst);
            // A report that is lost does not matter: a daemon that returns books what is used then.
            send(back);
        }
        back
    }

    /// Reports the number of fixed bytes by `send`, if a smaller number was reported.
    pub(super) fn report_fixed(&self, send: impl FnOnce(Bytes) -> bool) {
        let _in_order = lock(&self.reporting);
        let before = self.reported.load(Ordering::SeqCst);
        let mut fixed = self.leased_fixed();
        if fixed <= before {
            return;
        }
        loop {
            // Stored before the second look: a thread that frees meanwhile sees the store or is seen by the
            // look.
            self.reported.store(fixed, Ordering::SeqCst);
            let now = self.leased_fixed();
            if now >= fixed {
                break;
            }
            fixed = now;
        }
        if !send(Bytes(fixed)) {
            self.reported.fetch_sub(fixed.saturating_sub(before), Ordering::SeqCst);
        }
    }

    /// Sets debts and reported bytes to zero, when a new daemon counts all bytes in use.
    pub(super) fn forget_daemon(&self) {
        self.reported.store(0, Ordering::SeqCst);
        self.debts.iter().for_each(|debt| debt.store(0, Ordering::SeqCst));
    }
}
