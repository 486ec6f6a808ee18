//! Location of memory in the driver's structures.

use std::ffi::c_int;

use crate::driver::types::{CUdevice, LOCATION_DEVICE, LOCATION_PART_OF_DEVICE};

/// Location of memory (`CUmemLocation`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Location {
    /// Kind of the location: device, host or NUMA node (`CUmemLocationType`).
    pub kind: c_int,
    /// Ordinal of the device, or number of the NUMA node. For a part of a device, the lowest byte is the
    /// device's ordinal.
    pub id: c_int,
}

impl Location {
    /// Returns the device of the memory; `None` for memory that is not on a device.
    pub fn device(self) -> Option<CUdevice> {
        match self.kind {
            LOCATION_DEVICE => Some(self.id),
            LOCATION_PART_OF_DEVICE => Some(self.id & 0xff),
            _ => None,
        }
    }
}

/// Common beginning of the driver's structures `CUmemPoolProps` and `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Properties {
    /// Kind of the allocation (`CUmemAllocationType`).
    pub kind: c_int,
    /// Kinds of handles by which the memory can be shared.
    pub handle_types: c_int,
    /// Location of the memory.
    pub location: Location,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_part_of_a_device_is_that_devices() {
        let at = |kind, id| Location { kind, id }.device();
        assert_eq!(at(LOCATION_DEVICE, 3), Some(3));
        // The lowest byte is the device, the next one the part. The others are undefined.
        assert_eq!(at(LOCATION_PART_OF_DEVICE, 0x7f00_0103), Some(3));
        assert_eq!(at(3, 0), None, "a NUMA node of the host");
    }
}
