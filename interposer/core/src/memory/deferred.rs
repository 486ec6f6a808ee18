//! Frees that end later: in stream order, of memory that belongs to no pool, and of remapped memory during a capture.
//! The driver frees such memory only at once, so an event marks the place of the free in its stream.
//!
//! ```text
//!   cuMemFreeAsync ──▶ event in the stream ──▶ reached? ──▶ the driver's free ──▶ quota is given back
//! ```
//!
//! Reached frees are collected by `cuMemFree`, before the daemon is asked for quota, and before free memory is
//! reported. The driver may wait there for other work, so `cuMemFreeAsync` itself collects nothing. A request
//! beyond the quota waits for frees that are not reached yet. A thread collects only in its current context,
//! which no other thread may destroy meanwhile. For a program that does none of this the drainer collects.
//!
//! During a capture a thread may not wait for work, and no event may be recorded. So a free is put aside. It ends in a
//! later free of remapped memory without a capture, or when the drainer finds the process idle. Both wait for work. Work
//! on memory whose free is put aside meanwhile may have begun after that wait, so such a free is left for the next one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use gpushare_sys::unwind::{cancellation_point, uncancelled};

use super::allocations::{Block, Origin};
use super::{Memory, Table};
use crate::driver::Driver;
use crate::driver::types::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY, CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS, CUcontext,
    CUdeviceptr, CUevent, CUresult, CUstream, EVENT_DISABLE_TIMING,
};
use crate::process::lock;

/// Longest wait of a request for frees that are not reached. A kernel may wait for the requesting thread.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for another thread that ends frees.
const TURN_PATIENCE: Duration = Duration::from_millis(100);
/// Pause between two looks at frees that are not reached, or at another thread that ends some.
const PAUSE: Duration = Duration::from_micros(100);

/// Frees whose place in their streams may not be reached yet.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    frees: Mutex<Frees>,
    /// Number of frees, readable without their lock.
    count: AtomicUsize,
    /// Held by the thread that ends frees.
    ending: Mutex<()>,
    /// Whether a thread ends frees, which are no longer in the list.
    is_ending: AtomicBool,
}

/// Turn of the one thread that ends frees.
#[derive(Debug)]
struct Turn<'a> {
    deferred: &'a Deferred,
    _ending: MutexGuard<'a, ()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.deferred.is_ending.store(false, Ordering::Release);
    }
}

/// Frees by their streams, each in the order of its stream. So only the first one of each needs a look.
#[derive(Debug, Default)]
struct Frees {
    queues: BTreeMap<Place, VecDeque<Free>>,
    /// Frees that were put aside during a capture, by their numbers.
    aside: BTreeMap<Aside, Free>,
    /// Number of the next free that is put aside.
    next_aside: Aside,
    addresses: BTreeSet<CUdeviceptr>,
}

/// Number of a free that was put aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Aside(u64);

/// Stream of a free: the addresses of its context and of its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    context: usize,
    stream: usize,
}

#[derive(Clone, Copy, Debug)]
struct Free {
    address: CUdeviceptr,
    block: Block,
    /// Address of the event, which belongs to the stream's context; `None` once the free is reached.
    event: Option<usize>,
}

impl Free {
    fn is_reached(&self, driver: &Driver) -> bool {
        let event = |address| std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: the event's context is alive. Every answer but "not ready" ends the wait, because a context
        // with a sticky error runs nothing more.
        self.event
            .is_none_or(|address| unsafe { (driver.event_query)(event(address)) } != CUDA_ERROR_NOT_READY)
    }
}

impl Frees {
    fn add(&mut self, place: Place, free: Free) {
        self.addresses.insert(free.address);
        self.queues.entry(place).or_default().push_back(free);
    }

    /// Removes and returns the frees in a context that `is_due` says are reached.
    fn take_due(&mut self, context: usize, is_due: impl Fn(&Free) -> bool) -> Vec<(Place, Free)> {
        let mut due = Vec::new();
        for (&place, queue) in self.queues.iter_mut().filter(|(place, _)| place.context == context) {
            let reached = queue.iter().take_while(|free| is_due(free)).count();
            due.extend(queue.drain(..reached).map(|free| (place, free)));
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        due.iter().for_each(|(_, free)| {
            self.addresses.remove(&free.address);
        });
        due
    }

    fn put_aside(&mut self, free: Free) {
        self.addresses.insert(free.address);
        self.aside.insert(self.next_aside, free);
        self.next_aside.0 += 1;
    }

    /// Removes and returns the frees that were put aside before the one with the number `before`, and that `is_over` says
    /// end.
    fn take_aside(&mut self, before: Aside, is_over: impl Fn(&Free) -> bool) -> Vec<Free> {
        let mut taken = Vec::new();
        self.aside.retain(|&number, free| {
            let stays = number >= before || !is_over(free);
            if !stays {
                self.addresses.remove(&free.address);
                taken.push(*free);
            }
            stays
        });
        taken
    }

    /// Removes and returns all frees of queues, to be added again at other places.
    fn take_queued(&mut self) -> Vec<(Place, Free)> {
        self.addresses = self.aside.values().map(|free| free.address).collect();
        let queues = std::mem::take(&mut self.queues).into_iter();
        queues
            .flat_map(|(place, queue)| queue.into_iter().map(move |free| (place, free)))
            .collect()
    }
}

impl Deferred {
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0 && !self.is_ending.load(Ordering::Acquire)
    }

    /// Waits until no other thread ends frees. Returns `None` if that takes too long: the driver may wait
    /// there for work that waits for this thread.
    fn turn(&self) -> Option<Turn<'_>> {
        let began = Instant::now();
        loop {
            let ending = match self.ending.try_lock() {
                Ok(ending) => ending,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if began.elapsed() > TURN_PATIENCE => return None,
                Err(TryLockError::WouldBlock) => {
                    uncancelled(|| std::thread::sleep(PAUSE));
                    continue;
                }
            };
            // Before the list gets shorter, so that no thread takes it for empty.
            self.is_ending.store(true, Ordering::SeqCst);
            return Some(Turn { deferred: self, _ending: ending });
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Frees) -> T) -> T {
        let mut frees = lock(&self.frees);
        let answer = change(&mut frees);
        self.count.store(frees.addresses.len(), Ordering::Release);
        answer
    }

    /// Returns whether the application has freed the memory at `address`, which is not freed yet.
    pub(super) fn has(&self, address: CUdeviceptr) -> bool {
        !self.is_empty() && lock(&self.frees).addresses.contains(&address)
    }

    /// Removes and returns the blocks that ended with a context, with their addresses.
    pub(super) fn remove_context(&self, context: CUcontext) -> Vec<(CUdeviceptr, Block)> {
        let gone = context.addr();
        let mut dead = Vec::new();
        self.end_context(gone, |free| {
            let is_dead = free.block.context == gone;
            if is_dead {
                dead.push((free.address, free.block));
            }
            !is_dead
        });
        dead
    }

    /// Moves the blocks of one context to another. The first one is gone.
    pub(super) fn move_context(&self, from: CUcontext, to: CUcontext) {
        self.end_context(from.addr(), |free| {
            if free.block.context == from.addr() {
                free.block.context = to.addr();
            }
            true
        });
    }

    /// Ends the streams of a context, whose work is over. Keeps the frees for which `keep` is true, each in
    /// its block's context.
    fn end_context(&self, gone: usize, mut keep: impl FnMut(&mut Free) -> bool) {
        if self.is_empty() {
            return;
        }
        self.change(|frees| {
            frees.aside.retain(|_, free| keep(free));
            for (mut place, mut free) in frees.take_queued() {
                let is_kept = keep(&mut free);
                if place.context == gone {
                    place.context = free.block.context;
                    free.event = None;
                }
                if is_kept {
                    frees.add(place, free);
                }
            }
        });
    }
}

impl Memory {
    /// Frees memory in the order of a stream; `None` for memory that the table does not have.
    pub(crate) fn free_in_order(&self, address: CUdeviceptr, stream: CUstream) -> Option<CUresult> {
        if self.is_import(address) {
            return Some(CUDA_ERROR_INVALID_VALUE);
        }
        let block = self.blocks.remove(address)?;
        let context = self.driver.context_of(stream);
        match self.mark(stream, context) {
            Ok(event) => {
                let place = Place { context: context.addr(), stream: stream.addr() };
                let free = Free { address, block, event: Some(event.expose_provenance()) };
                self.deferred.change(|frees| frees.add(place, free));
                Some(CUDA_SUCCESS)
            }
            Err(error) => {
                self.record(Table::Blocks, address, block);
                Some(error)
            }
        }
    }

    /// Puts the free of a remapped block aside, since the process captures.
    pub(super) fn put_aside(&self, address: CUdeviceptr, block: Block) {
        self.deferred
            .change(|frees| frees.put_aside(Free { address, block, event: None }));
    }

    /// Returns the number of the next free that is put aside. A wait for work that begins now covers those before it.
    pub(crate) fn next_aside(&self) -> Aside {
        lock(&self.deferred.frees).next_aside
    }

    /// Returns the contexts of the blocks whose frees were put aside before this one.
    pub(super) fn contexts_aside(&self, before: Aside) -> BTreeSet<usize> {
        if self.deferred.is_empty() {
            return BTreeSet::new();
        }
        let frees = lock(&self.deferred.frees);
        frees.aside.range(..before).map(|(_, free)| free.block.context).collect()
    }

    /// Ends the frees of a context's blocks that were put aside before this one, and on which no work is in flight.
    pub(super) fn end_aside_of(&self, context: usize, before: Aside) {
        if self.deferred.is_empty() {
            return;
        }
        let is_of = |free: &Free| free.block.context == context;
        for free in self.deferred.change(|frees| frees.take_aside(before, is_of)) {
            self.end_remapped(free.address, free.block);
        }
    }

    /// Ends the frees that were put aside before this one. The process has no captures, and no work of that time is in
    /// flight.
    pub(crate) fn end_aside(&self, before: Aside) {
        for Free { address, block, .. } in self.deferred.change(|frees| frees.take_aside(before, |_| true)) {
            // Without a wait for the driver: the drainer holds the list of contexts, which the engine needs.
            self.remap.begin_free(block.device, address);
            self.give_back_block(block);
        }
    }

    /// Returns whether memory was freed that is not free yet.
    pub(crate) fn has_frees(&self) -> bool {
        !self.deferred.is_empty()
    }

    fn mark(&self, stream: CUstream, context: CUcontext) -> Result<CUevent, CUresult> {
        let driver = &self.driver;
        let functions = driver.event_record.zip(driver.event_destroy);
        let (record, destroy) = functions.ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
        let event = driver
            .create_event(context, EVENT_DISABLE_TIMING)
            .ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
        // SAFETY: the event is of the stream's context, and the stream is the application's.
        match unsafe { record(event, stream) } {
            CUDA_SUCCESS => Ok(event),
            error => {
                // SAFETY: the event is no longer used.
                unsafe { destroy(event) };
                Err(error)
            }
        }
    }

    /// Frees what the streams of the current context have reached, and gives its quota back. Returns whether
    /// there was anything to free.
    pub(crate) fn collect_frees(&self) -> bool {
        if self.deferred.is_empty() {
            return false;
        }
        let Some(_turn) = self.deferred.turn() else { return false };
        let (driver, context) = (&self.driver, self.driver.current_context().addr());
        let is_due = |free: &Free| free.is_reached(driver);
        let end_due = || {
            let due = self.deferred.change(|frees| frees.take_due(context, is_due));
            due.iter().for_each(|&(place, free)| self.end_free(place, free));
            !due.is_empty()
        };
        // A thread that is cancelled here would lose what it took from the list.
        uncancelled(|| driver.relaxed(end_due))
    }

    fn end_free(&self, place: Place, free: Free) {
        if let (Some(event), Some(destroy)) = (free.event, self.driver.event_destroy) {
            // SAFETY: the event is gpushare's own, and its context is alive.
            unsafe { destroy(std::ptr::with_exposed_provenance_mut(event)) };
        }
        if free.block.origin == Origin::Remapped {
            // Without a wait for the driver: the drainer holds the list of contexts, which the engine needs.
            self.remap.begin_free(free.block.device, free.address);
            return self.give_back_block(free.block);
        }
        // SAFETY: the application has given the memory up, and all work before the free is done.
        match unsafe { (self.driver.mem_free)(free.address) } {
            CUDA_SUCCESS => self.give_back_block(free.block),
            // The memory is still there, so it stays charged.
            _ => self.deferred.change(|frees| frees.add(place, Free { event: None, ..free })),
        }
    }

    /// Waits a moment for frees of the current context, and collects them. Returns `false` if there are none
    /// to wait for, or if `since` is too long ago.
    pub(super) fn await_frees(&self, since: Instant) -> bool {
        if self.deferred.is_empty() || since.elapsed() > PATIENCE {
            return false;
        }
        let context = self.driver.current_context().addr();
        let is_under_way = |frees: &Frees| {
            let mut here = frees.queues.iter().filter(|(place, _)| place.context == context);
            !frees.aside.is_empty()
                || here.any(|(_, queue)| queue.front().is_some_and(|free| free.event.is_some()))
        };
        let is_ending = self.deferred.is_ending.load(Ordering::Acquire);
        if !is_ending && !is_under_way(&lock(&self.deferred.frees)) {
            return false;
        }
        cancellation_point();
        uncancelled(|| std::thread::sleep(PAUSE));
        self.collect_frees();
        true
    }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::Bytes;

    use super::*;
    fn free(address: CUdeviceptr, context: usize, event: usize) -> Free {
        let block = Block { size: Bytes(address), device: 0, context, origin: Origin::Rewritten };
        Free { address, block, event: Some(event) }
    }

    fn with(frees: &[(usize, usize, Free)]) -> Deferred {
        let deferred = Deferred::default();
        for &(context, stream, free) in frees {
            deferred.change(|frees| frees.add(Place { context, stream }, free));
        }
        deferred
    }

    fn due(deferred: &Deferred, context: usize, reached: &[usize]) -> Vec<CUdeviceptr> {
        let is_due = |free: &Free| free.event.is_none_or(|event| reached.contains(&event));
        let due = deferred.change(|frees| frees.take_due(context, is_due));
        due.into_iter().map(|(_, free)| free.address).collect()
    }

    fn context(address: usize) -> CUcontext {
        std::ptr::without_provenance_mut(address)
    }

    #[test]
    fn frees_of_a_stream_end_in_its_order_and_streams_apart() {
        let deferred = with(&[(1, 1, free(0x10, 1, 1)), (1, 1, free(0x20, 1, 2)), (1, 2, free(0x30, 1, 3))]);
        assert!(due(&deferred, 1, &[2]).is_empty());
        assert_eq!(due(&deferred, 1, &[2, 3]), [0x30]);
        assert!(due(&deferred, 2, &[1, 2, 3]).is_empty(), "another context");
        assert_eq!([0x10, 0x30].map(|address| deferred.has(address)), [true, false]);
        assert_eq!(due(&deferred, 1, &[1, 2]), [0x10, 0x20]);
        assert!(deferred.is_empty());
    }

    #[test]
    fn a_context_takes_its_blocks_along_and_reaches_the_others() {
        let deferred = with(&[(1, 1, free(0x10, 1, 1)), (1, 1, free(0x20, 2, 2)), (2, 1, free(0x30, 1, 3))]);
        let dead = deferred.remove_context(context(1));
        assert_eq!(
            dead.iter().map(|(address, block)| (*address, block.size.0)).collect::<Vec<_>>(),
            [(0x10, 0x10), (0x30, 0x30)]
        );
        assert_eq!(due(&deferred, 2, &[]), [0x20]);
    }

    #[test]
    fn frees_that_were_put_aside_end_or_move_with_their_context() {
        let deferred = Deferred::default();
        for (address, context) in [(0x10, 1), (0x20, 2), (0x30, 3)] {
            deferred.change(|frees| frees.put_aside(Free { event: None, ..free(address, context, 0) }));
        }
        let dead = deferred.remove_context(context(1));
        assert_eq!(dead.iter().map(|(address, _)| *address).collect::<Vec<_>>(), [0x10]);
        deferred.move_context(context(2), context(4));
        assert_eq!([0x10, 0x20, 0x30].map(|address| deferred.has(address)), [false, true, true]);
        let contexts = |frees: Vec<Free>| frees.iter().map(|free| free.block.context).collect::<Vec<_>>();
        let left = deferred.change(|frees| frees.take_aside(frees.next_aside, |_| true));
        assert_eq!(contexts(left), [4, 3]);
        assert!(deferred.is_empty());
    }

    #[test]
    fn a_free_that_is_put_aside_during_a_wait_does_not_end_with_it() {
        let deferred = Deferred::default();
        let put = |address, context| {
            deferred.change(|frees| frees.put_aside(Free { event: None, ..free(address, context, 0) }));
        };
        put(0x10, 1);
        put(0x20, 2);
        let before = lock(&deferred.frees).next_aside;
        put(0x30, 1);
        let take = |before| {
            let taken = deferred.change(|frees| frees.take_aside(before, |free| free.block.context == 1));
            taken.iter().map(|free| free.address).collect::<Vec<_>>()
        };
        assert_eq!(take(before), [0x10]);
        assert_eq!([0x20, 0x30].map(|address| deferred.has(address)), [true, true]);
        let before = lock(&deferred.frees).next_aside;
        assert_eq!(take(before), [0x30]);
    }

    #[test]
    fn blocks_that_move_to_another_context_are_reached_there() {
        let deferred = with(&[(1, 1, free(0x10, 1, 1))]);
        deferred.move_context(context(1), context(2));
        assert!(due(&deferred, 1, &[]).is_empty());
        assert_eq!(due(&deferred, 2, &[]), [0x10]);
    }
}
