//! Placement of the application's device memory: whether a device can have managed memory in its place, and
//! what the driver is told about that memory.
//!
//! - A device without concurrent managed access moves all managed memory at each launch. Its memory stays
//!   native.
//! - Managed memory prefers its device. Without this advice it would move to another device whose kernels
//!   use it, where device memory stays. A process with a single device needs no advice.
//! - Devices with peer access map the memory. Without this advice their kernels would fault on it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use gpushare_proto::page::MAX_GPUS;
use gpushare_proto::{Backend, Bytes, names};

use super::Memory;
use crate::driver::types::{ADVISE_ACCESSED_BY, ADVISE_PREFERRED_LOCATION, CUdevice, CUdeviceptr};
use crate::process::stderr;

/// Memory backend that the user chose, and what is known of each device.
#[derive(Debug)]
pub(super) struct Placement {
    chosen: Backend,
    /// Whether another device could use the memory of a device.
    is_contested: OnceLock<bool>,
    devices: [Device; MAX_GPUS],
}

#[derive(Debug, Default)]
struct Device {
    /// Whether the device has concurrent managed access: [`UNKNOWN`], [`ABSENT`] or [`PRESENT`].
    access: AtomicU8,
    /// Whether memory can be mapped by handle on the device, as `access`.
    handles: AtomicU8,
    /// Devices whose kernels may use this one's memory, as bits.
    peers: AtomicU32,
}

const UNKNOWN: u8 = 0;
const ABSENT: u8 = 1;
const PRESENT: u8 = 2;

impl Placement {
    pub(super) fn of_environment() -> Self {
        Self { chosen: backend(), is_contested: OnceLock::new(), devices: Default::default() }
    }

    fn device(&self, device: CUdevice) -> Option<&Device> {
        self.devices.get(usize::try_from(device).ok()?)
    }
}

impl Memory {
    /// Returns the memory backend on a device: how its memory is allocated.
    pub(crate) fn backend(&self, device: CUdevice) -> Backend {
        let (known, chosen) = (self.placement.device(device), self.placement.chosen);
        match (chosen, known) {
            (Backend::Managed, Some(known)) if !self.has_access(device, known) => Backend::Native,
            (Backend::Remap, Some(known)) if !self.has_handles(device, known) => Backend::Native,
            _ => chosen,
        }
    }

    fn has_handles(&self, device: CUdevice, known: &Device) -> bool {
        match known.handles.load(Ordering::Relaxed) {
            UNKNOWN => {
                let has_handles = self.driver.can_remap(device);
                let found = if has_handles { PRESENT } else { ABSENT };
                if known.handles.swap(found, Ordering::Relaxed) == UNKNOWN && !has_handles {
                    let line = "cannot map memory by handle; its memory stays on the card";
                    stderr::print(format_args!("device {device} {line} (as with --backend native)"));
                }
                has_handles
            }
            handles => handles == PRESENT,
        }
    }

    /// Returns the devices whose kernels may use this one's memory, as bits.
    pub(super) fn peers(&self, device: CUdevice) -> u32 {
        self.placement
            .device(device)
            .map_or(0, |known| known.peers.load(Ordering::SeqCst))
    }

    fn has_access(&self, device: CUdevice, known: &Device) -> bool {
        match known.access.load(Ordering::Relaxed) {
            UNKNOWN => {
                let has_access = self.driver.has_concurrent_managed_access(device);
                let found = if has_access { PRESENT } else { ABSENT };
                if known.access.swap(found, Ordering::Relaxed) == UNKNOWN && !has_access {
                    let line =
                        "has no concurrent managed access; its memory cannot move and stays on the card";
                    stderr::print(format_args!("device {device} {line} (as with --backend native)"));
                }
                has_access
            }
            access => access == PRESENT,
        }
    }

    /// Tells the driver where managed memory in place of device memory belongs. Advice has no effect on
    /// results, so errors are ignored.
    pub(crate) fn advise(&self, device: CUdevice, address: CUdeviceptr, size: Bytes) {
        if !*self.placement.is_contested.get_or_init(|| self.driver.has_several_devices()) {
            return;
        }
        self.advise_one(ADVISE_PREFERRED_LOCATION, device, address, size);
        let peers = self
            .placement
            .device(device)
            .map_or(0, |known| known.peers.load(Ordering::SeqCst));
        for peer in (0..MAX_GPUS as CUdevice).filter(|peer| peers & (1 << peer) != 0) {
            self.advise_one(ADVISE_ACCESSED_BY, peer, address, size);
        }
    }

    /// Maps the memory of `device` for the kernels of `peer`, now and in later allocations.
    pub(crate) fn add_peer(&self, device: CUdevice, peer: CUdevice) {
        let Some(known) = self
            .placement
            .device(device)
            .filter(|_| (0..MAX_GPUS as CUdevice).contains(&peer))
        else {
            return;
        };
        // Before the table is read: a thread that records a block afterwards sees the new peer.
        known.peers.fetch_or(1 << peer, Ordering::SeqCst);
        self.remap.set_peers(device, self.peers(device));
        for (address, size) in self.blocks.rewritten_on(device) {
            self.advise_one(ADVISE_ACCESSED_BY, peer, address, size);
        }
    }

    fn advise_one(&self, advice: i32, device: CUdevice, address: CUdeviceptr, size: Bytes) {
        if let Some(advise) = self.driver.mem_advise {
            // SAFETY: the range is ours. If another thread has freed it, the driver refuses it.
            unsafe { advise(address, size.0 as usize, advice, device) };
        }
    }
}

fn backend() -> Backend {
    let Some(word) = std::env::var_os(names::BACKEND) else { return Backend::default() };
    word.to_string_lossy().parse().unwrap_or_else(|error| {
        stderr::print(format_args!("{}: {error}; memory is managed now", names::BACKEND));
        Backend::default()
    })
}
