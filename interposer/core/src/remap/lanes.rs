//! Lanes: the loops of the threads that carry out what the engine and the pool of a card order.
//!
//! ```text
//!   lane of calls   ── an order ──▶ driver call ── answer ──▶ ┐
//!   lane of copies  ── an order ──▶ copy begins ── end ─────▶ ├─ moving (one lock) ── changed ──▶ all lanes
//!   lane of digests ── orders ────▶ kernels ────── digests ─▶ │
//!   lane of tasks   ── a task ────▶ touch, register ────────▶ ┘
//! ```
//!
//! The lock is held between two driver calls, never in one. A lane without an order sleeps until something
//! changes. Only the lane of copies looks again after a pause, while copies are under way. The lane of tasks
//! sleeps until there is one. It calls for helpers, which end when no tasks are left.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gpushare_proto::Bytes;

use super::blocks::Blocks;
use super::host::{self, HostMemory, MemoryId, Pool, Task};
use super::swap::{Engine, Lane, Order, Phase};
use super::vmm::{Answer, Call, MOST_DIGESTS, Span, Vmm, VmmError, perform};
use crate::driver::types::CUdeviceptr;
use crate::process::lock;

/// Pause between two looks at copies that are under way. A chunk takes half a millisecond or more.
const POLL: Duration = Duration::from_micros(50);

/// Time for which a process must rest before host memory is prepared ahead. The goal of a process that lets
/// go of the card follows within a fraction of it.
const REST: Duration = Duration::from_millis(20);
/// Time for which a process must rest before its host memory is shared with others.
const LONG_REST: Duration = Duration::from_secs(2);

/// Card and gate, as the lanes use them.
pub trait Hardware: Vmm {
    /// Returns the address of a copy that has ended and was not returned before, with its result.
    fn ended(&self) -> Option<(CUdeviceptr, Result<(), VmmError>)>;
    /// Marks the process's gate as evicting, or removes this card's mark.
    ///
    /// # Errors
    /// Work may be in flight.
    #[expect(clippy::result_unit_err, reason = "there is one way to fail")]
    fn set_guard(&self, is_set: bool) -> Result<(), ()>;
    /// Asks for another proof that nothing is in flight, after the engine has heard that its mark was
    /// refused.
    fn ask_for_proof(&self);
}

/// Blocks of a card and the pool of their slots, under one lock.
#[derive(Debug, Default)]
pub struct Moving {
    /// Blocks and their engine.
    pub blocks: Blocks,
    /// Slots of registered host memory.
    pub pool: Pool,
    is_ending: bool,
    /// Time since which the process rests, if it does.
    rests_since: Option<Instant>,
    pass: PassState,
    /// Whether the daemon knows how processes share host memory.
    is_sharing_known: bool,
    /// Whether the driver cannot register memory for reading.
    is_sharing_refused: bool,
}

/// State of the pass that shares host memory with other processes. There is one at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PassState {
    /// No pass runs. One begins after a long rest.
    #[default]
    Ready,
    /// A thread runs a pass. Only that thread ends it, whatever the process does meanwhile.
    Running,
    /// A thread runs a pass that is to end, since the rest in which it began is over, or there is a new daemon.
    Late,
    /// A pass has found nothing more to share in this rest.
    Done,
}

impl PassState {
    /// Returns the state in which a pass begins anew, once the one that runs has ended.
    const fn renewed(self) -> Self {
        match self {
            Self::Ready | Self::Done => Self::Ready,
            Self::Running | Self::Late => Self::Late,
        }
    }
}

/// Next step of the thread of [`Lanes::run_tasks`].
#[derive(Debug)]
enum Next {
    Task(MemoryId, Task),
    /// Share host memory with other processes.
    Share,
    /// Look again after this time.
    After(Duration),
    Nothing,
}

impl Moving {
    /// Returns the next task of the pool. The last rest of the process counts.
    fn next_task(&mut self) -> Option<(MemoryId, Task)> {
        self.rest();
        self.pool.take_task()
    }

    /// Returns the next step of the thread of [`Lanes::run_tasks`].
    fn next(&mut self) -> Next {
        match (self.next_task(), self.rest()) {
            (Some((memory, task)), _) => Next::Task(memory, task),
            (None, Some(rest)) if !rest.is_zero() && self.pool.is_below_target() => Next::After(rest),
            (None, _) => self.next_pass(),
        }
    }

    fn next_pass(&mut self) -> Next {
        let since = self.rests_since.filter(|_| self.pass == PassState::Ready && self.may_share());
        match since.map(|since| LONG_REST.saturating_sub(since.elapsed())) {
            Some(Duration::ZERO) => {
                self.pass = PassState::Running;
                Next::Share
            }
            Some(left) => Next::After(left),
            None => Next::Nothing,
        }
    }

    /// Notes the end of a pass. Another one may begin in this rest unless the pass `is_done`.
    pub fn end_pass(&mut self, is_done: bool) {
        let is_of_this_rest = self.pass != PassState::Late;
        self.pass = if is_done && is_of_this_rest { PassState::Done } else { PassState::Ready };
    }

    /// Returns whether the pass that runs may go on: memory may be shared, and the rest is that in which it
    /// began.
    pub fn may_go_on(&mut self) -> bool {
        self.pass != PassState::Late && self.may_share()
    }

    /// Notes that there is a new daemon, which knows nothing of what an earlier one let share. A pass that runs ends,
    /// and another one asks for all chunks.
    pub fn note_new_daemon(&mut self) {
        self.pass = self.pass.renewed();
    }

    /// Sets whether the daemon knows how to share host memory.
    pub fn set_sharing(&mut self, is_known: bool) {
        self.is_sharing_known = is_known;
    }

    /// Returns whether the daemon knows how to share host memory.
    pub fn is_sharing_known(&self) -> bool {
        self.is_sharing_known
    }

    /// Shares no host memory any more, since the driver cannot register it for reading.
    pub fn refuse_sharing(&mut self) {
        self.is_sharing_refused = true;
    }

    /// Returns whether host memory may be shared now: the process rests, and its copies are not hidden from
    /// the driver.
    pub fn may_share(&mut self) -> bool {
        let rests = self.blocks.engine().rests() && !self.is_ending;
        rests && self.is_sharing_known && !self.is_sharing_refused && !self.pool.hides_copies()
    }

    /// Returns whether the pool has tasks, or will have them once the process has rested for some time.
    fn has_tasks(&mut self) -> bool {
        let rest = self.rest();
        let waits = self.pool.is_below_target() || (self.pass == PassState::Ready && self.may_share());
        self.pool.has_tasks() || (rest.is_some() && waits)
    }

    /// Lets host memory be prepared ahead while the process rests. Returns the rest that is left before
    /// that; `None` if the process does not rest.
    fn rest(&mut self) -> Option<Duration> {
        let rests = self.blocks.engine().rests();
        if rests && self.rests_since.is_none() {
            self.rests_since = Some(Instant::now());
            self.pool.retry_copies();
        }
        if !rests {
            self.rests_since = None;
            self.pass = self.pass.renewed();
        }
        let left = self.rests_since.map(|since| REST.saturating_sub(since.elapsed()));
        self.pool.pause(left != Some(Duration::ZERO));
        left
    }

    /// Bounds the pool by what slots for all chunks may need.
    pub fn bound_pool(&mut self) {
        let most = self.blocks.engine().most_regions();
        self.pool.set_budget(most);
    }
}

/// Addresses for a change of the state. See [`Lanes::change_with_addresses`].
#[derive(Debug, Default)]
pub struct Addresses {
    /// Size of the last reservation, and its result.
    reserved: Option<(Bytes, Result<CUdeviceptr, VmmError>)>,
    /// Size of the reservation that is needed.
    wanted: Option<Bytes>,
}

impl Addresses {
    /// Returns reserved addresses of `size` bytes.
    ///
    /// # Errors
    /// Error of the reservation; or they are not reserved yet, and the change is made again.
    pub fn take(&mut self, size: Bytes) -> Result<CUdeviceptr, VmmError> {
        match self.reserved.take() {
            Some((reserved, result)) if reserved >= size => result,
            _ => {
                self.wanted = Some(size);
                Err(VmmError::OutOfMemory)
            }
        }
    }
}

/// State that the lanes share with the hooks and the drainer.
#[derive(Debug, Default)]
pub struct Lanes {
    moving: Mutex<Moving>,
    changed: Condvar,
    /// Notified when the pool may have tasks.
    has_tasks: Condvar,
}

impl Lanes {
    /// Creates the lanes of a card that `engine` moves.
    pub fn new(engine: Engine) -> Self {
        let moving = Moving { blocks: Blocks::new(engine), ..Moving::default() };
        Self { moving: Mutex::new(moving), ..Self::default() }
    }

    /// Changes the state and wakes all lanes.
    pub fn change<T>(&self, change: impl FnOnce(&mut Moving) -> T) -> T {
        let mut moving = lock(&self.moving);
        let result = change(&mut moving);
        self.announce(moving);
        result
    }

    /// Wakes the lanes after a change.
    fn announce(&self, mut moving: MutexGuard<'_, Moving>) {
        let has_tasks = moving.is_ending || moving.has_tasks();
        drop(moving);
        self.changed.notify_all();
        if has_tasks {
            self.has_tasks.notify_all();
        }
    }

    /// Changes the state with the addresses that it needs. `reserve` is called without the lock, and then
    /// `change` is called again.
    pub fn change_with_addresses<T, E>(
        &self,
        reserve: impl Fn(Bytes) -> Result<CUdeviceptr, VmmError>,
        mut change: impl FnMut(&mut Moving, &mut Addresses) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut addresses = Addresses::default();
        loop {
            let result = self.change(|moving| change(moving, &mut addresses));
            match addresses.wanted.take() {
                Some(size) => addresses.reserved = Some((size, reserve(size))),
                None => return result,
            }
        }
    }

    /// Lets the devices that may use the card's memory by now use all chunks that are mapped. The lock is not
    /// held in the driver's calls, of which there are many.
    pub fn renew_access(&self, vmm: &impl Vmm) {
        let all = Span { address: 0, size: Bytes::MAX };
        for chunk in self.look(|moving| moving.blocks.engine().chunks_in(all)) {
            // A hole is refused, and so is a chunk that was freed meanwhile. A chunk that is mapped later
            // gets the access then.
            let _ = vmm.set_access(chunk);
        }
    }

    /// Looks at the state without waking the lanes.
    pub fn look<T>(&self, look: impl FnOnce(&mut Moving) -> T) -> T {
        look(&mut lock(&self.moving))
    }

    /// Waits until `holds` is true for the state, and returns its value.
    pub fn wait_for<T>(&self, mut holds: impl FnMut(&mut Moving) -> Option<T>) -> T {
        let mut moving = lock(&self.moving);
        loop {
            if let Some(value) = holds(&mut moving) {
                return value;
            }
            moving = self.sleep(moving);
        }
    }

    /// Waits until `holds` is true for the state, and returns its value; `None` once the `pause` is over.
    pub fn wait_within<T>(
        &self,
        pause: Duration,
        mut holds: impl FnMut(&mut Moving) -> Option<T>,
    ) -> Option<T> {
        let began = Instant::now();
        let mut moving = lock(&self.moving);
        loop {
            if let Some(value) = holds(&mut moving) {
                return Some(value);
            }
            let left = pause.checked_sub(began.elapsed())?;
            let woken = self.changed.wait_timeout(moving, left);
            (moving, _) = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets the lanes end: what is under way ends first, and nothing begins.
    pub fn end(&self) {
        self.change(|moving| {
            moving.is_ending = true;
            moving.blocks.engine().set_phase(Phase::Parked);
        });
    }

    /// Carries out driver calls until [`Self::end`].
    pub fn run_calls(&self, hardware: &impl Hardware) {
        self.run(Lane::Calls, hardware);
    }

    /// Begins copies and reports their ends until [`Self::end`].
    pub fn run_copies(&self, hardware: &impl Hardware) {
        self.run(Lane::Copies, hardware);
    }

    /// Computes digests, as many together as there are, until [`Self::end`]. Kernels that follow each other
    /// without a pause keep the copies of other processes waiting for a shorter time.
    pub fn run_digests(&self, hardware: &impl Hardware) {
        self.run(Lane::Digests, hardware);
    }

    fn digest(&self, spans: &[Span], hardware: &impl Hardware) {
        let digests = hardware.digests(spans);
        self.change(|moving| {
            for (number, span) in spans.iter().enumerate() {
                let answer = Answer::of_digest(&digests, number);
                moving.blocks.engine().done(span.address, answer);
            }
        });
    }

    fn run(&self, lane: Lane, hardware: &impl Hardware) {
        loop {
            if lane == Lane::Copies {
                while let Some((address, result)) = hardware.ended() {
                    self.change(|moving| moving.blocks.engine().copied(address, result));
                }
            }
            let mut moving = lock(&self.moving);
            let Moving { blocks, pool, is_ending, .. } = &mut *moving;
            let engine = blocks.engine();
            match engine.next(lane, pool) {
                Some(Order::Call(span, Call::Digest)) => {
                    let next = |_| match engine.next(lane, pool) {
                        Some(Order::Call(span, Call::Digest)) => Some(span),
                        _ => None,
                    };
                    let spans: Vec<_> =
                        std::iter::once(span).chain((1..MOST_DIGESTS).map_while(next)).collect();
                    drop(moving);
                    self.digest(&spans, hardware);
                }
                Some(order) => {
                    drop(moving);
                    self.carry_out(order, hardware);
                }
                None if *is_ending && engine.is_quiet() => return,
                // The look itself has changed something for another lane.
                None if engine.take_changed() => self.announce(moving),
                None if lane == Lane::Copies && engine.is_copying() => {
                    drop(self.changed.wait_timeout(moving, POLL));
                }
                None => drop(self.sleep(moving)),
            }
        }
    }

    fn carry_out(&self, order: Order, hardware: &impl Hardware) {
        match order {
            Order::Guard(is_set) => {
                let result = hardware.set_guard(is_set);
                self.change(|moving| moving.blocks.engine().note_guard(result));
                // Not before: the phase that follows from the next proof is later than the refusal.
                if result.is_err() {
                    hardware.ask_for_proof();
                }
            }
            Order::Call(span, call) => {
                let answer = perform(call, span, hardware);
                self.change(|moving| moving.blocks.engine().done(span.address, answer));
            }
        }
    }

    /// Performs tasks of the pool until [`Self::end`]. A thread that takes a task and leaves others calls
    /// `help` first, which may start a helper. Calls `share` after a long rest, which starts a thread that
    /// shares host memory and ends with [`Moving::end_pass`], or returns `false`.
    pub fn run_tasks(&self, host: &impl HostMemory, help: impl Fn(), share: impl Fn() -> bool) {
        let mut moving = lock(&self.moving);
        loop {
            moving = match moving.next() {
                Next::Task(memory, task) => self.do_task(moving, (memory, task), host, &help),
                _ if moving.is_ending => return,
                Next::Share => {
                    drop(moving);
                    let has_begun = share();
                    let mut moving = lock(&self.moving);
                    if !has_begun {
                        moving.end_pass(true);
                    }
                    moving
                }
                Next::After(rest) => {
                    let woken = self.has_tasks.wait_timeout(moving, rest);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                Next::Nothing => self.has_tasks.wait(moving).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Performs tasks of the pool as long as there are some, beside the thread of [`Self::run_tasks`].
    pub fn help_with_tasks(&self, host: &impl HostMemory, help: impl Fn()) {
        let mut moving = lock(&self.moving);
        while let Some((memory, task)) = moving.next_task() {
            moving = self.do_task(moving, (memory, task), host, &help);
        }
    }

    fn do_task<'a>(
        &'a self,
        moving: MutexGuard<'a, Moving>,
        (memory, task): (MemoryId, Task),
        host: &impl HostMemory,
        help: &impl Fn(),
    ) -> MutexGuard<'a, Moving> {
        let leaves_others = moving.pool.has_tasks();
        drop(moving);
        if leaves_others {
            help();
        }
        let result = host::perform(task, host);
        self.change(|moving| moving.pool.done(memory, result));
        lock(&self.moving)
    }

    fn sleep<'a>(&self, moving: MutexGuard<'a, Moving>) -> MutexGuard<'a, Moving> {
        self.changed.wait(moving).unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
