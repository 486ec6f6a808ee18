//! Description of the card: its GPUs, their instances, and its numbers.

use serde::{Deserialize, Serialize};

use crate::constants::Constants;

/// Description of the card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// GPUs of the card in order.
    pub gpus: Vec<GpuDescription>,
    /// Rates and durations of the card.
    pub constants: Constants,
}

/// One GPU, or one MIG instance of a GPU that is divided: to the card they are alike, each with memory and
/// engines of its own, and a divided GPU is nothing but its instances.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuDescription {
    /// For people.
    pub name: String,
    /// 16 bytes that never change for the same card.
    pub uuid: [u8; 16],
    /// Memory of the GPU in bytes.
    pub memory: u64,
    /// Number of the GPU on the bus; instances have that of their GPU.
    pub bus: u32,
    /// Whether host and GPU can use managed memory at the same time.
    pub concurrent_managed: bool,
    /// Whether host memory can be registered that the GPU only reads.
    pub read_only_registration: bool,
    /// NUMA node of the host that is next to the GPU, and the only one with memory.
    pub host_node: u32,
    /// Whether the GPU is in persistence mode.
    pub persistence: bool,
    /// Whether memory by handle that can be exported is refused, although attribute 103 says otherwise.
    pub refuses_exportable: bool,
    /// The GPU that this is an instance of.
    pub part_of: Option<Divided>,
}

/// A GPU that is divided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Divided {
    /// For people.
    pub name: String,
    /// 16 bytes that never change for the same card.
    pub uuid: [u8; 16],
}

impl GpuDescription {
    /// The UUID as NVML and `CUDA_VISIBLE_DEVICES` write it.
    pub fn uuid_text(&self) -> String {
        match self.part_of {
            Some(_) => uuid_text("MIG", &self.uuid),
            None => uuid_text("GPU", &self.uuid),
        }
    }
}

impl Divided {
    /// The UUID as NVML writes it.
    pub fn uuid_text(&self) -> String {
        uuid_text("GPU", &self.uuid)
    }
}

fn uuid_text(of: &str, uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{of}-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
