//! CDI spec of gpushare's devices, and the edits of one card from the same parts.

use gpushare_proto::GpuUuid;
use serde::{Deserialize, Serialize};

use crate::access::{CardEdits, Source};
use crate::edits::Edits;
use crate::share::Share;

/// Kind of the devices: `gpushare.dev/share=default`, `gpushare.dev/share=GPU-…`.
pub const KIND: &str = "gpushare.dev/share";
/// Name of the device that has all cards of the machine.
pub const ALL: &str = "default";

/// Spec of the Container Device Interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// Version of the specification that the spec needs.
    pub cdi_version: String,
    /// Kind of the devices, as `vendor/class`.
    pub kind: String,
    /// Devices that a container can ask for.
    pub devices: Vec<Device>,
    /// Edits of a container that has any of the devices.
    #[serde(default)]
    pub container_edits: Edits,
}

/// Device of a spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Name of the device within its kind.
    pub name: String,
    /// Edits of a container that has the device.
    #[serde(default)]
    pub container_edits: Edits,
}

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

impl Spec {
    /// Returns the full name of a device: `gpushare.dev/share=default`.
    pub fn full_name(&self, device: &Device) -> String {
        format!("{}={}", self.kind, device.name)
    }

    /// Returns the spec as JSON for its file.
    pub fn json(&self) -> String {
        // Neither the types nor values that were read have what JSON cannot express.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}
