//! Edits that give a container its cards: NVIDIA's own, or device nodes and libraries.

use std::fmt;

use gpushare_proto::GpuUuid;

use crate::card::Card;
use crate::edits::{Edits, Node};
use crate::machine::{Driver, Machine, MachineError};
use crate::nvidia;
use crate::spec::Spec;

/// Version of the CDI specification that has all that gpushare writes: device names that begin with digits.
const OWN_VERSION: &str = "0.5.0";

/// Variable of NVIDIA's runtime: names the cards that the runtime adds by itself.
pub(crate) const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// Reason why a container cannot get a card.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The driver is not complete.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A MIG instance needs more device nodes than gpushare knows.
    #[error(
        "{0} is a MIG instance, whose device nodes only NVIDIA's tools know; write NVIDIA's CDI spec with `nvidia-ctk \
         cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml`, then try again"
    )]
    Instance(GpuUuid),
    /// A card has no device node.
    #[error("{card} has no device node /dev/nvidia{minor}; make it with `nvidia-modprobe -u -c {minor}`")]
    NoNode {
        /// UUID of the card.
        card: GpuUuid,
        /// Number of the missing node.
        minor: u32,
    },
}

/// Origin of the edits of cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// NVIDIA's CDI spec, whose edits were taken over.
    Spec,
    /// Device nodes and libraries of this machine.
    Nodes,
    /// NVIDIA's container runtime, which adds a card by itself.
    Runtime,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Spec => "NVIDIA's CDI spec",
            Self::Nodes => "device nodes and the driver's libraries",
            Self::Runtime => "NVIDIA's container runtime",
        })
    }
}

/// Edits that give a container one or more cards.
#[derive(Clone, Debug, PartialEq)]
pub struct CardEdits {
    /// Origin of the edits.
    pub source: Source,
    /// Version of the CDI specification that the edits need.
    pub(crate) version: String,
    /// Edits for any of the cards.
    pub(crate) general: Edits,
    /// Edits for each card, in the order of the machine.
    pub(crate) cards: Vec<(GpuUuid, Edits)>,
}

impl CardEdits {
    /// Returns the edits for a CDI spec: NVIDIA's if there is a spec that has all cards, else nodes.
    pub fn for_spec(machine: &Machine, cards: &[Card]) -> Result<Self, AccessError> {
        let specs = machine.specs();
        let mut nvidias = specs.iter().filter_map(|(_, text)| nvidia::parse(text));
        match nvidias.find_map(|spec| Self::of_nvidia(&spec, cards)) {
            Some(edits) => Ok(edits),
            None => Self::of_nodes(machine, cards),
        }
    }

    /// Returns the edits by device nodes and libraries of the machine.
    pub fn of_nodes(machine: &Machine, cards: &[Card]) -> Result<Self, AccessError> {
        let driver = machine.driver()?;
        let mut edits = Vec::new();
        for card in cards {
            let (Some(minor), Some(node)) = (card.minor, card.node()) else {
                return Err(AccessError::Instance(card.uuid));
            };
            if !machine.has(&node) {
                return Err(AccessError::NoNode { card: card.uuid, minor });
            }
            edits.push((card.uuid, Edits { device_nodes: vec![Node::at(node)], ..Edits::default() }));
        }
        Ok(Self::with_driver(&driver, edits))
    }

    fn with_driver(driver: &Driver, cards: Vec<(GpuUuid, Edits)>) -> Self {
        let mut general = driver.edits();
        // NVIDIA's runtime adds nothing to a container that has everything.
        general.env.push(format!("{VISIBLE}=void"));
        Self { source: Source::Nodes, version: OWN_VERSION.to_owned(), general, cards }
    }

    /// Returns the edits for containers that NVIDIA's runtime starts.
    pub fn of_runtime(cards: &[Card]) -> Self {
        Self {
            source: Source::Runtime,
            version: OWN_VERSION.to_owned(),
            general: Edits {
                env: vec!["NVIDIA_DRIVER_CAPABILITIES=compute,utility".to_owned()],
                ..Edits::default()
            },
            cards: cards.iter().map(|card| (card.uuid, Edits::default())).collect(),
        }
    }

    /// Returns the edits of NVIDIA's spec; none if it lacks a card.
    fn of_nvidia(spec: &Spec, cards: &[Card]) -> Option<Self> {
        let of_card = |card: &Card| Some((card.uuid, nvidia::edits_of(spec, card)?.clone()));
        Some(Self {
            source: Source::Spec,
            version: later(OWN_VERSION, &spec.cdi_version).to_owned(),
            general: spec.container_edits.clone(),
            cards: cards.iter().map(of_card).collect::<Option<_>>()?,
        })
    }

    /// Returns the edits of a container with these cards, without the general ones; none if the machine lacks
    /// one of the cards.
    pub(crate) fn of_cards(&self, wanted: &[GpuUuid]) -> Option<Edits> {
        let mut all = Edits::default();
        for card in wanted {
            let (_, edits) = self.cards.iter().find(|(uuid, _)| uuid == card)?;
            all.add(edits);
        }
        if self.source == Source::Runtime {
            // One variable names all of them.
            let names: Vec<String> = wanted.iter().map(GpuUuid::to_string).collect();
            all.env = vec![format!("{VISIBLE}={}", names.join(","))];
        }
        Some(all)
    }
}

/// Returns the later of two versions like `0.5.0`.
fn later<'a>(a: &'a str, b: &'a str) -> &'a str {
    let numbers = |version: &str| -> Vec<u64> {
        version
            .trim_start_matches('v')
            .split('.')
            .map(|part| part.parse().unwrap_or(0))
            .collect()
    };
    if numbers(b) > numbers(a) { b.trim_start_matches('v') } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_version_counts() {
        assert_eq!(later("0.5.0", "0.10.0"), "0.10.0");
        assert_eq!(later("0.5.0", "v1.0.0"), "1.0.0");
        assert_eq!(later("0.5.0", "0.3.0"), "0.5.0");
    }
}
