//! Facts about the CUDA driver and its cards, gathered without a CUDA context.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};

use gpushare_proto::GpuUuid;
use serde::{Deserialize, Serialize};

use crate::library::Opened;
use crate::{LIBCUDA, Loaded, Teller};

/// Facts about the CUDA driver and its cards, as far as a probe has gathered them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaFacts {
    /// Result of loading the driver's library; none before the attempt.
    pub library: Option<Loaded>,
    /// Names of the functions that every CUDA driver has and that this library lacks.
    pub missing: Vec<String>,
    /// CUDA version of the driver; 13000 is 13.0.
    pub version: Option<i32>,
    /// Whether the driver can freeze a process: it has the function that locks one; none before it was looked up.
    pub checkpoint: Option<bool>,
    /// Result code (`CUresult`) of the call of `cuInit`; none before the call.
    pub init: Option<i32>,
    /// Number of cards that the driver shows to this process.
    pub count: Option<i32>,
    /// Facts about each card, in the order of the driver.
    pub cards: Vec<CudaCard>,
}

/// Facts about one card from the CUDA driver. An attribute that the driver does not know is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaCard {
    /// Product name of the card.
    pub name: Option<String>,
    /// UUID of the card.
    pub uuid: Option<GpuUuid>,
    /// Total memory of the card, in bytes.
    pub total: Option<u64>,
    /// Whether the card supports managed memory: 0 or 1.
    pub managed: Option<i32>,
    /// Whether host and card may access managed memory at the same time: 0 or 1. With 0 it must fit the card.
    pub concurrent_managed: Option<i32>,
    /// Whether the card supports memory that is mapped by handle (`cuMemMap`): 0 or 1.
    pub vmm: Option<i32>,
    /// Whether memory handles can be passed between processes as file descriptors: 0 or 1.
    pub posix_fd: Option<i32>,
    /// Whether network cards may access the card's memory (RDMA): 0 or 1.
    pub rdma: Option<i32>,
    /// Whether memory handles can be created for access by network cards (RDMA): 0 or 1.
    pub rdma_handles: Option<i32>,
    /// Whether memory handles can be created for the host's memory: 0 or 1.
    pub host_numa: Option<i32>,
    /// Whether the driver can register host memory for fast copies: 0 or 1.
    pub host_register: Option<i32>,
}

/// Layout of the driver's structure `CUmemAllocationProp_v1`.
#[repr(C)]
#[derive(Default)]
struct AllocationProperties {
    kind: c_int,
    handle_types: c_int,
    location: c_int,
    location_id: c_int,
    windows: usize,
    flags: [u8; 8],
}

const PINNED: c_int = 1;
const HOST_NUMA: c_int = 3;

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type Number = unsafe extern "C" fn(*mut c_int) -> c_int;
type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type DeviceGetName = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
type DeviceGetUuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int;
type DeviceTotalMem = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
type DeviceGetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
type Granularity = unsafe extern "C" fn(*mut usize, *const AllocationProperties, c_ulonglong) -> c_int;

/// Gathers all facts, the most basic first, so that a broken driver fails as late as possible.
pub(crate) fn ask(teller: &mut Teller<CudaFacts>) {
    teller.tell(Some("dlopen"));
    let (library, loaded) = Opened::open(LIBCUDA, "cuInit");
    teller.facts.library = Some(loaded);
    let Some(library) = &library else { return };
    // SAFETY: the signatures are cuda.h's; results go to variables of their types that live through the call.
    unsafe {
        if let Some(version) = library.function::<Number>(&["cuDriverGetVersion"]) {
            teller.tell(Some("cuDriverGetVersion"));
            teller.facts.version = number(|value| version(value));
        }
        teller.facts.checkpoint = Some(library.function::<Number>(&["cuCheckpointProcessLock"]).is_some());
        let Some(init) = library.function::<Init>(&["cuInit"]) else {
            return teller.facts.missing.push("cuInit".to_owned());
        };
        teller.tell(Some("cuInit"));
        let code = init(0);
        teller.facts.init = Some(code);
        if code != 0 {
            return;
        }
        let Some(count) = library.function::<Number>(&["cuDeviceGetCount"]) else {
            return teller.facts.missing.push("cuDeviceGetCount".to_owned());
        };
        let Some(get) = library.function::<DeviceGet>(&["cuDeviceGet"]) else {
            return teller.facts.missing.push("cuDeviceGet".to_owned());
        };
        teller.tell(Some("cuDeviceGetCount"));
        teller.facts.count = number(|value| count(value));
        for ordinal in 0..teller.facts.count.unwrap_or(0) {
            teller.tell(Some("cuDeviceGet"));
            let device = number(|value| get(value, ordinal));
            let card = device.map(|device| card(library, device)).unwrap_or_default();
            teller.facts.cards.push(card);
        }
    }
}

fn card(library: &Opened, device: c_int) -> CudaCard {
    let mut card = CudaCard::default();
    // SAFETY: the signatures are cuda.h's; results go to variables of their types that live through the call.
    unsafe {
        if let Some(name) = library.function::<DeviceGetName>(&["cuDeviceGetName"]) {
            card.name = text(|buffer| name(buffer, 256, device)).ok();
        }
        if let Some(uuid) = library.function::<DeviceGetUuid>(&["cuDeviceGetUuid_v2", "cuDeviceGetUuid"]) {
            let mut bytes = [0; 16];
            // A MIG instance has this in its name, and a UUID of its own.
            let is_instance = card.name.as_ref().is_some_and(|name| name.contains(" MIG "));
            let of = if is_instance { GpuUuid::mig } else { GpuUuid::gpu };
            card.uuid = (uuid(&raw mut bytes, device) == 0).then(|| of(bytes));
        }
        if let Some(total) = library.function::<DeviceTotalMem>(&["cuDeviceTotalMem_v2"]) {
            let mut bytes = 0;
            card.total = (total(&raw mut bytes, device) == 0).then_some(bytes as u64);
        }
        if let Some(get) = library.function::<DeviceGetAttribute>(&["cuDeviceGetAttribute"]) {
            // The numbers are those of `CUdevice_attribute`.
            let attribute = |which| number(|value| get(value, which, device));
            card.managed = attribute(83);
            card.concurrent_managed = attribute(89);
            card.vmm = attribute(102);
            card.posix_fd = attribute(103);
            card.rdma = attribute(116);
            card.rdma_handles = attribute(110);
            card.host_numa = attribute(141);
            card.host_register = attribute(99);
        }
    }
    // Drivers before 13.0 create such handles but do not know the attribute, or report 0 for it.
    if card.host_numa != Some(1) && granularity_on_host(library) {
        card.host_numa = Some(1);
    }
    card
}

/// Returns whether the driver reports a granularity for handles of the host's memory. Creates no handle.
fn granularity_on_host(library: &Opened) -> bool {
    // SAFETY: the signatures are cuda.h's; results go to variables of their types that live through the call.
    unsafe {
        let Some(ask) = library.function::<Granularity>(&["cuMemGetAllocationGranularity"]) else {
            return false;
        };
        let properties =
            AllocationProperties { kind: PINNED, location: HOST_NUMA, ..AllocationProperties::default() };
        let mut bytes = 0;
        ask(&raw mut bytes, &raw const properties, 0) == 0 && bytes > 0
    }
}

/// Returns the number that a driver call writes, if the call succeeds.
pub(crate) fn number(call: impl FnOnce(*mut c_int) -> c_int) -> Option<i32> {
    let mut value = 0;
    (call(&raw mut value) == 0).then_some(value)
}

/// Returns the text that a driver call writes into a buffer of 256 bytes, or the call's error code.
pub(crate) fn text(call: impl FnOnce(*mut c_char) -> c_int) -> Result<String, c_int> {
    let mut bytes = [0_u8; 256];
    match call(bytes.as_mut_ptr().cast()) {
        0 => {
            Ok(String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next().unwrap_or_default())
                .into_owned())
        }
        code => Err(code),
    }
}
