//! Placement of the application's device memory: whether a device can have managed memory in its place, and
//! what the driver is told about that memory.
//!
//! - The backend is the one that the environment names, or the best that all devices of the process can do.
//! - A device without concurrent managed access moves all managed memory at each launch. Its memory stays
//!   native.
//! - Managed memory prefers its device. Without this advice it would move to another device whose kernels
//!   use it, where device memory stays. A process with a single device needs no advice.
//! - Devices with peer access map the memory. Without this advice their kernels would fault on it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use gpushare_proto::page::MAX_GPUS;
use gpushare_proto::{Abilities, Backend, Bytes, names};

use super::Memory;
use crate::driver::types::{ADVISE_ACCESSED_BY, ADVISE_PREFERRED_LOCATION, CUdevice, CUdeviceptr};
use crate::process::stderr;

/// Memory backend of the process, and what is known of each device.
#[derive(Debug, Default)]
pub(super) struct Placement {
    backend: OnceLock<Backend>,
    /// Whether another device could use the memory of a device.
    is_contested: OnceLock<bool>,
    devices: [Device; MAX_GPUS],
}

#[derive(Debug, Default)]
struct Device {
    /// Backend on this device: that of the process, or native if the device cannot do that.
    backend: OnceLock<Backend>,
    /// Devices whose kernels may use this one's memory, as bits.
    peers: AtomicU32,
}

impl Placement {
    fn device(&self, device: CUdevice) -> Option<&Device> {
        self.devices.get(usize::try_from(device).ok()?)
    }
}

impl Memory {
    /// Returns the memory backend of the process: the one that the environment names, or the best that all its devices
    /// can do. The driver must be initialized.
    pub(crate) fn backend(&self) -> Backend {
        let can_remap = |device| Backend::of_card(self.driver.abilities(device)) == Backend::Remap;
        let all_can_remap = || {
            let mut devices = 0..self.driver.device_count().unwrap_or(0);
            !devices.is_empty() && devices.all(can_remap)
        };
        *self.placement.backend.get_or_init(|| {
            named_backend().unwrap_or_else(|| match all_can_remap() {
                true => Backend::Remap,
                false => Backend::Managed,
            })
        })
    }

    /// Returns the memory backend on a device: how its memory is allocated.
    pub(crate) fn backend_on(&self, device: CUdevice) -> Backend {
        let of_process = self.backend();
        let Some(known) = self.placement.device(device) else { return of_process };
        *known.backend.get_or_init(|| {
            let Abilities { concurrent_managed, handles, registration } = self.driver.abilities(device);
            let lacks = match of_process {
                Backend::Managed if !concurrent_managed => {
                    "has no concurrent managed access; its memory cannot move and"
                }
                Backend::Remap if !handles => "cannot map memory by handle; its memory",
                Backend::Remap if !registration => "cannot register host memory; its memory",
                _ => return of_process,
            };
            stderr::print(format_args!(
                "device {device} {lacks} stays on the card (as with --backend native)"
            ));
            Backend::Native
        })
    }

    /// Returns the devices whose kernels may use this one's memory, as bits.
    pub(super) fn peers(&self, device: CUdevice) -> u32 {
        self.placement
            .device(device)
            .map_or(0, |known| known.peers.load(Ordering::SeqCst))
    }

    /// Tells the driver where managed memory in place of device memory belongs. Advice has no effect on
    /// results, so errors are ignored.
    pub(crate) fn advise(&self, device: CUdevice, address: CUdeviceptr, size: Bytes) {
        let has_several = || self.driver.device_count().is_none_or(|count| count > 1);
        if !*self.placement.is_contested.get_or_init(has_several) {
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

/// Backend that the environment names.
fn named_backend() -> Option<Backend> {
    let word = std::env::var_os(names::BACKEND).filter(|word| !word.is_empty())?;
    let named = word.to_string_lossy().parse();
    named
        .inspect_err(|error| {
            stderr::print(format_args!("{}: {error}; the cards decide now", names::BACKEND));
        })
        .ok()
}
