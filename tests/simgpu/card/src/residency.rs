//! Which managed pages are on a GPU, and who leaves when room is needed.
//!
//! ```text
//!  capacity |#### fixed ####|~~~~~~~ managed pages, by age ~~~~~~~|   free   |
//!            contexts, cuMemAlloc   oldest leaves first, whoever's it is
//! ```
//!
//! One list of ages for all processes: a page that nobody touched for long makes room for a page somebody
//! touches now. So two processes that take turns of 2 ms over more than the card push each other's pages
//! out before they are used again, as on a real card.

use std::collections::BTreeMap;

use crate::ids::ClientId;

/// One 2 MiB page of a managed allocation (the last one of an allocation may be shorter).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PageId {
    pub(crate) client: ClientId,
    /// Address of the allocation.
    pub(crate) base: u64,
    /// Which page of it.
    pub(crate) index: u64,
}

/// No room, and nothing left that could leave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// A page that left, and its length.
pub(crate) type Evicted = Vec<(PageId, u64)>;

#[derive(Debug)]
pub(crate) struct Residency {
    capacity: u64,
    fixed: u64,
    managed: u64,
    pages: BTreeMap<PageId, Resident>,
    by_age: BTreeMap<u64, PageId>,
    next_stamp: u64,
}

#[derive(Debug)]
struct Resident {
    stamp: u64,
    len: u64,
}

impl Residency {
    pub(crate) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            fixed: 0,
            managed: 0,
            pages: BTreeMap::new(),
            by_age: BTreeMap::new(),
            next_stamp: 0,
        }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn free(&self) -> u64 {
        self.capacity - self.fixed - self.managed
    }

    /// Bytes of one client's managed pages here.
    pub(crate) fn resident_of(&self, client: ClientId) -> u64 {
        self.pages
            .iter()
            .filter(|(page, _)| page.client == client)
            .map(|(_, page)| page.len)
            .sum()
    }

    pub(crate) fn holds(&self, page: &PageId) -> bool {
        self.pages.contains_key(page)
    }

    /// Makes a resident page the youngest.
    pub(crate) fn touch(&mut self, page: PageId) {
        if let Some(resident) = self.pages.get_mut(&page) {
            self.by_age.remove(&resident.stamp);
            resident.stamp = self.next_stamp;
            self.by_age.insert(self.next_stamp, page);
            self.next_stamp += 1;
        }
    }

    /// Brings a page in and answers who had to leave for it.
    pub(crate) fn admit(&mut self, page: PageId, len: u64) -> Result<Evicted, Full> {
        let evicted = self.make_room(len)?;
        self.managed += len;
        self.by_age.insert(self.next_stamp, page);
        self.pages.insert(page, Resident { stamp: self.next_stamp, len });
        self.next_stamp += 1;
        Ok(evicted)
    }

    /// Lets a page go and answers its length, if it was here.
    pub(crate) fn expel(&mut self, page: &PageId) -> Option<u64> {
        let resident = self.pages.remove(page)?;
        self.by_age.remove(&resident.stamp);
        self.managed -= resident.len;
        Some(resident.len)
    }

    /// Takes bytes that cannot move.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<Evicted, Full> {
        let evicted = self.make_room(bytes)?;
        self.fixed += bytes;
        Ok(evicted)
    }

    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.fixed -= bytes;
    }

    /// Counts bytes as here again that are about to be given back. There may be no room for them.
    pub(crate) fn count_again(&mut self, bytes: u64) {
        self.fixed += bytes;
    }

    /// Forgets the pages of an allocation that is no more.
    pub(crate) fn forget(&mut self, client: ClientId, base: u64) {
        let range = PageId { client, base, index: 0 }..=PageId { client, base, index: u64::MAX };
        let pages: Vec<PageId> = self.pages.range(range).map(|(page, _)| *page).collect();
        for page in pages {
            self.expel(&page);
        }
    }

    fn make_room(&mut self, bytes: u64) -> Result<Evicted, Full> {
        if bytes > self.capacity - self.fixed {
            return Err(Full);
        }
        let mut evicted = Vec::new();
        while self.free() < bytes {
            let (_, &oldest) = self.by_age.first_key_value().ok_or(Full)?;
            let len = self.expel(&oldest).ok_or(Full)?;
            evicted.push((oldest, len));
        }
        Ok(evicted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(client: u32, index: u64) -> PageId {
        PageId { client: ClientId(client), base: 0x1000, index }
    }

    #[test]
    fn the_least_recently_used_page_leaves_whoever_owns_it() {
        let mut card = Residency::new(30);
        for (client, index) in [(1, 0), (2, 0), (1, 1)] {
            card.admit(page(client, index), 10).unwrap();
        }
        card.touch(page(1, 0));
        assert_eq!(card.admit(page(2, 1), 10), Ok(vec![(page(2, 0), 10)]));
        assert!(card.holds(&page(1, 0)));
        assert_eq!((card.resident_of(ClientId(1)), card.resident_of(ClientId(2))), (20, 10));
    }

    #[test]
    fn fixed_memory_pushes_pages_out_and_is_never_pushed_out() {
        let mut card = Residency::new(30);
        card.admit(page(1, 0), 20).unwrap();
        assert_eq!(card.take(20), Ok(vec![(page(1, 0), 20)]));
        assert_eq!(card.admit(page(1, 0), 20), Err(Full));
        assert_eq!(card.take(20), Err(Full));
        card.give_back(20);
        assert_eq!(card.free(), 30);
    }

    #[test]
    fn a_freed_allocation_leaves_no_page() {
        let mut card = Residency::new(30);
        card.admit(page(1, 0), 10).unwrap();
        card.admit(page(1, 1), 10).unwrap();
        card.forget(ClientId(1), 0x1000);
        assert_eq!(card.free(), 30);
    }
}
