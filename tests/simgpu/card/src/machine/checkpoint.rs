//! Checkpoints of processes, which another process of the user asks for.
//!
//! ```text
//!            Lock              Checkpoint                 Restore                Unlock
//! Running ─────────▶ Locked ───────────────▶ Checkpointed ────────▶ Locked ──────────────▶ Running
//!         calls wait          all leaves the GPUs     │    all is back
//!                                                     └───▶ Failed: the process is lost
//! ```
//!
//! A lock succeeds once no call and no work of the process is under way. A step goes on if its caller dies.
//! The next one waits for its end.
//!
//! What is refused and what fails was measured on an H100 (driver 580), but for shared memory, other users,
//! and a restore without room for it: those are assumptions, on the careful side.

use std::collections::VecDeque;

use crate::ids::{ClientId, GpuIndex, Time};
use crate::machine::{Card, Timer};
use crate::wire::{Answer, Failure, Kind, Place, ProcessState, Role, Step, Sticky};

/// Checkpoint of one process.
#[derive(Debug, Default)]
pub(super) struct Checkpoint {
    pub(super) state: ProcessState,
    /// Memory that has left the GPUs.
    away: Vec<Away>,
    /// Whether a step is under way.
    pub(super) busy: bool,
    /// Steps that wait for its end.
    waiting: VecDeque<(Caller, Step)>,
}

/// Memory of a process that has left a GPU.
#[derive(Debug)]
struct Away {
    gpu: GpuIndex,
    /// What it had there.
    bytes: u64,
    /// What of that is counted there now.
    here: u64,
}

/// Connection that waits for an answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    client: ClientId,
    token: Option<u64>,
}

/// Process that is to be locked.
#[derive(Debug)]
pub(super) struct Locking {
    target: ClientId,
    caller: Caller,
    deadline: Option<Time>,
}

/// Step under way.
#[derive(Debug)]
pub(super) struct Stepping {
    target: ClientId,
    caller: Caller,
    to: Result<ProcessState, Failure>,
}

impl Checkpoint {
    /// Whether the process has left the GPUs.
    pub(super) fn is_away(&self) -> bool {
        matches!(self.state, ProcessState::Checkpointed | ProcessState::Failed)
    }

    /// Host memory that its bytes take.
    pub(super) fn host_bytes(&self) -> u64 {
        self.away.iter().map(|away| away.bytes).sum()
    }
}

impl Card {
    pub(super) fn checkpoint(
        &mut self,
        id: ClientId,
        token: Option<u64>,
        pid: u32,
        step: Step,
    ) -> Result<Option<Answer>, Failure> {
        let user = self.clients.get(&id).ok_or(Failure::Unknown)?.user;
        let is_target = |client: &crate::machine::client::Client| {
            client.pid == pid && client.role == Role::Driver && !client.dead
        };
        let found = self.clients.iter_mut().find(|(_, client)| is_target(client));
        let (&target, process) = found.ok_or(Failure::Unknown)?;
        if user != 0 && user != process.user {
            return Err(Failure::NotPermitted);
        }
        if step == Step::Ask {
            return Ok(Some(Answer::ProcessState(process.checkpoint.state)));
        }
        let caller = Caller { client: id, token };
        process.checkpoint.waiting.push_back((caller, step));
        self.next_step(target);
        Ok(None)
    }

    /// Begins the steps that wait, until one takes time.
    fn next_step(&mut self, target: ClientId) {
        while let Some(process) = self.clients.get_mut(&target) {
            let checkpoint = &mut process.checkpoint;
            if checkpoint.busy {
                return;
            }
            let Some((caller, step)) = checkpoint.waiting.pop_front() else {
                return;
            };
            checkpoint.busy = true;
            if let Err(failure) = self.begin_step(target, caller, step) {
                self.finish_step(target, caller, Err(failure));
            }
        }
    }

    fn begin_step(&mut self, target: ClientId, caller: Caller, step: Step) -> Result<(), Failure> {
        let process = self.clients.get(&target).ok_or(Failure::Unknown)?;
        let from = match step {
            Step::Lock(_) => ProcessState::Running,
            Step::Checkpoint | Step::Unlock => ProcessState::Locked,
            Step::Restore => ProcessState::Checkpointed,
            Step::Ask => return Err(Failure::Unknown),
        };
        if process.checkpoint.state != from {
            return Err(Failure::WrongState);
        }
        let (to, time) = match step {
            Step::Lock(patience) => {
                if let Some(board) = &process.board {
                    board.hold(true);
                }
                let deadline = patience.map(|patience| self.now + patience);
                self.lock(Locking { target, caller, deadline });
                return Ok(());
            }
            Step::Checkpoint => {
                let bytes = self.take_off(target)?;
                let time = self.memory.constants.checkpoint_out.time_for(bytes);
                (Ok(ProcessState::Checkpointed), self.memory.constants.checkpoint + time)
            }
            Step::Restore => {
                let (to, bytes) = self.bring_back(target);
                let time = self.memory.constants.restore_in.time_for(bytes);
                (to, self.memory.constants.restore + time)
            }
            Step::Unlock | Step::Ask => (Ok(ProcessState::Running), Time::ZERO),
        };
        self.set_timer(self.now + time, Timer::Step(Stepping { target, caller, to }));
        Ok(())
    }

    /// Locks a process if nothing of it is under way, or looks again a little later.
    pub(super) fn lock(&mut self, locking: Locking) {
        let Locking { target, caller, deadline } = locking;
        let Some(process) = self.clients.get_mut(&target).filter(|process| !process.dead) else {
            return self.refuse_dead(target, caller);
        };
        let queues = &process.queues;
        let idle = queues.all_fences().into_iter().all(|fence| queues.done(fence));
        if idle
            && process.waiters.is_empty()
            && process.board.as_ref().is_none_or(|board| board.inside() == 0)
        {
            process.checkpoint.state = ProcessState::Locked;
            self.finish_step(target, caller, Ok(Answer::Done));
        } else if deadline.is_some_and(|deadline| deadline <= self.now) {
            if let Some(board) = &process.board {
                board.hold(false);
            }
            self.finish_step(target, caller, Err(Failure::NotReady));
        } else {
            self.set_timer(self.now + self.memory.constants.poll, Timer::Lock(locking));
        }
    }

    /// A step has taken its time.
    pub(super) fn end_step(&mut self, stepping: &Stepping) {
        let &Stepping { target, caller, to } = stepping;
        let Some(process) = self.clients.get_mut(&target).filter(|process| !process.dead) else {
            return self.refuse_dead(target, caller);
        };
        let before = process.checkpoint.state;
        match to {
            Ok(state) => {
                process.checkpoint.state = state;
                if state == ProcessState::Running
                    && let Some(board) = &process.board
                {
                    board.hold(false);
                }
                if before == ProcessState::Checkpointed {
                    let host: u64 = process.checkpoint.away.drain(..).map(|away| away.bytes).sum();
                    self.memory.give_back_host(host);
                } else if state == ProcessState::Checkpointed {
                    self.give_room_back(target);
                }
                self.finish_step(target, caller, Ok(Answer::Done));
            }
            Err(failure) => {
                process.checkpoint.state = ProcessState::Failed;
                if let Some(board) = &process.board {
                    board.hold(false);
                }
                self.poison(target, Sticky::NotRestored);
                self.finish_step(target, caller, Err(failure));
            }
        }
    }

    fn finish_step(&mut self, target: ClientId, caller: Caller, result: Result<Answer, Failure>) {
        if let Some(process) = self.clients.get_mut(&target) {
            process.checkpoint.busy = false;
        }
        self.answer(caller.client, caller.token, result);
        self.next_step(target);
    }

    fn refuse_dead(&mut self, target: ClientId, caller: Caller) {
        self.answer(caller.client, caller.token, Err(Failure::Unknown));
        let waiting = self
            .clients
            .get_mut(&target)
            .map(|process| std::mem::take(&mut process.checkpoint.waiting));
        for (caller, _) in waiting.into_iter().flatten() {
            self.answer(caller.client, caller.token, Err(Failure::Unknown));
        }
    }

    /// Takes host memory for all that a process has on the GPUs, and answers how much that is.
    fn take_off(&mut self, target: ClientId) -> Result<u64, Failure> {
        let process = self.clients.get(&target).ok_or(Failure::Unknown)?;
        if let Some(error) = process.poisoned {
            return Err(Failure::Sticky(error));
        }
        if self.memory.usage(target, Kind::Managed) > 0 || self.memory.is_shared(target) {
            return Err(Failure::NotSupported);
        }
        let gpus = (0..).zip(&self.gpus).map(|(gpu, _)| GpuIndex(gpu));
        let bytes = gpus.map(|gpu| {
            let contexts = process.contexts.values().filter(|used| **used == gpu).count() as u64;
            let bytes = contexts * self.memory.constants.context_memory + self.memory.fixed_on(target, gpu);
            Away { gpu, bytes, here: bytes }
        });
        let away: Vec<Away> = bytes.filter(|away| away.bytes > 0).collect();
        let bytes = away.iter().map(|away| away.bytes).sum();
        self.memory.take_host(bytes)?;
        if let Some(process) = self.clients.get_mut(&target) {
            process.checkpoint.away = away;
        }
        Ok(bytes)
    }

    fn give_room_back(&mut self, target: ClientId) {
        let left = self.memory.constants.checkpoint_left;
        let away = self.clients.get_mut(&target).map(|process| &mut process.checkpoint.away);
        for away in away.into_iter().flatten() {
            let here = left.min(away.bytes);
            self.memory.give_back(away.gpu, away.here - here);
            away.here = here;
        }
    }

    /// Takes room on the GPUs for all that a process had there. Answers what becomes of it.
    fn bring_back(&mut self, target: ClientId) -> (Result<ProcessState, Failure>, u64) {
        let on_host = self.memory.physical_in(target, Place::Host) > 0;
        let away = self.clients.get_mut(&target).map(|process| &mut process.checkpoint.away);
        let mut bytes = 0;
        for away in away.into_iter().flatten() {
            if self.memory.take(away.gpu, away.bytes - away.here).is_err() {
                return (Err(Failure::OutOfMemory), bytes);
            }
            bytes += away.bytes;
            away.here = away.bytes;
        }
        (if on_host { Err(Failure::Broken) } else { Ok(ProcessState::Locked) }, bytes)
    }

    /// Counts all that a process had on the GPUs as there again, before it is given back with the process.
    pub(super) fn drop_checkpoint(&mut self, id: ClientId) {
        let away = self
            .clients
            .get_mut(&id)
            .map(|client| std::mem::take(&mut client.checkpoint.away));
        for Away { gpu, bytes, here } in away.into_iter().flatten() {
            self.memory.give_back_host(bytes);
            self.memory.count_again(gpu, bytes - here);
        }
    }
}
