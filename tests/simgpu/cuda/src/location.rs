//! Places as C names them.

use crate::codes::{Answer, Code};

/// `CU_DEVICE_CPU`.
pub(crate) const CPU: i32 = -1;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

impl Location {
    pub(crate) const DEVICE: u32 = 1;
    pub(crate) const HOST_NUMA: u32 = 3;
    const HOST_KINDS: std::ops::RangeInclusive<u32> = 2..=4;

    pub(crate) fn of_device(id: i32) -> Self {
        let kind = Self::DEVICE;
        Self { kind, id }
    }

    /// The device that is meant, or the host.
    pub(crate) fn device(self) -> Answer<i32> {
        match self.kind {
            Self::DEVICE => Ok(self.id),
            kind if Self::HOST_KINDS.contains(&kind) => Ok(CPU),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AccessDescription {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}

/// `CUmemAccess_flags`.
pub(crate) const NO_ACCESS: u32 = 0;
pub(crate) const READ_ONLY: u32 = 1;
pub(crate) const READ_WRITE: u32 = 3;

impl AccessDescription {
    /// Whether anything is allowed.
    pub(crate) fn allows(self) -> Answer<bool> {
        match self.flags {
            NO_ACCESS => Ok(false),
            READ_ONLY | READ_WRITE => Ok(true),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}
