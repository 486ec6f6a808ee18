//! Cards of a machine as NVIDIA's management library (NVML) lists them.
//!
//! A GPU that is divided into MIG instances cannot be used as a whole. Instead each of its instances is a
//! card, with its own identity and memory.
#![forbid(unsafe_code)]

use std::ffi::OsStr;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use tracing::warn;

/// File name of NVML as the driver's packages install it.
pub const LIBRARY: &str = "libnvidia-ml.so.1";

/// Value of `NVML_DEVICE_MIG_ENABLE` in NVML's headers.
const MIG_ENABLED: u32 = 1;

/// Loads NVML, the driver's management library.
pub fn load() -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(OsStr::new(LIBRARY)).init()
}

/// Returns all undivided GPUs and all MIG instances, in NVML's order.
pub fn devices(nvml: &Nvml) -> impl Iterator<Item = Device<'_>> {
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

/// Returns the MIG instances of a divided GPU. Their indexes may have gaps.
fn instances<'nvml>(device: &Device<'nvml>) -> Vec<Device<'nvml>> {
    let most = device.mig_device_count().unwrap_or(0);
    (0..most).filter_map(|index| device.mig_device_by_index(index).ok()).collect()
}
