//! Remapped memory of the process: the cards, as hooks, drainer and exit use them.
//!
//! ```text
//!   hooks      allocate, free, pin ──▶ ┌──────┐
//!   drainer    drained, enter, open ─▶ │ Card │ ── lanes ──▶ driver
//!   daemon     goal in the page ─────▶ └──────┘ ── reporter ─▶ Resides, MoveFailed, CardFull
//! ```
//!
//! A card has threads from its first allocation on. A process with another backend has none.

mod allocations;
mod exports;
mod follow;
mod handles;
mod reports;
mod want;

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use gpushare_proto::page::{MAX_GPUS, Page};
use gpushare_proto::{Bytes, GateWord, GpuId, names};

use self::exports::Importers;
use self::reports::Told;
pub(crate) use self::want::Want;
use super::blocks::AllocationError;
use super::card::OnCard;
use super::guard::{Gate, Guard, Proof};
use super::host::Pool;
use super::lanes::Lanes;
use super::names::Names;
use super::pins::Reason;
use super::sharing::{Pass, Sharing};
use super::swap::{Engine, Phase};
use super::vmm::VmmError;
use crate::daemon::{Daemon, address::Address};
use crate::driver::contexts::Contexts;
use crate::driver::types::{
    CAPTURE_MODE_RELAXED, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY, CUcontext, CUdevice,
    CUdeviceptr, CUresult,
};
use crate::driver::unknown::UNKNOWN;
use crate::driver::{Driver, MemoryCalls};
use crate::process::{self, lock, spawn};

/// Most threads that touch and register host memory of a card. Eight touch as fast as the driver registers.
const TASK_THREADS: usize = 8;
/// Longest wait of an ending process for the steps that are under way.
const LAST_STEPS: Duration = Duration::from_secs(1);
/// Pause between two looks at the steps of an ending process.
const LOOK: Duration = Duration::from_millis(1);
/// Remapped memory of the process.
#[derive(Debug, Default)]
pub(crate) struct Remap {
    cards: [OnceLock<Card>; MAX_GPUS],
    /// Whether there is a card. Each free of any memory asks.
    is_used: AtomicBool,
    guard: Guard,
    sharing: Sharing,
    is_parked: AtomicBool,
    importers: Importers,
    /// Addresses that kernels were given, while memory is mapped from the host.
    pub(crate) names: Names,
}

#[derive(Debug)]
struct Card {
    lanes: Lanes,
    hardware: OnCard,
    sharing: &'static Sharing,
    daemon: &'static Daemon,
    told: Mutex<Told>,
    /// Lock that keeps reports in order.
    reporting: Mutex<()>,
    /// Bytes for which allocations wait.
    wanted: AtomicU64,
    threads: Mutex<Threads>,
}

/// Number of threads of a card that have started.
#[derive(Debug, Default)]
struct Threads {
    /// Of [`Card::THREADS`].
    single: usize,
    /// Further threads for the tasks of the pool, which have not ended.
    helpers: usize,
}

/// Name of a thread, and what it does.
type Loop = (&'static str, fn(&'static Card));

/// Reason why memory was not allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAllocated {
    /// The goal has no room for so many bytes more: the thread says so ([`Remap::want`]), passes the gate,
    /// waits for a higher goal, and asks again.
    NotNow(Bytes),
    /// The goal has room for so many bytes more, but the card has no memory for them.
    CardFull(Bytes),
    /// Result of the application's call.
    Failed(CUresult),
}

impl From<AllocationError> for NotAllocated {
    fn from(error: AllocationError) -> Self {
        match error {
            AllocationError::NoRoom(bytes) => Self::NotNow(bytes),
            AllocationError::Driver(error) => Self::Failed(error.result()),
        }
    }
}

impl Remap {
    /// Sets the gate of the process, which must be closed while memory is away.
    pub(crate) fn stand_at(&self, gate: Gate) {
        self.guard.stand_at(gate);
    }

    /// Sets the address of the daemon by which the process shares host memory.
    pub(crate) fn share_by(&self, address: Address) {
        self.sharing.use_address(address);
    }

    /// Begins to use a card, whose context is current in the calling thread.
    ///
    /// # Errors
    /// The driver cannot map memory by handle, or the system refuses threads.
    pub(crate) fn begin(
        &'static self,
        (driver, contexts, daemon): (&'static Driver, &'static Contexts, &'static Daemon),
        device: CUdevice,
        peers: u32,
    ) -> Result<(), CUresult> {
        let slot = usize::try_from(device).ok().and_then(|index| self.cards.get(index));
        let slot = slot.ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
        let calls = MemoryCalls::of(driver).ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
        self.is_used.store(true, Ordering::Relaxed);
        let is_new = slot.get().is_none();
        let card = slot.get_or_init(|| Card {
            lanes: Lanes::new(Engine::new(is_paranoid())),
            hardware: OnCard::new(
                driver,
                calls,
                contexts,
                (&self.guard, &self.sharing),
                device,
                is_paranoid(),
            ),
            sharing: &self.sharing,
            daemon,
            told: Mutex::default(),
            reporting: Mutex::default(),
            wanted: AtomicU64::new(0),
            threads: Mutex::default(),
        });
        card.hardware.add_peers(peers);
        // If the gate changes meanwhile, its mark is refused, and the phase is *open* again.
        if is_new && self.guard.is_idle_now() {
            card.lanes.change(|moving| moving.blocks.engine().set_phase(Phase::Drained));
        }
        if is_new {
            card.hardware.load_fingerprints();
        }
        card.start().then_some(()).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Allocates memory on a card that the process has begun to use. A `want` of the caller ends once the
    /// memory is being made.
    pub(crate) fn allocate(
        &self,
        device: CUdevice,
        size: Bytes,
        want: &mut Option<Want>,
    ) -> Result<CUdeviceptr, NotAllocated> {
        let card = self.card(device).ok_or(NotAllocated::Failed(CUDA_ERROR_NOT_SUPPORTED))?;
        let made = card.allocate(size, want);
        if made.is_err() {
            // An unused block that was shared once may have ended.
            self.end_exports(device);
        }
        made
    }

    /// Tells the daemon that an allocation needs so many bytes more, until the returned guard is dropped.
    pub(crate) fn want(&'static self, device: CUdevice, bytes: Bytes) -> Option<Want> {
        self.card(device).map(|card| Want::begin(card, bytes))
    }

    /// Returns whether the daemon in force has given a goal for the card. A new one gives the first goals
    /// when it knows where all memory is.
    pub(crate) fn has_goal(&self, device: CUdevice) -> bool {
        self.card(device).is_none_or(Card::has_goal)
    }

    /// Frees the block that begins at an address, after all work on it. Returns `false` for another address.
    pub(crate) fn free(&self, device: CUdevice, address: CUdeviceptr) -> bool {
        let is_freed = self.card(device).is_some_and(|card| card.free(address));
        self.end_exports(device);
        is_freed
    }

    /// Frees blocks without waiting for the driver.
    pub(crate) fn begin_free(&self, device: CUdevice, address: CUdeviceptr) {
        if let Some(card) = self.card(device) {
            card.lanes.change(|moving| moving.blocks.end(address));
        }
        self.end_exports(device);
    }

    /// Keeps the block around an address on its card.
    pub(crate) fn pin(&self, device: CUdevice, address: CUdeviceptr, reason: Reason) {
        if let Some(card) = self.card(device) {
            card.lanes.change(|moving| moving.blocks.pin(address, reason));
        }
    }

    /// Keeps all memory of the process on its cards from now on.
    fn keep(&self, reason: Reason) {
        for (_, card) in self.cards() {
            card.lanes.change(|moving| moving.blocks.pin_all(reason));
        }
    }

    /// Lets the kernels of peers, given as bits, use the memory of a card, present and later.
    pub(crate) fn set_peers(&self, device: CUdevice, peers: u32) {
        let Some(card) = self.card(device) else { return };
        // Before the chunks are looked up: those that are mapped later get the peers then.
        card.hardware.add_peers(peers);
        card.lanes.renew_access(&card.hardware);
    }

    /// Returns whether the process has memory of this backend, now or before.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        // The thread that frees a block knows its address from the thread that allocated it.
        self.is_used.load(Ordering::Relaxed)
    }

    /// Returns whether memory may be away from a card.
    pub(crate) fn is_evicting(&self) -> bool {
        self.is_used() && self.guard.is_set()
    }

    /// Follows the words of the daemon in the page: the goals, who overflows its card, and whether the host
    /// memory is too full.
    pub(crate) fn follow(&self, page: &'static Page, gpu: impl Fn(CUdevice) -> Option<GpuId>) {
        for (device, card) in self.cards() {
            if let Some(gpu) = gpu(device) {
                card.follow(page, gpu);
            }
        }
    }

    /// Reports the figures of a card to the daemon, if they have changed.
    pub(crate) fn report(&self, device: CUdevice) {
        if let Some(card) = self.card(device) {
            card.report();
        }
    }

    /// Returns whether a shared block of a card has a free piece for a request.
    pub(crate) fn has_piece(&self, device: CUdevice, size: Bytes) -> bool {
        self.card(device)
            .is_some_and(|card| card.lanes.look(|moving| moving.blocks.has_piece(size)))
    }

    /// Bytes of shared blocks of a card that are not used.
    pub(crate) fn unused(&self, device: CUdevice) -> Bytes {
        let unused = |card: &Card| card.lanes.look(|moving| moving.blocks.unused());
        self.card(device).map_or(Bytes::ZERO, unused)
    }

    /// Gives back shared blocks of a card that are not used.
    pub(crate) fn end_unused(&self, device: CUdevice) {
        if let Some(card) = self.card(device) {
            card.end_unused();
            self.end_exports(device);
        }
    }

    /// Reports the figures of all cards again, as to a new daemon. The report makes the daemon look at the
    /// lease, too.
    pub(crate) fn report_again(&self) {
        for (_, card) in self.cards() {
            lock(&card.told).report = None;
            card.lanes.change(|_| ());
        }
    }

    /// Behaves as a process that has memory of this backend.
    #[cfg(test)]
    pub(crate) fn use_without_card(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// Returns whether memory cannot leave under a closed gate word of `page`, since the process is not
    /// proved idle.
    pub(crate) fn needs_proof(&self, page: &Page, word: GateWord) -> bool {
        self.is_used() && !self.guard.is_proved(page, word)
    }

    /// Notes that nothing is in flight under a closed gate. From now on memory leaves as the goal says.
    pub(crate) fn drained(&self, proof: Proof) {
        if !self.is_used() {
            return;
        }
        // Work may have run since the last proof, unless the gate was marked all the time.
        if !self.guard.is_set() {
            self.set_phase(Phase::Open);
        }
        self.guard.note(proof);
        if !UNKNOWN.is_empty() {
            // Work that a function started which gpushare does not know is no part of the proof.
            self.keep(Reason::UnknownFunctions);
        }
        self.keep_reachable();
        if let Some(named) = self.names.take() {
            self.cards()
                .for_each(|(_, card)| card.lanes.change(|moving| moving.blocks.note_named(&named)));
        }
        self.set_phase(Phase::Drained);
    }

    /// Returns whether memory that is mapped from the host is to come to its card before the gate opens, as
    /// the goal has room.
    pub(crate) fn awaits_room(&self) -> bool {
        let awaits = |card: &Card| card.lanes.look(|moving| moving.blocks.engine().awaits_room());
        self.cards().any(|(_, card)| awaits(card))
    }

    /// Returns whether memory may leave its place under `word`, by which the session was granted the lock:
    /// nothing has run since the last proof.
    pub(crate) fn is_still_idle(&self, page: &Page, word: GateWord) -> bool {
        self.guard.prolong(page, word)
    }

    /// Notes that a context of a card has failed under a closed gate, so that nothing leaves. If its memory
    /// is lost, nothing comes in either, and the gate may open, so that the program gets the error.
    pub(crate) fn fail(&self, device: CUdevice, result: CUresult) {
        if !self.guard.is_set() {
            self.set_phase(Phase::Open);
        }
        if let error @ VmmError::ContextLost(_) = VmmError::of_work(result)
            && let Some(card) = self.card(device)
        {
            card.lanes.change(|moving| moving.blocks.engine().lose(error));
        }
    }

    /// Lets memory come in, before the gate opens.
    pub(crate) fn enter(&self) {
        self.set_phase(Phase::Entering);
    }

    /// Lets no more memory come in: the grant was taken away. The gate is marked.
    pub(crate) fn stop_entering(&self) {
        self.set_phase(Phase::Drained);
    }

    /// Notes that the gate is open, or is about to open.
    pub(crate) fn open(&self) {
        self.set_phase(Phase::Open);
    }

    /// Lets the driver forget the host memory that the process shares with others, or know it again. Returns
    /// whether that is done.
    pub(crate) fn hide_copies(&self, are_hidden: bool) -> bool {
        let hide = |card: &Card| {
            let is_done = |pool: &Pool| match are_hidden {
                true => pool.are_copies_hidden(),
                false => !pool.hides_copies(),
            };
            if !card.lanes.look(|moving| is_done(&moving.pool)) {
                card.lanes.change(|moving| moving.pool.hide_copies(are_hidden));
            }
            !are_hidden || card.lanes.look(|moving| moving.pool.are_copies_hidden())
        };
        // All cards at once: none waits for another one.
        self.cards().fold(true, |are_done, (_, card)| hide(card) && are_done)
    }

    /// Returns whether no card has a hole, but for cards whose memory is lost.
    pub(crate) fn can_open(&self) -> bool {
        self.cards()
            .all(|(_, card)| card.lanes.look(|moving| moving.blocks.engine().can_open().is_ok()))
    }

    /// Bytes of all cards that are in host memory.
    pub(crate) fn hosted(&self) -> Bytes {
        let of_card = |card: &Card| card.lanes.look(|moving| moving.blocks.engine().figures().hosted);
        self.cards().map(|(_, card)| of_card(card)).sum()
    }

    /// Puts the page of a new daemon in force by `replace`, with the mark of the gate.
    pub(crate) fn carry_over(&self, fresh: &Page, replace: impl FnOnce()) {
        self.guard.carry_over(fresh, replace);
    }

    /// Forgets what was made in a context that has ended. If that was the one whose memory is lost, the
    /// others go on; if not, the next step fails again.
    pub(crate) fn end_context(&self, context: CUcontext, device: CUdevice) {
        let Some(card) = self.card(device) else { return };
        let regions = card.hardware.end_context(context.addr());
        card.lanes.change(|moving| {
            moving.pool.end_registrations(&regions);
            moving.blocks.engine().forget_loss();
        });
    }

    /// Lets the steps end that are under way, and begins none any more, as the process ends.
    pub(crate) fn park(&self) {
        self.is_parked.store(true, Ordering::SeqCst);
        for (_, card) in self.cards() {
            card.lanes.change(|moving| moving.blocks.engine().set_phase(Phase::Parked));
        }
        let until = Instant::now() + LAST_STEPS;
        let is_quiet = |card: &Card| card.lanes.look(|moving| moving.blocks.engine().is_quiet());
        while !self.cards().all(|(_, card)| is_quiet(card)) && Instant::now() < until {
            thread::sleep(LOOK);
        }
    }

    fn set_phase(&self, phase: Phase) {
        for (_, card) in self.cards() {
            if card.lanes.look(|moving| moving.blocks.engine().phase() != phase) {
                card.lanes.change(|moving| {
                    // Under the lock, so that nothing begins after the end of the process has.
                    if !self.is_parked.load(Ordering::SeqCst) {
                        moving.blocks.engine().set_phase(phase);
                    }
                });
            }
        }
    }

    fn card(&self, device: CUdevice) -> Option<&Card> {
        self.cards.get(usize::try_from(device).ok()?)?.get()
    }

    fn cards(&self) -> impl Iterator<Item = (CUdevice, &Card)> {
        let cards = self.cards.iter().enumerate();
        cards.filter_map(|(index, card)| Some((index as CUdevice, card.get()?)))
    }
}

/// Whether the process checks that no work is in flight while memory leaves (`gpushare-ctl run --paranoid`).
fn is_paranoid() -> bool {
    std::env::var_os(names::PARANOID).is_some_and(|value| value == "1")
}

/// Most threads for the tasks of a card: one for each processor that the process may use, up to the bound.
fn task_threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get).min(TASK_THREADS)
}

impl Card {
    /// Threads that a card has from its first use on.
    const THREADS: [Loop; 5] = [
        ("gpushare-remap", |card| card.lanes.run_calls(&card.hardware)),
        ("gpushare-copy", |card| card.lanes.run_copies(&card.hardware)),
        ("gpushare-digest", |card| card.lanes.run_digests(&card.hardware)),
        ("gpushare-tell", Self::run_reports),
        ("gpushare-pin", Self::run_tasks),
    ];

    /// Starts the threads of the card that have not started yet; returns `false` if the system refuses one.
    fn start(&'static self) -> bool {
        let mut threads = lock(&self.threads);
        while let Some(thread) = Self::THREADS.get(threads.single) {
            if !self.start_one(*thread) {
                return false;
            }
            threads.single += 1;
        }
        true
    }

    fn start_one(&'static self, (name, run): Loop) -> bool {
        let driver = self.hardware.driver();
        let started = spawn(name, move || {
            let mut mode = CAPTURE_MODE_RELAXED;
            // SAFETY: exchanges one integer. Our calls must not break a capture of the application.
            unsafe { (driver.thread_exchange_capture_mode)(&raw mut mode) };
            run(self);
        });
        started.is_ok()
    }

    /// Performs tasks of the pool, with helpers while there are many.
    fn run_tasks(&'static self) {
        // Without a thread nothing is shared in this rest.
        let share = || self.start_one(("gpushare-share", Self::share));
        self.lanes.run_tasks(&self.hardware, || self.start_helper(), share);
    }

    /// Shares host memory with other processes, while the process rests.
    fn share(&'static self) {
        process::lower_priority();
        Pass::new(&self.lanes, self.sharing).run();
    }

    /// Starts one more thread for the tasks of the pool, which ends when there are none. If the system
    /// refuses it, the threads that there are do the work.
    fn start_helper(&'static self) {
        let mut threads = lock(&self.threads);
        if threads.helpers + 1 < task_threads() && self.start_one(("gpushare-pin", Self::help_with_tasks)) {
            threads.helpers += 1;
        }
    }

    fn help_with_tasks(&'static self) {
        self.lanes.help_with_tasks(&self.hardware, || self.start_helper());
        lock(&self.threads).helpers -= 1;
    }
}
