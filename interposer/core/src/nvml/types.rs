//! The types and values of NVML that we look at (NVML API reference, `nvml.h`).

use std::ffi::{c_int, c_uint, c_void};

/// `nvmlReturn_t`.
pub type NvmlReturn = c_int;
/// `nvmlDevice_t`: a GPU or a MIG instance.
pub type Device = *mut c_void;

/// No error.
pub const NVML_SUCCESS: NvmlReturn = 0;
/// An argument is out of range.
pub const NVML_ERROR_INVALID_ARGUMENT: NvmlReturn = 2;
/// There is no such thing.
pub const NVML_ERROR_NOT_FOUND: NvmlReturn = 6;
/// The caller's room is too small; the call says how much is needed.
pub const NVML_ERROR_INSUFFICIENT_SIZE: NvmlReturn = 7;
/// The library lacks the function.
pub const NVML_ERROR_FUNCTION_NOT_FOUND: NvmlReturn = 13;

/// What stands for an instance's number where there is no instance (`nvmlProcessInfo_t`).
pub const NO_INSTANCE: c_uint = c_uint::MAX;

/// `nvmlMemory_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// What can be allocated.
    pub free: u64,
    /// What is.
    pub used: u64,
}

/// `nvmlMemory_v2_t`. The caller writes the version, and we never do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct MemoryV2 {
    /// Size and number of this layout.
    pub version: c_uint,
    /// All of it.
    pub total: u64,
    /// What the system keeps.
    pub reserved: u64,
    /// What can be allocated.
    pub free: u64,
    /// What is.
    pub used: u64,
}

/// `nvmlProcessInfo_v1_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Process1 {
    /// Which process.
    pub pid: c_uint,
    /// Its bytes on the card.
    pub used: u64,
}

/// `nvmlProcessInfo_v2_t` and `nvmlProcessInfo_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Process2 {
    /// Which process.
    pub pid: c_uint,
    /// Its bytes on the card.
    pub used: u64,
    /// Its GPU instance, or [`NO_INSTANCE`].
    pub gpu_instance: c_uint,
    /// Its compute instance, or [`NO_INSTANCE`].
    pub compute_instance: c_uint,
}

/// `nvmlProcessDetail_v1_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProcessDetail {
    /// Which process.
    pub pid: c_uint,
    /// Its bytes on the card.
    pub used: u64,
    /// Its GPU instance, or [`NO_INSTANCE`].
    pub gpu_instance: c_uint,
    /// Its compute instance, or [`NO_INSTANCE`].
    pub compute_instance: c_uint,
    /// Its bytes of protected memory.
    pub protected: u64,
}

/// `nvmlProcessDetailList_v1_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ProcessDetailList {
    /// Size and number of this layout.
    pub version: c_uint,
    /// Which kind of processes.
    pub mode: c_uint,
    /// Room, then number.
    pub count: c_uint,
    /// Where.
    pub processes: *mut ProcessDetail,
}

/// `nvmlUtilization_t`, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Utilization {
    /// Time with a kernel.
    pub gpu: c_uint,
    /// Time with memory being read or written.
    pub memory: c_uint,
}

/// `nvmlProcessUtilizationSample_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sample {
    /// Which process.
    pub pid: c_uint,
    /// When, in microseconds.
    pub timestamp: u64,
    /// Percent of time with a kernel.
    pub sm: c_uint,
    /// Percent of time with memory being read or written.
    pub memory: c_uint,
    /// Percent of the encoder.
    pub encoder: c_uint,
    /// Percent of the decoder.
    pub decoder: c_uint,
}

/// `nvmlProcessUtilizationInfo_v1_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SampleInfo {
    /// When, in microseconds.
    pub timestamp: u64,
    /// Which process.
    pub pid: c_uint,
    /// Percent of time with a kernel.
    pub sm: c_uint,
    /// Percent of time with memory being read or written.
    pub memory: c_uint,
    /// Percent of the encoder.
    pub encoder: c_uint,
    /// Percent of the decoder.
    pub decoder: c_uint,
    /// Percent of the JPEG decoder.
    pub jpeg: c_uint,
    /// Percent of the optical flow engine.
    pub flow: c_uint,
}

/// `nvmlProcessesUtilizationInfo_v1_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SampleInfos {
    /// Size and number of this layout.
    pub version: c_uint,
    /// Room, then number.
    pub count: c_uint,
    /// Samples after this, in microseconds.
    pub last_seen: u64,
    /// Where.
    pub samples: *mut SampleInfo,
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!((size_of::<Memory>(), size_of::<MemoryV2>()), (24, 40));
        assert_eq!((size_of::<Process1>(), size_of::<Process2>()), (16, 24));
        assert_eq!((size_of::<ProcessDetail>(), size_of::<ProcessDetailList>()), (32, 24));
        assert_eq!((size_of::<Sample>(), size_of::<SampleInfo>(), size_of::<SampleInfos>()), (32, 40, 24));
        assert_eq!((offset_of!(MemoryV2, total), offset_of!(Process2, gpu_instance)), (8, 16));
    }
}
