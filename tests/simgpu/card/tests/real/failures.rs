//! Failures, ordered or not: faults, errors that stay, old drivers, cards that fall off the bus.

use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

use simgpu_card::ids::GpuIndex;
use simgpu_card::stats::Refused;
use simgpu_card::wire::Refusable;

use crate::memory::{DEVICE, on};
use crate::program::{Program, library};
use crate::registered::Pages;
use crate::{CardProcess, MIB, NOT_READY, assert_success};

const ASSERT: u32 = 710;
const UNKNOWN: u32 = 999;

#[test]
fn a_failed_assertion_is_the_answer_to_every_later_call_and_no_other_process() {
    let card = CardProcess::start(&[]);
    let mut dying = card.program("failures::dies_of_an_assertion");
    assert_success(
        "dies_of_an_assertion",
        &dying.env("SIMGPU_FAULTS", "cuLaunchKernel@2=asserts").output().unwrap(),
    );
    card.run("computes");
    card.end();
}

pub(crate) fn dies_of_an_assertion() {
    let program = Program::start();
    let kernels = program.kernels();
    let (mut memory, mut stream, mut event, mut count, mut free, mut total) = (0, 0, 0, 0, 0, 0);
    assert_eq!(program.cuMemAlloc_v2(&mut memory, 64), 0);
    assert_eq!(program.cuStreamCreate(&mut stream, 1), 0);
    assert_eq!(program.launch(kernels, "fill", stream, &[memory, 4, 1]), 0);
    assert_eq!(program.launch(kernels, "fill", stream, &[memory, 4, 2]), 0);
    assert_eq!(program.cuStreamSynchronize(stream), ASSERT);
    assert_eq!(program.launch(kernels, "fill", stream, &[memory, 4, 3]), ASSERT);
    assert_eq!(program.cuMemAlloc_v2(&mut memory, 64), ASSERT);
    assert_eq!(program.cuMemFree_v2(memory), ASSERT);
    assert_eq!(program.cuMemGetInfo_v2(&mut free, &mut total), ASSERT);
    assert_eq!(program.cuEventCreate(&mut event, 0), ASSERT);
    assert_eq!(program.cuStreamQuery(stream), ASSERT);
    assert_eq!(program.cuCtxSynchronize(), ASSERT);
    assert_eq!(program.cuMemAllocAsync(&mut memory, 64, stream), ASSERT);
    // What only asks the library still works.
    assert_eq!((program.cuInit(0), program.cuDeviceGetCount(&mut count)), (0, 0));
}

#[test]
fn calls_go_wrong_as_ordered() {
    let card = CardProcess::start(&[]);
    let mut command = card.program("failures::meets_faults");
    let orders = "cuMemAlloc@2=2, cuMemcpyHtoD=slow:20ms, cuLaunchKernel@2=hangs";
    assert_success("meets_faults", &command.env("SIMGPU_FAULTS", orders).output().unwrap());
    card.end();
}

pub(crate) fn meets_faults() {
    const OUT_OF_MEMORY: u32 = 2;
    let program = Program::start();
    let kernels = program.kernels();
    let (mut memory, mut refused, mut stream) = (0, 0, 0);
    let answers = [0; 3].map(|_| program.cuMemAlloc_v2(&mut memory, 64));
    assert_eq!(answers, [0, OUT_OF_MEMORY, 0]);
    assert_eq!(program.cuMemAllocManaged(&mut refused, 64, 1), 0);

    let (mut before, mut after, mut milliseconds) = (0, 0, 0.0);
    assert_eq!(program.cuEventCreate(&mut before, 0), 0);
    assert_eq!(program.cuEventCreate(&mut after, 0), 0);
    assert_eq!(program.cuEventRecord(before, 0), 0);
    assert_eq!(program.cuMemcpyHtoD_v2(memory, [1u8; 64].as_ptr(), 64), 0);
    assert_eq!(program.cuEventRecord(after, 0), 0);
    assert_eq!(program.cuEventSynchronize(after), 0);
    assert_eq!(program.cuEventElapsedTime_v2(&mut milliseconds, before, after), 0);
    assert!(milliseconds >= 20.0, "{milliseconds}");
    assert_eq!(program.words(memory, 1), [0x0101_0101], "slow, and done");

    assert_eq!(program.cuStreamCreate(&mut stream, 1), 0);
    assert_eq!(program.launch(kernels, "empty", stream, &[]), 0);
    assert_eq!(program.cuStreamSynchronize(stream), 0);
    assert_eq!(program.launch(kernels, "empty", stream, &[]), 0);
    assert_eq!(program.cuStreamQuery(stream), NOT_READY);
}

#[test]
fn every_third_create_fails_as_ordered() {
    let card = CardProcess::start(&[]);
    let mut command = card.program("failures::meets_periodic_faults");
    command.env("SIMGPU_FAULTS", "cuMemCreate@2/3=2, cuMemMap@1=1");
    assert_success("meets_periodic_faults", &command.output().unwrap());
    card.end();
}

pub(crate) fn meets_periodic_faults() {
    let program = Program::start();
    let (mut handle, mut start) = (0, 0);
    let answers = [0; 7].map(|_| program.cuMemCreate(&mut handle, 2 * MIB, &on(DEVICE), 0));
    assert_eq!(answers, [0, 2, 0, 0, 2, 0, 0]);
    assert_eq!(program.cuMemAddressReserve(&mut start, 2 * MIB, 0, 0, 0), 0);
    let answers = [0; 2].map(|_| program.cuMemMap(start, 2 * MIB, 0, handle, 0));
    assert_eq!(answers, [1, 0]);
}

#[test]
fn a_process_is_killed_at_the_call_that_was_ordered() {
    let card = CardProcess::start(&[]);
    let mut command = card.program("failures::is_killed");
    let output = command.env("SIMGPU_FAULTS", "cuMemAlloc@2=dies").output().unwrap();
    assert_eq!(output.status.signal(), Some(9));
    assert!(String::from_utf8_lossy(&output.stdout).contains("allocated once"));
    card.end();
}

pub(crate) fn is_killed() {
    let program = Program::start();
    let mut memory = 0;
    assert_eq!(program.cuMemAlloc_v2(&mut memory, 64), 0);
    println!("allocated once");
    program.cuMemAlloc_v2(&mut memory, 64);
    println!("still there");
}

#[test]
fn an_observer_chooses_the_moment_of_a_failure() {
    let card = CardProcess::start(&[]);
    let mut command = card.program("failures::is_refused");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("mapped")));
    for call in [Refusable::CreateOnGpu, Refusable::Map, Refusable::Register] {
        card.observer().refuse(child.id(), call, 1).unwrap();
    }
    child.stdin.take().unwrap().write_all(b"refused\n").unwrap();
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert!(child.wait().unwrap().success(), "{rest:?}");
    let once = Refused { create_on_gpu: 1, map: 1, register: 1, ..Refused::default() };
    assert_eq!(card.observer().stats().unwrap().total.refused, once);
    card.end();
}

pub(crate) fn is_refused() {
    const OUT_OF_MEMORY: u32 = 2;
    let program = Program::start();
    let (mut handle, mut start) = (0, 0);
    let own = Pages::new(MIB);
    assert_eq!(program.cuMemAddressReserve(&mut start, 2 * MIB, 0, 0, 0), 0);
    let mut create = || program.cuMemCreate(&mut handle, 2 * MIB, &on(DEVICE), 0);
    assert_eq!(create(), 0);
    println!("mapped");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    assert_eq!([create(), create()], [OUT_OF_MEMORY, 0]);
    let maps = [0; 2].map(|_| program.cuMemMap(start, 2 * MIB, 0, handle, 0));
    assert_eq!(maps, [OUT_OF_MEMORY, 0]);
    let registers = [0; 2].map(|_| program.cuMemHostRegister_v2(own.address(), MIB, 0));
    assert_eq!(registers, [OUT_OF_MEMORY, 0]);
}

#[test]
fn an_old_driver_has_no_new_functions() {
    let card = CardProcess::start(&[]);
    for (version, number, found) in [("12.0", 12_000, false), ("12.8", 12_080, true), ("13.1", 13_010, true)]
    {
        let mut command = card.program("failures::looks_up_old");
        command.env("SIMGPU_DRIVER_VERSION", version);
        command.env("EXPECTED", format!("{number} {found}"));
        assert_success(version, &command.output().unwrap());
    }
    card.end();
}

pub(crate) fn looks_up_old() {
    let program = Program::start();
    let (expected, mut version) = (std::env::var("EXPECTED").unwrap(), 0);
    assert_eq!(program.cuDriverGetVersion(&mut version), 0);
    let lookup = |name: &str, flags| {
        let (text, mut pointer, mut status) = (CString::new(name).unwrap(), 0, 9);
        assert_eq!(program.cuGetProcAddress_v2(text.as_ptr(), &mut pointer, 13_010, flags, &mut status), 0);
        (pointer, status)
    };
    let (pointer, status) = lookup("cuCtxRecordEvent", 0);
    assert_eq!(format!("{version} {}", pointer != 0), expected);
    assert_eq!(status, u32::from(pointer == 0), "unknown, not too new");
    // The older variant of a name is what an older driver answers.
    let variant = if version >= 12_030 {
        "cuStreamGetCaptureInfo_v3_ptsz"
    } else {
        "cuStreamGetCaptureInfo_v2_ptsz"
    };
    assert_eq!(lookup("cuStreamGetCaptureInfo", 2).0, program.symbol(variant).unwrap() as usize);
    let nvml = nvml_wrapper::Nvml::builder()
        .lib_path(library("simgpu-nvml").as_os_str())
        .init()
        .unwrap();
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), version);
}

#[test]
fn wrong_orders_are_told_and_nothing_starts() {
    const INVALID_VALUE: u32 = 1;
    const DRIVER_MISMATCH: u32 = 803;
    let card = CardProcess::start(&[]);
    for (variable, text, code) in [
        ("SIMGPU_FAULTS", "cuInit", INVALID_VALUE),
        ("SIMGPU_FAULTS", "cuMemAloc@3=2", INVALID_VALUE),
        ("SIMGPU_DRIVER_VERSION", "11.8", DRIVER_MISMATCH),
    ] {
        let mut command = card.program("failures::refuses_to_start");
        let output = command.env(variable, text).env("EXPECTED", code.to_string()).output().unwrap();
        assert_success(variable, &output);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains(variable) && told.contains("use") | told.contains("write"), "{told}");
    }
    card.end();
}

pub(crate) fn refuses_to_start() {
    let expected: u32 = std::env::var("EXPECTED").unwrap().parse().unwrap();
    assert_eq!(Program::load().cuInit(0), expected);
}

#[test]
fn a_card_that_falls_off_is_lost_for_cuda_and_nvml() {
    let card = CardProcess::start(&["--gpus", "2"]);
    let mut command = card.program("failures::loses_a_card");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("on its way")));
    card.observer().fall_off(GpuIndex(0)).unwrap();
    child.stdin.take().unwrap().write_all(b"lost\n").unwrap();
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert!(child.wait().unwrap().success(), "{rest:?}");
    card.end();
}

pub(crate) fn loses_a_card() {
    use nvml_wrapper::error::NvmlError;
    let nvml = nvml_wrapper::Nvml::builder()
        .lib_path(library("simgpu-nvml").as_os_str())
        .init()
        .unwrap();
    let program = Program::start();
    let kernels = program.kernels();
    assert_eq!(program.launch(kernels, "spin", 0, &[0, u64::MAX]), 0);
    println!("on its way");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    assert_eq!(program.cuCtxSynchronize(), UNKNOWN);
    let mut memory = 0;
    assert_eq!(program.cuMemAlloc_v2(&mut memory, MIB), UNKNOWN);
    let lost = nvml.device_by_index(0).unwrap();
    assert!(matches!(lost.memory_info(), Err(NvmlError::GpuLost)));
    assert!(matches!(
        lost.temperature(nvml_wrapper::enum_wrappers::device::TemperatureSensor::Gpu),
        Err(NvmlError::GpuLost)
    ));
    let other = nvml.device_by_index(1).unwrap();
    assert_eq!(other.memory_info().unwrap().used, 0);
}
