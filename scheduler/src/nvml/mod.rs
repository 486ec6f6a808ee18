//! The cards that NVIDIA's management library knows. It is optional: without it a card is known from what
//! its first client announces.
//!
//! A GPU that is divided into MIG instances is no card: nobody can use it as a whole. Each of its instances is one,
//! in the place of the GPU, with its own identity and memory.

mod meter;

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

pub(crate) use meter::Meter;

use crate::metrics::{Reading, Readings};

/// The library's name as the driver's own packages install it, without the development link.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// `NVML_DEVICE_MIG_ENABLE`.
const MIG_ENABLED: u32 = 1;

/// The machine's cards in NVML's order; none without the library.
#[must_use]
pub fn cards() -> Vec<GpuInfo> {
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

/// What can be a card, in NVML's order.
fn devices(nvml: &Nvml) -> impl Iterator<Item = Device<'_>> {
    let whole = (0..nvml.device_count().unwrap_or(0)).filter_map(|index| {
        nvml.device_by_index(index)
            .inspect_err(|cause| warn!("NVML does not give card {index}: {cause}"))
            .ok()
    });
    whole.flat_map(|device| match device.mig_mode() {
        Ok(mode) if mode.current == MIG_ENABLED => instances(&device),
        // Also where the library or the GPU does not know of instances.
        _ => vec![device],
    })
}

/// The instances of a divided GPU. Their numbers have gaps where other sizes would begin.
fn instances<'nvml>(device: &Device<'nvml>) -> Vec<Device<'nvml>> {
    let most = device.mig_device_count().unwrap_or(0);
    (0..most).filter_map(|index| device.mig_device_by_index(index).ok()).collect()
}

/// Loads the library.
///
/// # Errors
/// If there is none, or it does not come to terms with the driver.
pub(crate) fn load() -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(OsStr::new(LIBRARY)).init()
}

/// What the sensors of all cards say; a card that does not answer is left out.
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

/// What each process has on a card, by pid; none where NVML lists the process and does not know its bytes.
pub(crate) type OnCard = BTreeMap<u32, Option<Bytes>>;

/// The processes on each card; none for one that fails to say this time.
pub(crate) type Usages = BTreeMap<GpuUuid, Option<OnCard>>;

/// What the processes on all cards have there; a card that never says is left out.
pub(crate) fn usages(nvml: &Nvml) -> Usages {
    devices(nvml)
        .filter_map(|device| {
            let uuid = device.uuid().ok()?.parse().ok()?;
            match device.running_compute_processes() {
                Ok(processes) => Some((uuid, Some(processes.iter().map(usage).collect()))),
                Err(cause) if never_says(&cause) => None,
                // Whoever starts programs while their number is asked for brings this about as well.
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

/// Whether a card has nothing to list, today or tomorrow: a driver that lists nobody (WSL, a guest), or a card that is gone with all
/// that was on it.
fn never_says(cause: &NvmlError) -> bool {
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
