//! Copies: read-only memory with the bytes of a chunk, which several processes of a user have in common. Each
//! is a slot of one chunk of this process.
//!
//! ```text
//!             register                        put           unregister          end
//!   taken ◀──────────────▶ taken, registered ─────▶ unused ────────────▶ unused ─────▶ nothing
//!            unregister
//! ```
//!
//! While the process is or may be frozen, no copy is registered, so the driver knows nothing of them. The
//! copies stay as they are, and are registered again afterwards. A copy that is not registered is read as
//! ordinary memory, slowly.

use std::collections::BTreeMap;

use gpushare_proto::Bytes;

use super::{Home, HostError, MemoryId, Pool, Slot, Task};
use crate::driver::types::CUDA_ERROR_NOT_SUPPORTED;
use crate::remap::vmm::HostAddress;

/// Copies that chunks of the process use.
#[derive(Debug, Default)]
pub(super) struct Copies {
    all: BTreeMap<u32, Copy>,
    made: u32,
    /// Whether no copy is to be registered.
    are_hidden: bool,
}

#[derive(Debug)]
struct Copy {
    address: HostAddress,
    size: Bytes,
    /// Whether a chunk has the copy, or is to have it.
    is_taken: bool,
    is_registered: bool,
    /// Task that was handed out and is not done.
    task: Option<Task>,
    /// Error of the last task, because of which none follows before [`Pool::retry_copies`] or another wish.
    failed: Option<HostError>,
}

/// Registration of a copy with the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// The driver was not asked yet, or has not answered.
    Coming,
    /// Copies to the card have the speed of the bus.
    Done,
    /// The driver refused it. It may take another copy, or this one later.
    Refused,
    /// The driver registers no memory for reading on this card.
    Unsupported,
}

impl Pool {
    /// Takes memory with the bytes of a chunk as a slot, which is to be registered.
    pub fn add_copy(&mut self, address: HostAddress, size: Bytes) -> Slot {
        self.changes += 1;
        Slot { home: Home::Copy(self.copies.add(address, size)), address, size }
    }

    /// Returns how far the registration of a copy is.
    pub fn registration(&self, slot: &Slot) -> Registration {
        let Home::Copy(number) = slot.home else { return Registration::Done };
        let Some(copy) = self.copies.all.get(&number) else { return Registration::Refused };
        match copy.failed {
            _ if copy.is_registered => Registration::Done,
            None => Registration::Coming,
            Some(HostError::Refused(CUDA_ERROR_NOT_SUPPORTED)) => Registration::Unsupported,
            Some(_) => Registration::Refused,
        }
    }

    /// Lets the driver forget all copies (`true`), or know those in use again. Tasks that failed are tried
    /// again.
    pub fn hide_copies(&mut self, are_hidden: bool) {
        self.copies.are_hidden = are_hidden;
        self.retry_copies();
    }

    /// Lets tasks of copies that failed be tried again.
    pub fn retry_copies(&mut self) {
        self.copies.all.values_mut().for_each(|copy| copy.failed = None);
    }

    /// Returns whether the driver is to forget all copies.
    pub fn hides_copies(&self) -> bool {
        self.copies.are_hidden
    }

    /// Returns whether the driver knows no copy and is not asked about one, since they were hidden.
    pub fn are_copies_hidden(&self) -> bool {
        let is_unknown = |copy: &Copy| !copy.is_registered && copy.task.is_none();
        self.copies.are_hidden && self.copies.all.values().all(is_unknown)
    }
}

impl Copies {
    fn add(&mut self, address: HostAddress, size: Bytes) -> u32 {
        let number = self.made;
        self.made = self.made.wrapping_add(1);
        let copy = Copy { address, size, is_taken: true, is_registered: false, task: None, failed: None };
        self.all.insert(number, copy);
        number
    }

    /// Notes that no chunk has the copy any more.
    pub(super) fn put(&mut self, number: u32) {
        if let Some(copy) = self.all.get_mut(&number) {
            (copy.is_taken, copy.failed) = (false, None);
        }
    }

    /// Bytes of all copies, also of those that are given up.
    pub(super) fn bytes(&self) -> Bytes {
        self.all.values().map(|copy| copy.size).sum()
    }

    /// Bytes of the copies that chunks have.
    pub(super) fn taken_bytes(&self) -> Bytes {
        let taken = self.all.values().filter(|copy| copy.is_taken);
        taken.map(|copy| copy.size).sum()
    }

    pub(super) fn has_tasks(&self) -> bool {
        self.all.values().any(|copy| copy.next(self.are_hidden).is_some())
    }

    /// Takes a task by which a copy or its registration ends.
    pub(super) fn take_end(&mut self) -> Option<(MemoryId, Task)> {
        self.take(|task| !matches!(task, Task::RegisterCopy(..)))
    }

    pub(super) fn take_registration(&mut self) -> Option<(MemoryId, Task)> {
        self.take(|task| matches!(task, Task::RegisterCopy(..)))
    }

    fn take(&mut self, is_due: impl Fn(&Task) -> bool) -> Option<(MemoryId, Task)> {
        let are_hidden = self.are_hidden;
        self.all.iter_mut().find_map(|(&number, copy)| {
            let task = copy.next(are_hidden).filter(&is_due)?;
            copy.task = Some(task);
            Some((MemoryId::Copy(number), task))
        })
    }

    /// Notes the end of the task that was handed out for a copy.
    pub(super) fn done(&mut self, number: u32, error: Option<HostError>) {
        let Some(copy) = self.all.get_mut(&number) else { return };
        let has_succeeded = error.is_none();
        copy.failed = error;
        match copy.task.take() {
            Some(Task::RegisterCopy(..)) if has_succeeded => copy.is_registered = true,
            Some(Task::UnregisterCopy(..)) if has_succeeded => copy.is_registered = false,
            Some(Task::EndCopy(..)) => drop(self.all.remove(&number)),
            _ => {}
        }
    }

    /// Notes that registrations of memory at these addresses ended with their context.
    pub(super) fn end_registrations(&mut self, memory: &[HostAddress]) {
        for copy in self.all.values_mut().filter(|copy| memory.contains(&copy.address)) {
            (copy.is_registered, copy.failed) = (false, None);
        }
    }
}

impl Copy {
    fn next(&self, are_hidden: bool) -> Option<Task> {
        if self.task.is_some() || self.failed.is_some() {
            return None;
        }
        let (address, size) = (self.address, self.size);
        match (self.is_registered, self.is_taken && !are_hidden) {
            (false, true) => Some(Task::RegisterCopy(address, size)),
            (true, false) => Some(Task::UnregisterCopy(address, size)),
            (true, true) => None,
            (false, false) => (!self.is_taken).then_some(Task::EndCopy(address, size)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remap::fake::FakeCard;
    use crate::remap::host::{REGION, Supply, perform};

    const SIZE: Bytes = Bytes::mib(32);
    const ADDRESS: HostAddress = HostAddress(1 << 40);

    /// Takes all tasks, whose results are `result`, and returns them.
    fn work(pool: &mut Pool, result: Result<(), HostError>) -> Vec<Task> {
        let mut tasks = Vec::new();
        while let Some((memory, task)) = pool.take_task() {
            assert!(pool.take_task().is_none(), "one at a time");
            tasks.push(task);
            pool.done(memory, result.map(|()| None));
        }
        tasks
    }

    #[test]
    fn a_copy_is_registered_while_a_chunk_has_it_and_ends_afterwards() {
        let mut pool = Pool::default();
        let slot = pool.add_copy(ADDRESS, SIZE);
        assert!(slot.is_shared());
        assert_eq!((slot.address(), slot.size()), (ADDRESS, SIZE));
        assert_eq!(pool.registration(&slot), Registration::Coming);
        assert_eq!(work(&mut pool, Ok(())), [Task::RegisterCopy(ADDRESS, SIZE)]);
        assert_eq!(pool.registration(&slot), Registration::Done);
        assert_eq!((pool.sizes().total, pool.sizes().taken), (SIZE, SIZE));
        pool.put(slot);
        let tasks = [Task::UnregisterCopy(ADDRESS, SIZE), Task::EndCopy(ADDRESS, SIZE)];
        assert_eq!(work(&mut pool, Ok(())), tasks);
        assert_eq!(pool.sizes(), super::super::PoolSizes::default());
    }

    #[test]
    fn a_copy_that_the_driver_does_not_register_is_given_up() {
        let mut pool = Pool::default();
        let slot = pool.add_copy(ADDRESS, SIZE);
        work(&mut pool, Err(HostError::Refused(2)));
        assert_eq!(pool.registration(&slot), Registration::Refused);
        pool.retry();
        work(&mut pool, Err(HostError::Refused(CUDA_ERROR_NOT_SUPPORTED)));
        assert_eq!(pool.registration(&slot), Registration::Unsupported);
        pool.put(slot);
        assert_eq!(work(&mut pool, Ok(())), [Task::EndCopy(ADDRESS, SIZE)]);
    }

    #[test]
    fn the_driver_forgets_all_copies_for_a_freeze_and_knows_them_again_afterwards() {
        let mut pool = Pool::default();
        let slot = pool.add_copy(ADDRESS, SIZE);
        work(&mut pool, Ok(()));
        pool.hide_copies(true);
        assert!(!pool.are_copies_hidden());
        assert_eq!(work(&mut pool, Ok(())), [Task::UnregisterCopy(ADDRESS, SIZE)]);
        assert!(pool.are_copies_hidden());
        let later = pool.add_copy(HostAddress(2 << 40), SIZE);
        assert_eq!(work(&mut pool, Ok(())), [], "none is registered meanwhile");
        pool.put(later);
        assert_eq!(work(&mut pool, Ok(())), [Task::EndCopy(HostAddress(2 << 40), SIZE)]);
        pool.hide_copies(false);
        assert!(!pool.are_copies_hidden());
        assert_eq!(work(&mut pool, Ok(())), [Task::RegisterCopy(ADDRESS, SIZE)]);
        assert_eq!(pool.registration(&slot), Registration::Done);
    }

    #[test]
    fn a_copy_is_registered_again_after_the_end_of_its_context() {
        let mut pool = Pool::default();
        let slot = pool.add_copy(ADDRESS, SIZE);
        work(&mut pool, Ok(()));
        pool.end_registrations(&[ADDRESS]);
        assert_eq!(work(&mut pool, Err(HostError::Refused(201))), [Task::RegisterCopy(ADDRESS, SIZE)]);
        pool.end_registrations(&[ADDRESS]);
        work(&mut pool, Ok(()));
        assert_eq!(pool.registration(&slot), Registration::Done);
    }

    #[test]
    fn a_registration_that_fails_is_tried_again_whatever_it_was_for() {
        let mut pool = Pool::default();
        let slot = pool.add_copy(ADDRESS, SIZE);
        let refused = Err(HostError::Refused(999));
        let (register, unregister) = (Task::RegisterCopy(ADDRESS, SIZE), Task::UnregisterCopy(ADDRESS, SIZE));
        work(&mut pool, Ok(()));
        for _ in 0..2 {
            pool.hide_copies(true);
            assert_eq!(work(&mut pool, refused), [unregister], "at each look of a process that is to park");
        }
        pool.hide_copies(true);
        assert_eq!(work(&mut pool, Ok(())), [unregister]);
        pool.hide_copies(false);
        assert_eq!(work(&mut pool, refused), [register]);
        pool.retry();
        assert_eq!(work(&mut pool, Ok(())), [register]);
        pool.put(slot);
        assert_eq!(work(&mut pool, refused), [unregister]);
        pool.retry_copies();
        assert_eq!(work(&mut pool, Ok(())), [unregister, Task::EndCopy(ADDRESS, SIZE)]);
    }

    #[test]
    fn regions_in_whose_place_copies_come_are_given_back_but_for_one() {
        let (card, mut pool, all) = (FakeCard::default(), Pool::default(), Bytes(32 * SIZE.0));
        pool.set_budget(all);
        pool.set_target(all);
        work_on(&mut pool, &card);
        let own: Vec<_> = (0..32).map(|_| pool.take(SIZE).unwrap()).collect();
        for (number, slot) in (1..).zip(own) {
            card.hold_copy(HostAddress(number << 50), number);
            pool.add_copy(HostAddress(number << 50), SIZE);
            pool.put(slot);
            work_on(&mut pool, &card);
        }
        assert_eq!((pool.sizes().total, pool.sizes().free), (all + REGION, REGION));
    }

    #[test]
    fn chunks_that_have_all_changed_get_slots_of_their_own_within_the_budget() {
        let (card, copies) = (FakeCard::default(), 64);
        let mut pool = Pool::default();
        let all = Bytes(copies * SIZE.0);
        pool.set_budget(all + Bytes(all.0 / 8) + Bytes(2 * REGION.0));
        pool.set_target(all);
        let shared: Vec<_> = (1..=copies)
            .map(|number| {
                card.hold_copy(HostAddress(number << 50), number);
                pool.add_copy(HostAddress(number << 50), SIZE)
            })
            .collect();
        work_on(&mut pool, &card);
        assert_eq!(card.regions() as u64, copies, "the copies are ready for the target");
        assert_eq!(pool.demand(all), Supply::Coming);
        work_on(&mut pool, &card);
        let own = shared.into_iter().map(|copy| {
            let slot = pool.take(SIZE).expect("no region is given back meanwhile");
            pool.put(copy);
            slot
        });
        let own: Vec<_> = own.collect();
        let task = pool.take_task();
        assert!(matches!(task, Some((MemoryId::Copy(_), Task::UnregisterCopy(..)))), "{task:?}");
        let (memory, task) = task.unwrap();
        pool.done(memory, perform(task, &card));
        work_on(&mut pool, &card);
        assert_eq!((pool.sizes().taken, pool.sizes().total), (all, all));
        drop(own);
    }

    fn work_on(pool: &mut Pool, card: &FakeCard) {
        while let Some((memory, task)) = pool.take_task() {
            pool.done(memory, perform(task, card));
        }
    }
}
