//! One card, as far as a container needs it.

use std::path::PathBuf;

use gpushare_proto::GpuUuid;

/// Card of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// UUID of the card.
    pub uuid: GpuUuid,
    /// Number of the card's device node; none for a MIG instance.
    pub minor: Option<u32>,
}

impl Card {
    /// Returns the path of the card's device node; none for a MIG instance, which has several.
    pub fn node(&self) -> Option<PathBuf> {
        self.minor.map(|minor| format!("/dev/nvidia{minor}").into())
    }
}
