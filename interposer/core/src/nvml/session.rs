//! The session on the card that an NVML handle means, and whose processes are in it.

use std::process;
use std::sync::Arc;

use gpushare_proto::tenant::{CardMemory, ProcessMemory, SessionMemory};
use gpushare_proto::{Bytes, GpuUuid};

use super::library;
use super::types::Device;
use crate::account;
use crate::leases::Figures;
use crate::process::State;

/// What a session is told about one card.
#[derive(Clone, Debug)]
pub(super) struct Card {
    pub(super) uuid: GpuUuid,
    members: Members,
    /// The process's own figures, which are of this very moment, if it uses the card.
    figures: Option<Figures>,
    /// The instances of a divided GPU.
    parts: Vec<GpuUuid>,
    /// Of them, what is this process's.
    own: Bytes,
}

impl Card {
    /// `None` outside a session, and for a handle that NVML does not know.
    pub(super) fn of(device: Device) -> Option<Self> {
        let members = Members::of_caller()?;
        let state = State::existing();
        let uuid = library::uuid(device)?;
        let ordinal = state.and_then(|state| Some((state, state.device_of(uuid)?)));
        let figures = ordinal.and_then(|(state, ordinal)| state.leases.figures(ordinal));
        let own = ordinal.map_or(Bytes::ZERO, |(state, ordinal)| state.leases.used(ordinal));
        let is_kept = |account: &Arc<SessionMemory>| account::on(account, uuid).is_some();
        let account = &members.0;
        let parts = if account.as_ref().is_some_and(is_kept) {
            Vec::new()
        } else {
            library::instances(device)
        };
        (account.is_some() || figures.is_some()).then_some(Self { uuid, members, figures, own, parts })
    }

    /// Total, used and free of a card of `size`.
    pub(super) fn memory(&self, size: Bytes) -> (Bytes, Bytes, Bytes) {
        if let Some(figures) = self.figures {
            return (figures.total(size), figures.used, figures.free(size));
        }
        let Some(account) = &self.members.0 else { return (size, Bytes::ZERO, size) };
        let total = account::total(account, self.uuid).min(size);
        if let Some(card) = account::on(account, self.uuid) {
            return (total, card.used, card.free.min(total - card.used));
        }
        // A divided GPU is no card of the daemon's, but its instances are.
        let parts: Vec<_> = self.parts.iter().filter_map(|&part| account::on(account, part)).collect();
        if parts.is_empty() {
            return (total, Bytes::ZERO, total);
        }
        let sum =
            |figure: fn(&CardMemory) -> Bytes| parts.iter().map(|part| figure(part)).sum::<Bytes>().min(size);
        (sum(|part| part.total), sum(|part| part.used), sum(|part| part.free))
    }

    /// Whether the daemon keeps books of it: not of a GPU that is divided, and not of one that it has not met.
    pub(super) fn is_kept(&self) -> bool {
        let account = self.members.0.as_ref();
        account.is_none_or(|account| account::on(account, self.uuid).is_some())
    }

    /// The session's processes on the card; this one alone where nobody answers for the others.
    pub(super) fn processes(&self) -> Vec<ProcessMemory> {
        let (pid, used) = (process::id(), self.own);
        let Some(account) = &self.members.0 else {
            return vec![ProcessMemory { pid, outer_pid: pid, used }];
        };
        let mut processes =
            account::on(account, self.uuid).map_or_else(Vec::new, |card| card.processes.clone());
        // Its own bytes a process knows better than what was heard a moment ago.
        if let Some(own) = processes
            .iter_mut()
            .find(|process| process.pid == pid && self.figures.is_some())
        {
            own.used = used;
        }
        processes
    }

    /// Whether a pid is one of the session's.
    pub(super) fn owns(&self, pid: u32) -> bool {
        self.members.has(pid)
    }
}

/// The processes of the caller's session, on whatever card; this one alone where nobody answers for the others.
#[derive(Clone, Debug)]
pub(super) struct Members(Option<Arc<SessionMemory>>);

impl Members {
    /// `None` outside a session.
    pub(super) fn of_caller() -> Option<Self> {
        let account = account::present();
        let is_client = || State::existing().is_some_and(|state| state.link().is_some());
        (account.is_some() || is_client()).then_some(Self(account))
    }

    /// Whether a pid is one of them. The driver says it as the kernel does outside, or as it is in the caller's PID
    /// namespace: that depends on the driver.
    pub(super) fn has(&self, pid: u32) -> bool {
        match &self.0 {
            Some(account) => {
                let mut all = account.cards.iter().flat_map(|card| &card.processes);
                all.any(|process| process.pid == pid || process.outer_pid == pid)
            }
            None => pid == process::id(),
        }
    }
}
