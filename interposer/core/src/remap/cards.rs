//! Remapped memory of the process: the cards, as hooks, drainer and exit use them.
//!
//! ```text
//!   hooks      allocate, free, pin ──▶ ┌──────┐
//!   drainer    drained, enter, open ─▶ │ Card │ ── lanes ──▶ driver
//!   daemon     goal in the page ─────▶ └──────┘ ── figures ─▶ resident, hosted, seen in the page
//! ```
//!
//! A card has threads from its first allocation on. A process with another backend has none.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gpushare_proto::page::{Goal as PageGoal, MAX_GPUS, Page};
use gpushare_proto::{Bytes, GpuId};

use super::blocks::{Allocation, AllocationError, Backing};
use super::card::OnCard;
use super::guard::{Gate, Guard, Proof};
use super::lanes::{Lanes, Moving};
use super::pins::Reason;
use super::swap::{Goal, Phase, Residence};
use super::vmm::{Span, Vmm, VmmError, perform};
use crate::driver::contexts::Contexts;
use crate::driver::types::{
    CAPTURE_MODE_RELAXED, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY, CUdevice, CUdeviceptr, CUresult,
};
use crate::driver::{Driver, MemoryCalls};
use crate::process::spawn;

/// Number of threads that touch and register host memory of a card.
const TASK_THREADS: usize = 2;
/// Longest wait of an ending process for the steps that are under way.
const LAST_STEPS: Duration = Duration::from_secs(1);
/// Pause between two looks at the steps of an ending process.
const LOOK: Duration = Duration::from_millis(1);
/// Card without a number in the page.
const NO_GPU: u32 = u32::MAX;

/// Remapped memory of the process.
#[derive(Debug, Default)]
pub(crate) struct Remap {
    cards: [OnceLock<Card>; MAX_GPUS],
    /// Whether there is a card. Each free of any memory asks.
    is_used: AtomicBool,
    guard: Guard,
    is_parked: AtomicBool,
}

#[derive(Debug)]
struct Card {
    lanes: Lanes,
    hardware: OnCard,
    /// Number of the card in the page, or [`NO_GPU`].
    gpu: AtomicU32,
    /// Address of the page that has the card's figures.
    page: AtomicUsize,
    has_threads: OnceLock<bool>,
}

/// Reason why memory was not allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAllocated {
    /// The gate is closed, and the goal has no room: the thread passes the gate and asks again.
    NotNow,
    /// Result of the application's call.
    Failed(CUresult),
}

impl From<AllocationError> for NotAllocated {
    fn from(error: AllocationError) -> Self {
        Self::Failed(match error {
            AllocationError::NoRoom(_) | AllocationError::Driver(VmmError::OutOfMemory) => {
                CUDA_ERROR_OUT_OF_MEMORY
            }
            AllocationError::Driver(VmmError::ContextLost(result) | VmmError::Refused(result)) => result,
        })
    }
}

impl Remap {
    /// Sets the gate of the process, which must be closed while memory is away.
    pub(crate) fn stand_at(&self, gate: Gate) {
        self.guard.stand_at(gate);
    }

    /// Allocates memory on a card, whose context is current in the calling thread.
    pub(crate) fn allocate(
        &'static self,
        driver: &'static Driver,
        contexts: &'static Contexts,
        device: CUdevice,
        peers: u32,
        size: Bytes,
    ) -> Result<CUdeviceptr, NotAllocated> {
        let unsupported = NotAllocated::Failed(CUDA_ERROR_NOT_SUPPORTED);
        let slot = usize::try_from(device)
            .ok()
            .and_then(|index| self.cards.get(index))
            .ok_or(unsupported)?;
        let calls = MemoryCalls::of(driver).ok_or(unsupported)?;
        self.is_used.store(true, Ordering::Relaxed);
        let card = slot.get_or_init(|| Card {
            lanes: Lanes::default(),
            hardware: OnCard::new(driver, calls, contexts, &self.guard, device),
            gpu: AtomicU32::new(NO_GPU),
            page: AtomicUsize::new(0),
            has_threads: OnceLock::new(),
        });
        if !*card.has_threads.get_or_init(|| card.start()) {
            return Err(NotAllocated::Failed(CUDA_ERROR_OUT_OF_MEMORY));
        }
        card.hardware.set_peers(peers);
        card.allocate(size)
    }

    /// Frees the block that begins at an address, after all work on it. Returns `false` for another address.
    pub(crate) fn free(&self, device: CUdevice, address: CUdeviceptr) -> bool {
        self.card(device).is_some_and(|card| card.free(address))
    }

    /// Frees blocks without waiting for the driver.
    pub(crate) fn begin_free(&self, device: CUdevice, address: CUdeviceptr) {
        if let Some(card) = self.card(device) {
            card.lanes.change(|moving| moving.blocks.end(address));
        }
    }

    /// Keeps the block around an address on its card.
    pub(crate) fn pin(&self, device: CUdevice, address: CUdeviceptr, reason: Reason) {
        if let Some(card) = self.card(device) {
            card.lanes.change(|moving| moving.blocks.pin(address, reason));
        }
    }

    /// Lets the kernels of peers, given as bits, use the memory of a card, present and later.
    pub(crate) fn set_peers(&self, device: CUdevice, peers: u32) {
        let Some(card) = self.card(device) else { return };
        card.hardware.set_peers(peers);
        // A hole is refused here, and gets the peers when it is mapped.
        card.lanes.change(|moving| {
            let all = Span { address: 0, size: Bytes::MAX };
            for chunk in moving.blocks.engine().chunks_in(all) {
                let _ = card.hardware.set_access(chunk);
            }
        });
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

    /// Reads the goals in the page, and writes the figures of all cards there.
    pub(crate) fn follow(&self, page: &Page, gpu: impl Fn(CUdevice) -> Option<GpuId>) {
        for (device, card) in self.cards() {
            let Some(gpu) = gpu(device) else { continue };
            let number = u32::from(gpu.0);
            let at = std::ptr::from_ref(page).addr();
            let known = (card.page.swap(at, Ordering::AcqRel), card.gpu.swap(number, Ordering::AcqRel));
            if known != (at, number) {
                // Writes the figures into the new row.
                card.lanes.change(|_| ());
            }
            let Some(row) = page.moves.get(usize::from(gpu.0)) else { continue };
            let PageGoal { number, bytes } = PageGoal::from_bits(row.goal.load(Ordering::Acquire));
            // Number 0 is no order, whatever the other bits are.
            let bytes = if number == 0 { Bytes::MAX } else { bytes };
            let goal = Goal { generation: number, bytes };
            if card.lanes.look(|moving| moving.blocks.engine().goal() != goal) {
                card.lanes.change(|moving| moving.blocks.engine().set_goal(goal));
            }
        }
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
        self.set_phase(Phase::Drained);
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

    /// Returns whether no card has a hole.
    pub(crate) fn can_open(&self) -> bool {
        self.cards()
            .all(|(_, card)| card.lanes.look(|moving| moving.blocks.engine().can_open().is_ok()))
    }

    /// Bytes on all cards.
    pub(crate) fn resident(&self) -> Bytes {
        let of_card = |card: &Card| card.lanes.look(|moving| moving.blocks.engine().residence().resident);
        self.cards().map(|(_, card)| of_card(card)).sum()
    }

    /// Puts the page of a new daemon in force by `replace`, with the mark of the gate.
    pub(crate) fn carry_over(&self, fresh: &Page, replace: impl FnOnce()) {
        self.guard.carry_over(fresh, replace);
    }

    /// Lets the steps end that are under way, and begins none any more, as the process ends.
    pub(crate) fn park(&self) {
        self.set_phase(Phase::Parked);
        self.is_parked.store(true, Ordering::Release);
        let until = Instant::now() + LAST_STEPS;
        let is_quiet = |card: &Card| card.lanes.look(|moving| moving.blocks.engine().is_quiet());
        while !self.cards().all(|(_, card)| is_quiet(card)) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }

    fn set_phase(&self, phase: Phase) {
        if self.is_parked.load(Ordering::Acquire) {
            return;
        }
        for (_, card) in self.cards() {
            if card.lanes.look(|moving| moving.blocks.engine().phase() != phase) {
                card.lanes.change(|moving| moving.blocks.engine().set_phase(phase));
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

impl Card {
    /// Starts the threads of the card; returns `false` if the system refuses one.
    fn start(&'static self) -> bool {
        // The daemon's goals keep within the budget for host memory.
        self.lanes.change(|moving| moving.pool.set_budget(Bytes::MAX));
        self.lanes.report_by(move |residence| self.report(residence));
        let driver = self.hardware.driver();
        let begin = |name: &str, run: fn(&Self)| {
            spawn(name, move || {
                let mut mode = CAPTURE_MODE_RELAXED;
                // SAFETY: exchanges one integer. Our calls must not break a capture of the application.
                unsafe { (driver.thread_exchange_capture_mode)(&raw mut mode) };
                run(self);
            })
            .is_ok()
        };
        begin("gpushare-remap", |card| card.lanes.run_calls(&card.hardware))
            && begin("gpushare-copy", |card| card.lanes.run_copies(&card.hardware))
            && (0..TASK_THREADS).all(|_| begin("gpushare-pin", |card| card.lanes.run_tasks(&card.hardware)))
    }

    fn report(&self, residence: &Residence) {
        let gpu = self.gpu.load(Ordering::Acquire) as usize;
        if let Some(row) = self.hardware.page().and_then(|page| page.moves.get(gpu)) {
            // Whoever sees the new figure of the card sees that of the host.
            row.hosted.store((residence.hosted + residence.unbacked).0, Ordering::Relaxed);
            row.resident.store(residence.resident.0, Ordering::Release);
            row.seen.store(u64::from(residence.seen), Ordering::Release);
        }
    }

    fn allocate(&self, size: Bytes) -> Result<CUdeviceptr, NotAllocated> {
        loop {
            let begun = self.lanes.change(|moving: &mut Moving| {
                if moving.blocks.engine().may_be_hole(size) {
                    return Err(NotAllocated::NotNow);
                }
                Ok(moving.blocks.begin(size, |whole| self.hardware.reserve(whole))?)
            })?;
            match begun {
                Allocation::Ready(address) => return Ok(address),
                Allocation::Backing(backing) => {
                    if let Some(address) = self.back(backing)? {
                        return Ok(address);
                    }
                }
            }
        }
    }

    /// Makes the driver calls for a new block. Returns `None` if another thread took its place.
    fn back(&self, backing: Backing) -> Result<Option<CUdeviceptr>, AllocationError> {
        while let Some((chunk, call)) = self.lanes.change(|moving| moving.blocks.take(&backing)) {
            let answer = perform(call, chunk, &self.hardware);
            self.lanes.change(|moving| moving.blocks.done(chunk, answer));
        }
        let result = self.lanes.change(|moving| moving.blocks.finish(backing));
        if result.is_err() {
            // What an unused block keeps is of use to the next attempt.
            self.lanes.change(|moving| moving.blocks.end_unused());
        }
        result
    }

    fn free(&self, address: CUdeviceptr) -> bool {
        let block = self.lanes.change(|moving| {
            let block = moving.blocks.around(address).filter(|block| block.address == address)?;
            moving.blocks.end(address).then_some(block)
        });
        let Some(block) = block else { return false };
        // The driver's own free returns the memory before it returns.
        self.lanes
            .wait_for(|moving| (!moving.blocks.engine().is_freeing(block)).then_some(()));
        true
    }
}
