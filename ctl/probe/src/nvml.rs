//! Facts that NVIDIA's management library (NVML) has and the CUDA driver lacks before `cuInit`.

use std::ffi::{c_char, c_int, c_uint, c_void};

use serde::{Deserialize, Serialize};

use crate::cuda::{number, text};
use crate::library::Opened;
use crate::{LIBNVML, Loaded, Teller};

/// Facts from NVIDIA's management library (NVML), as far as a probe has gathered them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmlFacts {
    /// Result of loading NVIDIA's management library; none before the attempt.
    pub library: Option<Loaded>,
    /// Result code (`nvmlReturn_t`) of the call of `nvmlInit_v2`; none before the call.
    pub init: Option<i32>,
    /// Version of the driver, like `580.65.06`.
    pub driver: Option<String>,
    /// Whether confidential computing is on: 0 or 1.
    pub confidential: Option<u32>,
    /// Number of cards that NVML reports.
    pub count: Option<i32>,
    /// Facts about each card, in the order of NVML.
    pub cards: Vec<NvmlCard>,
}

/// Facts about one card from NVML. A value that the card does not support is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmlCard {
    /// Error code of a card that answers no query: 15 lost from the bus, 16 needs a reset; else none.
    pub lost: Option<i32>,
    /// UUID of the card, as text.
    pub uuid: Option<String>,
    /// Whether the card is divided into MIG instances now: 0 or 1.
    pub mig: Option<i32>,
    /// Whether the card will be divided into MIG instances after its next reset: 0 or 1.
    pub mig_pending: Option<i32>,
    /// Virtualization of the card: 0 none, 1 passed through, 2 vGPU, 3 and 4 host of vGPUs.
    pub virtualization: Option<i32>,
    /// Compute mode of the card (`nvmlComputeMode_t`): 0 default, 2 no process allowed, 3 one process only.
    pub compute_mode: Option<i32>,
    /// Whether the driver stays initialised while no process uses the card (persistence mode): 0 or 1.
    pub persistence: Option<i32>,
}

/// Layout of NVML's structure `nvmlConfComputeSystemState_t`.
#[repr(C)]
#[derive(Default)]
struct ConfidentialState {
    environment: c_uint,
    feature: c_uint,
    tools: c_uint,
}

type Device = *mut c_void;
type Init = unsafe extern "C" fn() -> c_int;
type Text = unsafe extern "C" fn(*mut c_char, c_uint) -> c_int;
type Number = unsafe extern "C" fn(*mut c_int) -> c_int;
type Confidential = unsafe extern "C" fn(*mut ConfidentialState) -> c_int;
type ByIndex = unsafe extern "C" fn(c_uint, *mut Device) -> c_int;
type DeviceText = unsafe extern "C" fn(Device, *mut c_char, c_uint) -> c_int;
type DeviceNumber = unsafe extern "C" fn(Device, *mut c_int) -> c_int;
type DeviceMemory = unsafe extern "C" fn(Device, *mut [u64; 3]) -> c_int;
type DeviceNumbers = unsafe extern "C" fn(Device, *mut c_int, *mut c_int) -> c_int;

/// Error codes `NVML_ERROR_GPU_IS_LOST` and `NVML_ERROR_RESET_REQUIRED`.
const LOST: [c_int; 2] = [15, 16];

pub(crate) fn ask(teller: &mut Teller<NvmlFacts>) {
    teller.tell(Some("dlopen"));
    let (library, loaded) = Opened::open(LIBNVML, "nvmlInit_v2");
    teller.facts.library = Some(loaded);
    let Some(library) = &library else { return };
    // SAFETY: the signatures are nvml.h's; results go to variables of their types that live through the call.
    unsafe {
        let Some(init) = library.function::<Init>(&["nvmlInit_v2", "nvmlInit"]) else {
            return;
        };
        teller.tell(Some("nvmlInit_v2"));
        let code = init();
        teller.facts.init = Some(code);
        if code != 0 {
            return;
        }
        if let Some(version) = library.function::<Text>(&["nvmlSystemGetDriverVersion"]) {
            teller.tell(Some("nvmlSystemGetDriverVersion"));
            teller.facts.driver = text(|buffer| version(buffer, 256)).ok();
        }
        if let Some(state) = library.function::<Confidential>(&["nvmlSystemGetConfComputeState"]) {
            teller.tell(Some("nvmlSystemGetConfComputeState"));
            let mut found = ConfidentialState::default();
            if state(&raw mut found) == 0 {
                teller.facts.confidential = Some(found.feature);
            }
        }
        if let Some(count) = library.function::<Number>(&["nvmlDeviceGetCount_v2"]) {
            teller.tell(Some("nvmlDeviceGetCount_v2"));
            teller.facts.count = number(|value| count(value));
        }
        let Some(by_index) = library.function::<ByIndex>(&["nvmlDeviceGetHandleByIndex_v2"]) else {
            return;
        };
        for index in 0..teller.facts.count.and_then(|count| u32::try_from(count).ok()).unwrap_or(0) {
            teller.tell(Some("nvmlDeviceGetHandleByIndex_v2"));
            let mut device = std::ptr::null_mut();
            let card = match by_index(index, &raw mut device) {
                0 => card(library, device),
                code => NvmlCard { lost: Some(code), ..NvmlCard::default() },
            };
            teller.facts.cards.push(card);
        }
    }
}

/// # Safety
/// `device` must be a handle of this library.
unsafe fn card(library: &Opened, device: Device) -> NvmlCard {
    // SAFETY: the signatures are nvml.h's; results go to variables of their types that live through the call.
    unsafe {
        let value = |name| {
            let get = library.function::<DeviceNumber>(&[name])?;
            number(|value| get(device, value))
        };
        let mut card = NvmlCard {
            virtualization: value("nvmlDeviceGetVirtualizationMode"),
            compute_mode: value("nvmlDeviceGetComputeMode"),
            persistence: value("nvmlDeviceGetPersistenceMode"),
            ..NvmlCard::default()
        };
        if let Some(uuid) = library.function::<DeviceText>(&["nvmlDeviceGetUUID"]) {
            match text(|buffer| uuid(device, buffer, 256)) {
                Ok(uuid) => card.uuid = Some(uuid),
                Err(code) => card.lost = Some(code),
            }
        }
        // A lost card may still report its name.
        if let Some(memory) = library.function::<DeviceMemory>(&["nvmlDeviceGetMemoryInfo"]) {
            let mut figures = [0; 3];
            let code = memory(device, &raw mut figures);
            if LOST.contains(&code) {
                card.lost = Some(code);
            }
        }
        if let Some(mig) = library.function::<DeviceNumbers>(&["nvmlDeviceGetMigMode"]) {
            let (mut now, mut pending) = (0, 0);
            if mig(device, &raw mut now, &raw mut pending) == 0 {
                (card.mig, card.mig_pending) = (Some(now), Some(pending));
            }
        }
        card
    }
}
