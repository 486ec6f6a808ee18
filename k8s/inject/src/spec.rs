//! CDI spec, as gpushare writes it and as NVIDIA does.

use serde::{Deserialize, Serialize};

use crate::edits::Edits;

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
