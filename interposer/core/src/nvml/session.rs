//! Caller's session on the card of an NVML handle: its memory figures and its processes.

use std::process;
use std::sync::Arc;

use gpushare_proto::tenant::{CardMemory, ProcessMemory, SessionMemory};
use gpushare_proto::{Bytes, GpuUuid};

use super::library;
use super::types::Device;
use crate::memory::lease::Figures;
use crate::state::State;
use crate::state::inquiry;

/// One card as the caller's session sees it.
#[derive(Clone, Debug)]
pub(super) struct Card {
    pub(super) uuid: GpuUuid,
    members: Members,
    /// Memory figures that this process itself has, if it uses the card. They are exact, unlike the daemon's.
    figures: Option<Figures>,
    /// UUIDs of the MIG instances of a partitioned GPU; empty for another card.
    parts: Vec<GpuUuid>,
    /// Number of bytes that this process uses on the card or its instances.
    own: Bytes,
}

impl Card {
    /// Returns the card of an NVML handle; `None` outside a session, and for an invalid handle.
    pub(super) fn of(device: Device) -> Option<Self> {
        let members = Members::of_caller()?;
        let state = State::existing();
        let uuid = library::uuid(device)?;
        let ordinal = state.and_then(|state| Some((state, state.device_of(uuid)?)));
        let figures = ordinal.and_then(|(state, ordinal)| state.memory.lease.figures(ordinal));
        let own = ordinal.map_or(Bytes::ZERO, |(state, ordinal)| state.memory.lease.used(ordinal));
        let is_kept = |account: &Arc<SessionMemory>| inquiry::card(account, uuid).is_some();
        let account = &members.0;
        let parts = if account.as_ref().is_some_and(is_kept) {
            Vec::new()
        } else {
            library::instances(device)
        };
        (account.is_some() || figures.is_some()).then_some(Self { uuid, members, figures, own, parts })
    }

    /// Returns total, used and free bytes for a card of `size`.
    pub(super) fn memory(&self, size: Bytes) -> (Bytes, Bytes, Bytes) {
        if let Some(figures) = self.figures {
            return (figures.total(size), figures.used, figures.free(size));
        }
        let Some(account) = &self.members.0 else { return (size, Bytes::ZERO, size) };
        let total = inquiry::total(account, self.uuid).min(size);
        if let Some(card) = inquiry::card(account, self.uuid) {
            return (total, card.used, card.free.min(total - card.used));
        }
        // The daemon schedules the instances of a partitioned GPU, not the GPU itself.
        let parts: Vec<_> = self.parts.iter().filter_map(|&part| inquiry::card(account, part)).collect();
        if parts.is_empty() {
            return (total, Bytes::ZERO, total);
        }
        let sum =
            |figure: fn(&CardMemory) -> Bytes| parts.iter().map(|part| figure(part)).sum::<Bytes>().min(size);
        (sum(|part| part.total), sum(|part| part.used), sum(|part| part.free))
    }

    /// Returns whether the daemon counts memory of this card. It does not for a partitioned GPU or an unused
    /// card.
    pub(super) fn is_kept(&self) -> bool {
        let account = self.members.0.as_ref();
        account.is_none_or(|account| inquiry::card(account, self.uuid).is_some())
    }

    /// Returns the session's processes on the card; only this process if the daemon does not answer.
    pub(super) fn processes(&self) -> Vec<ProcessMemory> {
        let (pid, used) = (process::id(), self.own);
        let Some(account) = &self.members.0 else {
            return vec![ProcessMemory { pid, outer_pid: pid, used }];
        };
        let mut processes =
            inquiry::card(account, self.uuid).map_or_else(Vec::new, |card| card.processes.clone());
        // A process knows its own bytes better than the daemon, whose answer may be a moment old.
        if let Some(own) = processes
            .iter_mut()
            .find(|process| process.pid == pid && self.figures.is_some())
        {
            own.used = used;
        }
        processes
    }

    pub(super) fn owns(&self, pid: u32) -> bool {
        self.members.has(pid)
    }
}

/// Processes of the caller's session on all cards; only this process if the daemon does not answer.
#[derive(Clone, Debug)]
pub(super) struct Members(Option<Arc<SessionMemory>>);

impl Members {
    /// Returns the processes of the caller's session; `None` outside a session.
    pub(super) fn of_caller() -> Option<Self> {
        let account = inquiry::session_memory();
        (account.is_some() || State::is_shared()).then_some(Self(account))
    }

    /// Returns whether a pid belongs to the session. The pid may be one of the host or of the caller's PID
    /// namespace, because drivers differ.
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
