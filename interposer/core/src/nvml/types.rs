//! Types and values of NVML that gpushare reads or writes (NVML API reference, `nvml.h`).

use std::ffi::{c_int, c_uint, c_void};

/// Result code of an NVML call (`nvmlReturn_t`).
pub type NvmlReturn = c_int;
/// Handle of a GPU or of a MIG instance (`nvmlDevice_t`).
pub type Device = *mut c_void;

/// The call succeeded.
pub const NVML_SUCCESS: NvmlReturn = 0;
/// An argument of the call is out of range.
pub const NVML_ERROR_INVALID_ARGUMENT: NvmlReturn = 2;
/// The queried object does not exist.
pub const NVML_ERROR_NOT_FOUND: NvmlReturn = 6;
/// The caller's array is too small; the call returns the needed length.
pub const NVML_ERROR_INSUFFICIENT_SIZE: NvmlReturn = 7;
/// The installed NVML lacks the function.
pub const NVML_ERROR_FUNCTION_NOT_FOUND: NvmlReturn = 13;

/// Instance number of a process that is on no MIG instance (`nvmlProcessInfo_t`).
pub const NO_INSTANCE: c_uint = c_uint::MAX;

/// Memory of a card (`nvmlMemory_t`): bytes in total, bytes that can be allocated, and allocated bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Memory {
    pub(super) total: u64,
    pub(super) free: u64,
    pub(super) used: u64,
}

/// Memory of a card (`nvmlMemory_v2_t`): bytes as in [`Memory`], and bytes that the system reserves. Only the
/// caller writes the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct MemoryV2 {
    pub(super) version: c_uint,
    pub(super) total: u64,
    pub(super) reserved: u64,
    pub(super) free: u64,
    pub(super) used: u64,
}

/// `nvmlProcessInfo_v1_t`: a process with its bytes on the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Process1 {
    pub(super) pid: c_uint,
    pub(super) used: u64,
}

/// `nvmlProcessInfo_v2_t` and `nvmlProcessInfo_t`: a process with its bytes on the card, and the GPU instance
/// and compute instance that it is on, or [`NO_INSTANCE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Process2 {
    pub(super) pid: c_uint,
    pub(super) used: u64,
    pub(super) gpu_instance: c_uint,
    pub(super) compute_instance: c_uint,
}

/// `nvmlProcessDetail_v1_t`: a process as in [`Process2`], and the bytes of protected memory that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProcessDetail {
    pub(super) pid: c_uint,
    pub(super) used: u64,
    pub(super) gpu_instance: c_uint,
    pub(super) compute_instance: c_uint,
    pub(super) protected: u64,
}

/// Process list of a card (`nvmlProcessDetailList_v1_t`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ProcessDetailList {
    pub(super) version: c_uint,
    /// Kind of processes that the caller wants.
    pub(super) mode: c_uint,
    /// Length of the caller's array; after the call, the number of processes.
    pub(super) count: c_uint,
    /// Array of the caller that NVML fills.
    pub(super) processes: *mut ProcessDetail,
}

/// `nvmlUtilization_t`: percent of time in which a kernel ran, and in which memory was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Utilization {
    pub(super) gpu: c_uint,
    pub(super) memory: c_uint,
}

/// Share of a process in the card's engines (`nvmlProcessUtilizationSample_t`), in percent of time or
/// capacity; `timestamp` is in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sample {
    pub(super) pid: c_uint,
    pub(super) timestamp: u64,
    pub(super) sm: c_uint,
    pub(super) memory: c_uint,
    pub(super) encoder: c_uint,
    pub(super) decoder: c_uint,
}

/// Share of a process in the card's engines (`nvmlProcessUtilizationInfo_v1_t`), as in [`Sample`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SampleInfo {
    pub(super) timestamp: u64,
    pub(super) pid: c_uint,
    pub(super) sm: c_uint,
    pub(super) memory: c_uint,
    pub(super) encoder: c_uint,
    pub(super) decoder: c_uint,
    pub(super) jpeg: c_uint,
    pub(super) flow: c_uint,
}

/// List of samples of all processes (`nvmlProcessesUtilizationInfo_v1_t`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SampleInfos {
    pub(super) version: c_uint,
    /// Length of the caller's array; after the call, the number of processes.
    pub(super) count: c_uint,
    /// Timestamp in microseconds; the caller wants only later samples.
    pub(super) last_seen: u64,
    /// Array of the caller that NVML fills.
    pub(super) samples: *mut SampleInfo,
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
