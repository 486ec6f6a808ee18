//! Figures of NVML beside programs that compute, on one card and on two.

use crate::program::{Program, library};
use crate::{CardProcess, MIB, assert_success, memory};

#[test]
fn nvml_tells_the_same_story() {
    let card = CardProcess::start(&["--memory", "64MiB"]);
    let uuid = card.observer().describe().unwrap().gpus[0].uuid_text();
    assert_success("nvml::monitors", &card.program("nvml::monitors").env("EXPECTED", uuid).output().unwrap());
    card.end();
}

pub(crate) fn monitors() {
    let uuid = std::env::var("EXPECTED").unwrap();
    let nvml = nvml_wrapper::Nvml::builder()
        .lib_path(library("simgpu-nvml").as_os_str())
        .init()
        .unwrap();
    assert_eq!(nvml.device_count().unwrap(), 1);
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13_000);
    let device = nvml.device_by_uuid(uuid.as_str()).unwrap();
    assert_eq!(device.uuid().unwrap(), uuid);
    assert_eq!(device.pci_info().unwrap().bus, 1);
    assert_eq!(device.memory_info().unwrap().used, 0);
    assert!(device.running_compute_processes().unwrap().is_empty());

    let program = Program::start();
    let mut memory = 0;
    assert_eq!(program.cuMemAlloc_v2(&mut memory, 6 * MIB), 0);
    let info = device.memory_info().unwrap();
    assert_eq!((info.total, info.used), (64 * MIB as u64, 8 * MIB as u64));
    let processes = device.running_compute_processes().unwrap();
    assert_eq!(processes.len(), 1);
    assert_eq!(processes[0].pid, std::process::id());
    assert!(device.utilization_rates().unwrap().gpu <= 100);

    // A process at work shows in utilisation, power and temperature.
    let milliwatts = device.power_usage().unwrap();
    assert_eq!(milliwatts, 70_000);
    let (kernels, mut flag) = (program.kernels(), 0);
    assert_eq!(program.cuMemAllocHost_v2(&mut flag, 4), 0);
    let before = device.process_utilization_stats(None);
    assert!(before.is_err(), "nobody has computed yet: {before:?}");
    assert_eq!(program.launch(kernels, "spin", 0, &[flag, u64::MAX]), 0);
    let sensor = nvml_wrapper::enum_wrappers::device::TemperatureSensor::Gpu;
    while device.power_usage().unwrap() == milliwatts || device.temperature(sensor).unwrap() == 32 {
        std::thread::yield_now();
    }
    // Shares are whole percents of a second at most, so the first one takes some time to show.
    let of_us = loop {
        let samples = device.process_utilization_stats(None).unwrap_or_default();
        if let Some(sample) = samples.into_iter().find(|sample| sample.pid == std::process::id()) {
            break sample;
        }
    };
    assert!((1..=100).contains(&of_us.sm_util), "{of_us:?}");
    // SAFETY: pinned memory of ours, four bytes long, that the card only reads.
    unsafe { (flag as *mut u32).write_volatile(1) };
    assert_eq!(program.cuCtxSynchronize(), 0);
    assert_eq!(device.enforced_power_limit().unwrap(), 350_000);
}

/// Plain memory of the other card needs peers, memory with handles needs access, copies need neither.
pub(crate) fn uses_two_cards() {
    const ALREADY_ENABLED: u32 = 704;
    const NOT_ENABLED: u32 = 705;
    let nvml = nvml_wrapper::Nvml::builder()
        .lib_path(library("simgpu-nvml").as_os_str())
        .init()
        .unwrap();
    let program = Program::start();
    let kernels = program.kernels();
    let (mut first, mut second, mut can) = (0, 0, 0);
    assert_eq!(program.cuCtxGetCurrent(&mut first), 0);
    assert_eq!(program.cuDevicePrimaryCtxRetain(&mut second, 1), 0);
    assert_eq!(program.cuDeviceCanAccessPeer(&mut can, 0, 1), 0);
    assert_eq!(can, 1);
    let (mut near, mut far) = (0, 0);
    assert_eq!(program.cuMemAlloc_v2(&mut near, 4 * MIB), 0);
    assert_eq!(program.cuCtxSetCurrent(second), 0);
    assert_eq!(program.cuMemAlloc_v2(&mut far, 6 * MIB), 0);
    assert_eq!(program.launch(kernels, "fill", 0, &[far, 4, 8]), 0);
    assert_eq!(program.cuCtxSynchronize(), 0);
    for (index, used) in [(0, 6 * MIB as u64), (1, 8 * MIB as u64)] {
        let device = nvml.device_by_index(index).unwrap();
        assert_eq!(device.memory_info().unwrap().used, used);
        let process = device.running_compute_processes().unwrap().remove(0);
        let used = nvml_wrapper::enums::device::UsedGpuMemory::Used(used);
        assert_eq!((process.pid, process.used_gpu_memory), (std::process::id(), used));
    }
    assert_eq!(program.cuCtxSetCurrent(first), 0);
    assert_eq!(program.cuMemcpyDtoD_v2(near, far, 64), 0);
    assert_eq!(program.words(near, 4), [8; 4]);
    assert_eq!(program.cuCtxDisablePeerAccess(second), NOT_ENABLED);
    assert_eq!(program.cuCtxEnablePeerAccess(second, 0), 0);
    assert_eq!(program.cuCtxEnablePeerAccess(second, 0), ALREADY_ENABLED);
    assert_eq!(program.launch(kernels, "add", 0, &[far, 4, 1]), 0);
    assert_eq!(program.words(far, 4), [9; 4]);
    memory::has_its_own_access(&program, kernels);
}
