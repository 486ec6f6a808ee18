//! Cards, sensors and processes as NVIDIA's management library (NVML) reports them.
//!
//! NVML is optional. Without NVML a card becomes known through the first client that uses it.

mod reader;

use std::collections::BTreeMap;

use gpushare_nvml::{devices, load};
use gpushare_proto::tenant::GpuInfo;
use gpushare_proto::{Bytes, GpuUuid};
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::{ProcessInfo, ProcessUtilizationSample};
use nvml_wrapper::{Device, Nvml};
use tracing::{debug, info, warn};

pub(crate) use reader::Reader;

/// Returns the machine's cards in NVML's order; none without NVML.
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) used: Option<Bytes>,
    /// Share of the last sample period in which the card ran a kernel, in percent.
    pub(crate) busy_percent: Option<u32>,
    pub(crate) celsius: Option<u32>,
    /// Power draw of the card in milliwatts.
    pub(crate) milliwatts: Option<u32>,
}

pub(crate) type Readings = BTreeMap<GpuUuid, Reading>;

/// Reads the sensors of all cards. Omits a card that does not answer.
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

/// Facts about one card that decide whether processes can be frozen and thawed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Free memory of the card; none if NVML does not say.
    pub(crate) free: Option<Bytes>,
    /// Whether the card is in persistence mode; none if NVML does not say, as of an instance.
    pub(crate) is_persistent: Option<bool>,
}

pub(crate) type Rooms = BTreeMap<GpuUuid, Room>;

/// Reads those facts of all cards.
pub(crate) fn rooms(nvml: &Nvml) -> Rooms {
    devices(nvml)
        .filter_map(|device| {
            let uuid = device.uuid().ok()?.parse().ok()?;
            let free = device.memory_info().ok().map(|memory| Bytes(memory.free));
            Some((uuid, Room { free, is_persistent: device.is_in_persistent_mode().ok() }))
        })
        .collect()
}

/// Bytes of each process on one card, by pid; `None` if NVML lists the process without bytes.
pub(crate) type OnCard = BTreeMap<u32, Option<Bytes>>;

/// Processes on each card; `None` for a card whose list NVML could not read this time.
pub(crate) type Usages = BTreeMap<GpuUuid, Option<OnCard>>;

/// Lists the processes on all cards. Omits a card that can never list processes.
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

/// Samples of the work of processes on each card, newest and older ones; `None` for a card where NVML has
/// none by process (MIG, some virtual GPUs).
pub(crate) type Work = BTreeMap<GpuUuid, Option<Vec<ProcessUtilizationSample>>>;

/// Reads the samples of the work of all processes on `cards`.
pub(crate) fn work(nvml: &Nvml, cards: Vec<GpuUuid>) -> Work {
    let read = |uuid| {
        let samples = samples(nvml, uuid)
            .inspect_err(|cause| debug!("NVML does not say what the processes on {uuid} do: {cause}"));
        (uuid, samples.ok())
    };
    cards.into_iter().map(read).collect()
}

fn samples(nvml: &Nvml, card: GpuUuid) -> Result<Vec<ProcessUtilizationSample>, NvmlError> {
    match nvml.device_by_uuid(card.to_string())?.process_utilization_stats(None) {
        // Nobody has worked yet, or a process started between NVML's count and its list.
        Err(NvmlError::NotFound | NvmlError::InsufficientSize(_)) => Ok(Vec::new()),
        answer => answer,
    }
}

fn usage(process: &ProcessInfo) -> (u32, Option<Bytes>) {
    let bytes = match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
        UsedGpuMemory::Unavailable => None,
    };
    (process.pid, bytes)
}

/// Returns whether the error means that a card will never list processes. This is so without support in the
/// driver (WSL, a virtual machine), and for a lost card.
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
    // As CUDA counts: without what the driver has reserved for itself.
    let memory = device.memory_info()?;
    Ok(Some(GpuInfo {
        uuid,
        name: device.name()?,
        total: Bytes(memory.total.saturating_sub(memory.reserved)),
    }))
}
