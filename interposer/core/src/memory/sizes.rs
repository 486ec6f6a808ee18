//! Sizes of the cards as the driver's `cuMemGetInfo` returned them, so that it is asked once for each card.

use std::sync::atomic::{AtomicU64, Ordering};

use gpushare_proto::Bytes;
use gpushare_proto::page::MAX_GPUS;

use crate::driver::types::CUdevice;

/// Size of each card in bytes; 0 for an unknown one.
#[derive(Debug, Default)]
pub(super) struct Sizes([AtomicU64; MAX_GPUS]);

impl Sizes {
    pub(super) fn get(&self, device: CUdevice) -> Option<Bytes> {
        let size = self.slot(device)?.load(Ordering::Relaxed);
        (size > 0).then_some(Bytes(size))
    }

    pub(super) fn set(&self, device: CUdevice, size: Bytes) {
        if let Some(slot) = self.slot(device) {
            slot.store(size.0, Ordering::Relaxed);
        }
    }

    /// Forgets the size of a device of which a context died. A thread that has it current must hear that from the driver.
    pub(super) fn forget(&self, device: CUdevice) {
        self.set(device, Bytes::ZERO);
    }

    fn slot(&self, device: CUdevice) -> Option<&AtomicU64> {
        self.0.get(usize::try_from(device).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_known_until_it_is_forgotten() {
        let sizes = Sizes::default();
        assert_eq!(sizes.get(0), None);
        sizes.set(0, Bytes::gib(8));
        assert_eq!((sizes.get(0), sizes.get(1)), (Some(Bytes::gib(8)), None));
        sizes.forget(0);
        assert_eq!(sizes.get(0), None);
    }

    #[test]
    fn an_ordinal_out_of_range_has_no_size() {
        let sizes = Sizes::default();
        for device in [-1, 16, CUdevice::MAX] {
            sizes.set(device, Bytes::gib(8));
            assert_eq!(sizes.get(device), None);
        }
    }
}
