//! Types and values of NVML that gpushare reads or writes (NVML API reference, `nvml.h`).

use std::ffi::{c_int, c_uint, c_void};

/// `nvmlReturn_t`.
pub type NvmlReturn = c_int;
/// `nvmlDevice_t`: a GPU or a MIG instance.
pub type Device = *mut c_void;

/// No error.
pub const NVML_SUCCESS: NvmlReturn = 0;
/// An argument is out of range.
pub const NVML_ERROR_INVALID_ARGUMENT: NvmlReturn = 2;
/// The queried object does not exist.
pub const NVML_ERROR_NOT_FOUND: NvmlReturn = 6;
/// The caller's array is too small; the call returns the length that is needed.
pub const NVML_ERROR_INSUFFICIENT_SIZE: NvmlReturn = 7;
/// The library lacks the function.
pub const NVML_ERROR_FUNCTION_NOT_FOUND: NvmlReturn = 13;

/// Number in place of an instance's where there is no instance (`nvmlProcessInfo_t`).
pub const NO_INSTANCE: c_uint = c_uint::MAX;

/// `nvmlMemory_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Memory {
    /// Bytes of the card's memory.
    pub total: u64,
    /// Bytes that can be allocated.
    pub free: u64,
    /// Bytes that are allocated.
    pub used: u64,
}

/// `nvmlMemory_v2_t`. Only the caller writes its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct MemoryV2 {
    /// Size and version of this layout.
    pub version: c_uint,
    /// Bytes of the card's memory.
    pub total: u64,
    /// Bytes that the system reserves.
    pub reserved: u64,
    /// Bytes that can be allocated.
    pub free: u64,
    /// Bytes that are allocated.
    pub used: u64,
}

/// `nvmlProcessInfo_v1_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Process1 {
    /// Pid of the process.
    pub pid: c_uint,
    /// Bytes of the process on the card.
    pub used: u64,
}

/// `nvmlProcessInfo_v2_t` and `nvmlProcessInfo_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Process2 {
    /// Pid of the process.
    pub pid: c_uint,
    /// Bytes of the process on the card.
    pub used: u64,
    /// GPU instance of the process, or [`NO_INSTANCE`].
    pub gpu_instance: c_uint,
    /// Compute instance of the process, or [`NO_INSTANCE`].
    pub compute_instance: c_uint,
}

/// `nvmlProcessDetail_v1_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProcessDetail {
    /// Pid of the process.
    pub pid: c_uint,
    /// Bytes of the process on the card.
    pub used: u64,
    /// GPU instance of the process, or [`NO_INSTANCE`].
    pub gpu_instance: c_uint,
    /// Compute instance of the process, or [`NO_INSTANCE`].
    pub compute_instance: c_uint,
    /// Bytes of protected memory of the process.
    pub protected: u64,
}

/// `nvmlProcessDetailList_v1_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ProcessDetailList {
    /// Size and version of this layout.
    pub version: c_uint,
    /// Kind of processes that the list is asked for.
    pub mode: c_uint,
    /// Length of the caller's array; after the call, the number of processes.
    pub count: c_uint,
    /// Array that the library fills.
    pub processes: *mut ProcessDetail,
}

/// `nvmlUtilization_t`, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Utilization {
    /// Percent of time in which a kernel ran.
    pub gpu: c_uint,
    /// Percent of time in which memory was read or written.
    pub memory: c_uint,
}

/// `nvmlProcessUtilizationSample_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sample {
    /// Pid of the process.
    pub pid: c_uint,
    /// Time of the sample, in microseconds.
    pub timestamp: u64,
    /// Percent of time in which a kernel ran.
    pub sm: c_uint,
    /// Percent of time in which memory was read or written.
    pub memory: c_uint,
    /// Percent of the encoder's capacity.
    pub encoder: c_uint,
    /// Percent of the decoder's capacity.
    pub decoder: c_uint,
}

/// `nvmlProcessUtilizationInfo_v1_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SampleInfo {
    /// Time of the sample, in microseconds.
    pub timestamp: u64,
    /// Pid of the process.
    pub pid: c_uint,
    /// Percent of time in which a kernel ran.
    pub sm: c_uint,
    /// Percent of time in which memory was read or written.
    pub memory: c_uint,
    /// Percent of the encoder's capacity.
    pub encoder: c_uint,
    /// Percent of the decoder's capacity.
    pub decoder: c_uint,
    /// Percent of the JPEG decoder's capacity.
    pub jpeg: c_uint,
    /// Percent of the optical flow engine's capacity.
    pub flow: c_uint,
}

/// `nvmlProcessesUtilizationInfo_v1_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SampleInfos {
    /// Size and version of this layout.
    pub version: c_uint,
    /// Length of the caller's array; after the call, the number of processes.
    pub count: c_uint,
    /// Only samples after this time are wanted, in microseconds.
    pub last_seen: u64,
    /// Array that the library fills.
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
