//! Several GPUs: who reaches whose memory, what a copy between them costs, what is left when one is lost;
//! and errors from which a process does not recover.

use std::time::Duration;

use simgpu_card::constants::Constants;
use simgpu_card::ids::{ClientId, ContextId, GpuIndex, StreamId};
use simgpu_card::kernel::Kernel;
use simgpu_card::wire::{Failure, Kind, Op, Plane, Request, Shape, Sticky, StreamKind};

use crate::bench::{BASE, Bench, MIB};

const FIRST: GpuIndex = GpuIndex(0);
const SECOND: GpuIndex = GpuIndex(1);
const FAR: ContextId = ContextId(1);
const FAR_BASE: u64 = BASE + 256 * MIB;

/// A process with a context on each of two GPUs and memory on both.
fn bench() -> (Bench, ClientId) {
    let mut bench = Bench::with_gpus(Constants::default(), 2);
    let process = bench.process();
    bench.request(process, Request::CreateContext(FAR, SECOND)).unwrap();
    bench.allocate(process, BASE, 4 * MIB, Kind::Device).unwrap();
    let far = Request::Allocate { address: FAR_BASE, len: 4 * MIB, kind: Kind::Device, context: FAR };
    bench.request(process, far).unwrap();
    (bench, process)
}

fn fill(address: u64) -> Op {
    Op::Kernel(Kernel::Fill { p: address, n: MIB / 4, value: 3 })
}

fn peer(from: GpuIndex, to: GpuIndex, allowed: bool) -> Request {
    Request::Peer { from, to, allowed }
}

#[test]
fn each_gpu_has_its_own_memory() {
    let (bench, _) = bench();
    let used = 4 * MIB + Constants::default().context_memory;
    assert_eq!(bench.free_of(FIRST), 256 * MIB - used);
    assert_eq!(bench.free_of(SECOND), 256 * MIB - used);
}

#[test]
fn a_kernel_reaches_the_other_gpu_only_as_its_peer_and_more_slowly() {
    let (mut bench, process) = bench();
    let near = bench.time(process, fill(BASE));
    bench.request(process, peer(FIRST, SECOND, true)).unwrap();
    let far = bench.time(process, fill(FAR_BASE));
    let constants = Constants::default();
    assert_eq!(near, constants.launch + constants.kernel.time_for(MIB));
    assert_eq!(far, constants.launch + constants.peer.time_for(MIB));
    bench.request(process, peer(FIRST, SECOND, false)).unwrap();
    bench.submit(process, fill(FAR_BASE));
    assert_eq!(bench.synchronize(process), Err(Failure::Sticky(Sticky::IllegalAddress)));
}

#[test]
fn a_copy_between_gpus_needs_no_peers_and_goes_over_the_link() {
    let (mut bench, process) = bench();
    bench.time(process, fill(BASE));
    let plane = |address| Plane { address, pitch: 0 };
    let copy = Op::Copy { to: plane(FAR_BASE), from: plane(BASE), shape: Shape { width: MIB, rows: 1 } };
    assert_eq!(bench.time(process, copy), Constants::default().peer.time_for(MIB));
    assert_eq!(bench.download(process, FAR_BASE + MIB - 4, 4), 3u32.to_le_bytes());
}

#[test]
fn a_gpu_that_falls_off_takes_its_users_with_it_and_nobody_else() {
    let (mut bench, process) = bench();
    let other = bench.process();
    bench.request(other, Request::FallOff(SECOND)).unwrap();
    assert_eq!(bench.synchronize(process), Err(Failure::Sticky(Sticky::Lost)));
    assert_eq!(bench.synchronize(other), Ok(()));
    let again = bench.request(other, Request::CreateContext(FAR, SECOND));
    assert_eq!(again.unwrap_err(), Failure::Lost);
    assert_eq!(bench.lost(), [false, true]);
    bench.request(other, Request::Reset(SECOND)).unwrap();
    bench.request(other, Request::CreateContext(FAR, SECOND)).unwrap();
    assert_eq!(bench.synchronize(process), Err(Failure::Sticky(Sticky::Lost)));
    assert_eq!(bench.lost(), [false, false]);
}

#[test]
fn a_failed_assertion_stops_all_work_of_its_process_and_is_seen_without_asking() {
    let (mut bench, process) = bench();
    let stream = StreamId(7);
    bench.stream(process, stream, StreamKind::NonBlocking);
    assert_eq!(bench.health(process), 0);
    bench.submit_to(process, stream, Op::Fail(Sticky::Assert));
    assert_eq!(bench.health(process), Sticky::Assert as u32);
    let failure = Err(Failure::Sticky(Sticky::Assert));
    assert_eq!(bench.synchronize(process), failure);
    assert_eq!(bench.allocate(process, BASE + 64 * MIB, MIB, Kind::Managed), failure);
}

#[test]
fn a_pause_holds_up_its_stream_alone() {
    let (mut bench, process) = bench();
    let stream = StreamId(7);
    bench.stream(process, stream, StreamKind::NonBlocking);
    let start = bench.now();
    bench.submit_to(process, stream, Op::Pause(Duration::from_millis(5)));
    let constants = Constants::default();
    let alone = constants.launch + constants.kernel.time_for(MIB);
    assert_eq!(bench.time_beside_others(process, fill(BASE)), alone);
    bench.synchronize(process).unwrap();
    assert_eq!(bench.now() - start, Duration::from_millis(5));
}

#[test]
fn the_sensors_follow_the_work() {
    let (mut bench, process) = bench();
    let cool = bench.sensors();
    let spin = Op::Kernel(Kernel::Spin { flag: 0, nanoseconds: 1_000_000_000 });
    bench.time(process, spin);
    let (degrees, milliwatts) = bench.sensors();
    assert_eq!(cool, (32, 70_000));
    assert_eq!((degrees, milliwatts), (63, 350_000));
    bench.advance(Duration::from_secs(10));
    assert_eq!(bench.sensors(), cool);
}
