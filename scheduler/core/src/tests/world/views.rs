//! Views of a world: its processes, cards, sessions, and the effects so far.

use super::*;

impl World {
    pub(in crate::tests) fn clients(&self) -> Vec<ClientId> {
        self.processes.keys().copied().collect()
    }

    pub(in crate::tests) fn sessions(&self) -> Vec<SessionId> {
        self.core
            .snapshot(self.now)
            .sessions
            .into_iter()
            .map(|view| view.session)
            .collect()
    }

    pub(in crate::tests) fn passes(&self, client: ClientId) -> bool {
        self.gate(client).state() == GateState::Open
    }

    /// Whether a process may have work on a card.
    pub(in crate::tests) fn has_work_in_flight(&self, client: ClientId) -> bool {
        self.processes[&client].in_flight
    }

    /// Whether each of some processes may submit work.
    pub(in crate::tests) fn open(&self, clients: &[ClientId]) -> Vec<bool> {
        clients.iter().map(|&client| self.passes(client)).collect()
    }

    pub(in crate::tests) fn flags(&self, client: ClientId) -> u32 {
        self.processes[&client].flags
    }

    pub(in crate::tests) fn used(&self, client: ClientId, gpu: GpuId) -> Bytes {
        self.processes[&client].on(gpu).used
    }

    pub(in crate::tests) fn fixed(&self, client: ClientId, gpu: GpuId) -> Bytes {
        self.processes[&client].on(gpu).fixed
    }

    pub(in crate::tests) fn free_lease(&self, client: ClientId, gpu: GpuId) -> Bytes {
        self.processes[&client].on(gpu).free
    }

    pub(in crate::tests) fn card(&self) -> GpuSnapshot {
        self.core.snapshot(self.now).gpus.swap_remove(0)
    }

    pub(in crate::tests) fn view(&self, session: SessionId) -> SessionSnapshot {
        let sessions = self.core.snapshot(self.now).sessions;
        sessions.into_iter().find(|view| view.session == session).unwrap()
    }

    /// Effects since the last call.
    pub(in crate::tests) fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.seen)
    }

    pub(in crate::tests) fn pick<T>(&mut self, part: impl Fn(Effect) -> Option<T>) -> Vec<T> {
        self.take().into_iter().filter_map(part).collect()
    }

    pub(in crate::tests) fn notices(&mut self) -> Vec<Notice> {
        self.pick(|effect| if let Effect::Notice(notice) = effect { Some(notice) } else { None })
    }

    /// Sessions that were granted a turn since the last call, in order.
    pub(in crate::tests) fn turns(&mut self) -> Vec<SessionId> {
        self.pick(|effect| match effect {
            Effect::Notice(Notice::Granted { session, .. }) => Some(session),
            _ => None,
        })
    }
}
