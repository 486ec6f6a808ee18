//! Both directions of the bus, and memory of the host at the other end of it.

use std::time::Duration;

use simgpu_card::constants::{Constants, PAGE};
use simgpu_card::ids::{ClientId, ContextId, EventId, GpuIndex, HandleId, StreamId};
use simgpu_card::kernel::Kernel;
use simgpu_card::wire::{Failure, Kind, Op, Place, Plane, Request, Shape, Sticky, StreamKind, Work};

use crate::bench::{BASE, Bench, MIB};

const LEN: u64 = 64 * MIB;
const HOST: u64 = 2 * BASE;

fn copy(to: u64, from: u64) -> Op {
    let plane = |address| Plane { address, pitch: 0 };
    Op::Copy { to: plane(to), from: plane(from), shape: Shape { width: LEN, rows: 1 } }
}

/// A process with as much memory on the card as pinned on the host.
fn process(bench: &mut Bench) -> ClientId {
    let process = bench.process();
    bench.allocate(process, BASE, LEN, Kind::Device).unwrap();
    bench.allocate(process, HOST, LEN, Kind::Pinned).unwrap();
    process
}

fn near(time: Duration, expected: Duration) -> bool {
    time.abs_diff(expected) <= 2 * Constants::default().pinned_out.time_for(PAGE)
}

/// Measured on an H100 (PCIe 5, driver 580): 55 GB/s each way, 88 GB/s together.
#[test]
fn copies_both_ways_at_once_share_the_bus() {
    let constants = Constants::default();
    let mut bench = Bench::new(constants.clone());
    let (leaver, entrant) = (process(&mut bench), process(&mut bench));
    let alone = bench.time(leaver, copy(HOST, BASE));
    assert!(near(alone, constants.pinned_out.time_for(LEN)), "{alone:?}");
    bench.submit(entrant, copy(BASE, HOST));
    let together = bench.time_beside_others(leaver, copy(HOST, BASE));
    bench.synchronize(entrant).unwrap();
    assert!(near(together, constants.pinned_both.time_for(2 * LEN)), "{together:?}");
}

#[test]
fn a_copy_that_is_alone_again_is_as_fast_as_before() {
    let constants = Constants::default();
    let mut bench = Bench::new(constants.clone());
    let process = process(&mut bench);
    let second = StreamId(1);
    bench.stream(process, second, StreamKind::NonBlocking);
    let start = bench.now();
    bench.submit_to(process, second, copy(BASE, HOST));
    bench.submit(process, copy(HOST, BASE));
    bench.submit(process, copy(HOST, BASE));
    bench.synchronize(process).unwrap();
    let expected = constants.pinned_both.time_for(2 * LEN) + constants.pinned_out.time_for(LEN);
    let time = bench.now() - start;
    assert!(near(time, expected), "{time:?} against {expected:?}");
    assert!(bench.done(process, Work::Stream(second)));
}

/// A second stream whose copy out of the card is half done.
fn half_copied(bench: &mut Bench) -> ClientId {
    let process = process(bench);
    bench.stream(process, StreamId(1), StreamKind::NonBlocking);
    bench.submit(process, fill(BASE, LEN, 1));
    bench.synchronize(process).unwrap();
    bench.submit_to(process, StreamId(1), copy(HOST, BASE));
    bench.advance(Constants::default().pinned_out.time_for(LEN / 2));
    process
}

fn fill(p: u64, len: u64, value: u32) -> Op {
    Op::Kernel(Kernel::Fill { p, n: len / 4, value })
}

#[test]
fn a_copy_that_a_kernel_writes_into_is_torn_and_counted() {
    let mut bench = Bench::new(Constants::default());
    let process = half_copied(&mut bench);
    bench.submit(process, fill(BASE, LEN, 2));
    bench.synchronize(process).unwrap();
    let copied = bench.download(process, HOST, LEN);
    let (first, last) = (&copied[..4], &copied[copied.len() - 4..]);
    assert_eq!((first, last), (&1u32.to_le_bytes()[..], &2u32.to_le_bytes()[..]));
    assert_eq!(bench.counters(process).raced_copies, 1);
}

#[test]
fn a_copy_is_raced_by_a_kernel_that_only_waits_for_its_slice() {
    let mut bench = Bench::new(Constants { slice: Duration::from_secs(1), ..Constants::default() });
    let other = bench.process();
    bench.submit(other, Op::Kernel(Kernel::Spin { flag: 0, nanoseconds: 500_000_000 }));
    bench.advance(Duration::from_millis(1));
    let process = process(&mut bench);
    bench.stream(process, StreamId(1), StreamKind::NonBlocking);
    bench.submit(process, fill(BASE, 4, 1));
    bench.submit_to(process, StreamId(1), copy(HOST, BASE));
    assert_eq!(bench.counters(process).raced_copies, 1);
}

#[test]
fn copies_beside_other_bytes_and_after_their_writers_are_not_raced() {
    let mut bench = Bench::new(Constants::default());
    let process = half_copied(&mut bench);
    bench.allocate(process, 3 * BASE, LEN, Kind::Device).unwrap();
    bench.submit(process, fill(3 * BASE, LEN, 2));
    bench.submit_to(process, StreamId(1), fill(BASE, LEN, 2));
    bench.submit_to(process, StreamId(1), Op::Record(EventId(1)));
    bench.submit(process, Op::WaitEvent(EventId(1)));
    bench.submit(process, copy(HOST, BASE));
    bench.synchronize(process).unwrap();
    assert_eq!(bench.download(process, HOST, 4), 2u32.to_le_bytes());
    assert_eq!(bench.counters(process).raced_copies, 0);
}

#[test]
fn registered_memory_is_pinned_for_its_price() {
    let constants = Constants::default();
    let mut bench = Bench::new(constants.clone());
    let process = bench.process();
    bench.allocate(process, BASE, LEN, Kind::Device).unwrap();
    let start = bench.now();
    let register = Request::Register { address: HOST, len: LEN, untouched: LEN / 2, context: ContextId(0) };
    bench.request(process, register).unwrap();
    let price = constants.register.time_for(LEN) + constants.touch.time_for(LEN / 2);
    assert_eq!(bench.now() - start, price);
    assert_eq!(bench.host_bytes(process), LEN);
    let out = bench.time(process, copy(HOST, BASE));
    assert!(near(out, constants.pinned_out.time_for(LEN)), "{out:?}");
    let start = bench.now();
    bench.request(process, Request::Unregister(HOST)).unwrap();
    assert_eq!(bench.now() - start, constants.unregister.time_for(LEN));
    assert_eq!(bench.host_bytes(process), 0);
}

#[test]
fn an_unregistration_does_not_wait_and_a_copy_on_its_way_fails() {
    let (mut bench, process) = Bench::with_process();
    bench.allocate(process, BASE, LEN, Kind::Device).unwrap();
    let register = Request::Register { address: HOST, len: LEN, untouched: 0, context: ContextId(0) };
    bench.request(process, register).unwrap();
    bench.submit(process, copy(HOST, BASE));
    bench.request(process, Request::Unregister(HOST)).unwrap();
    assert_eq!(bench.synchronize(process), Err(Failure::Sticky(Sticky::IllegalAddress)));
}

#[test]
fn a_copy_out_of_memory_that_is_unmapped_meanwhile_loses_the_process() {
    let (mut bench, process) = Bench::with_process();
    let (handle, gpu) = (HandleId(1), GpuIndex(0));
    let create = Request::CreateHandle { handle, len: LEN, place: Place::Gpu(gpu), shareable: false };
    bench.request(process, create).unwrap();
    bench
        .request(process, Request::Map { address: BASE, len: LEN, handle })
        .unwrap();
    bench.allocate(process, HOST, LEN, Kind::Pinned).unwrap();
    assert_eq!(bench.lost_process(process), None);
    bench.submit(process, copy(HOST, BASE));
    bench.request(process, Request::Unmap { address: BASE, len: LEN }).unwrap();
    assert_eq!(bench.synchronize(process), Err(Failure::Sticky(Sticky::IllegalAddress)));
    assert_eq!(bench.lost_process(process), Some(Sticky::IllegalAddress));
}

#[test]
fn the_host_has_as_much_memory_as_it_is_given() {
    let mut bench = Bench::new(Constants { host_memory: LEN, ..Constants::default() });
    let [one, other] = [bench.process(), bench.process()];
    let handle = HandleId(1);
    let create = |len| Request::CreateHandle { handle, len, place: Place::Host, shareable: false };
    bench.request(one, create(LEN / 2)).unwrap();
    bench.allocate(other, HOST, LEN / 2, Kind::Pinned).unwrap();
    let register = Request::Register { address: BASE, len: PAGE, untouched: 0, context: ContextId(0) };
    assert_eq!(bench.request(other, register.clone()).unwrap_err(), Failure::OutOfMemory);
    assert_eq!(bench.request(other, create(PAGE)).unwrap_err(), Failure::OutOfMemory);
    bench.request(one, Request::ReleaseHandle(handle)).unwrap();
    bench.request(other, register).unwrap();
    bench.hang_up(other);
    bench.finish();
    bench.allocate(one, HOST, LEN, Kind::Pinned).unwrap();
}
