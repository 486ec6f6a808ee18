//! How things end: contexts, processes, and what follows an error from which nothing recovers.

use crate::ids::{ClientId, ContextId, GpuIndex};
use crate::machine::{Card, Timer};
use crate::queue::Queues;
use crate::stats::ENDED_KEPT;
use crate::wire::{Failure, Role, Sticky};

impl Card {
    /// The sticky error: nothing of this client works any more.
    pub(super) fn poison(&mut self, id: ClientId, error: Sticky) {
        self.stop_work(id);
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let first = *client.poisoned.get_or_insert(error);
        if let Some(board) = &client.board {
            board.note_error(first);
        }
        let questions = client.queues.abandon();
        let waiters = std::mem::take(&mut client.waiters);
        let waiting = waiters.into_iter().filter_map(|waiter| waiter.token);
        for token in questions.into_iter().chain(waiting) {
            self.answer(id, Some(token), Err(Failure::Sticky(first)));
        }
    }

    /// A GPU is gone: for everybody who has a context on it, and for who asks for one.
    pub(super) fn fall_off(&mut self, gpu: GpuIndex) -> Result<(), Failure> {
        self.gpus.get_mut(gpu.0 as usize).ok_or(Failure::Unknown)?.lost = true;
        let users = self
            .clients
            .iter()
            .filter(|(_, client)| client.contexts.values().any(|used| *used == gpu));
        let users: Vec<ClientId> = users.map(|(id, _)| *id).collect();
        for id in users {
            self.poison(id, Sticky::Lost);
        }
        Ok(())
    }

    /// A GPU is there again. Who has lost it does not get it back.
    pub(super) fn reset(&mut self, gpu: GpuIndex) -> Result<(), Failure> {
        self.gpus.get_mut(gpu.0 as usize).ok_or(Failure::Unknown)?.lost = false;
        Ok(())
    }

    /// A GPU comes into persistence mode, or leaves it. Only NVML says so.
    pub(super) fn set_persistence(&mut self, gpu: GpuIndex, is_on: bool) -> Result<(), Failure> {
        self.gpus
            .get_mut(gpu.0 as usize)
            .ok_or(Failure::Unknown)?
            .description
            .persistence = is_on;
        Ok(())
    }

    /// A GPU reports an Xid. What it means is up to those who read it.
    pub(super) fn xid(&mut self, gpu: GpuIndex, xid: u64) -> Result<(), Failure> {
        self.gpus.get_mut(gpu.0 as usize).ok_or(Failure::Unknown)?.xids.push(xid);
        Ok(())
    }

    pub(super) fn stop_work(&mut self, id: ClientId) {
        self.races.forget(id);
        for index in 0..self.gpus.len() {
            let taken = self.gpus[index].compute.forget(id, self.now);
            self.gpus[index].link_in.forget(id);
            self.gpus[index].link_out.forget(id);
            self.note_turn(index, taken);
        }
        if let Some(client) = self.clients.get_mut(&id) {
            client.value_waits.clear();
            client.host_calls.clear();
        }
    }

    /// A hang-up is a death: the work stops now, the memory comes back a little later.
    pub(super) fn gone(&mut self, id: ClientId) {
        self.stop_work(id);
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.dead = true;
        client.waiters.clear();
        client.queues = Queues::default();
        let has_memory =
            !client.contexts.is_empty() || self.memory.fixed_of(id) > 0 || self.memory.host_of(id) > 0;
        if client.role == Role::Driver && has_memory {
            self.set_timer(self.now + self.memory.constants.death_release, Timer::Reclaim(id));
        } else {
            self.reclaim(id);
        }
    }

    pub(super) fn reclaim(&mut self, id: ClientId) {
        self.drop_checkpoint(id);
        self.memory.forget(id);
        self.destroy_contexts(id);
        let process = self.clients.get(&id).filter(|client| client.role == Role::Driver);
        if let Some(process) = process.map(|client| self.process_stats(id, client)) {
            self.total_forgotten.add(&process.counters);
            self.ended.push_back(process);
        }
        if self.ended.len() > ENDED_KEPT {
            self.ended.pop_front();
        }
        self.memory.counters.remove(&id);
        self.clients.remove(&id);
    }

    pub(super) fn destroy_contexts(&mut self, id: ClientId) {
        let contexts = self
            .clients
            .get(&id)
            .map(|client| client.contexts.keys().copied().collect::<Vec<_>>());
        for context in contexts.into_iter().flatten() {
            let _ = self.destroy_context(id, context);
        }
    }

    pub(super) fn destroy_context(&mut self, id: ClientId, context: ContextId) -> Result<(), Failure> {
        let client = self.clients.get_mut(&id).ok_or(Failure::Unknown)?;
        let gpu = client.contexts.remove(&context).ok_or(Failure::Unknown)?;
        client.queues.destroy_context(context);
        self.memory.free_where(id, |allocation| allocation.context == context);
        self.memory.give_back(gpu, self.memory.constants.context_memory);
        Ok(())
    }
}
