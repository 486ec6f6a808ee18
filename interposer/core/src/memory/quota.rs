//! Quota of the session: reserved before the driver is called, given back after a free, charged afterwards
//! for memory that exists already. The lease counts the bytes (`lease.rs`). This module asks and informs the
//! daemon.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use gpushare_proto::Bytes;
use gpushare_proto::page::{LimitKind, MemoryRefusal};
use gpushare_proto::tenant::TenantRequest;

use super::lease::{Figures, Report};
use super::{Memory, Origin, undone_by_unwinding};
use crate::daemon::MemoryKind;
use crate::daemon::link::{AskError, Link};
use crate::driver::types::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, CUdevice, CUresult};
use crate::process::{lock, stderr};

/// Memory for which quota is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// A block of `cuMemAlloc` that is remapped. A shared block may have a free piece for it.
    Remapped,
    /// Any other memory of this kind.
    Other(MemoryKind),
}

impl Demand {
    const fn kind(self) -> MemoryKind {
        match self {
            Self::Remapped => MemoryKind::Movable,
            Self::Other(kind) => kind,
        }
    }
}

impl From<MemoryKind> for Demand {
    fn from(kind: MemoryKind) -> Self {
        Self::Other(kind)
    }
}

impl From<Origin> for Demand {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::Remapped => Self::Remapped,
            _ => Self::Other(origin.kind()),
        }
    }
}

impl Memory {
    /// Reserves `bytes` of quota on a shared device, before the driver is called. Debts (bytes without a
    /// lease) are paid first.
    pub(crate) fn reserve(
        &self,
        device: CUdevice,
        bytes: Bytes,
        demand: impl Into<Demand>,
    ) -> Result<(), CUresult> {
        let demand = demand.into();
        let kind = demand.kind();
        if self.lease.has_debt(device) {
            self.pay_debts(device)?;
        }
        if self.lease.take(device, bytes, kind) {
            return Ok(());
        }
        if self.refuse_locally(device, bytes) {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        // A pool may have shrunk when a stream was waited for, which must be seen before anything is refused.
        self.reclaim(device);
        let since = Instant::now();
        while self.is_beyond_quota(device, bytes, demand) && self.await_frees(since) {}
        if self.lease.take(device, bytes, kind) {
            return Ok(());
        }
        self.end_blocks_in_the_way(device, bytes, demand);
        self.ask(device, bytes, demand)
    }

    fn is_beyond_quota(&self, device: CUdevice, bytes: Bytes, demand: Demand) -> bool {
        let Some(Figures { used, limit, ceiling, .. }) = self.lease.figures(device) else {
            return false;
        };
        let beyond = |limit: Bytes| used + bytes > limit;
        beyond(limit) || (beyond(ceiling) && !self.is_piece(device, bytes, demand))
    }

    /// Gives unused shared blocks back if they may leave no room under the ceiling, against which they count. The
    /// daemon learns of their free pieces only when it is asked.
    fn end_blocks_in_the_way(&self, device: CUdevice, bytes: Bytes, demand: Demand) {
        let Some(Figures { used, ceiling, .. }) = self.lease.figures(device) else { return };
        let unused = self.remap.unused(device);
        let are_in_the_way = !unused.is_zero() && used + bytes + unused > ceiling;
        if are_in_the_way && !self.is_piece(device, bytes, demand) {
            self.remap.end_unused(device);
        }
    }

    /// Returns whether a shared block has a free piece for a request.
    fn is_piece(&self, device: CUdevice, bytes: Bytes, demand: Demand) -> bool {
        demand == Demand::Remapped && self.remap.has_piece(device, bytes)
    }

    pub(crate) fn try_reserve(&self, device: CUdevice, bytes: Bytes, kind: MemoryKind) -> bool {
        !self.lease.has_debt(device) && self.lease.take(device, bytes, kind)
    }

    /// Runs the allocating `call` with quota reserved. Gives the quota back if the call fails.
    #[inline]
    pub(crate) fn reserve_and_call(
        &self,
        device: CUdevice,
        bytes: Bytes,
        demand: impl Into<Demand>,
        call: impl FnMut() -> CUresult,
    ) -> CUresult {
        let demand = demand.into();
        if let Err(refused) = self.reserve(device, bytes, demand) {
            return refused;
        }
        let give_back = || self.give_back(device, bytes, demand.kind());
        let result = undone_by_unwinding(|| self.call_with_headroom(device, bytes, call), give_back);
        if result != CUDA_SUCCESS {
            give_back();
        }
        result
    }

    pub(crate) fn give_back(&self, device: CUdevice, bytes: Bytes, kind: MemoryKind) {
        self.lease.give_back(device, bytes, kind, |report| self.send(report));
    }

    /// Charges memory that exists already, even beyond the limit. The bytes without a lease become a debt.
    pub(crate) fn charge(&self, device: CUdevice, bytes: Bytes, kind: MemoryKind) {
        let rest = bytes - self.lease.take_up_to(device, bytes, kind);
        if !rest.is_zero() && self.ask(device, rest, kind.into()).is_err() {
            self.lease.add_debt(device, rest, kind);
        }
    }

    /// Reports all fixed bytes to a daemon to which the process has just reconnected.
    pub(crate) fn report_fixed(&self) {
        for device in self.lease.devices() {
            self.lease.report_fixed(device, |report| self.send(report));
        }
    }

    #[cold]
    fn pay_debts(&self, device: CUdevice) -> Result<(), CUresult> {
        let _one_at_a_time = lock(&self.paying);
        for kind in [MemoryKind::Movable, MemoryKind::Fixed] {
            let debt = self.lease.debt(device, kind);
            let rest = debt - self.lease.take_up_to(device, debt, kind);
            self.pay_debt(device, debt - rest, kind);
            if !rest.is_zero() {
                self.ask(device, rest, kind.into())?;
                self.pay_debt(device, rest, kind);
            }
        }
        Ok(())
    }

    /// Pays a debt with `bytes` that were taken for that purpose. Gives back what other threads paid
    /// meanwhile.
    fn pay_debt(&self, device: CUdevice, bytes: Bytes, kind: MemoryKind) {
        let left = self.lease.pay_debt(device, bytes, kind);
        if !left.is_zero() {
            self.give_back(device, left, kind);
        }
    }

    /// Refuses a request for more than the whole quota without waiting for the daemon. The daemon counts and
    /// logs refusals, so it is informed, by one message for all refusals until it reads that message. Returns
    /// `false` if informing would block; then the daemon must be asked.
    fn refuse_locally(&self, device: CUdevice, bytes: Bytes) -> bool {
        // The limit is zero in a page that the daemon has not written a quota into yet.
        let beyond = |limit: Bytes| !limit.is_zero() && bytes > limit;
        let figures = self.lease.figures(device).filter(|figures| beyond(figures.limit));
        let shared = (figures, self.daemon.link(), self.lease.gpu(device));
        let (Some(Figures { limit, used, .. }), Some(link), Some(gpu)) = shared else {
            return false;
        };
        let report = TenantRequest::RefusedLocally { gpu, bytes };
        if self.lease.count_refusal(device) && !link.try_send(&report) {
            if self.lease.uncount_refusal(device) {
                link.send(&report);
            }
            return false;
        }
        let refusal = MemoryRefusal { requested: bytes, limit, used, by: LimitKind::Session };
        print_refusal(link, bytes, &AskError::Memory(refusal));
        true
    }

    fn ask(&self, device: CUdevice, bytes: Bytes, demand: Demand) -> Result<(), CUresult> {
        let shared = self.daemon.link().zip(self.lease.gpu(device));
        let (link, gpu) = shared.ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        // Fixed bytes that the daemon takes for managed ones would count against other sessions.
        self.lease.report_fixed(device, |report| self.send(report));
        // The daemon may still count chunks against the quota that are freed by now.
        self.remap.report(device);
        let asked = match self.is_piece(device, bytes, demand) {
            true => link.ask_piece(device, gpu, bytes),
            false => link.ask_memory(device, gpu, bytes, demand.kind()),
        };
        asked.map_err(|error| {
            print_refusal(link, bytes, &error);
            CUDA_ERROR_OUT_OF_MEMORY
        })
    }

    fn send(&self, report: Report) -> bool {
        self.daemon.send(&match report {
            Report::Trim(gpu) => TenantRequest::Trim { gpu },
            Report::ReturnFixed(gpu, bytes) => TenantRequest::ReturnFixed { gpu, bytes },
            Report::Fixed(gpu, bytes) => TenantRequest::Fixed { gpu, bytes },
        })
    }
}

/// Prints once per process why memory was refused. Frameworks retry, and the daemon logs each refusal.
fn print_refusal(link: &Link, size: Bytes, error: &AskError) {
    static PRINTED: AtomicBool = AtomicBool::new(false);
    if PRINTED.load(Ordering::Relaxed) || PRINTED.swap(true, Ordering::Relaxed) {
        return;
    }
    let session = link.identity().name;
    let AskError::Memory(refusal) = error else {
        return stderr::print(format_args!("{size} refused: the scheduler does not answer"));
    };
    let MemoryRefusal { requested, limit, used, by } = *refusal;
    let reason = if refusal.is_permanent() {
        format!(
            "session {session} has expired or was revoked and gets no new memory; an expired one goes on after \
             `gpushare-ctl session renew {session} --ttl 2h`"
        )
    } else {
        let of = match by {
            LimitKind::Session => format!("this session uses {used} of its memory limit of {limit}"),
            LimitKind::Capacity => format!(
                "this session uses {used} of the {limit} that the card has for one session: its memory less what CUDA contexts \
                 take or are assumed to take, and less memory of others that cannot move (`--oversubscribe` lifts that \
                 limit; `gpushare-ctl status` shows the parts)"
            ),
            LimitKind::ManagedLimit => {
                format!("all sessions together use {used} of the card's managed limit of {limit}")
            }
            LimitKind::HostMemory => format!(
                "all sessions together use {used} of the {limit} that the card and the host memory have for memory that moves"
            ),
        };
        format!("{of}; further refusals are only in the scheduler's log")
    };
    stderr::print(format_args!("{requested} refused: {reason}"));
}
