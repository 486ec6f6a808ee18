//! Memory that the program creates by handle and maps itself, as PyTorch's expandable segments.

use std::ffi::c_int;
use std::os::fd::{FromRawFd as _, OwnedFd};

use gpushare_proto::Bytes;

use crate::driver::DevicePtr;
use crate::driver::layouts::{AccessDescription, HandleProperties};
use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::memory::{Buffer, Door};

/// Handles of one size, and reserved addresses for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First reserved address.
    pub address: DevicePtr,
    /// Size of each handle.
    pub piece: Bytes,
    /// Handles, in the order of their addresses.
    pub handles: Vec<u64>,
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const DESCRIPTOR: c_int = 1;

impl Segment {
    /// Returns all of it as a buffer.
    pub fn buffer(&self) -> Buffer {
        self.part(0, self.handles.len())
    }

    fn part(&self, first: usize, count: usize) -> Buffer {
        let address = self.address + self.piece.0 * first as u64;
        Buffer { address, bytes: Bytes(self.piece.0 * count as u64), door: Door::Handle }
    }

    fn size(&self) -> usize {
        self.piece.0 as usize
    }
}

/// Every method fails with what the driver answered.
impl Gpu {
    /// Creates handles of `piece` bytes, which may be exported, and reserves addresses for them.
    pub fn make_segment(&self, piece: Bytes, count: usize) -> Result<Segment, CudaError> {
        let driver = &self.device.driver;
        let location = [1, self.device.ordinal];
        let handle_types = DESCRIPTOR as u32;
        let properties = HandleProperties { kind: 1, handle_types, location, rest: [0; 2] };
        let address = self.reserve(Bytes(piece.0 * count as u64))?;
        let mut handles = vec![0; count];
        for handle in &mut handles {
            // SAFETY: the result is writable, and the description readable.
            unsafe { driver.mem_create(&raw mut *handle, piece.0 as usize, &raw const properties, 0)? };
        }
        Ok(Segment { address, piece, handles })
    }

    /// Reserves addresses.
    pub fn reserve(&self, bytes: Bytes) -> Result<DevicePtr, CudaError> {
        let mut address = 0;
        // SAFETY: the result is writable.
        unsafe {
            self.device
                .driver
                .mem_address_reserve(&raw mut address, bytes.0 as usize, 0, 0, 0)?;
        }
        Ok(address)
    }

    /// Maps all handles, and then gives the device access to all addresses by one call.
    pub fn map_segment(&self, segment: &Segment) -> Result<(), CudaError> {
        let driver = &self.device.driver;
        let size = segment.size();
        for (at, &handle) in segment.handles.iter().enumerate() {
            // SAFETY: the handle is the driver's, and addresses are numbers to it.
            unsafe { driver.mem_map(segment.part(at, 1).address, size, 0, handle, 0)? };
        }
        self.allow_segment(segment)
    }

    /// Gives the device access to all addresses by one call.
    pub fn allow_segment(&self, segment: &Segment) -> Result<(), CudaError> {
        let access = AccessDescription { location: [1, self.device.ordinal], flags: 3 };
        let size = segment.size() * segment.handles.len();
        // SAFETY: reads one structure; addresses are numbers to the driver.
        unsafe { self.device.driver.mem_set_access(segment.address, size, &raw const access, 1) }
    }

    /// Removes the mappings of some handles by one call.
    pub fn unmap_segment(&self, segment: &Segment, first: usize, count: usize) -> Result<(), CudaError> {
        let part = segment.part(first, count);
        // SAFETY: addresses are numbers to the driver.
        unsafe { self.device.driver.mem_unmap(part.address, part.bytes.0 as usize) }
    }

    /// Releases the program's handles.
    pub fn release_segment(&self, segment: &Segment) -> Result<(), CudaError> {
        // SAFETY: handles are numbers to the driver.
        let release = |&handle| unsafe { self.device.driver.mem_release(handle) };
        segment.handles.iter().try_for_each(release)
    }

    /// Gives the addresses of a segment back.
    pub fn free_segment(&self, segment: &Segment) -> Result<(), CudaError> {
        let size = segment.size() * segment.handles.len();
        // SAFETY: addresses are numbers to the driver.
        unsafe { self.device.driver.mem_address_free(segment.address, size) }
    }

    /// Exports the memory of a handle by a kind of handle, and closes the descriptor.
    pub fn export_of_segment(&self, segment: &Segment, index: usize, kind: c_int) -> Result<(), CudaError> {
        let mut descriptor: c_int = -1;
        let handle = segment.handles.get(index).copied().unwrap_or(0);
        // SAFETY: the result is writable.
        unsafe {
            self.device.driver.mem_export_handle(&raw mut descriptor, handle, kind, 0)?;
            drop(OwnedFd::from_raw_fd(descriptor));
        }
        Ok(())
    }

    /// Asks the driver as what a handle was created: kinds of exports and location.
    pub fn properties_of_segment(&self, segment: &Segment, index: usize) -> Result<[i64; 3], CudaError> {
        let mut properties = HandleProperties { kind: 0, handle_types: 0, location: [0; 2], rest: [0; 2] };
        let handle = segment.handles.get(index).copied().unwrap_or(0);
        // SAFETY: the result is writable.
        unsafe { self.device.driver.mem_handle_properties(&raw mut properties, handle)? };
        let [kind, device] = properties.location;
        Ok([properties.handle_types.into(), kind.into(), device.into()])
    }
}
