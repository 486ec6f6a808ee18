//! Memory files (memfd_create(2)), which processes pass to each other.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{self, MemfdFlags};
use rustix::io::Errno;

/// Creates an empty memory file that can be sealed, and that children do not inherit.
///
/// # Errors
/// Error of the kernel, for example because the process has too many open files.
pub fn create(name: &str) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels that can be told to refuse executable memory files know this flag. Older ones answer EINVAL.
    match fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => Ok(fs::memfd_create(name, flags)?),
        other => Ok(other?),
    }
}
