//! Data of the metrics page: the daemon's figures, the sensor values, and the sessions that are shown.

use std::collections::BTreeMap;

use gpushare_core::snapshot::GpuSnapshot;
use gpushare_proto::GpuId;
use gpushare_proto::tenant::GpuInfo;

use super::picture::{CardPicture, Picture};
use super::sessions::{self, SessionRow};
use crate::nvml::{Reading, Readings};

pub(super) struct Scene<'a> {
    pub(super) picture: &'a Picture,
    pub(super) cards: BTreeMap<GpuId, Card<'a>>,
    pub(super) sessions: Vec<SessionRow>,
}

pub(super) struct Card<'a> {
    pub(super) info: &'a GpuInfo,
    pub(super) state: &'a GpuSnapshot,
    pub(super) reading: Reading,
}

impl<'a> Scene<'a> {
    /// Creates the scene. Without `names` all names of sessions are empty.
    pub(super) fn new(picture: &'a Picture, readings: &Readings, names: bool) -> Self {
        let card = |CardPicture { info, state }: &'a CardPicture| {
            let reading = readings.get(&info.uuid).copied().unwrap_or_default();
            (state.gpu, Card { info, state, reading })
        };
        Self {
            picture,
            cards: picture.cards.iter().map(card).collect(),
            sessions: sessions::rows(&picture.sessions, sessions::MOST, names),
        }
    }
}

impl Card<'_> {
    pub(super) fn labels(&self) -> Vec<String> {
        vec![self.state.gpu.0.to_string(), self.info.uuid.to_string()]
    }
}
