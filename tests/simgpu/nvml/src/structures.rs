//! Structures that NVML's functions fill, as NVIDIA's header lays them out.

use crate::ffi::Out;
use crate::session::Device;

macro_rules! structures {
    ($(struct $name:ident { $($(#[$attribute:meta])* $field:ident: $type:ty),* $(,)? })*) => {$(
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(crate) struct $name { $($(#[$attribute])* pub(crate) $field: $type),* }
    )*};
}

structures! {
    struct Memory {
        total: u64,
        free: u64,
        used: u64,
    }

    struct MemoryV2 {
        version: u32,
        total: u64,
        reserved: u64,
        free: u64,
        used: u64,
    }

    struct Utilization {
        gpu: u32,
        memory: u32,
    }

    struct PciInfo {
        bus_id_legacy: [u8; 16],
        domain: u32,
        bus: u32,
        device: u32,
        pci_device_id: u32,
        pci_subsystem_id: u32,
        bus_id: [u8; 32],
    }

    struct ProcessInfo {
        pid: u32,
        used_memory: u64,
        gpu_instance: u32,
        compute_instance: u32,
    }

    struct ProcessInfoV1 {
        pid: u32,
        used_memory: u64,
    }

    struct ProcessDetail {
        pid: u32,
        used_memory: u64,
        gpu_instance: u32,
        compute_instance: u32,
        protected: u64,
    }

    struct ProcessDetailList {
        version: u32,
        /// 0 for what computes.
        mode: u32,
        count: u32,
        processes: Out<ProcessDetail>,
    }

    struct AccountingStats {
        gpu: u32,
        memory: u32,
        most_memory: u64,
        time: u64,
        start: u64,
        running: u32,
        reserved: [u32; 5],
    }

    struct ProcessUtilizationInfo {
        /// Microseconds.
        timestamp: u64,
        pid: u32,
        sm: u32,
        memory: u32,
        encoder: u32,
        decoder: u32,
        jpeg: u32,
        flow: u32,
    }

    struct EventData {
        device: Device,
        event_type: u64,
        event_data: u64,
        gpu_instance: u32,
        compute_instance: u32,
    }

    struct ProcessesUtilization {
        version: u32,
        count: u32,
        last_seen: u64,
        samples: Out<ProcessUtilizationInfo>,
    }

    struct ProcessUtilization {
        pid: u32,
        /// Microseconds.
        timestamp: u64,
        sm: u32,
        memory: u32,
        encoder: u32,
        decoder: u32,
    }
}

/// Returns the version that a structure carries: its size and its number.
pub(crate) const fn structure<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | (number << 24)
}
