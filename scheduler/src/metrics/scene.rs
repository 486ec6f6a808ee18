//! Everything that the table's rows read: the picture, the sessions as they are shown, and what the sensors say.

use std::collections::BTreeMap;

use gpushare_core::snapshot::GpuSnapshot;
use gpushare_proto::GpuId;
use gpushare_proto::tenant::GpuInfo;

use super::picture::Picture;
use super::sensors::{Reading, Readings};
use super::tenants::{self, Tenant};

/// The daemon and its cards at one instant.
pub(super) struct Scene<'a> {
    pub(super) picture: &'a Picture,
    pub(super) cards: BTreeMap<GpuId, Card<'a>>,
    pub(super) tenants: Vec<Tenant>,
}

/// A card.
pub(super) struct Card<'a> {
    pub(super) info: &'a GpuInfo,
    pub(super) state: &'a GpuSnapshot,
    pub(super) reading: Reading,
}

impl<'a> Scene<'a> {
    pub(super) fn new(picture: &'a Picture, readings: &Readings) -> Self {
        let card = |card: &'a super::CardPicture| {
            let reading = readings.get(&card.info.uuid).copied().unwrap_or_default();
            let (info, state) = (&card.info, &card.state);
            (state.gpu, Card { info, state, reading })
        };
        Self {
            picture,
            cards: picture.cards.iter().map(card).collect(),
            tenants: tenants::tenants(&picture.sessions, tenants::MOST),
        }
    }
}

impl Card<'_> {
    /// The labels that every series of a card has: `gpu` and `uuid`.
    pub(super) fn labels(&self) -> Vec<String> {
        vec![self.state.gpu.0.to_string(), self.info.uuid.to_string()]
    }
}
