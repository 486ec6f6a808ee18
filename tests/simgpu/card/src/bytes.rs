//! The bytes of one allocation: a memfd that the card maps, and that it may share with the client.
//!
//! With `signals.rs` this is the card's only unsafe code. Another process may write the same bytes at any
//! time, so nothing here makes a `&[u8]` of them: words are read and written as atomics, and blocks are
//! copied through raw pointers, where a race gives mixed bytes (as on a real card) and nothing worse.

use std::ffi::c_void;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Shared, zeroed memory of a fixed length.
#[derive(Debug)]
pub struct SharedBytes {
    base: NonNull<u8>,
    len: u64,
    fd: Option<OwnedFd>,
}

impl SharedBytes {
    /// Makes `len` zeroed bytes.
    pub fn allocate(len: u64) -> io::Result<Self> {
        let size = usize::try_from(len.max(1)).map_err(io::Error::other)?;
        let fd = memfd_create("simgpu", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, len.max(1))?;
        // SAFETY: a fresh mapping at an address the kernel chooses; nothing else is there.
        let base = unsafe {
            mmap(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0)?
        };
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { base, len, fd: Some(fd) })
    }

    /// The descriptor, to be sent to the client. Answers once: the card itself only needs the mapping.
    pub fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fd.take()
    }

    /// A copy of the descriptor, if it is still here.
    pub fn share(&self) -> Option<OwnedFd> {
        self.fd.as_ref()?.try_clone().ok()
    }

    /// Inode that names the memory between processes, while the descriptor is open here.
    pub fn inode(&self) -> Option<u64> {
        let status = rustix::fs::fstat(self.fd.as_ref()?).ok()?;
        Some(status.st_ino)
    }

    /// Closes the descriptor where no client will ask for it.
    pub fn drop_fd(&mut self) {
        self.fd = None;
    }

    /// `count` words from byte `offset` on, or `None` outside of the allocation or unaligned.
    pub fn words(&self, offset: u64, count: u64) -> Option<&[AtomicU32]> {
        let start = self.check(offset, count.checked_mul(4)?, 4)?;
        // SAFETY: `check` says that the range lies in the mapping and is aligned; the mapping lives as long as
        // `self`; atomics may be shared with writers in other processes.
        Some(unsafe { std::slice::from_raw_parts(start.cast().as_ptr(), usize::try_from(count).ok()?) })
    }

    /// The 64-bit word at byte `offset`, or `None` outside of the allocation or unaligned.
    pub fn wide_word(&self, offset: u64) -> Option<&AtomicU64> {
        let start = self.check(offset, 8, 8)?;
        // SAFETY: as in `words`.
        Some(unsafe { start.cast().as_ref() })
    }

    /// Copies `bytes` in at `offset`. Answers whether they fit.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(start) = self.check(offset, bytes.len() as u64, 1) else {
            return false;
        };
        // SAFETY: the target range lies in the mapping; the source is ours and elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start.as_ptr(), bytes.len()) };
        true
    }

    /// Copies the bytes at `offset` out to `into`. Answers whether there were that many.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        let Some(start) = self.check(offset, into.len() as u64, 1) else {
            return false;
        };
        // SAFETY: the source range lies in the mapping; the target is ours and elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(start.as_ptr(), into.as_mut_ptr(), into.len()) };
        true
    }

    /// Copies `len` bytes within or between allocations; the ranges may overlap. Answers whether both exist.
    pub fn copy(from: &Self, from_offset: u64, to: &Self, to_offset: u64, len: u64) -> bool {
        let (Some(source), Some(target), Ok(size)) =
            (from.check(from_offset, len, 1), to.check(to_offset, len, 1), usize::try_from(len))
        else {
            return false;
        };
        // SAFETY: both ranges lie in their mappings; `copy` allows them to overlap.
        unsafe { std::ptr::copy(source.as_ptr(), target.as_ptr(), size) };
        true
    }

    fn check(&self, offset: u64, len: u64, align: usize) -> Option<NonNull<u8>> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        let offset = usize::try_from(offset).ok()?;
        if !inside || !offset.is_multiple_of(align) {
            return None;
        }
        // SAFETY: `offset` is at most `self.len`, which is the length of the mapping.
        Some(unsafe { self.base.add(offset) })
    }
}

impl Drop for SharedBytes {
    fn drop(&mut self) {
        let size = usize::try_from(self.len.max(1)).unwrap_or(0);
        // SAFETY: `base` and `size` are what `mmap` made in `allocate`; nobody borrows `self` any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), size) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn bytes_written_are_read_as_words() {
        let bytes = SharedBytes::allocate(64).unwrap();
        assert!(bytes.write(4, &7u32.to_le_bytes()));
        assert_eq!(bytes.words(0, 2).unwrap()[1].load(Relaxed), 7);
    }

    #[test]
    fn nothing_outside_or_unaligned_can_be_reached() {
        let bytes = SharedBytes::allocate(64).unwrap();
        assert!(bytes.words(0, 17).is_none());
        assert!(bytes.words(2, 1).is_none());
        assert!(bytes.words(u64::MAX, 1).is_none());
        assert!(!bytes.write(60, &[0; 5]));
        assert!(!bytes.read(65, &mut []));
    }
}
