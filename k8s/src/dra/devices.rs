//! Decision which devices a node offers.
//!
//! ```text
//!   API server with consumable capacity     one device for each card: `gpu-8b6c…`, which many claims have;
//!                                           capacity `shares`: N, of which each takes 1
//!                                           capacity `memory`: of which each takes what it asks for
//!   any other                               N devices for each card: `gpu-8b6c…-0` and so on, each for one claim;
//!                                           capacity `memory`: that of the card, to select by
//! ```

use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::{Bytes, GpuUuid};
use nvml_wrapper::Nvml;

use super::objects::{Attribute, Capacity, Device, Range, RequestPolicy, Traits, Version};
use crate::quantity::Quantity;

/// Name of the capacity that claims consume one of.
pub(crate) const SHARES: &str = "shares";
/// Name of the capacity for memory.
pub(crate) const MEMORY: &str = "memory";
/// Longest text of an attribute.
const MAX_TEXT: usize = 64;

/// Card as claims see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OfferedCard {
    pub(crate) uuid: GpuUuid,
    pub(crate) product: String,
    /// Memory of the card.
    pub(crate) memory: Bytes,
}

impl OfferedCard {
    /// Reads the cards from NVML. A card whose memory cannot be read is left out.
    pub(crate) fn all(nvml: &Nvml, cards: &[GpuUuid]) -> Vec<Self> {
        let read = |uuid: &GpuUuid| {
            let device = nvml.device_by_uuid(uuid.to_string()).ok()?;
            let memory = Bytes(device.memory_info().ok()?.total);
            Some(Self { uuid: *uuid, product: device.name().unwrap_or_default(), memory })
        };
        cards.iter().filter_map(read).collect()
    }

    /// Returns the name of the card's device.
    pub(crate) fn name(&self) -> String {
        self.uuid.to_string().to_lowercase()
    }
}

/// Way in which several claims share a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One device, whose capacity claims consume.
    Consumable,
    /// One device for each share.
    Shares,
}

/// Part of each card that the administrator offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Number of claims that may have the card at the same time.
    pub(crate) shares: u16,
    /// Memory that all claims may ask for together, in percent of the card.
    pub(crate) memory: u16,
}

/// Returns the devices of the cards that are in `usable`.
pub(crate) fn devices(
    cards: &[OfferedCard],
    usable: &BTreeSet<GpuUuid>,
    offer: Offer,
    form: Form,
    version: Version,
) -> Vec<Device> {
    let usable = cards.iter().filter(|card| usable.contains(&card.uuid));
    let of_card = |card: &OfferedCard| -> Vec<Device> {
        match form {
            Form::Consumable => vec![Device::new(version, card.name(), consumable(card, offer))],
            Form::Shares => (0..offer.shares)
                .map(|share| Device::new(version, format!("{}-{share}", card.name()), share_of(card)))
                .collect(),
        }
    };
    usable.flat_map(of_card).collect()
}

/// Card and share of a device's name; no share for the device of a whole card.
pub(crate) fn find<'a>(cards: &'a [OfferedCard], device: &str) -> Option<(&'a OfferedCard, Option<u16>)> {
    cards.iter().find_map(|card| match device.strip_prefix(&card.name())? {
        "" => Some((card, None)),
        share => Some((card, Some(share.strip_prefix('-')?.parse().ok()?))),
    })
}

fn consumable(card: &OfferedCard, offer: Offer) -> Traits {
    let one = Quantity::of_count(1);
    let none = Quantity::of_count(0);
    let shares = Capacity {
        value: Quantity::of_count(offer.shares.into()),
        request_policy: Some(RequestPolicy {
            default: one.clone(),
            valid_range: Range { min: one.clone(), max: one },
        }),
    };
    let together = u128::from(card.memory.0) * u128::from(offer.memory) / 100;
    let together = Bytes(u64::try_from(together).unwrap_or(u64::MAX));
    let memory = Capacity {
        value: Quantity::of_bytes(together),
        // A claim that asks for no memory has no limit, and counts as a share only.
        request_policy: Some(RequestPolicy {
            default: none.clone(),
            valid_range: Range { min: none, max: Quantity::of_bytes(card.memory.min(together)) },
        }),
    };
    Traits {
        attributes: attributes(card),
        capacity: [(SHARES.to_owned(), shares), (MEMORY.to_owned(), memory)].into(),
        allow_multiple_allocations: Some(true),
    }
}

fn share_of(card: &OfferedCard) -> Traits {
    let memory = Capacity { value: Quantity::of_bytes(card.memory), request_policy: None };
    Traits {
        attributes: attributes(card),
        capacity: [(MEMORY.to_owned(), memory)].into(),
        allow_multiple_allocations: None,
    }
}

/// Attributes by which claims select a card.
fn attributes(card: &OfferedCard) -> BTreeMap<String, Attribute> {
    let kind = if card.uuid.is_instance() { "mig" } else { "gpu" };
    let texts =
        [("uuid", card.uuid.to_string()), ("productName", card.product.clone()), ("type", kind.to_owned())];
    let attribute = |(name, text): (&str, String)| {
        (name.to_owned(), Attribute::String(text.chars().take(MAX_TEXT).collect()))
    };
    texts.into_iter().map(attribute).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: Offer = Offer { shares: 3, memory: 150 };

    fn card(number: u8) -> OfferedCard {
        let uuid = GpuUuid::gpu([number; 16]);
        OfferedCard { uuid, product: "NVIDIA H100 80GB HBM3".to_owned(), memory: Bytes::gib(80) }
    }

    fn offered(usable: &[OfferedCard], form: Form, version: Version) -> Vec<Device> {
        let usable = usable.iter().map(|card| card.uuid).collect();
        devices(&[card(1), card(2)], &usable, OFFER, form, version)
    }

    fn name(device: &Device) -> &str {
        let (Device::Basic { name, .. } | Device::Flat { name, .. }) = device;
        name
    }

    #[test]
    fn a_card_with_consumable_capacity_is_one_device() {
        let devices = offered(&[card(1)], Form::Consumable, Version::V1);
        assert_eq!(
            devices.iter().map(name).collect::<Vec<_>>(),
            ["gpu-01010101-0101-0101-0101-010101010101"]
        );
        let traits = devices[0].traits();
        assert_eq!(traits.allow_multiple_allocations, Some(true));
        assert_eq!(traits.capacity[SHARES].value, Quantity::of_count(3));
        assert_eq!(traits.capacity[MEMORY].value.to_string(), "120Gi");
        let policy = traits.capacity[MEMORY].request_policy.as_ref().unwrap();
        assert_eq!(
            (policy.default.to_string(), policy.valid_range.max.to_string()),
            ("0".into(), "80Gi".into())
        );
    }

    #[test]
    fn without_it_each_share_is_a_device() {
        let devices = offered(&[card(1), card(2)], Form::Shares, Version::V1Beta1);
        assert_eq!(devices.len(), 6);
        assert!(devices.iter().all(|device| matches!(device, Device::Basic { .. })));
        assert_eq!(name(&devices[5]), "gpu-02020202-0202-0202-0202-020202020202-2");
        assert_eq!(devices[5].traits().capacity[MEMORY].value.to_string(), "80Gi");
    }

    #[test]
    fn a_card_that_is_not_usable_has_no_devices() {
        assert_eq!(offered(&[], Form::Consumable, Version::V1), []);
        assert_eq!(offered(&[card(2)], Form::Shares, Version::V1).len(), 3);
    }

    #[test]
    fn a_device_is_found_by_its_name_in_either_form() {
        let cards = [card(1), card(2)];
        let own = cards[1].name();
        assert_eq!(find(&cards, &own), Some((&cards[1], None)));
        assert_eq!(find(&cards, &format!("{own}-12")), Some((&cards[1], Some(12))));
        for wrong in ["", "gpu-03", &format!("{own}-"), &format!("{own}-x"), &format!("{own}0")] {
            assert_eq!(find(&cards, wrong), None, "{wrong}");
        }
        assert!(format!("{own}-999").len() <= 63, "a name is a DNS label");
    }
}
