//! NVIDIA's CDI spec, as `nvidia-ctk cdi generate` writes it: which of its edits belong to a card.
//!
//! A card is found by a device of its UUID. Specs whose devices have only numbers are searched for the device
//! that has the card's node, and no other card's.

use std::path::Path;

use crate::card::Card;
use crate::edits::Edits;
use crate::spec::Spec;

/// Kind of NVIDIA's devices.
const KIND: &str = "nvidia.com/gpu";

/// Returns NVIDIA's spec in a text; none if the text is another spec, or no spec.
pub(crate) fn parse(text: &str) -> Option<Spec> {
    // JSON is YAML too.
    let spec: Spec = serde_yaml_ng::from_str(text).ok()?;
    (spec.kind == KIND).then_some(spec)
}

/// Returns the edits of a card besides those of the whole spec; none if the spec does not have the card.
pub(crate) fn edits_of<'a>(spec: &'a Spec, card: &Card) -> Option<&'a Edits> {
    let uuid = card.uuid.to_string();
    let by_uuid = spec.devices.iter().find(|device| device.name == uuid);
    let device = by_uuid.or_else(|| {
        let node = card.node()?;
        spec.devices.iter().find(|device| {
            let nodes = device.container_edits.device_nodes.iter().map(|node| node.path.as_path());
            nodes.filter(|path| is_card(path)).eq([node.as_path()])
        })
    });
    device.map(|device| &device.container_edits)
}

/// Returns whether a path is the device node of a card.
fn is_card(path: &Path) -> bool {
    let number = path.to_str().and_then(|path| path.strip_prefix("/dev/nvidia"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const YAML: &str = r#"---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
  env: [NVIDIA_VISIBLE_DEVICES=void]
  deviceNodes:
    - path: /dev/nvidiactl
devices:
  - name: "0"
    containerEdits:
      deviceNodes: [{path: /dev/nvidia1}, {path: /dev/dri/card1}]
  - name: GPU-00000000-0000-0000-0000-000000000002
    containerEdits:
      deviceNodes: [{path: /dev/nvidia7}]
  - name: all
    containerEdits:
      deviceNodes: [{path: /dev/nvidia1}, {path: /dev/nvidia7}]
"#;

    fn node_of(card: &Card) -> Option<String> {
        let spec = parse(YAML).unwrap();
        let edits = edits_of(&spec, card)?;
        Some(edits.device_nodes[0].path.display().to_string())
    }

    #[test]
    fn a_card_is_found_by_its_uuid_else_by_its_node() {
        let card = |last, minor| Card {
            uuid: gpushare_proto::GpuUuid::gpu([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]),
            minor,
        };
        assert_eq!(node_of(&card(2, Some(7))).as_deref(), Some("/dev/nvidia7"));
        assert_eq!(node_of(&card(1, Some(1))).as_deref(), Some("/dev/nvidia1"));
        assert_eq!(node_of(&card(3, Some(3))), None);
        assert_eq!(node_of(&card(4, None)), None, "an instance without its UUID in the spec");
    }

    #[test]
    fn other_specs_and_broken_ones_are_not_nvidias() {
        assert!(parse(&YAML.replace("nvidia.com/gpu", "management.nvidia.com/gpu")).is_none());
        assert!(parse("cdiVersion: [").is_none());
        assert!(parse(r#"{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": []}"#).is_some());
    }
}
