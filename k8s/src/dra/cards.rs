//! Cards that the driver offers, as NVML describes them.

use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock};

use gpushare_proto::{Bytes, GpuUuid};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use tracing::{info, warn};

use super::devices::OfferedCard;

/// Cards of the node, of which NVML may not be able to read some.
#[derive(Debug)]
pub(crate) struct Cards {
    all: Vec<GpuUuid>,
    /// Cards that were read, in the order of `all`.
    read: RwLock<Vec<OfferedCard>>,
}

impl Cards {
    /// Reads the cards. One that cannot be read is left out for now, with a warning.
    pub(crate) fn read(nvml: &Nvml, all: Vec<GpuUuid>) -> Self {
        let cards = Self { all, read: RwLock::default() };
        for (card, cause) in cards.read_rest(nvml) {
            warn!("{card} is not offered to claims until NVML can read it: {cause}");
        }
        cards
    }

    /// Returns the cards that were read.
    pub(crate) fn offered(&self) -> Vec<OfferedCard> {
        self.read.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether one of these cards has not been read.
    pub(crate) fn lack_any_of(&self, cards: &BTreeSet<GpuUuid>) -> bool {
        let read = self.read.read().unwrap_or_else(PoisonError::into_inner);
        cards.iter().any(|card| !read.iter().any(|known| known.uuid == *card))
    }

    /// Loads NVML and reads the cards that could not be read before.
    pub(crate) fn read_again(&self) {
        let Ok(nvml) = gpushare_nvml::load() else { return };
        let before = self.offered();
        self.read_rest(&nvml);
        for card in self.offered().iter().filter(|card| !before.contains(card)) {
            info!("NVML can read {} by now", card.uuid);
        }
    }

    /// Reads the cards that were not read, and returns those that still cannot be read.
    fn read_rest(&self, nvml: &Nvml) -> Vec<(GpuUuid, NvmlError)> {
        let mut unread = Vec::new();
        let mut cards = Vec::new();
        let before = self.offered();
        for uuid in &self.all {
            match before.iter().find(|card| card.uuid == *uuid) {
                Some(card) => cards.push(card.clone()),
                None => match read(nvml, *uuid) {
                    Ok(card) => cards.push(card),
                    Err(cause) => unread.push((*uuid, cause)),
                },
            }
        }
        *self.read.write().unwrap_or_else(PoisonError::into_inner) = cards;
        unread
    }
}

fn read(nvml: &Nvml, uuid: GpuUuid) -> Result<OfferedCard, NvmlError> {
    let device = nvml.device_by_uuid(uuid.to_string())?;
    let memory = Bytes(device.memory_info()?.total);
    Ok(OfferedCard { uuid, product: device.name().unwrap_or_default(), memory })
}
