//! Pool of registered host memory, in which chunks keep their bytes while they are away from the card.
//!
//! ```text
//!              touch          register
//!   nothing ──────────▶ touched ──────▶ ready: slots are taken and put back
//!      ▲                │     ▲            │
//!      └──── unmap ─────┘     └ unregister ┘   all slots are back, and the pool is too large
//! ```
//!
//! The pool grows by regions of [`REGION`] bytes. Touching and registering one takes tens of milliseconds, so
//! the pool hands these tasks out ([`Pool::take_task`]) and is not locked meanwhile. Several threads may work
//! on several regions.
//!
//! A registration ends with the context in which it was made. A region that is in use then is registered
//! again, in another context. Meanwhile the driver copies to and from it as ordinary memory, which is slow.
//!
//! Regions that leaving chunks demand are made at once, by several threads. The daemon also sets a *target*,
//! the bytes that should be ready before a move. For it, one region is made after the other.
//!
//! `regions ≤ budget` holds for all regions together, also for those that are being made. Regions are given
//! back only once they exceed what the target needs by a quarter, so that a load near the target does not make
//! the pool grow and shrink in turns.
//!
//! A slot may also be a *copy* that several processes share (`copies`). Nobody writes it. Copies count for
//! the target, which needs fewer regions beside them, and not in the budget: a chunk that has changed takes a
//! slot of a region first, and gives its copy up afterwards.

mod copies;
mod region;
mod repack;
mod task;

use std::collections::BTreeMap;
use std::ops::Range;

use gpushare_proto::Bytes;
use range_alloc::RangeAllocator;

use self::copies::Copies;
pub use self::copies::Registration;
use self::region::{Region, State};
pub use self::task::{HostError, HostMemory, Limit, MemoryId, Task, perform};
use super::vmm::HostAddress;

/// Size of a region: the unit in which memory is registered.
pub const REGION: Bytes = Bytes::mib(128);

/// Slot of registered host memory. It belongs to its owner until [`Pool::put`] takes it back.
#[derive(Debug, PartialEq, Eq)]
pub struct Slot {
    home: Home,
    address: HostAddress,
    size: Bytes,
}

/// Memory of which a slot is a part.
#[derive(Debug, PartialEq, Eq)]
enum Home {
    /// Region of this number, and the offsets there.
    Region(u32, Range<u64>),
    /// Copy of this number, which the slot is as a whole.
    Copy(u32),
}

impl Slot {
    /// Returns the address of the slot in the host's memory.
    pub const fn address(&self) -> HostAddress {
        self.address
    }

    /// Returns the number of bytes of the slot.
    pub const fn size(&self) -> Bytes {
        self.size
    }

    /// Returns whether the slot is a copy that other processes use too, so that nothing may be written there.
    pub const fn is_shared(&self) -> bool {
        matches!(self.home, Home::Copy(_))
    }
}

/// Answer to a demand for slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supply {
    /// Regions with room for all of it are being made.
    Coming,
    /// Some of it exceeds the budget.
    OverBudget,
    /// A region could not be made. [`Pool::retry`] tries again.
    Failed(HostError),
}

/// Sizes of the pool's regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolSizes {
    /// Bytes of all regions that the system has given memory, also of those that are being given back, and of the
    /// copies. Regions that wait to be touched take nothing from the machine.
    pub total: Bytes,
    /// Bytes of slots that are taken.
    pub taken: Bytes,
    /// Bytes of free slots.
    pub free: Bytes,
}

/// Pool of registered host memory. See the [module](self).
#[derive(Debug, Default)]
pub struct Pool {
    regions: BTreeMap<u32, Region>,
    made: u32,
    budget: Bytes,
    /// Bytes that should be ready in all, taken or free.
    target: Bytes,
    /// Whether a region for the target could not be made, so that none is tried before another target.
    is_short: bool,
    /// Whether no region is made for the target now.
    is_paused: bool,
    trouble: Option<HostError>,
    copies: Copies,
    /// Number of changes after which a demand may have another answer.
    changes: u64,
}

impl Pool {
    /// Sets the most bytes that the pool may have. Unused regions beyond it are given back; used ones stay
    /// until their slots are put back.
    pub fn set_budget(&mut self, budget: Bytes) {
        self.budget = budget;
        self.changes += 1;
        self.shrink_to(budget);
    }

    /// Returns the bytes that should be ready in all, taken or free.
    pub const fn target(&self) -> Bytes {
        self.target
    }

    /// Sets the bytes that should be ready in all, taken or free. Within the budget the pool grows to it by
    /// one region after the other, while nothing is demanded. It shrinks once it exceeds it by a quarter.
    pub fn set_target(&mut self, target: Bytes) {
        self.is_short &= target == self.target;
        self.target = target;
        self.trim();
    }

    /// Pauses the preparation of regions for the target. While a region is registered, other calls of the
    /// process wait in the driver.
    pub const fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// Takes a slot; `None` if no region has room for it.
    pub fn take(&mut self, size: Bytes) -> Option<Slot> {
        let mut fitting: Vec<_> = self
            .regions
            .iter_mut()
            .filter(|(_, region)| region.free() >= size && !size.is_zero())
            .collect();
        // The fullest region first, so that others become free as a whole.
        fitting.sort_by_key(|(_, region)| region.free());
        fitting.into_iter().find_map(|(&number, region)| {
            let State::Ready(HostAddress(base), slots) = &mut region.state else { return None };
            let range = slots.allocate_range(size.0).ok()?;
            let address = HostAddress(*base + range.start);
            Some(Slot { home: Home::Region(number, range), address, size })
        })
    }

    /// Takes a slot back.
    pub fn put(&mut self, slot: Slot) {
        let is_of_region = !slot.is_shared();
        self.free(slot);
        // After the end of a copy no region is less needed than before.
        if is_of_region {
            self.shrink();
        }
    }

    fn free(&mut self, slot: Slot) {
        self.changes += 1;
        match slot.home {
            Home::Region(number, range) => {
                if let Some(Region { state: State::Ready(_, slots), .. }) = self.regions.get_mut(&number) {
                    slots.free_range(range);
                }
            }
            Home::Copy(number) => self.copies.put(number),
        }
    }

    /// Gives regions back that are unused by now and exceed the budget or the target.
    fn shrink(&mut self) {
        if self.all_regions() > self.budget {
            self.shrink_to(self.budget);
        }
        self.trim();
    }

    /// Makes regions for `bytes` that [`Self::take`] did not have, unless as many are being made. A region
    /// that was to be given back may serve at once, so [`Self::take`] is tried again if [`Self::is_growing`]
    /// says no.
    pub fn demand(&mut self, bytes: Bytes) -> Supply {
        loop {
            if let Some(error) = self.trouble {
                return Supply::Failed(error);
            }
            let coming = self.regions.values_mut().filter(|region| region.is_coming());
            // Somebody waits for them by now.
            let coming = coming.map(|region| region.is_ahead = false).count();
            if Bytes(coming as u64 * REGION.0) >= bytes || self.want_again(false) {
                return Supply::Coming;
            }
            if !self.add_region(false) {
                return Supply::OverBudget;
            }
        }
    }

    /// Calls off regions that are not begun and that neither `bytes`, which are still demanded, nor the
    /// target need.
    pub fn call_off(&mut self, bytes: Bytes) {
        let coming = self.regions.values().filter(|region| region.is_coming()).count() as u64;
        let beyond_target = (self.wanted() - self.target).0 / REGION.0;
        let mut surplus = coming.saturating_sub(bytes.0.div_ceil(REGION.0)).min(beyond_target);
        self.regions.retain(|_, region| {
            let is_surplus = surplus > 0 && region.is_unbegun();
            surplus -= u64::from(is_surplus);
            !is_surplus
        });
    }

    /// Returns whether a region for the target could not be made.
    pub const fn is_short(&self) -> bool {
        self.is_short
    }

    /// Returns why a region that is demanded could not be made.
    pub const fn trouble(&self) -> Option<HostError> {
        self.trouble
    }

    /// Returns whether regions are being made.
    pub fn is_growing(&self) -> bool {
        self.regions.values().any(Region::is_coming)
    }

    /// Lets tasks that failed be tried again.
    pub fn retry(&mut self) {
        self.changes += 1;
        (self.trouble, self.is_short) = (None, false);
        self.regions.values_mut().for_each(|region| region.has_failed = false);
        self.retry_copies();
    }

    /// Notes that the registrations of regions at these addresses ended with their context.
    pub fn end_registrations(&mut self, regions: &[HostAddress]) {
        let is_among = |state: &State| matches!(state, State::Ready(address, _) if regions.contains(address));
        for region in self.regions.values_mut().filter(|region| is_among(&region.state)) {
            region.is_unregistered = true;
            if region.is_unused() {
                region.is_wanted = false;
            }
        }
        self.copies.end_registrations(regions);
    }

    /// Returns whether there is a task.
    pub fn has_tasks(&self) -> bool {
        let has_task = |region: &Region| region.next().is_some() && !region.is_paused(self.is_paused);
        self.may_prepare() || self.regions.values().any(has_task) || self.copies.has_tasks()
    }

    /// Returns the next task. The caller performs it, without a lock, and reports it by [`Self::done`].
    pub fn take_task(&mut self) -> Option<(MemoryId, Task)> {
        while self.may_prepare() && self.add_region(true) {}
        // What ends gives memory back, and a freeze waits for it.
        if let Some(end) = self.copies.take_end() {
            return Some(end);
        }
        let is_paused = self.is_paused;
        let of_region = self.regions.iter_mut().find_map(|(&number, region)| {
            let task = region.next().filter(|_| !region.is_paused(is_paused))?;
            region.task = Some(task);
            Some((MemoryId::Region(number), task))
        });
        of_region.or_else(|| self.copies.take_registration())
    }

    /// Notes the result of a task.
    pub fn done(&mut self, memory: MemoryId, result: Result<Option<HostAddress>, HostError>) {
        self.changes += 1;
        let number = match memory {
            MemoryId::Region(number) => number,
            MemoryId::Copy(number) => return self.copies.done(number, result.err()),
        };
        let Some(region) = self.regions.get_mut(&number) else { return };
        let Some(task) = region.task.take() else { return };
        if let Err(error) = result {
            let is_ahead = region.is_ahead;
            match task {
                Task::Touch => {
                    self.regions.remove(&number);
                    self.note_failure(error, is_ahead);
                }
                // The region is in use, and stays so.
                Task::Register(_) if region.is_unregistered => region.has_failed = true,
                Task::Register(_) => {
                    region.is_wanted = false;
                    self.note_failure(error, is_ahead);
                }
                // The region is as good as before.
                Task::Unregister(_) => region.is_wanted = true,
                Task::Unmap(_) => region.has_failed = true,
                Task::RegisterCopy(..) | Task::UnregisterCopy(..) | Task::EndCopy(..) => {}
            }
            return;
        }
        match (task, result) {
            (Task::Touch, Ok(Some(address))) => region.state = State::Touched(address),
            (Task::Register(_), _) if region.is_unregistered => region.is_unregistered = false,
            (Task::Register(address), _) => {
                region.state = State::Ready(address, RangeAllocator::new(0..REGION.0));
            }
            (Task::Unregister(address), _) => {
                (region.state, region.is_unregistered) = (State::Touched(address), false);
            }
            (Task::Touch | Task::Unmap(_), _) => {
                self.regions.remove(&number);
            }
            (Task::RegisterCopy(..) | Task::UnregisterCopy(..) | Task::EndCopy(..), _) => {}
        }
    }

    /// Notes that a region could not be made. If nobody waits for it, a later demand tries anew.
    fn note_failure(&mut self, error: HostError, is_ahead: bool) {
        match is_ahead {
            true => self.is_short = true,
            false => self.trouble = Some(error),
        }
    }

    /// Returns a number that rises whenever a demand may have another answer.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the sizes of the pool.
    pub fn sizes(&self) -> PoolSizes {
        let ready = self.regions.values().filter_map(|region| match &region.state {
            State::Ready(_, slots) => Some(REGION - Bytes(slots.total_available())),
            _ => None,
        });
        let free = self.regions.values().map(Region::free).sum();
        let copies = self.copies.bytes();
        let touched = self.regions.values().filter(|region| !matches!(region.state, State::Nothing));
        let regions = Bytes(touched.count() as u64 * REGION.0);
        PoolSizes { total: regions + copies, taken: ready.sum::<Bytes>() + copies, free }
    }

    /// Whether another region is to be prepared. One at a time, since each keeps others of the driver
    /// waiting.
    fn may_prepare(&self) -> bool {
        !self.is_paused && !self.is_growing() && self.is_below_target()
    }

    /// Returns whether regions are to be made for the target, once nothing else keeps from it.
    pub fn is_below_target(&self) -> bool {
        let has_room = self.wanted() < self.target && self.all_regions() + REGION <= self.budget;
        has_room && !self.is_short && self.trouble.is_none()
    }

    fn all_regions(&self) -> Bytes {
        Bytes(self.regions.len() as u64 * REGION.0)
    }

    /// Bytes of the regions that are ready or are being made.
    fn wanted_regions(&self) -> Bytes {
        let regions = self.regions.values().filter(|region| region.is_wanted).count() as u64;
        Bytes(regions * REGION.0)
    }

    /// Bytes that count for the target: those of wanted regions, and of copies that chunks have.
    fn wanted(&self) -> Bytes {
        self.wanted_regions() + self.copies.taken_bytes()
    }

    /// Keeps a region that was to be given back.
    fn want_again(&mut self, is_ahead: bool) -> bool {
        let has_room = self.wanted_regions() + REGION <= self.budget;
        let mut regions = self.regions.values_mut();
        let dropped = regions.find(|region| has_room && !region.is_wanted && region.task.is_none());
        dropped.is_some_and(|region| {
            (region.is_wanted, region.is_ahead) = (true, is_ahead);
            region.has_failed = false;
            true
        })
    }

    /// Makes one region more. Nobody waits for one that `is_ahead` of a demand.
    fn add_region(&mut self, is_ahead: bool) -> bool {
        if self.want_again(is_ahead) {
            return true;
        }
        if self.all_regions() + REGION > self.budget {
            return false;
        }
        let region = Region {
            state: State::Nothing,
            is_wanted: true,
            is_unregistered: false,
            task: None,
            has_failed: false,
            is_ahead,
        };
        self.regions.insert(self.made, region);
        self.made = self.made.wrapping_add(1);
        true
    }

    fn trim(&mut self) {
        let beside_copies = self.target.saturating_sub(self.copies.taken_bytes()).max(REGION);
        if self.wanted_regions() > beside_copies + Bytes(beside_copies.0 / 4) {
            self.shrink_to(beside_copies);
        }
    }

    /// Gives unused regions back until they have at most `bytes`. Regions that were not begun are dropped.
    fn shrink_to(&mut self, bytes: Bytes) {
        self.changes += 1;
        let excess = self.wanted_regions().saturating_sub(bytes).0.div_ceil(REGION.0);
        let unused = |region: &&mut Region| region.is_wanted && region.is_unused() && region.task.is_none();
        let unused = self.regions.values_mut().rev().filter(unused);
        unused.take(excess as usize).for_each(|region| {
            // A registration that could not be made again is needed no more.
            (region.is_wanted, region.has_failed) = (false, false);
        });
        self.regions.retain(|_, region| {
            region.is_wanted || region.task.is_some() || !matches!(region.state, State::Nothing)
        });
    }
}

#[cfg(test)]
mod tests;
