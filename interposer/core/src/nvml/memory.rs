//! Memory of a card as NVML reports it inside a session: the quota appears as the card's size.

use gpushare_proto::Bytes;

use super::session::Card;
use super::types::{Device, Memory, MemoryV2, NVML_SUCCESS, NvmlReturn};

/// `nvmlDeviceGetMemoryInfo`: reports the session's quota as total and its allocations as used.
pub unsafe fn info(
    real: unsafe extern "C-unwind" fn(Device, *mut Memory) -> NvmlReturn,
    device: Device,
    memory: *mut Memory,
) -> NvmlReturn {
    // SAFETY: the caller's own arguments; after success the library has written what they point to.
    unsafe {
        let result = real(device, memory);
        if let Some(card) = told(result, device, memory.is_null()) {
            let (total, used, free) = card.memory(Bytes((*memory).total));
            *memory = Memory { total: total.0, free: free.0, used: used.0 };
        }
        result
    }
}

/// `nvmlDeviceGetMemoryInfo_v2`: as [`info`]. Quota that the card cannot provide now counts as reserved.
pub unsafe fn info_v2(
    real: unsafe extern "C-unwind" fn(Device, *mut MemoryV2) -> NvmlReturn,
    device: Device,
    memory: *mut MemoryV2,
) -> NvmlReturn {
    // SAFETY: the caller's own arguments; after success the library has written what they point to.
    unsafe {
        let result = real(device, memory);
        if let Some(card) = told(result, device, memory.is_null()) {
            let (total, used, free) = card.memory(Bytes((*memory).total));
            let reserved = total - used - free;
            *memory = MemoryV2 {
                version: (*memory).version,
                total: total.0,
                reserved: reserved.0,
                free: free.0,
                used: used.0,
            };
        }
        result
    }
}

fn told(result: NvmlReturn, device: Device, nowhere: bool) -> Option<Card> {
    if result == NVML_SUCCESS && !nowhere { Card::of(device) } else { None }
}
