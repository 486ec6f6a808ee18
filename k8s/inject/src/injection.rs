//! Everything that a container gets: by a CDI spec, or as edits for one container.

use gpushare_proto::GpuUuid;

use crate::access::{CardEdits, Source};
use crate::edits::Edits;
use crate::share::Share;
use crate::spec::{ALL, Device, KIND, Spec};

/// Everything that containers of a machine get.
#[derive(Clone, Debug, PartialEq)]
pub struct Injection {
    share: Edits,
    cards: CardEdits,
}

impl Injection {
    /// Joins the files of gpushare and the cards.
    pub fn new(share: &Share, cards: CardEdits) -> Self {
        Self { share: share.edits(), cards }
    }

    /// Returns the origin of the cards' edits.
    pub fn source(&self) -> Source {
        self.cards.source
    }

    /// Returns the UUIDs of the cards, in the order of the machine.
    pub fn cards(&self) -> impl Iterator<Item = GpuUuid> + '_ {
        self.cards.cards.iter().map(|(uuid, _)| *uuid)
    }

    /// Returns the edits of a container that has these cards; none if the machine lacks one of them.
    pub fn of_cards(&self, cards: &[GpuUuid]) -> Option<Edits> {
        let mut edits = self.general();
        edits.add(&self.cards.of_cards(cards)?);
        Some(edits)
    }

    /// Returns the CDI spec: a device with all cards, and one for each.
    pub fn spec(&self) -> Spec {
        let mut all = Edits::default();
        for (_, edits) in &self.cards.cards {
            all.add(edits);
        }
        let each = self.cards.cards.iter().map(|(uuid, edits)| (uuid.to_string(), edits.clone()));
        let devices = std::iter::once((ALL.to_owned(), all)).chain(each);
        Spec {
            cdi_version: self.cards.version.clone(),
            kind: KIND.to_owned(),
            devices: devices
                .map(|(name, container_edits)| Device { name, container_edits })
                .collect(),
            container_edits: self.general(),
        }
    }

    fn general(&self) -> Edits {
        let mut edits = self.share.clone();
        edits.add(&self.cards.general);
        edits
    }
}
