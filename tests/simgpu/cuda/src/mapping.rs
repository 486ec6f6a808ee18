//! Address space: where an allocation's addresses come from, and the card's memory at them.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use simgpu_card::board;
use simgpu_card::ids::EventId;

use crate::codes::{Answer, Code};

const LARGE: usize = 2 << 20;
const PAGE: usize = 4096;

/// A range of addresses that belongs to one allocation.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) address: u64,
    size: usize,
}

impl Reservation {
    /// Reserves addresses that nobody may touch. Large ones start at a multiple of 2 MiB.
    pub(crate) fn new(len: usize) -> Answer<Self> {
        Self::aligned(len, if len >= LARGE { LARGE } else { PAGE })
    }

    /// Reserves addresses that start at a multiple of `align`, a power of two that is a page at least.
    pub(crate) fn aligned(len: usize, align: usize) -> Answer<Self> {
        let size = len.checked_next_multiple_of(PAGE).ok_or(Code::OUT_OF_MEMORY)?;
        let whole = size.checked_add(align).ok_or(Code::OUT_OF_MEMORY)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping without access, at an address the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), whole, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Code::OUT_OF_MEMORY);
        }
        let start = start as usize;
        let aligned = start.next_multiple_of(align);
        unmap(start, aligned - start);
        unmap(aligned + size, start + whole - aligned - size);
        Ok(Self { address: aligned as u64, size })
    }

    /// Whether a range lies in this one.
    pub(crate) fn holds(&self, address: u64, len: u64) -> bool {
        let end = address.checked_add(len);
        address >= self.address && end.is_some_and(|end| end <= self.address + self.size as u64)
    }

    /// Whether this is exactly that range.
    pub(crate) fn is(&self, address: u64, len: usize) -> bool {
        (self.address, self.size) == (address, len)
    }

    /// Puts the card's memory at these addresses. A forked child does not inherit it, as with the real
    /// driver.
    pub(crate) fn fill(&self, memory: &OwnedFd) -> Answer {
        self.place(self.address, self.size, memory)?;
        self.protect(self.address, self.size, true);
        Ok(())
    }

    /// Puts the card's memory at a part of these addresses, where nobody may touch it yet.
    pub(crate) fn place(&self, address: u64, len: usize, memory: &OwnedFd) -> Answer {
        self.replace(address, len, libc::MAP_SHARED, memory.as_raw_fd())?;
        // SAFETY: advice about the mapping just made.
        unsafe { libc::madvise(address as *mut libc::c_void, len, libc::MADV_DONTFORK) };
        Ok(())
    }

    /// Takes the card's memory away from a part of these addresses.
    pub(crate) fn clear(&self, address: u64, len: usize) -> Answer {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        self.replace(address, len, flags, -1)
    }

    /// Allows or forbids the program a part of these addresses.
    pub(crate) fn protect(&self, address: u64, len: usize, allowed: bool) {
        let access = if allowed { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        if self.holds(address, len as u64) {
            // SAFETY: a part of this reservation's own range.
            unsafe { libc::mprotect(address as *mut libc::c_void, len, access) };
        }
    }

    fn replace(&self, address: u64, len: usize, flags: i32, memory: i32) -> Answer {
        if !self.holds(address, len as u64) {
            return Err(Code::INVALID_VALUE);
        }
        let (at, flags) = (address as *mut libc::c_void, flags | libc::MAP_FIXED);
        // SAFETY: replaces a part of this reservation's own range and nothing else; a memfd is at least that long but
        // for the rest of its last page.
        let mapped = unsafe { libc::mmap(at, len, libc::PROT_NONE, flags, memory, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(Code::OUT_OF_MEMORY);
        }
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        unmap(usize::try_from(self.address).unwrap_or(0), self.size);
    }
}

/// The card's [board](board) about this process.
#[derive(Debug)]
pub(crate) struct Board(Reservation);

impl Board {
    pub(crate) fn map(memory: &OwnedFd) -> Answer<Self> {
        let length = usize::try_from(board::LENGTH).map_err(|_| Code::OUT_OF_MEMORY)?;
        let pages = Reservation::new(length)?;
        pages.fill(memory)?;
        Ok(Self(pages))
    }

    /// The error from which this process does not recover, or 0.
    pub(crate) fn error(&self) -> u32 {
        self.word(0).load(Ordering::Acquire)
    }

    /// Whether calls of this process have to wait, since it is locked for a checkpoint.
    pub(crate) fn is_held(&self) -> bool {
        self.word(board::HELD).load(Ordering::SeqCst) != 0
    }

    /// Number of calls that are under way.
    pub(crate) fn inside(&self) -> &AtomicU32 {
        self.word(board::INSIDE)
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the pages are mapped as long as this lives, and the offsets are aligned and within the memfd. Card
        // and process use these words as atomics only.
        unsafe { &*((self.0.address + offset) as *const AtomicU32) }
    }

    /// Number of an event's last record that was reached, and when; `None` if the event has no place.
    pub(crate) fn event(&self, event: EventId) -> Option<(u64, Duration)> {
        let place = self.0.address + board::place(event)?;
        // SAFETY: as in `error`; both words lie within the board's length and are aligned.
        let [record, at] = [place, place + 8].map(|word| unsafe { &*(word as *const AtomicU64) });
        let record = record.load(Ordering::Acquire);
        Some((record, Duration::from_nanos(at.load(Ordering::Relaxed))))
    }
}

fn unmap(start: usize, size: usize) {
    if size > 0 {
        // SAFETY: only called for (parts of) ranges that `Reservation` mapped and that nobody uses any more.
        unsafe { libc::munmap(start as *mut libc::c_void, size) };
    }
}
