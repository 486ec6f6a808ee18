//! Where memory is to be, as the driver's structures say it.

use std::ffi::c_int;

use crate::driver::types::{CUdevice, LOCATION_DEVICE, LOCATION_PART_OF_DEVICE};

/// `CUmemLocation`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Location {
    /// `CUmemLocationType`.
    pub kind: c_int,
    /// A device's ordinal, or a NUMA node; of a part of a device its ordinal in the lowest byte.
    pub id: c_int,
}

impl Location {
    /// The device whose memory is meant; `None` for other places.
    #[must_use]
    pub fn device(self) -> Option<CUdevice> {
        match self.kind {
            LOCATION_DEVICE => Some(self.id),
            LOCATION_PART_OF_DEVICE => Some(self.id & 0xff),
            _ => None,
        }
    }
}

/// The beginning of `CUmemPoolProps` and of `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Properties {
    /// `CUmemAllocationType`.
    pub kind: c_int,
    /// How it can be handed to others.
    pub handle_types: c_int,
    /// Where it is.
    pub location: Location,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_part_of_a_device_is_that_devices() {
        let at = |kind, id| Location { kind, id }.device();
        assert_eq!(at(LOCATION_DEVICE, 3), Some(3));
        // The device's byte, then the part's; what is in the others is nobody's.
        assert_eq!(at(LOCATION_PART_OF_DEVICE, 0x7f00_0103), Some(3));
        assert_eq!(at(3, 0), None, "a NUMA node of the host");
    }
}
