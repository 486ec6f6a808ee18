//! Objects of the API group `resource.k8s.io`, as far as the driver reads and writes them.
//!
//! The versions differ in one place: v1beta1 has the traits of a device in a field `basic`.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::quantity::Quantity;

/// API group of all objects.
pub(crate) const GROUP: &str = "resource.k8s.io";

/// Version of the API group, from the oldest to the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Version {
    /// Since Kubernetes 1.32.
    V1Beta1,
    /// Since Kubernetes 1.33.
    V1Beta2,
    /// Since Kubernetes 1.34.
    V1,
}

impl Version {
    /// All versions, the oldest first.
    pub(crate) const ALL: [Self; 3] = [Self::V1Beta1, Self::V1Beta2, Self::V1];

    /// Returns the name of the version in paths.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V1Beta1 => "v1beta1",
            Self::V1Beta2 => "v1beta2",
            Self::V1 => "v1",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{GROUP}/{}", self.name())
    }
}

/// Contents of a ResourceSlice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SliceSpec {
    pub(crate) driver: String,
    pub(crate) pool: Pool,
    pub(crate) node_name: String,
    #[serde(default)]
    pub(crate) devices: Vec<Device>,
}

/// Pool of a slice. All slices of a node are one pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pool {
    pub(crate) name: String,
    /// Number of the pool's state, which each change raises.
    pub(crate) generation: i64,
    pub(crate) resource_slice_count: i64,
}

/// Device in a slice, in the form of its version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Device {
    /// Form of v1beta1.
    Basic { name: String, basic: Traits },
    /// Form of all later versions.
    Flat {
        name: String,
        #[serde(flatten)]
        traits: Traits,
    },
}

impl Device {
    pub(crate) fn new(version: Version, name: String, traits: Traits) -> Self {
        match version {
            Version::V1Beta1 => Self::Basic { name, basic: traits },
            Version::V1Beta2 | Version::V1 => Self::Flat { name, traits },
        }
    }

    /// Returns the properties of the device.
    pub(crate) fn traits(&self) -> &Traits {
        match self {
            Self::Basic { basic: traits, .. } | Self::Flat { traits, .. } => traits,
        }
    }
}

/// Properties of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Traits {
    pub(crate) attributes: BTreeMap<String, Attribute>,
    pub(crate) capacity: BTreeMap<String, Capacity>,
    /// Whether several claims may have the device, which then consume its capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allow_multiple_allocations: Option<bool>,
}

/// Attribute of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Attribute {
    Bool(bool),
    Int(i64),
    String(String),
    Version(String),
}

/// Capacity of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Capacity {
    pub(crate) value: Quantity,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_policy: Option<RequestPolicy>,
}

/// Amounts of a capacity that a request may consume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RequestPolicy {
    /// Amount of a request that names none.
    pub(crate) default: Quantity,
    pub(crate) valid_range: Range,
}

/// Least and most that a request may consume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Range {
    pub(crate) min: Quantity,
    pub(crate) max: Quantity,
}

/// Status of a ResourceClaim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClaimStatus {
    pub(crate) allocation: Option<Allocation>,
    pub(crate) reserved_for: Vec<Consumer>,
}

/// Allocation of a claim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Allocation {
    pub(crate) devices: Allocated,
}

/// Devices of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Allocated {
    pub(crate) results: Vec<AllocationResult>,
    pub(crate) config: Vec<AllocationConfig>,
}

/// Device that a request got.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AllocationResult {
    /// Name of the request, or `REQUEST/SUBREQUEST`.
    pub(crate) request: String,
    pub(crate) driver: String,
    pub(crate) pool: String,
    pub(crate) device: String,
    /// Whether the claim observes the device beside those that use it.
    pub(crate) admin_access: Option<bool>,
    #[serde(rename = "shareID")]
    pub(crate) share_id: Option<String>,
    /// Capacity that the claim consumes; empty where devices have one claim.
    pub(crate) consumed_capacity: BTreeMap<String, Quantity>,
}

/// Parameters of a claim or of its class.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct AllocationConfig {
    /// Requests that the parameters are for; empty for all.
    pub(crate) requests: Vec<String>,
    pub(crate) opaque: Option<Opaque>,
}

/// Parameters for one driver.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Opaque {
    pub(crate) driver: String,
    pub(crate) parameters: Value,
}

/// User of a claim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Consumer {
    pub(crate) resource: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}
