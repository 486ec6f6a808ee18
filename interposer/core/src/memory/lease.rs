//! The lease: bytes of quota that the process takes from its shared page by compare-and-swap, without a
//! message. The daemon is asked only when the page has too few (`quota.rs`). Devices have the process's own
//! ordinals.
//!
//! ```text
//!   take ──▶ row.free ≥ bytes?  yes: row.free −= bytes, used += bytes
//!                               no:  the daemon is asked; its answer counts as used at once
//!   give back ──▶ used −= bytes; pays debts first, then row.free += bytes
//!                                fixed bytes that were reported go back to the daemon instead
//! ```
//!
//! **Fixed bytes.** The daemon limits managed memory. It takes all leased bytes for managed unless the
//! process reported them as fixed. The invariant is `reported ≤ fixed`. `reported` rises when the daemon is
//! asked for something anyway. It falls when reported bytes are freed, which go back to the daemon at once.
//!
//! **Debts.** Some memory exists before quota is reserved (a pool that grew, a graph that was launched). It
//! counts even beyond the limit. Bytes that are given back pay such a debt first. Nothing is reserved before
//! all debts are paid.
//!
//! A new daemon brings a new page without free bytes, and is told the bytes in use. The lock around the page
//! makes "taken from the page" and "counted as used" one step for that moment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use gpushare_proto::page::{FEATURE_REFUSALS, LeaseRow, MAX_GPUS, Page};
use gpushare_proto::{Bytes, GpuId, UtilizationPart};

use super::usage::Usage;
pub use crate::daemon::MemoryKind;
use crate::driver::types::CUdevice;

/// Number of free bytes in a device's row of the shared page above which the process returns some.
const TRIM_ABOVE: Bytes = Bytes::mib(128);

/// Lease of the process: bytes of quota that it may take without asking the daemon.
#[derive(Debug, Default)]
pub struct Lease {
    shared: RwLock<Option<Shared>>,
    devices: [Usage; MAX_GPUS],
}

/// Page shared with the daemon, and the row of each device in that page.
#[derive(Clone, Debug)]
struct Shared {
    page: &'static Page,
    rows: [Option<GpuId>; MAX_GPUS],
}

/// Memory figures of the session on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Quota of the session on the device; [`Bytes::MAX`] for none.
    pub limit: Bytes,
    /// Largest number of bytes that the session can have at present, since the card's capacity is limited.
    pub ceiling: Bytes,
    /// Number of bytes that all processes of the session use on the device.
    pub used: Bytes,
}

impl Figures {
    /// Returns the size of the card as the session sees it: the smaller of quota and card. The value never
    /// changes.
    pub fn total(&self, card: Bytes) -> Bytes {
        self.limit.min(card)
    }

    /// Returns the number of bytes that the session may still allocate, limited by the card's capacity.
    pub fn free(&self, card: Bytes) -> Bytes {
        self.total(card).min(self.ceiling) - self.used
    }
}

/// Report about leased bytes, which the process sends to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The row of this card has so many free bytes that the daemon should take some back.
    Trim(GpuId),
    /// Number of bytes that were reported as fixed and are now free; they return to the daemon.
    ReturnFixed(GpuId, Bytes),
    /// Total number of fixed bytes on this card, which is more than was reported before.
    Fixed(GpuId, Bytes),
}

impl Lease {
    /// Takes bytes of quota from the shared page `page` from now on.
    pub fn use_page(&self, page: &'static Page) {
        *self.write() = Some(Shared { page, rows: [None; MAX_GPUS] });
    }

    /// Sets the daemon's number for a device.
    pub fn attach(&self, device: CUdevice, gpu: GpuId) {
        if let (Some(shared), Some(slot)) = (self.write().as_mut(), index(device)) {
            shared.rows[slot] = Some(gpu);
        }
    }

    /// Returns the daemon's number for a device; `None` if the process did not attach to that device.
    pub fn gpu(&self, device: CUdevice) -> Option<GpuId> {
        self.read().as_ref()?.gpu(device)
    }

    /// Takes `bytes` from the shared page and counts them as used. Returns `false` if the page has too few.
    #[must_use]
    pub fn take(&self, device: CUdevice, bytes: Bytes, kind: MemoryKind) -> bool {
        let shared = self.read();
        let row = shared.as_ref().and_then(|shared| shared.row(device));
        let taken = row.is_some_and(|row| gpushare_sys::lease::take(row, bytes));
        if taken && let Some(usage) = self.usage(device) {
            usage.add(bytes, kind);
        }
        taken
    }

    /// Takes at most `bytes` from the shared page and counts them as used. Returns the number taken.
    pub fn take_up_to(&self, device: CUdevice, bytes: Bytes, kind: MemoryKind) -> Bytes {
        let shared = self.read();
        let row = shared.as_ref().and_then(|shared| shared.row(device));
        let (Some(row), Some(usage)) = (row, self.usage(device)) else { return Bytes::ZERO };
        let taken = gpushare_sys::lease::take_up_to(row, bytes);
        usage.add(taken, kind);
        taken
    }

    /// Counts bytes as used that the daemon granted for one allocation. The daemon knows their kind.
    pub fn add_granted(&self, device: CUdevice, bytes: Bytes, kind: MemoryKind) {
        if let Some(usage) = self.usage(device) {
            usage.add_granted(bytes, kind);
        }
    }

    /// Adds bytes to a card's debt, which is memory in use without a lease.
    pub fn add_debt(&self, device: CUdevice, bytes: Bytes, kind: MemoryKind) {
        if let Some(usage) = self.usage(device) {
            // Before `add`, so that the leased fixed bytes never seem to be more for a moment.
            usage.debts[kind as usize].fetch_add(bytes.0, Ordering::SeqCst);
            usage.add(bytes, kind);
        }
    }

    /// Returns the debt of a card: the bytes of `kind` in use without a lease.
    pub fn debt(&self, device: CUdevice, kind: MemoryKind) -> Bytes {
        self.usage(device).map_or(Bytes::ZERO, |usage| usage.debt(kind))
    }

    /// Returns whether a card has a debt, which is memory in use without a lease.
    pub fn has_debt(&self, device: CUdevice) -> bool {
        let owes = |debt: &AtomicU64| debt.load(Ordering::SeqCst) > 0;
        self.usage(device).is_some_and(|usage| usage.debts.iter().any(owes))
    }

    /// Pays a debt with `bytes` that were taken and counted for that purpose. Returns the bytes left over, if
    /// another thread paid meanwhile.
    #[must_use]
    pub fn pay_debt(&self, device: CUdevice, bytes: Bytes, kind: MemoryKind) -> Bytes {
        let Some(usage) = self.usage(device) else { return bytes };
        let paid = usage.pay_debt(bytes, kind);
        usage.remove(paid, kind);
        bytes - paid
    }

    /// Gives `bytes` of quota back. `send` sends a report before any thread can take the bytes again, and
    /// returns whether the report went out.
    pub fn give_back(&self, device: CUdevice, bytes: Bytes, kind: MemoryKind, send: impl Fn(Report) -> bool) {
        let shared = self.read();
        let (Some(shared), Some(usage)) = (shared.as_ref(), self.usage(device)) else { return };
        let (Some(row), Some(gpu)) = (shared.row(device), shared.gpu(device)) else { return };
        usage.remove(bytes, kind);
        let mut free = bytes;
        let other = match kind {
            MemoryKind::Movable => MemoryKind::Fixed,
            MemoryKind::Fixed => MemoryKind::Movable,
        };
        for debt in [kind, other] {
            free = free - usage.pay_debt(free, debt);
        }
        if kind == MemoryKind::Fixed {
            free = free - usage.return_reported(free, |back| send(Report::ReturnFixed(gpu, back)));
        }
        if free.is_zero() {
            return;
        }
        gpushare_sys::lease::put(row, free);
        if Bytes(row.free.load(Ordering::Relaxed)) > TRIM_ABOVE {
            send(Report::Trim(gpu));
        }
    }

    /// Reports the number of fixed bytes, if the daemon knows a smaller one.
    pub fn report_fixed(&self, device: CUdevice, send: impl Fn(Report) -> bool) {
        // The page stays in force until the report is sent, since a new daemon begins to count anew.
        let shared = self.read();
        let gpu = shared.as_ref().and_then(|shared| shared.gpu(device));
        if let (Some(usage), Some(gpu)) = (self.usage(device), gpu) {
            usage.report_fixed(|fixed| send(Report::Fixed(gpu, fixed)));
        }
    }

    /// Returns the devices to which the process attached.
    pub fn devices(&self) -> Vec<CUdevice> {
        self.read().as_ref().map_or_else(Vec::new, Shared::devices)
    }

    /// Returns the memory figures of the session on a device; `None` for a device that is not shared.
    pub fn figures(&self, device: CUdevice) -> Option<Figures> {
        let shared = self.read();
        let row = shared.as_ref()?.row(device)?;
        let (limit, ceiling) = (row.limit.load(Ordering::Relaxed), row.ceiling.load(Ordering::Relaxed));
        let used = self.used(device) + Bytes(row.siblings.load(Ordering::Relaxed));
        Some(Figures { limit: Bytes(limit), ceiling: Bytes(ceiling), used })
    }

    /// Counts an allocation that the process refused without asking. Returns whether the daemon must be told: it
    /// takes the number when it handles the report, and further refusals until then are only counted.
    #[must_use]
    pub fn count_refusal(&self, device: CUdevice) -> bool {
        self.refusals(device)
            .is_none_or(|refused| refused.fetch_add(1, Ordering::AcqRel) == 0)
    }

    /// Takes back [`Self::count_refusal`], since the daemon could not be told. Returns whether refusals of other
    /// threads were counted meanwhile, of which the daemon must still be told.
    #[must_use]
    pub fn uncount_refusal(&self, device: CUdevice) -> bool {
        let less = |refused: u64| refused.checked_sub(1);
        let before = self
            .refusals(device)
            .map(|refused| refused.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less));
        matches!(before, Some(Ok(2..)))
    }

    /// Returns the counter of refusals of a device; none if the daemon does not read it.
    fn refusals(&self, device: CUdevice) -> Option<&'static AtomicU64> {
        let shared = self.read();
        let shared = shared.as_ref()?;
        let reads = shared.page.features.load(Ordering::Relaxed) & FEATURE_REFUSALS != 0;
        Some(&shared.row(device).filter(|_| reads)?.refused)
    }

    /// Returns the session's part in the utilization of a device; `None` for a device that is not shared.
    pub fn part(&self, device: CUdevice) -> Option<UtilizationPart> {
        let shared = self.read();
        let row = shared.as_ref()?.row(device)?;
        Some(UtilizationPart::from_bits(row.part.load(Ordering::Relaxed)))
    }

    /// Returns the number of bytes that this process uses on a device.
    pub fn used(&self, device: CUdevice) -> Bytes {
        self.usage(device)
            .map_or(Bytes::ZERO, |usage| Bytes(usage.used.load(Ordering::Relaxed)))
    }

    /// Returns the number of bytes that never leave their card, over all devices.
    pub fn fixed(&self) -> Bytes {
        self.devices.iter().map(Usage::fixed).sum()
    }

    /// Returns the largest number of bytes that the process used at one time, over all devices.
    pub fn peak(&self) -> Bytes {
        self.devices.iter().map(|usage| Bytes(usage.peak.load(Ordering::Relaxed))).sum()
    }

    /// Returns the size of a card; `None` before the driver was asked.
    pub fn card_size(&self, device: CUdevice) -> Option<Bytes> {
        let size = self.usage(device)?.card_size.load(Ordering::Relaxed);
        (size > 0).then_some(Bytes(size))
    }

    /// Remembers the size of a card; zero forgets the size.
    pub fn set_card_size(&self, device: CUdevice, size: Bytes) {
        if let Some(usage) = self.usage(device) {
            usage.card_size.store(size.0, Ordering::Relaxed);
        }
    }

    /// Replaces the shared page by that of a new daemon. `greet` sends the bytes in use, while no thread
    /// changes them. It returns the new page and the new numbers of the devices. The new daemon counts all
    /// these bytes, so debts end, and fixed bytes are reported anew. If `greet` fails, the old page stays.
    pub fn replace_page<E>(
        &self,
        greet: impl FnOnce(&[(CUdevice, Bytes)]) -> Result<(&'static Page, Vec<GpuId>), E>,
    ) -> Result<(), E> {
        let mut shared = self.write();
        let devices: Vec<CUdevice> = shared.as_ref().map_or_else(Vec::new, Shared::devices);
        let used: Vec<_> = devices.iter().map(|&device| (device, self.used(device))).collect();
        let (page, numbers) = greet(&used)?;
        let mut rows = [None; MAX_GPUS];
        for (device, gpu) in devices.into_iter().zip(numbers) {
            if let Some(slot) = index(device) {
                rows[slot] = Some(gpu);
                self.devices[slot].forget_daemon();
            }
        }
        *shared = Some(Shared { page, rows });
        Ok(())
    }

    fn usage(&self, device: CUdevice) -> Option<&Usage> {
        index(device).map(|slot| &self.devices[slot])
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<Shared>> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Option<Shared>> {
        self.shared.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn gpu(&self, device: CUdevice) -> Option<GpuId> {
        self.rows[index(device)?]
    }

    fn row(&self, device: CUdevice) -> Option<&'static LeaseRow> {
        self.page.gpus.get(usize::from(self.gpu(device)?.0))
    }

    fn devices(&self) -> Vec<CUdevice> {
        (0..).zip(&self.rows).filter_map(|(device, row)| row.map(|_| device)).collect()
    }
}

fn index(device: CUdevice) -> Option<usize> {
    usize::try_from(device).ok().filter(|&slot| slot < MAX_GPUS)
}

#[cfg(test)]
mod tests;
