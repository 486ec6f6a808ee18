//! Registered memory: the caller's own pages, which the card reads and writes in place.
//!
//! ```text
//! cuMemHostRegister     private pages ── copied ──> memfd of the card, put in their place at the same address
//! cuMemHostUnregister   private pages <── copied ── memfd of the card
//! ```
//!
//! Only whole private anonymous pages can be exchanged. Any other memory, and any that the card may only
//! read, stays the caller's alone (*staged*): its copies go along in messages at the rate of registered
//! memory, and kernels do not reach it. Other threads must leave the memory alone while it is registered and
//! unregistered. A forked child shares it with its parent from then on.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use crate::codes::{Answer, Code};

/// Flag of a registration: the card only reads the memory (`CU_MEMHOSTREGISTER_READ_ONLY`).
pub(crate) const READ_ONLY: u32 = 8;

const PAGE: usize = 4096;
const NOTHING: [u8; PAGE] = [0; PAGE];

/// Memory of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) address: u64,
    pub(crate) len: u64,
}

/// State of a range in the caller's address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Whole private anonymous pages that can be read and written.
    Private,
    /// Memory that the caller itself cannot write, in part at least.
    ReadOnly,
    /// Other memory.
    Other,
    /// Not all of it is mapped.
    Missing,
}

impl Range {
    pub(crate) fn new(address: u64, len: usize) -> Answer<Self> {
        let len = len as u64;
        let valid = address != 0 && len > 0 && address.checked_add(len).is_some();
        valid.then_some(Self { address, len }).ok_or(Code::INVALID_VALUE)
    }

    fn end(self) -> u64 {
        self.address + self.len
    }

    pub(crate) fn pages(self) -> Pages {
        let whole = [self.address, self.len].iter().all(|bytes| bytes.is_multiple_of(PAGE as u64));
        match self.mappings() {
            None => Pages::Missing,
            Some(found) if !found.iter().all(Mapping::is_writable) => Pages::ReadOnly,
            Some(found) if whole && found.iter().all(Mapping::is_private) => Pages::Private,
            Some(_) => Pages::Other,
        }
    }

    /// Bytes of pages that nobody has touched yet.
    pub(crate) fn untouched(self) -> u64 {
        let page = PAGE as u64;
        let start = self.address / page * page;
        let size = usize::try_from(self.end() - start).unwrap_or(0);
        let mut found = vec![1u8; size.div_ceil(PAGE)];
        // SAFETY: writes one byte for each page of the range, as many as there are; fails where nothing is
        // mapped.
        unsafe { libc::mincore(start as *mut libc::c_void, size, found.as_mut_ptr()) };
        found.iter().filter(|byte| **byte & 1 == 0).count() as u64 * page
    }

    /// Puts the card's memory in place of the pages, with the bytes that are in them.
    pub(crate) fn share(self, memory: &OwnedFd) -> Answer {
        self.exchange(libc::MAP_SHARED, memory.as_raw_fd())
    }

    /// Puts private pages in place of the card's memory with this inode, if that is still here.
    pub(crate) fn unshare(self, inode: u64) -> Answer {
        let ours = |mapping: &Mapping| mapping.inode == inode;
        if !self.mappings().is_some_and(|found| found.iter().all(ours)) {
            return Ok(());
        }
        self.exchange(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// Exchanges the pages for fresh ones with the same bytes. Pages of zeroes stay untouched.
    fn exchange(self, flags: i32, memory: i32) -> Answer {
        let size = usize::try_from(self.len).map_err(|_| Code::INVALID_VALUE)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let fresh = unsafe { libc::mmap(std::ptr::null_mut(), size, access, flags, memory, 0) };
        if fresh == libc::MAP_FAILED {
            return Err(Code::OUT_OF_MEMORY);
        }
        let mut page = [0u8; PAGE];
        for before in (0..size).step_by(PAGE) {
            let from = (self.address as *const u8).wrapping_add(before);
            // SAFETY: the caller's page is mapped and readable, as `pages` or `unshare` found, and stays so
            // while the caller is in this call; the buffer is a page.
            unsafe { std::ptr::copy_nonoverlapping(from, page.as_mut_ptr(), PAGE) };
            if page != NOTHING {
                // SAFETY: the fresh mapping is as long as the range, which is whole pages.
                unsafe { std::ptr::copy_nonoverlapping(page.as_ptr(), fresh.cast::<u8>().add(before), PAGE) };
            }
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let target = self.address as *mut libc::c_void;
        // SAFETY: moves the fresh mapping over the caller's range and nothing else; the bytes there are the
        // same.
        let moved = unsafe { libc::mremap(fresh, size, size, flags, target) };
        if moved == libc::MAP_FAILED { Err(Code::OUT_OF_MEMORY) } else { Ok(()) }
    }

    /// Mappings that the range lies in, or `None` if there is a gap.
    fn mappings(self) -> Option<Vec<Mapping>> {
        let lines = BufReader::new(File::open("/proc/self/maps").ok()?)
            .lines()
            .map_while(Result::ok);
        let all = lines.filter_map(|line| Mapping::parse(&line));
        let inside: Vec<Mapping> = all
            .filter(|found| found.start < self.end() && self.address < found.end)
            .collect();
        let mut next = self.address;
        for mapping in &inside {
            if mapping.start > next {
                return None;
            }
            next = mapping.end;
        }
        (next >= self.end()).then_some(inside)
    }
}

/// Inode of the card's memory.
pub(crate) fn inode(memory: &OwnedFd) -> Answer<u64> {
    let file = File::from(memory.try_clone().map_err(|_| Code::UNKNOWN)?);
    Ok(file.metadata().map_err(|_| Code::UNKNOWN)?.ino())
}

/// One line of `/proc/self/maps`.
#[derive(Debug)]
struct Mapping {
    start: u64,
    end: u64,
    /// `rw-p` for private memory that can be read and written.
    access: String,
    inode: u64,
    name: String,
}

impl Mapping {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        let access = fields.next()?.to_owned();
        let inode = fields.nth(2)?.parse().ok()?;
        let name = fields.next().unwrap_or_default().to_owned();
        Some(Self { start: address(start)?, end: address(end)?, access, inode, name })
    }

    fn is_writable(&self) -> bool {
        self.access.contains('w')
    }

    fn is_private(&self) -> bool {
        let named = !self.name.is_empty() && self.name != "[heap]" && !self.name.starts_with("[anon");
        self.access == "rw-p" && self.inode == 0 && !named
    }
}
