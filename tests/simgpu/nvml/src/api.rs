//! The exported functions: one row each.

use std::ffi::c_char;
use std::time::Duration;

use simgpu_card::driver_version::{self, Version};

use crate::events::{self, Handle};
use crate::ffi::{Answer, Code, Out, Text};
use crate::session::{self, Device, session};
use crate::structures::{
    AccountingStats, EventData, Memory, MemoryV2, PciInfo, ProcessDetail, ProcessDetailList, ProcessInfo,
    ProcessInfoV1, ProcessUtilization, ProcessUtilizationInfo, ProcessesUtilization, Utilization, structure,
};

/// Milliwatts that the card may draw.
const POWER_LIMIT: u32 = 350_000;

/// `NVML_VALUE_NOT_AVAILABLE` of an instance id: the GPU is not divided.
const NO_INSTANCE: u32 = u32::MAX;

macro_rules! api {
    ($(fn $name:ident($($argument:ident : $type:ty),* $(,)?) $body:block)*) => {$(
        #[allow(non_snake_case, reason = "the names are NVIDIA's")]
        mod $name {
            #[allow(unused_imports, reason = "all bodies share their imports")]
            use super::*;

            fn body($($argument: $type),*) -> Answer {
                $body
            }

            #[unsafe(export_name = stringify!($name))]
            extern "C" fn export($($argument: $type),*) -> u32 {
                $crate::ffi::guard(|| body($($argument),*))
            }
        }
    )*};
}

api! {
    fn nvmlInit_v2() {
        session::open()
    }

    fn nvmlInitWithFlags(_flags: u32) {
        session::open()
    }

    fn nvmlShutdown() {
        session::close()
    }

    fn nvmlSystemGetDriverVersion(text: Out<c_char>, room: u32) {
        session()?;
        text.set_text(version().driver(), room)
    }

    fn nvmlSystemGetNVMLVersion(text: Out<c_char>, room: u32) {
        let Version(number) = version();
        text.set_text(&format!("{}.{}", number / 1000, version().driver()), room)
    }

    fn nvmlSystemGetCudaDriverVersion(version: Out<i32>) {
        version.set(crate::api::version().0)
    }

    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) {
        version.set(crate::api::version().0)
    }

    fn nvmlDeviceGetCount_v2(count: Out<u32>) {
        count.set(number(session()?.wholes().len()))
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: Out<Device>) {
        let handle = index as usize + 1;
        session()?.place(handle)?;
        device.set(handle)
    }

    fn nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<Device>) {
        let uuid = uuid.get()?.to_lowercase();
        let session = session()?;
        let is_it = |device: &Device| session.identity(*device).is_ok_and(|(_, text)| text.to_lowercase() == uuid);
        device.set(session.handles().into_iter().find(is_it).ok_or(Code::NOT_FOUND)?)
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: Text, device: Out<Device>) {
        let wanted = bus_id.get()?.to_lowercase();
        let handles = session()?.handles();
        let is_it = |handle: &Device| bus_id_of(*handle).is_ok_and(|text| text.ends_with(&wanted));
        device.set(handles.into_iter().find(is_it).ok_or(Code::NOT_FOUND)?)
    }

    fn nvmlDeviceGetUUID(device: Device, text: Out<c_char>, room: u32) {
        text.set_text(&session()?.identity(device)?.1, room)
    }

    fn nvmlDeviceGetName(device: Device, text: Out<c_char>, room: u32) {
        text.set_text(&session()?.identity(device)?.0, room)
    }

    fn nvmlDeviceGetIndex(device: Device, index: Out<u32>) {
        let place = session()?.place(device)?;
        index.set(number(place.instance.unwrap_or(place.number)))
    }

    fn nvmlDeviceGetMinorNumber(device: Device, minor: Out<u32>) {
        minor.set(number(session()?.place(device)?.number))
    }

    fn nvmlDeviceGetPciInfo_v3(device: Device, info: Out<PciInfo>) {
        let bus = session()?.bus(device)?;
        let mut pci = PciInfo {
            bus_id_legacy: [0; 16],
            domain: 0,
            bus,
            device: 0,
            pci_device_id: 0,
            pci_subsystem_id: 0,
            bus_id: [0; 32],
        };
        let text = bus_id_of(device)?;
        pci.bus_id[..text.len()].copy_from_slice(text.as_bytes());
        let legacy = &text[text.len() - 12..];
        pci.bus_id_legacy[..legacy.len()].copy_from_slice(legacy.as_bytes());
        info.set(pci)
    }

    fn nvmlDeviceGetMemoryInfo(device: Device, memory: Out<Memory>) {
        let gpu = session()?.gpu_stats(device)?;
        memory.set(Memory { total: gpu.total, free: gpu.free, used: gpu.total - gpu.free })
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: Device, memory: Out<MemoryV2>) {
        let gpu = session()?.gpu_stats(device)?;
        let version = memory.get()?.version;
        if version != structure::<MemoryV2>(2) {
            return Err(Code::VERSION_MISMATCH);
        }
        memory.set(MemoryV2 { version, total: gpu.total, reserved: 0, free: gpu.free, used: gpu.total - gpu.free })
    }

    fn nvmlDeviceGetPersistenceMode(device: Device, mode: Out<u32>) {
        mode.set(u32::from(session()?.gpu_stats(device)?.persistence))
    }

    fn nvmlDeviceGetUtilizationRates(device: Device, utilization: Out<Utilization>) {
        let gpu = session()?.utilization(device)?;
        utilization.set(Utilization { gpu, memory: gpu })
    }

    fn nvmlDeviceGetTemperature(device: Device, _sensor: u32, degrees: Out<u32>) {
        degrees.set(session()?.gpu_stats(device)?.degrees)
    }

    fn nvmlDeviceGetPowerUsage(device: Device, milliwatts: Out<u32>) {
        milliwatts.set(session()?.gpu_stats(device)?.milliwatts)
    }

    fn nvmlDeviceGetPowerManagementLimit(device: Device, milliwatts: Out<u32>) {
        session()?.place(device)?;
        milliwatts.set(POWER_LIMIT)
    }

    fn nvmlDeviceGetEnforcedPowerLimit(device: Device, milliwatts: Out<u32>) {
        session()?.place(device)?;
        milliwatts.set(POWER_LIMIT)
    }

    fn nvmlDeviceGetCudaComputeCapability(device: Device, major: Out<i32>, minor: Out<i32>) {
        session()?.place(device)?;
        major.set(9)?;
        minor.set(0)
    }

    fn nvmlDeviceGetComputeMode(device: Device, mode: Out<u32>) {
        session()?.place(device)?;
        mode.set(0)
    }

    fn nvmlDeviceGetMigMode(device: Device, current: Out<u32>, pending: Out<u32>) {
        let place = session()?.place(device)?;
        if place.instance.is_some() || !session()?.is_divided(&place.gpus) {
            return Err(Code::NOT_SUPPORTED);
        }
        current.set(1)?;
        pending.set(1)
    }

    fn nvmlDeviceGetMaxMigDeviceCount(device: Device, count: Out<u32>) {
        let place = session()?.place(device)?;
        count.set(if session()?.is_divided(&place.gpus) { number(session::MOST_INSTANCES) } else { 0 })
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(device: Device, index: u32, instance: Out<Device>) {
        instance.set(session()?.instance(device, index as usize)?)
    }

    fn nvmlDeviceIsMigDeviceHandle(device: Device, is: Out<u32>) {
        is.set(u32::from(session()?.place(device)?.instance.is_some()))
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device: Device, whole: Out<Device>) {
        let place = session()?.place(device)?;
        place.instance.ok_or(Code::INVALID_ARGUMENT)?;
        whole.set(place.number + 1)
    }

    fn nvmlDeviceGetGpuInstanceId(device: Device, id: Out<u32>) {
        id.set(number(session()?.place(device)?.instance.ok_or(Code::NOT_SUPPORTED)?) + 1)
    }

    fn nvmlDeviceGetComputeInstanceId(device: Device, id: Out<u32>) {
        session()?.place(device)?.instance.ok_or(Code::NOT_SUPPORTED)?;
        id.set(0)
    }

    fn nvmlDeviceGetProcessUtilization(
        device: Device, samples: Out<ProcessUtilization>, count: Out<u32>, last_seen: u64,
    ) {
        let samples_of = |(pid, percent, timestamp)| ProcessUtilization {
            pid, timestamp, sm: percent, memory: percent, encoder: 0, decoder: 0,
        };
        list(shares(device, last_seen)?.into_iter().map(samples_of).collect(), count, samples)
    }

    fn nvmlDeviceGetProcessesUtilizationInfo(device: Device, infos: Out<ProcessesUtilization>) {
        let mut asked = infos.get()?;
        if asked.version != structure::<ProcessesUtilization>(1) {
            return Err(Code::VERSION_MISMATCH);
        }
        let info_of = |(pid, percent, timestamp)| ProcessUtilizationInfo {
            timestamp, pid, sm: percent, memory: percent, encoder: 0, decoder: 0, jpeg: 0, flow: 0,
        };
        let own = shares(device, asked.last_seen)?.into_iter().map(info_of).collect();
        let result = list(own, Out::to(&mut asked.count), asked.samples);
        infos.set(asked)?;
        result
    }

    fn nvmlDeviceGetAccountingPids(device: Device, count: Out<u32>, pids: Out<u32>) {
        let here = on(device)?;
        list(here.into_iter().map(|process| process.pid).collect(), count, pids)
    }

    fn nvmlDeviceGetAccountingStats(device: Device, pid: u32, stats: Out<AccountingStats>) {
        let process = on(device)?.into_iter().find(|process| process.pid == pid).ok_or(Code::NOT_FOUND)?;
        stats.set(AccountingStats {
            gpu: 0, memory: 0, most_memory: process.used_memory, time: 0, start: 0, running: 1, reserved: [0; 5],
        })
    }

    fn nvmlDeviceGetRunningProcessDetailList(device: Device, details: Out<ProcessDetailList>) {
        let mut asked = details.get()?;
        if asked.version != structure::<ProcessDetailList>(1) {
            return Err(Code::VERSION_MISMATCH);
        }
        let detail_of = |process: ProcessInfo| ProcessDetail {
            pid: process.pid,
            used_memory: process.used_memory,
            gpu_instance: process.gpu_instance,
            compute_instance: process.compute_instance,
            protected: 0,
        };
        let here = if asked.mode == 0 { on(device)? } else { Vec::new() };
        let result = list(here.into_iter().map(detail_of).collect(), Out::to(&mut asked.count), asked.processes);
        details.set(asked)?;
        result
    }

    fn nvmlEventSetCreate(set: Out<Handle>) {
        set.set(events::create()?)
    }

    fn nvmlDeviceRegisterEvents(device: Device, types: u64, set: Handle) {
        events::register(device, types, set)
    }

    fn nvmlEventSetWait_v2(set: Handle, data: Out<EventData>, milliseconds: u32) {
        let (device, xid) = events::wait(set, Duration::from_millis(milliseconds.into()))?;
        data.set(EventData {
            device,
            event_type: events::XID,
            event_data: xid,
            gpu_instance: NO_INSTANCE,
            compute_instance: NO_INSTANCE,
        })
    }

    fn nvmlEventSetFree(set: Handle) {
        events::free(set)
    }

    fn nvmlDeviceGetComputeRunningProcesses(device: Device, count: Out<u32>, infos: Out<ProcessInfoV1>) {
        let short = |process: ProcessInfo| ProcessInfoV1 { pid: process.pid, used_memory: process.used_memory };
        list(on(device)?.into_iter().map(short).collect(), count, infos)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v3(device: Device, count: Out<u32>, infos: Out<ProcessInfo>) {
        list(on(device)?, count, infos)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2(device: Device, count: Out<u32>, infos: Out<ProcessInfo>) {
        list(on(device)?, count, infos)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses(device: Device, count: Out<u32>, _infos: Out<ProcessInfoV1>) {
        session()?.place(device)?;
        count.set(0)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2(device: Device, count: Out<u32>, _infos: Out<ProcessInfo>) {
        session()?.place(device)?;
        count.set(0)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: Device, count: Out<u32>, _infos: Out<ProcessInfo>) {
        session()?.place(device)?;
        count.set(0)
    }
}

/// The sentence of a code. Not in the table: it answers no code.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: u32) -> *const c_char {
    Code::text(code).as_ptr()
}

/// The processes that have a context on a device, with what they have on the card.
fn on(device: Device) -> Answer<Vec<ProcessInfo>> {
    let session = session()?;
    let place = session.place(device)?;
    session.gpu_stats(device)?;
    let divided = session.is_divided(&place.gpus);
    let instance = |index: usize| {
        if divided {
            (number(index - place.gpus.start) + 1, 0)
        } else {
            (NO_INSTANCE, NO_INSTANCE)
        }
    };
    let stats = session.stats()?;
    let living = || stats.processes.iter().filter(|process| process.alive);
    let here = place.gpus.clone().flat_map(|index| {
        let (gpu_instance, compute_instance) = instance(index);
        let gpu = number(index);
        living()
            .filter(move |process| process.gpus.contains(&gpu))
            .map(move |process| ProcessInfo {
                pid: process.pid,
                used_memory: process.bytes_on(gpu),
                gpu_instance,
                compute_instance,
            })
    });
    Ok(here.collect())
}

/// Pid, percent and time of each process that computed since a sample that the caller has seen. Nobody
/// knows it of instances.
fn shares(device: Device, last_seen: u64) -> Answer<Vec<(u32, u32, u64)>> {
    let session = session()?;
    let place = session.place(device)?;
    session.gpu_stats(device)?;
    if session.is_divided(&place.gpus) {
        return Err(Code::NOT_SUPPORTED);
    }
    let stats = session.stats()?;
    let now = stats.started_nanos + stats.now_nanos;
    let since = (last_seen * 1_000).saturating_sub(stats.started_nanos);
    let shares = stats.shares_since(number(place.gpus.start), since);
    if shares.is_empty() {
        return Err(Code::NOT_FOUND);
    }
    Ok(shares.into_iter().map(|(pid, percent)| (pid, percent, now / 1_000)).collect())
}

/// Hands a list over. `count` is the caller's room, and becomes the length; without room that is all.
fn list<T: Copy>(entries: Vec<T>, count: Out<u32>, to: Out<T>) -> Answer {
    let room = count.get()?;
    count.set(number(entries.len()))?;
    if entries.len() > room as usize {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    entries
        .into_iter()
        .enumerate()
        .try_for_each(|(place, entry)| to.set_at(place, entry))
}

/// The driver that is played: what is no version is told by `cuInit`, and played as the normal one.
fn version() -> Version {
    Version::from_environment().unwrap_or(driver_version::NORMAL)
}

fn bus_id_of(device: Device) -> Answer<String> {
    Ok(format!("00000000:{:02x}:00.0", session()?.bus(device)?))
}

fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
