//! Copies: read-only memory with the bytes of a chunk, which several processes of a user have in common. Each is a slot
//! of one chunk of this process.
//!
//! ```text
//!             register                        put           unregister          end
//!   taken ◀──────────────▶ taken, registered ─────▶ unused ────────────▶ unused ─────▶ nothing
//!            unregister
//! ```
//!
//! While the process is or may be frozen, no copy is registered, so the driver knows nothing of them. The copies stay as
//! they are, and are registered again afterwards. A copy that is not registered is read as ordinary memory, slowly.

use std::collections::BTreeMap;

use gpushare_proto::Bytes;

use super::{Home, MemoryId, Pool, Slot, Task};
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
    /// Whether the last task failed, so that none follows before the wish changes.
    has_failed: bool,
}

/// Registration of a copy with the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// The driver was not asked yet, or has not answered.
    Coming,
    /// Copies to the card have the speed of the bus.
    Done,
    /// The driver refused it.
    Refused,
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
        match self.copies.all.get(&number) {
            Some(copy) if copy.is_registered => Registration::Done,
            Some(copy) if !copy.has_failed => Registration::Coming,
            _ => Registration::Refused,
        }
    }

    /// Lets the driver forget all copies (`true`), or know those in use again.
    pub fn hide_copies(&mut self, are_hidden: bool) {
        if self.copies.are_hidden != are_hidden {
            self.copies.are_hidden = are_hidden;
            self.copies.all.values_mut().for_each(|copy| copy.has_failed = false);
        }
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

    /// Returns the bytes of the copies that chunks have.
    pub fn copied(&self) -> Bytes {
        self.copies
            .all
            .values()
            .filter(|copy| copy.is_taken)
            .map(|copy| copy.size)
            .sum()
    }
}

impl Copies {
    fn add(&mut self, address: HostAddress, size: Bytes) -> u32 {
        let number = self.made;
        self.made = self.made.wrapping_add(1);
        let copy = Copy {
            address,
            size,
            is_taken: true,
            is_registered: false,
            task: None,
            has_failed: false,
        };
        self.all.insert(number, copy);
        number
    }

    /// Notes that no chunk has the copy any more.
    pub(super) fn put(&mut self, number: u32) {
        if let Some(copy) = self.all.get_mut(&number) {
            (copy.is_taken, copy.has_failed) = (false, false);
        }
    }

    /// Bytes of all copies, also of those that are given up.
    pub(super) fn bytes(&self) -> Bytes {
        self.all.values().map(|copy| copy.size).sum()
    }

    pub(super) fn has_tasks(&self) -> bool {
        self.all.values().any(|copy| copy.next(self.are_hidden).is_some())
    }

    pub(super) fn take_task(&mut self) -> Option<(MemoryId, Task)> {
        let are_hidden = self.are_hidden;
        self.all.iter_mut().find_map(|(&number, copy)| {
            let task = copy.next(are_hidden)?;
            copy.task = Some(task);
            Some((MemoryId::Copy(number), task))
        })
    }

    /// Notes the end of the task that was handed out for a copy.
    pub(super) fn done(&mut self, number: u32, has_succeeded: bool) {
        let Some(copy) = self.all.get_mut(&number) else { return };
        copy.has_failed = !has_succeeded;
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
            (copy.is_registered, copy.has_failed) = (false, false);
        }
    }
}

impl Copy {
    fn next(&self, are_hidden: bool) -> Option<Task> {
        if self.task.is_some() || self.has_failed {
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
    use crate::remap::host::HostError;

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
        work(&mut pool, Err(HostError::Refused(801)));
        assert_eq!(pool.registration(&slot), Registration::Refused);
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
}
