//! The real thing: a card process, programs in processes of their own, the driver loaded by dlopen.
//!
//! Each test starts a card and runs scenarios in child processes, which are this test binary again: a
//! process has one driver, and some scenarios end by dying.

mod program;
// Families of calls and of failures, each with its scenarios.
mod arrays;
mod captures;
mod checkpoints;
mod deaths;
mod failures;
mod graphs;
mod holes;
mod memory;
mod nvml;
mod registered;
mod streams;

use std::ffi::{CString, c_void};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use program::Program;
use simgpu_card::connection::Observer;
use tempfile::TempDir;

const MIB: usize = 1 << 20;
const NOT_READY: u32 = 600;

/// A card in a folder of its own.
struct CardProcess {
    child: Child,
    socket: PathBuf,
    folder: TempDir,
}

impl CardProcess {
    fn start(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("card.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_simgpu-card"));
        command.arg("--socket").arg(&socket).arg("--die-with-parent").args(options);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.contains("\"ready\":true"), "{ready}");
        Self { child, socket, folder }
    }

    fn observer(&self) -> Observer {
        Observer::connect(&self.socket).unwrap()
    }

    fn program(&self, scenario: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "scenario", "--nocapture"]);
        command.env("SIMGPU_SCENARIO", scenario).env("SIMGPU_SOCKET", &self.socket);
        command
    }

    fn run(&self, scenario: &str) {
        assert_success(scenario, &self.program(scenario).output().unwrap());
    }

    /// Ends the card and sees that nothing is left.
    fn end(mut self) {
        self.observer().shutdown().unwrap();
        assert!(self.child.wait().unwrap().success());
        assert_eq!(std::fs::read_dir(self.folder.path()).unwrap().count(), 0);
    }
}

impl Drop for CardProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn assert_success(scenario: &str, output: &Output) {
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{scenario}: {}\n{out}\n{error}", output.status);
}

/// Makes a test of each row: a card with these options, on which the scenarios run in processes of their
/// own, has all its memory back afterwards. Tests of the `driven` scenarios are written out.
macro_rules! scenarios {
    ({$($test:ident[$($option:literal),*]: $($scenario:path),+;)*} driven: $($driven:path),+;) => {
        $(
            #[test]
            fn $test() {
                let card = CardProcess::start(&[$($option),*]);
                $(card.run(stringify!($scenario));)+
                let stats = card.observer().stats().unwrap();
                assert!(stats.gpus.iter().all(|gpu| gpu.free == gpu.total), "{:?}", stats.gpus);
                card.end();
            }
        )*

        /// Not a test of its own: what the child processes run.
        #[test]
        fn scenario() {
            match std::env::var("SIMGPU_SCENARIO").as_deref() {
                $($(Ok(wanted) if wanted == stringify!($scenario) => $scenario(),)+)*
                $(Ok(wanted) if wanted == stringify!($driven) => $driven(),)+
                Ok(other) => panic!("there is no scenario {other}"),
                Err(_) => {}
            }
        }
    };
}

scenarios! {
    {
        every_lookup_answers_the_right_variant[]: looks_up;
        captured_work_is_replayed[]: captures::captures, captures::breaks_captures;
        streams_wait_for_values_events_and_host_functions[]: waits;
        threads_share_the_connection[]: shares_between_threads;
        a_forked_child_has_no_driver[]: forks;
        a_process_on_two_cards_counts_on_each["--gpus", "2"]: nvml::uses_two_cards;
        graphs_are_made_of_nodes_and_run_in_the_order_of_their_edges[]: graphs::builds_graphs;
        arrays_hold_what_is_copied_into_them[]: arrays::fills_arrays;
        threads_with_default_streams_of_their_own_do_not_wait_for_each_other[]: streams::uses_default_streams;
        what_a_capture_forbids_depends_on_its_mode_and_on_the_threads[]: streams::captures_in_modes;
        beside_a_broken_capture_only_single_streams_can_be_asked[]: streams::asks_beside_a_broken_capture;
        physical_memory_is_mapped_moved_and_given_back[]: memory::maps_memory;
        memory_passes_between_processes_by_descriptor[]: memory::exports;
        holes_refuse_copies_and_lose_the_process_that_computes_on_them[]: holes::refuses_copies, holes::is_lost,
            holes::is_lost_half_way;
        a_graph_finds_the_bytes_that_were_away_and_came_back[]: holes::replays_after_a_swap;
        memory_is_moved_while_the_legacy_stream_is_blocked[]: holes::moves_beside_blocked_work;
        registered_memory_is_reached_in_place[]: registered::is_reached, registered::keeps_its_rules;
        registered_memory_is_copied_faster_than_pageable_memory[]: registered::is_fast;
        memory_that_cannot_be_shared_is_registered_all_the_same[]: registered::is_staged;
        memory_registered_for_reading_is_only_read[]: registered::is_read;
        a_card_may_not_register_memory_for_reading["--no-read-only-registration"]: registered::is_not_read;
        memory_of_the_host_comes_from_the_node_that_has_some["--host-node", "1"]: memory::is_next_to_the_host;
        pools_follow_their_streams[]: memory::uses_pools, memory::captures_pools;
    }
    driven: computes, checkpoints::holds_memory, checkpoints::takes_steps, deaths::dies, deaths::dies_with_a_child, counts_devices, nvml::monitors,
        failures::dies_of_an_assertion, failures::meets_faults, failures::meets_periodic_faults, failures::is_refused,
        failures::is_killed,
        failures::looks_up_old, failures::refuses_to_start, failures::loses_a_card;
}

#[test]
fn programs_compute_and_leave_nothing() {
    let card = CardProcess::start(&[]);
    card.run("computes");
    let stats = card.observer().stats().unwrap();
    assert_eq!(stats.gpus[0].free, stats.gpus[0].total);
    assert!(stats.total.faults > 0 && stats.total.kernels >= 3, "{:?}", stats.total);
    assert!(!stats.timeline.is_empty());
    card.end();
}

fn computes() {
    let program = Program::start();
    let kernels = program.kernels();
    let n = 3 * MIB / 4 + 5;
    let (mut managed, mut sum, mut device, mut pinned) = (0, 0, 0, 0);
    assert_eq!(program.cuMemAllocManaged(&mut managed, n * 4, 1), 0);
    assert_eq!(program.cuMemAllocManaged(&mut sum, 8, 1), 0);
    assert_eq!(program.cuMemAlloc_v2(&mut device, n * 4), 0);
    assert_eq!(program.cuMemAllocHost_v2(&mut pinned, n * 4), 0);

    let (count, n64) = (n, n as u64);
    assert_eq!(program.launch(kernels, "fill", 0, &[managed, n64, 5]), 0);
    assert_eq!(program.launch(kernels, "add", 0, &[managed, n64, 2]), 0);
    assert_eq!(program.launch(kernels, "checksum", 0, &[managed, n64, sum]), 0);
    assert_eq!(program.cuCtxSynchronize(), 0);
    assert_eq!(program.words(sum, 2), [(7 * n64 * n64) as u32, ((7 * n64 * n64) >> 32) as u32]);

    let host: Vec<u32> = (0..u32::try_from(n).unwrap()).collect();
    assert_eq!(program.cuMemcpyHtoD_v2(device, host.as_ptr().cast(), n * 4), 0);
    assert_eq!(program.launch(kernels, "add", 0, &[device, n64, 1]), 0);
    assert_eq!(program.cuMemcpyDtoHAsync_v2(pinned as *mut u8, device, n * 4, 0), 0);
    assert_eq!(program.cuStreamSynchronize(0), 0);
    let back = program.words(pinned, count);
    assert!(back.iter().zip(1..).all(|(word, expected)| *word == expected));

    let mut kind = 0;
    assert_eq!((program.cuPointerGetAttribute(&mut kind, 2, managed), kind), (0, 2));
    assert_eq!((program.cuPointerGetAttribute(&mut kind, 8, managed + 4), kind), (0, 1));
    assert_eq!((program.cuPointerGetAttribute(&mut kind, 8, device), kind), (0, 0));
    assert_eq!(program.cuPointerGetAttribute(&mut kind, 2, 0x1000), 1);

    let (mut free, mut total, mut too_much) = (0, 0, 0);
    assert_eq!(program.cuMemGetInfo_v2(&mut free, &mut total), 0);
    assert_eq!(program.cuMemAlloc_v2(&mut too_much, total), 2);
    assert_eq!(program.cuMemAllocManaged(&mut too_much, 2 * total, 1), 0);
    assert_eq!(program.cuMemFree_v2(too_much), 0);
    assert_eq!(program.cuMemFree_v2(too_much), 1);
}

fn looks_up() {
    let program = Program::load();
    let lookup = |name: &str, version, flags| {
        let (text, mut pointer, mut status) = (CString::new(name).unwrap(), 0, 9);
        let code = program.cuGetProcAddress_v2(text.as_ptr(), &mut pointer, version, flags, &mut status);
        (code, pointer, status)
    };
    for (name, version, flags, export) in [
        ("cuInit", 2000, 0, "cuInit"),
        ("cuMemAlloc", 13_000, 0, "cuMemAlloc_v2"),
        ("cuMemFree", 3020, 1, "cuMemFree_v2"),
        ("cuLaunchKernel", 4000, 0, "cuLaunchKernel"),
        ("cuLaunchKernel", 7000, 1, "cuLaunchKernel"),
        ("cuLaunchKernel", 7000, 2, "cuLaunchKernel_ptsz"),
        ("cuMemcpyHtoD", 7000, 2, "cuMemcpyHtoD_v2_ptds"),
        ("cuMemcpyHtoDAsync", 12_000, 2, "cuMemcpyHtoDAsync_v2_ptsz"),
        ("cuCtxGetDevice", 12_090, 0, "cuCtxGetDevice"),
        ("cuCtxGetDevice", 13_000, 0, "cuCtxGetDevice_v2"),
        ("cuCtxSynchronize", 13_000, 2, "cuCtxSynchronize_v2"),
        ("cuDeviceGetUuid", 11_030, 0, "cuDeviceGetUuid"),
        ("cuDeviceGetUuid", 99_999, 0, "cuDeviceGetUuid_v2"),
        ("cuMemPrefetchAsync", 12_010, 2, "cuMemPrefetchAsync_ptsz"),
        ("cuMemPrefetchAsync", 12_020, 2, "cuMemPrefetchAsync_v2_ptsz"),
        ("cuStreamBeginCapture", 10_000, 0, "cuStreamBeginCapture"),
        ("cuStreamBeginCapture", 10_010, 0, "cuStreamBeginCapture_v2"),
        ("cuStreamGetCaptureInfo", 11_030, 2, "cuStreamGetCaptureInfo_v2_ptsz"),
        ("cuStreamGetCaptureInfo", 12_030, 2, "cuStreamGetCaptureInfo_v3_ptsz"),
        ("cuGraphLaunch", 10_000, 2, "cuGraphLaunch_ptsz"),
        ("cuMemAllocAsync", 11_020, 0, "cuMemAllocAsync"),
        ("cuMemAllocAsync", 11_020, 2, "cuMemAllocAsync_ptsz"),
        ("cuMemcpyHtoA", 7000, 2, "cuMemcpyHtoA_v2_ptds"),
        ("cuMemCreate", 10_020, 2, "cuMemCreate"),
        ("cuGraphAddKernelNode", 11_080, 0, "cuGraphAddKernelNode"),
        ("cuGraphAddKernelNode", 12_000, 0, "cuGraphAddKernelNode_v2"),
        ("cuGraphAddDependencies", 12_020, 0, "cuGraphAddDependencies"),
        ("cuGraphAddDependencies", 12_030, 0, "cuGraphAddDependencies_v2"),
        ("cuGraphExecUpdate", 12_000, 0, "cuGraphExecUpdate_v2"),
        ("cuGetProcAddress", 11_030, 0, "cuGetProcAddress"),
        ("cuGetProcAddress", 12_000, 0, "cuGetProcAddress_v2"),
    ] {
        let expected = program.symbol(export).unwrap_or_else(|| panic!("no export {export}")) as usize;
        assert_eq!(lookup(name, version, flags), (0, expected, 0), "{name} {version} {flags}");
    }
    // What driver 580 answers on an H100 where there is nothing to answer.
    assert_eq!(lookup("", 0, 0), (0, 0, 1));
    assert_eq!(lookup("cuNothing", 13_000, 0), (0, 0, 1));
    assert_eq!(lookup("cuMemAlloc_v2", 13_000, 0), (0, 0, 1));
    assert_eq!(lookup("cuCtxRecordEvent", 12_040, 0), (0, 0, 2));
    assert_eq!(lookup("cuLaunchKernel", 4000, 2), (0, 0, 2));
    assert_eq!(lookup("cuInit", 13_000, 4).0, 1);
}

static CALLS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_call(_data: *mut c_void) {
    CALLS.fetch_add(1, Ordering::SeqCst);
}

fn waits() {
    let program = Program::start();
    let kernels = program.kernels();
    let (mut first, mut second, mut start, mut end, mut flag) = (0, 0, 0, 0, 0);
    assert_eq!(program.cuStreamCreate(&mut first, 1), 0);
    assert_eq!(program.cuStreamCreate(&mut second, 1), 0);
    assert_eq!(program.cuEventCreate(&mut start, 0), 0);
    assert_eq!(program.cuEventCreate(&mut end, 0), 0);
    assert_eq!(program.cuMemAllocManaged(&mut flag, 4, 1), 0);

    assert_eq!(program.cuStreamWaitValue32_v2(first, flag, 1, 0), 0);
    assert_eq!(program.cuLaunchHostFunc(first, count_call, std::ptr::null_mut()), 0);
    assert_eq!(program.cuEventRecord(end, first), 0);
    assert_eq!(program.cuEventQuery(end), NOT_READY);
    assert_eq!(CALLS.load(Ordering::SeqCst), 0);
    assert_eq!(program.cuStreamWriteValue32_v2(second, flag, 1, 0), 0);
    assert_eq!(program.cuEventSynchronize(end), 0);
    assert_eq!(CALLS.load(Ordering::SeqCst), 1);

    assert_eq!(program.cuStreamWriteValue32_v2(second, flag, 0, 0), 0);
    assert_eq!(program.cuStreamSynchronize(second), 0);
    assert_eq!(program.launch(kernels, "spin", first, &[flag, u64::MAX]), 0);
    assert_eq!(program.cuCtxRecordEvent(0, end), 0);
    for _ in 0..3 {
        assert_eq!(program.cuEventQuery(end), NOT_READY);
    }
    assert_eq!(program.cuStreamWriteValue32_v2(second, flag, 1, 0), 0);
    assert_eq!(program.cuEventSynchronize(end), 0);
    assert_eq!(program.cuEventQuery(end), 0);

    // Events count the card's time, which stands still while a busy host does not let the card keep up.
    let never_set = 0;
    assert_eq!(program.cuEventRecord(start, first), 0);
    assert_eq!(program.launch(kernels, "spin", first, &[never_set, 5_000_000]), 0);
    assert_eq!(program.cuEventRecord(end, first), 0);
    assert_eq!(program.cuEventSynchronize(end), 0);
    let mut milliseconds = 0.0;
    assert_eq!(program.cuEventElapsedTime_v2(&mut milliseconds, start, end), 0);
    assert!((5.0..=7.0).contains(&milliseconds), "{milliseconds} ms");

    assert_eq!(program.cuMemPrefetchAsync(flag, 4, -1, first), 0);
    assert_eq!(program.cuStreamSynchronize(first), 0);
}

/// Each thread waits often, so that each reads answers for the others too, and one runs far ahead of the
/// card.
fn shares_between_threads() {
    let program = Program::start();
    let kernels = program.kernels();
    let mut words = 0;
    assert_eq!(program.cuMemAllocManaged(&mut words, 4096, 1), 0);
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let program = &program;
            scope.spawn(move || {
                let (mut context, mut stream) = (0, 0);
                assert_eq!(program.cuDevicePrimaryCtxRetain(&mut context, 0), 0);
                assert_eq!(program.cuCtxSetCurrent(context), 0);
                assert_eq!(program.cuStreamCreate(&mut stream, 1), 0);
                for round in 1..=100 {
                    assert_eq!(program.launch(kernels, "add", stream, &[words + 4 * thread, 1, 1]), 0);
                    assert_eq!(program.cuStreamSynchronize(stream), 0);
                    let word = words as usize + 4 * usize::try_from(thread).unwrap();
                    // SAFETY: managed memory of this process, which nothing writes now.
                    assert_eq!(unsafe { (word as *const u32).read_volatile() }, round);
                }
            });
        }
    });
    for _ in 0..3000 {
        assert_eq!(program.launch(kernels, "add", 0, &[words, 1, 1]), 0);
    }
    assert_eq!(program.words(words, 1), [3100]);
}

fn forks() {
    const NOT_INITIALIZED: u32 = 3;
    let program = Program::start();
    // SAFETY: the child only calls the driver, which refuses, and exits without running anything else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut count = 0;
        let code = program.cuDeviceGetCount(&mut count);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(code != NOT_INITIALIZED)) };
    }
    let mut status = -1;
    // SAFETY: waits for the child just made.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(program.cuCtxSynchronize(), 0);
}

#[test]
fn a_program_sees_the_devices_it_may_see() {
    let card = CardProcess::start(&["--gpus", "3"]);
    let uuid = card.observer().describe().unwrap().gpus[2].uuid_text();
    for (visible, count) in [("0", 1), ("2,1", 2), (uuid.as_str(), 1), ("0,7,1", 1), ("", -1), ("-1", -1)] {
        let mut command = card.program("counts_devices");
        command.env("CUDA_VISIBLE_DEVICES", visible).env("EXPECTED", count.to_string());
        assert_success(visible, &command.output().unwrap());
    }
    card.end();
}

fn counts_devices() {
    const NO_DEVICE: u32 = 100;
    let expected: i32 = std::env::var("EXPECTED").unwrap().parse().unwrap();
    let program = Program::load();
    let mut count: i32 = 0;
    if expected < 0 {
        assert_eq!(program.cuInit(0), NO_DEVICE);
    } else {
        assert_eq!((program.cuInit(0), program.cuDeviceGetCount(&mut count)), (0, 0));
        assert_eq!(count, expected);
    }
}
