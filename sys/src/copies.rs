//! Files of host copies: memory with bytes that nobody can change any more, which several processes map.
//!
//! ```text
//!   empty file of the daemon ── fill ─▶ sealed file ── map ─▶ Copy, read-only
//! ```

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::ptr::{self, NonNull};

use gpushare_proto::Bytes;
use rustix::fs::{self, SealFlags};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

/// Seals of a file whose bytes and size stay as they are.
pub const SEALS: SealFlags = SealFlags::WRITE
    .union(SealFlags::SHRINK)
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Bytes that are written or compared in one step.
pub const STEP: Bytes = Bytes::mib(8);

/// Mapping of a copy for reading.
#[derive(Debug)]
pub struct Copy {
    address: NonNull<u8>,
    size: Bytes,
}

// SAFETY: the memory is read alone, and belongs to no thread.
unsafe impl Send for Copy {}
// SAFETY: as above.
unsafe impl Sync for Copy {}

impl Drop for Copy {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, made by `map` with this length, and the owner has told everybody who
        // reads it. A failure leaks addresses and nothing else.
        let _ = unsafe { mm::munmap(self.address.as_ptr().cast(), self.size.0 as usize) };
    }
}

impl Copy {
    /// Returns the address of the bytes.
    pub fn address(&self) -> usize {
        self.address.as_ptr().expose_provenance()
    }

    /// Compares the copy with memory of its size at `other`, a step at a time, as long as `goes_on` says so.
    /// Returns whether all bytes are the same; `None` if it was called off.
    ///
    /// # Safety
    /// The memory at `other` is mapped as long as the call lasts. If its bytes change meanwhile, the result
    /// means nothing.
    pub unsafe fn equals(&self, other: *const u8, goes_on: impl Fn() -> bool) -> Option<bool> {
        for (offset, length) in steps(self.size) {
            if !goes_on() {
                return None;
            }
            // SAFETY: both are mapped, and the range is within them.
            let differs = unsafe {
                libc::memcmp(self.address.as_ptr().add(offset).cast(), other.add(offset).cast(), length)
            };
            if differs != 0 {
                return Some(false);
            }
        }
        Some(true)
    }
}

/// Writes memory at `from` into an empty file of the same size and seals the file, as long as `goes_on` says
/// so. Returns the file opened for reading: kernels before Linux 6.7 map no sealed file that is open for
/// writing.
///
/// # Errors
/// The system has no memory for it, or it was called off. The file is not sealed.
///
/// # Safety
/// The memory at `from` is mapped as long as the call lasts. Bytes that change meanwhile are written as they
/// were or as they are.
pub unsafe fn fill(
    file: impl AsFd,
    from: *const u8,
    size: Bytes,
    goes_on: impl Fn() -> bool,
) -> io::Result<File> {
    let descriptor = file.as_fd().as_raw_fd();
    for (offset, length) in steps(size) {
        let mut done = 0;
        while done < length {
            if !goes_on() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let at = offset + done;
            // SAFETY: the kernel reads from mapped memory, within the range.
            let written =
                unsafe { libc::pwrite(descriptor, from.add(at).cast(), length - done, at as libc::off_t) };
            match usize::try_from(written) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
    }
    // What was written last may have changed meanwhile.
    if !goes_on() {
        return Err(io::ErrorKind::Interrupted.into());
    }
    fs::fcntl_add_seals(&file, SEALS)?;
    File::open(format!("/proc/self/fd/{descriptor}"))
}

/// Maps a sealed file of `size` bytes for reading. Children and core dumps do not get the mapping.
///
/// # Errors
/// The file is not sealed, has another size, or the system has no addresses.
pub fn map(file: impl AsFd, size: Bytes) -> io::Result<Copy> {
    let has_size = u64::try_from(fs::fstat(&file)?.st_size) == Ok(size.0);
    if !has_size || !fs::fcntl_get_seals(&file)?.contains(SEALS) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is not sealed, or of another size"));
    }
    let length = size.0 as usize;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps no memory of this process.
    let address = unsafe { mm::mmap(ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, file, 0)? };
    for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
        // SAFETY: the mapping is ours, and the advice changes none of its bytes.
        let _ = unsafe { mm::madvise(address, length, advice) };
    }
    let address = NonNull::new(address.cast())
        .ok_or_else(|| io::Error::other("the kernel mapped the copy at address zero"))?;
    Ok(Copy { address, size })
}

/// Offsets and lengths of the steps through so many bytes.
pub fn steps(size: Bytes) -> impl Iterator<Item = (usize, usize)> {
    let (size, step) = (size.0 as usize, STEP.0 as usize);
    (0..size).step_by(step).map(move |offset| (offset, step.min(size - offset)))
}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;

    use super::*;

    fn empty(size: Bytes) -> std::os::fd::OwnedFd {
        let file = fs::memfd_create("copy", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        fs::ftruncate(&file, size.0).unwrap();
        file
    }

    #[test]
    fn a_filled_file_has_the_bytes_and_nobody_can_write_it() {
        let size = Bytes::mib(18);
        let mut bytes: Vec<u8> = (0..size.0).map(|at| (at / 4096) as u8).collect();
        let file = empty(size);
        assert!(map(&file, size).is_err(), "it is not sealed");
        // SAFETY: the vector is mapped and has this size.
        let sealed = unsafe { fill(&file, bytes.as_ptr(), size, || true) }.unwrap();
        assert!(map(&sealed, Bytes::mib(16)).is_err(), "another size");
        let copy = map(&sealed, size).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { copy.equals(bytes.as_ptr(), || true) }, Some(true));
        assert!(rustix::io::pwrite(&file, &[1], 0).is_err());
        assert!(fs::ftruncate(&file, 0).is_err());
        *bytes.last_mut().unwrap() ^= 1;
        // SAFETY: as above.
        assert_eq!(unsafe { copy.equals(bytes.as_ptr(), || true) }, Some(false));
        // SAFETY: as above.
        assert_eq!(unsafe { copy.equals(bytes.as_ptr(), || false) }, None, "called off");
    }

    #[test]
    fn a_file_whose_filling_was_called_off_is_not_sealed() {
        let size = Bytes::mib(2);
        let (file, bytes) = (empty(size), vec![1_u8; size.0 as usize]);
        // SAFETY: the vector is mapped and has this size.
        assert!(unsafe { fill(&file, bytes.as_ptr(), size, || false) }.is_err());
        assert!(map(&file, size).is_err());
    }
}
