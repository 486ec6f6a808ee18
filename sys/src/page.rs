//! Shared page of a client: the memory file behind it, and its mapping.
//!
//! ```text
//!   daemon: create ──▶ memfd, one page, sealed against resizing ──▶ map ──▶ SharedPage
//!                        │ SCM_RIGHTS
//!   client: recv ──────▶ map: seals? size? layout? ──────────────────────▶ SharedPage
//! ```
//!
//! Access to a mapping fails with SIGBUS after another process shrinks the file. So [`map`] accepts only a
//! file that is sealed against resizing.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;

use gpushare_proto::page::{PAGE_LAYOUT, PAGE_SIZE, Page};
use rustix::fs::{self, SealFlags};
use rustix::mm::{self, MapFlags, ProtFlags};

use crate::memory_file;

/// Reason why a descriptor is not a usable shared page.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// The file can be resized while it is mapped, or it is no memory file.
    #[error("the shared page's file is not sealed against resizing; it does not come from a gpushare daemon")]
    Unsealed,
    /// The file has the wrong size.
    #[error(
        "the shared page's file has {found} bytes instead of {PAGE_SIZE}; it does not come from a gpushare daemon"
    )]
    Size {
        /// Size of the file behind the descriptor, in bytes.
        found: u64,
    },
    /// The shared page has a layout that this build does not know.
    #[error(
        "the shared page has layout {found}, this build knows {PAGE_LAYOUT}; \
         install the same gpushare version on both sides"
    )]
    Layout {
        /// Layout number found in the shared page.
        found: u32,
    },
    /// The kernel refused to inspect or map the file.
    #[error("cannot map the shared page: {0}")]
    System(#[from] io::Error),
}

/// Page of memory that daemon and client share, mapped into this process until destroyed.
#[derive(Debug)]
pub struct SharedPage(NonNull<Page>);

// SAFETY: the mapping belongs to the process, not to a thread, and `Page` consists of atomics only.
unsafe impl Send for SharedPage {}
// SAFETY: `&Page` gives nothing but atomic access.
unsafe impl Sync for SharedPage {}

impl Deref for SharedPage {
    type Target = Page;

    fn deref(&self) -> &Page {
        // SAFETY: `map` made the pointer from a mapping of PAGE_SIZE >= size_of::<Page>() bytes, aligned to
        // the system's page, which lives until drop and cannot lose its file's bytes (sealed). Every bit
        // pattern is a valid `Page`, and other processes change it only as atomics see it.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, made by `map` with this length, and no reference outlives `self`.
        // A failure leaks one page and nothing else.
        let _ = unsafe { mm::munmap(self.0.as_ptr().cast(), PAGE_SIZE) };
    }
}

/// Creates a shared page: sealed, with its layout number, otherwise zero. The returned descriptor is sent to
/// the client.
///
/// # Errors
/// Error of the kernel, for example because the process has too many open files.
pub fn create() -> io::Result<(OwnedFd, SharedPage)> {
    let file = memory_file::create("gpushare-page")?;
    fs::ftruncate(&file, PAGE_SIZE as u64)?;
    fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let page = mapping(&file)?;
    page.layout.store(PAGE_LAYOUT, Ordering::Release);
    Ok((file, page))
}

/// Maps the shared page behind a descriptor that another process sent.
///
/// # Errors
/// [`PageError`] if the file is not a sealed shared page of this layout.
pub fn map(file: impl AsFd) -> Result<SharedPage, PageError> {
    let seals = fs::fcntl_get_seals(&file).map_err(|_| PageError::Unsealed)?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Err(PageError::Unsealed);
    }
    let found = u64::try_from(fs::fstat(&file).map_err(io::Error::from)?.st_size).unwrap_or(0);
    if found != PAGE_SIZE as u64 {
        return Err(PageError::Size { found });
    }
    let page = mapping(&file)?;
    match page.layout.load(Ordering::Acquire) {
        PAGE_LAYOUT => Ok(page),
        found => Err(PageError::Layout { found }),
    }
}

fn mapping(file: impl AsFd) -> io::Result<SharedPage> {
    // SAFETY: a new mapping at an address of the kernel's choice overlaps no memory of this process.
    let address = unsafe {
        mm::mmap(ptr::null_mut(), PAGE_SIZE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)?
    };
    NonNull::new(address.cast())
        .map(SharedPage)
        .ok_or_else(|| io::Error::other("the kernel mapped the shared page at address zero"))
}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn both_sides_see_one_page() {
        let (file, ours) = create().unwrap();
        let theirs = map(&file).unwrap();
        drop(file);
        theirs.gate.store(42, Ordering::Release);
        assert_eq!(ours.gate.load(Ordering::Acquire), 42);
        ours.gpus[15].free.store(7, Ordering::Release);
        drop(ours);
        assert_eq!(theirs.gpus[15].free.load(Ordering::Acquire), 7);
    }

    #[test]
    fn the_page_cannot_be_resized() {
        let (file, _page) = create().unwrap();
        assert_eq!(fs::ftruncate(&file, 0), Err(Errno::PERM));
        assert_eq!(fs::ftruncate(&file, 1 << 20), Err(Errno::PERM));
        assert_eq!(fs::fcntl_add_seals(&file, SealFlags::WRITE), Err(Errno::PERM));
    }

    #[test]
    fn a_file_that_could_shrink_is_not_mapped() {
        let plain = tempfile::tempfile().unwrap();
        plain.set_len(PAGE_SIZE as u64).unwrap();
        assert!(matches!(map(&plain), Err(PageError::Unsealed)));

        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let unsealed = fs::memfd_create("hostile", flags).unwrap();
        fs::ftruncate(&unsealed, PAGE_SIZE as u64).unwrap();
        assert!(matches!(map(&unsealed), Err(PageError::Unsealed)));
    }

    #[test]
    fn a_file_of_another_size_or_layout_is_not_mapped() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let empty = fs::memfd_create("hostile", flags).unwrap();
        fs::fcntl_add_seals(&empty, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        assert!(matches!(map(&empty), Err(PageError::Size { found: 0 })));

        let (file, page) = create().unwrap();
        page.layout.store(PAGE_LAYOUT + 1, Ordering::Release);
        let error = map(&file).unwrap_err();
        assert!(matches!(error, PageError::Layout { found } if found == PAGE_LAYOUT + 1));
        assert!(error.to_string().contains("same gpushare version"), "{error}");
    }
}
