//! Memory pools in stream order.

use std::time::Duration;

use simgpu_card::constants::Constants;
use simgpu_card::ids::{ClientId, GpuIndex, PoolId, StreamId};
use simgpu_card::kernel::Kernel;
use simgpu_card::wire::{Answer, Failure, Kind, Op, PoolUse, Request, Sticky, StreamKind};

use crate::bench::{BASE, Bench, MIB};

const POOL: PoolId = PoolId(3);
const ONE: StreamId = StreamId(1);
const OTHER: StreamId = StreamId(2);

fn bench() -> (Bench, ClientId) {
    let (mut bench, process) = Bench::with_process();
    bench.stream(process, ONE, StreamKind::NonBlocking);
    bench.stream(process, OTHER, StreamKind::NonBlocking);
    let (pool, gpu, limit) = (POOL, GpuIndex(0), 0);
    bench.request(process, Request::CreatePool { pool, gpu, limit }).unwrap();
    (bench, process)
}

fn allocate(
    bench: &mut Bench,
    client: ClientId,
    stream: StreamId,
    address: u64,
    len: u64,
) -> Result<(), Failure> {
    let pool = POOL;
    let op = Op::Allocate { address, len, pool };
    bench.request(client, Request::Submit(stream, op)).map(|_| ())
}

fn usage(bench: &mut Bench, client: ClientId) -> PoolUse {
    match bench.request(client, Request::PoolInfo(POOL)) {
        Ok(Answer::Pool(usage)) => usage,
        other => panic!("{other:?}"),
    }
}

fn fill(address: u64) -> Op {
    Op::Kernel(Kernel::Fill { p: address, n: 16, value: 5 })
}

fn spin(time: Duration) -> Op {
    Op::Kernel(Kernel::Spin { flag: 0, nanoseconds: u64::try_from(time.as_nanos()).unwrap() })
}

#[test]
fn a_block_lives_between_its_places_in_the_stream() {
    let (mut bench, process) = bench();
    allocate(&mut bench, process, ONE, BASE, MIB).unwrap();
    bench.submit_to(process, ONE, fill(BASE));
    bench.submit_to(process, ONE, Op::Release(BASE));
    assert_eq!(bench.synchronize(process), Ok(()));
    bench.submit_to(process, ONE, fill(BASE));
    assert_eq!(bench.synchronize(process), Err(Failure::Sticky(Sticky::IllegalAddress)));
}

#[test]
fn a_busy_stream_uses_its_own_freed_block_again_and_another_stream_takes_new_room() {
    let (mut bench, process) = bench();
    let free = bench.free();
    bench.submit_to(process, ONE, spin(Duration::from_millis(1)));
    allocate(&mut bench, process, ONE, BASE, 4 * MIB).unwrap();
    bench.submit_to(process, ONE, Op::Release(BASE));
    allocate(&mut bench, process, ONE, BASE, 4 * MIB).unwrap();
    assert_eq!(bench.free(), free - 4 * MIB);
    bench.submit_to(process, ONE, Op::Release(BASE));
    allocate(&mut bench, process, OTHER, BASE + 64 * MIB, 4 * MIB).unwrap();
    assert_eq!(bench.free(), free - 8 * MIB);
}

#[test]
fn a_synchronise_gives_back_what_is_above_the_threshold() {
    let (mut bench, process) = bench();
    let free = bench.free();
    bench.request(process, Request::SetPoolThreshold(POOL, 2 * MIB)).unwrap();
    allocate(&mut bench, process, ONE, BASE, 8 * MIB).unwrap();
    bench.submit_to(process, ONE, Op::Release(BASE));
    bench.finish();
    let (reserved, used) = (usage(&mut bench, process).reserved, usage(&mut bench, process).used);
    assert_eq!((reserved, used), (8 * MIB, 0));
    bench.synchronize(process).unwrap();
    assert_eq!(usage(&mut bench, process).reserved, 2 * MIB);
    assert_eq!(bench.free(), free - 2 * MIB);
    bench.request(process, Request::TrimPool(POOL, 0)).unwrap();
    assert_eq!(bench.free(), free);
    assert_eq!(usage(&mut bench, process).reserved_high, 8 * MIB);
}

#[test]
fn a_block_that_finds_no_room_is_refused_when_asked_for() {
    let (mut bench, process) = bench();
    assert_eq!(allocate(&mut bench, process, ONE, BASE, 300 * MIB), Err(Failure::OutOfMemory));
    assert_eq!(usage(&mut bench, process), PoolUse::default());
    assert_eq!(bench.synchronize(process), Ok(()));
}

#[test]
fn a_block_can_be_freed_outside_of_streams() {
    let (mut bench, process) = bench();
    allocate(&mut bench, process, ONE, BASE, MIB).unwrap();
    allocate(&mut bench, process, ONE, BASE + 64 * MIB, MIB).unwrap();
    bench.synchronize(process).unwrap();
    bench.free_memory(process, BASE);
    assert_eq!(usage(&mut bench, process).used, MIB);
}

#[test]
fn the_blocks_of_a_destroyed_pool_live_until_they_are_freed() {
    let (mut bench, process) = bench();
    let free = bench.free();
    for block in [BASE, BASE + 64 * MIB, BASE + 128 * MIB] {
        allocate(&mut bench, process, ONE, block, 2 * MIB).unwrap();
    }
    bench.submit_to(process, ONE, Op::Release(BASE + 128 * MIB));
    bench.finish();
    bench.request(process, Request::DestroyPool(POOL)).unwrap();
    assert_eq!(bench.free(), free - 4 * MIB);
    assert!(bench.request(process, Request::PoolInfo(POOL)).is_err());
    bench.submit_to(process, ONE, fill(BASE));
    assert_eq!(bench.synchronize(process), Ok(()));
    bench.free_memory(process, BASE);
    assert_eq!(bench.free(), free - 2 * MIB);
    bench.submit_to(process, ONE, Op::Release(BASE + 64 * MIB));
    bench.finish();
    assert_eq!(bench.free(), free);
}

#[test]
fn a_graph_takes_its_blocks_with_every_launch_all_or_none() {
    let (mut bench, process) = bench();
    let block = |address| Op::Allocate { address, len: 2 * MIB, pool: POOL };
    bench.define_graph(process, vec![block(BASE), fill(BASE), Op::Release(BASE)]);
    for _ in 0..2 {
        assert_eq!(bench.launch_graph_and_hear(process), Ok(()));
    }
    assert_eq!(bench.synchronize(process), Ok(()));
    assert_eq!(usage(&mut bench, process).used_high, 2 * MIB);
    let large = Op::Allocate { address: BASE + 256 * MIB, len: 300 * MIB, pool: POOL };
    bench.define_graph(process, vec![block(BASE), large]);
    assert_eq!(bench.launch_graph_and_hear(process), Err(Failure::OutOfMemory));
    assert_eq!(usage(&mut bench, process).used, 0);
}

#[test]
fn a_release_that_comes_first_takes_nothing_else_away() {
    let (mut bench, process) = bench();
    bench.submit_to(process, ONE, spin(Duration::from_millis(1)));
    allocate(&mut bench, process, ONE, BASE, 512).unwrap();
    bench.allocate(process, BASE, 512, Kind::Device).unwrap();
    bench.submit_to(process, OTHER, Op::Release(BASE));
    bench.goodbye(process);
    assert_eq!(bench.free(), Constants::default().memory);
}
