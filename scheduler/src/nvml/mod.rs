//! Cards, sensors and processes as NVIDIA's management library (NVML) reports them.
//!
//! NVML is optional: without it the daemon learns of a card from the first client that uses it.
//!
//! A GPU that is divided into MIG instances cannot be used as a whole. Each of its instances is a card
//! instead, with its own identity and memory.

mod reader;

use std::collections::BTreeMap;
use std::ffi::OsStr;

use gpushare_proto::tenant::GpuInfo;
use gpushare_proto::{Bytes, GpuUuid};
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};
use tracing::{debug, info, warn};

pub(crate) use reader::Reader;

/// File name of the library in the driver's packages, without the link for developers.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// `NVML_DEVICE_MIG_ENABLE`.
const MIG_ENABLED: u32 = 1;

/// Returns the machine's cards in NVML's order; none without the library.
pub(crate) fn cards() -> Vec<GpuInfo> {
    let nvml = match load() {
        Ok(nvml) => nvml,
        Err(cause) => {
            info!("no NVML ({cause}): cards are known when their first process comes");
            return Vec::new();
        }
    };
    devices(&nvml)
        .filter_map(|device| {
            card(&device)
                .inspect_err(|cause| warn!("NVML does not describe a card: {cause}"))
                .ok()
                .flatten()
        })
        .collect()
}

/// Returns all undivided GPUs and all MIG instances, in NVML's order.
fn devices(nvml: &Nvml) -> impl Iterator<Item = Device<'_>> {
    let whole = (0..nvml.device_count().unwrap_or(0)).filter_map(|index| {
        nvml.device_by_index(index)
            .inspect_err(|cause| warn!("NVML does not give card {index}: {cause}"))
            .ok()
    });
    whole.flat_map(|device| match device.mig_mode() {
        Ok(mode) if mode.current == MIG_ENABLED => instances(&device),
        // An error means that the library or the GPU does not support instances.
        _ => vec![device],
    })
}

/// Returns the instances of a divided GPU. Their indexes have gaps where instances of other sizes could
/// begin.
fn instances<'nvml>(device: &Device<'nvml>) -> Vec<Device<'nvml>> {
    let most = device.mig_device_count().unwrap_or(0);
    (0..most).filter_map(|index| device.mig_device_by_index(index).ok()).collect()
}

/// Loads the library.
pub(crate) fn load() -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(OsStr::new(LIBRARY)).init()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) used: Option<Bytes>,
    /// Share of the last sample period in which a kernel ran.
    pub(crate) busy_percent: Option<u32>,
    pub(crate) celsius: Option<u32>,
    /// Power draw of the card.
    pub(crate) milliwatts: Option<u32>,
}

pub(crate) type Readings = BTreeMap<GpuUuid, Reading>;

/// Reads the sensors of all cards. A card that does not answer is left out.
pub(crate) fn readings(nvml: &Nvml) -> Readings {
    devices(nvml)
        .filter_map(|device| {
            let uuid = device.uuid().ok()?.parse().ok()?;
            let reading = Reading {
                used: device.memory_info().ok().map(|memory| Bytes(memory.used)),
                busy_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
                celsius: device.temperature(TemperatureSensor::Gpu).ok(),
                milliwatts: device.power_usage().ok(),
            };
            Some((uuid, reading))
        })
        .collect()
}

/// Bytes of each process on one card, by pid; `None` if NVML lists the process without its bytes.
pub(crate) type OnCard = BTreeMap<u32, Option<Bytes>>;

/// Processes on each card; `None` for a card whose list could not be read this time.
pub(crate) type Usages = BTreeMap<GpuUuid, Option<OnCard>>;

/// Lists the processes on all cards. A card that can never list them is left out.
pub(crate) fn usages(nvml: &Nvml) -> Usages {
    devices(nvml)
        .filter_map(|device| {
            let uuid = device.uuid().ok()?.parse().ok()?;
            match device.running_compute_processes() {
                Ok(processes) => Some((uuid, Some(processes.iter().map(usage).collect()))),
                Err(cause) if is_permanent(&cause) => None,
                // A process that starts between NVML's count and its list causes this too.
                Err(cause) => {
                    debug!("NVML does not list the processes on {uuid} now: {cause}");
                    Some((uuid, None))
                }
            }
        })
        .collect()
}

fn usage(process: &ProcessInfo) -> (u32, Option<Bytes>) {
    let bytes = match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
        UsedGpuMemory::Unavailable => None,
    };
    (process.pid, bytes)
}

/// Returns whether a card will never list processes: its driver cannot (WSL, a virtual machine), or the card
/// is lost.
fn is_permanent(cause: &NvmlError) -> bool {
    matches!(
        cause,
        NvmlError::NotSupported
            | NvmlError::NoPermission
            | NvmlError::GpuLost
            | NvmlError::FunctionNotFound
            | NvmlError::FailedToLoadSymbol(_)
    )
}

fn card(device: &Device<'_>) -> Result<Option<GpuInfo>, NvmlError> {
    let Ok(uuid) = device.uuid()?.parse() else {
        return Ok(None);
    };
    Ok(Some(GpuInfo { uuid, name: device.name()?, total: Bytes(device.memory_info()?.total) }))
}
