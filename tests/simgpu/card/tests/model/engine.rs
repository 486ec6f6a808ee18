//! Faults, slices, streams, copies and endings.

use std::time::Duration;

use simgpu_card::constants::{Constants, PAGE, Rate};
use simgpu_card::ids::{EventId, GpuIndex, StreamId};
use simgpu_card::kernel::Kernel;
use simgpu_card::wire::{Failure, Kind, Op, Plane, Shape, Sticky, StreamKind, Test, Work};

use crate::bench::{BASE, Bench, MIB};

const MILLISECOND: Duration = Duration::from_millis(1);

fn touch(address: u64, len: u64) -> Op {
    Op::Kernel(Kernel::Touch { p: address, n: len / 4, stride: PAGE / 4 })
}

fn spin(time: Duration) -> Op {
    Op::Kernel(Kernel::Spin { flag: 0, nanoseconds: u64::try_from(time.as_nanos()).unwrap() })
}

#[test]
fn the_first_touch_of_a_page_costs_a_fault_and_the_second_nothing() {
    let (mut bench, process) = Bench::with_process();
    bench.allocate(process, BASE, 64 * MIB, Kind::Managed).unwrap();
    let constants = Constants::default();

    let cold = bench.time(process, touch(BASE, 64 * MIB));
    assert_eq!(bench.counters(process).faults, 32);
    assert!(cold >= constants.fault_in.time_for(64 * MIB), "{cold:?}");

    let warm = bench.time(process, touch(BASE, 64 * MIB));
    assert_eq!(bench.counters(process).faults, 32);
    assert!(warm < MILLISECOND, "{warm:?}");
}

#[test]
fn a_prefetch_is_faster_than_faults_and_spares_them() {
    let (mut bench, process) = Bench::with_process();
    bench.allocate(process, BASE, 64 * MIB, Kind::Managed).unwrap();
    let time = bench.time(process, Op::Prefetch { address: BASE, len: 64 * MIB, to: Some(GpuIndex(0)) });
    assert_eq!(time, (0..32).map(|_| Constants::default().prefetch_in.time_for(PAGE)).sum());
    bench.time(process, touch(BASE, 64 * MIB));
    assert_eq!(bench.counters(process).faults, 0);
    assert_eq!(bench.counters(process).prefetched_in, 64 * MIB);

    bench.time(process, Op::Prefetch { address: BASE, len: 64 * MIB, to: None });
    assert_eq!(bench.counters(process).prefetched_out, 64 * MIB);
    assert_eq!(bench.resident(process), 0);
}

#[test]
fn a_process_larger_than_the_card_evicts_itself() {
    let (mut bench, process) = Bench::with_process();
    bench.allocate(process, BASE, 384 * MIB, Kind::Managed).unwrap();
    for _ in 0..2 {
        bench.time(process, touch(BASE, 384 * MIB));
    }
    // Oldest out first over a loop larger than the card: every touch is a fault.
    assert_eq!(bench.counters(process).faults, 2 * 192);
    assert_eq!(bench.resident(process), 254 * MIB);
}

#[test]
fn two_processes_over_the_card_thrash_and_taking_turns_does_not() {
    /// Makespan and faults of two processes with 3/4 of the card each, five passes of touch and 20 ms of
    /// compute.
    fn run(in_turns: bool) -> (Duration, u64) {
        let mut bench = Bench::new(Constants::default());
        let processes = [bench.process(), bench.process()];
        for process in processes {
            bench.allocate(process, BASE, 192 * MIB, Kind::Managed).unwrap();
        }
        let start = bench.now();
        let work = || (0..5).flat_map(|_| [touch(BASE, 192 * MIB), spin(20 * MILLISECOND)]);
        for process in processes {
            work().for_each(|op| bench.submit(process, op));
            if in_turns {
                bench.finish();
            }
        }
        bench.finish();
        (bench.now() - start, processes.iter().map(|process| bench.counters(*process).faults).sum())
    }
    let (together, together_faults) = run(false);
    let (in_turns, in_turns_faults) = run(true);
    assert!(in_turns_faults * 4 <= together_faults, "{in_turns_faults} against {together_faults} faults");
    assert!(in_turns * 2 <= together, "{in_turns:?} against {together:?}");
}

#[test]
fn slices_share_the_card_evenly_even_in_the_middle_of_a_kernel() {
    let mut bench = Bench::new(Constants { kernel: Rate(200_000_000), ..Constants::default() });
    let processes = [bench.process(), bench.process()];
    // Each piece of 2 MiB takes 10 ms, five slices.
    for process in processes {
        bench.allocate(process, BASE, 10 * MIB, Kind::Device).unwrap();
        bench.submit(process, Op::Kernel(Kernel::Fill { p: BASE, n: 10 * MIB / 4, value: 1 }));
    }
    bench.advance(40 * MILLISECOND);
    let shares = processes.map(|process| Duration::from_nanos(bench.counters(process).compute_nanos));
    assert!(shares[0].abs_diff(shares[1]) <= 2 * MILLISECOND, "{shares:?}");
    assert!(shares[0] + shares[1] >= 36 * MILLISECOND, "{shares:?}");
}

#[test]
fn each_change_between_two_processes_costs_a_moment() {
    let run = |slice_change| {
        let slow = Constants { kernel: Rate(200_000_000), ..Constants::default() };
        let mut bench = Bench::new(Constants { slice_change, ..slow });
        let processes = [bench.process(), bench.process()];
        let start = bench.now();
        // 50 ms for each.
        for process in processes {
            bench.allocate(process, BASE, 10 * MIB, Kind::Device).unwrap();
            bench.submit(process, Op::Kernel(Kernel::Fill { p: BASE, n: 10 * MIB / 4, value: 1 }));
        }
        bench.finish();
        bench.now() - start
    };
    let change = Constants::default().slice_change;
    let changes = (run(change) - run(Duration::ZERO)).as_nanos() / change.as_nanos();
    assert!((48..=56).contains(&changes), "{changes} changes in 100 ms");
}

#[test]
fn a_process_that_comes_later_waits_for_the_rest_of_a_slice() {
    let constants = Constants { kernel: Rate(1_000_000_000), ..Constants::default() };
    let Constants { slice, slice_change, launch, .. } = constants.clone();
    for phase in (1..20).map(|part| slice * part / 20) {
        let mut bench = Bench::new(constants.clone());
        let (busy, late) = (bench.process(), bench.process());
        bench.allocate(busy, BASE, 64 * MIB, Kind::Device).unwrap();
        // Pieces of 2.1 ms, so that their ends are not those of the slices.
        bench.submit(busy, Op::Kernel(Kernel::Fill { p: BASE, n: 64 * MIB / 4, value: 1 }));
        bench.advance(7 * slice + phase);
        let waited = bench.time_beside_others(late, Op::Kernel(Kernel::Empty)) - launch;
        assert_eq!(waited, slice - phase + slice_change, "{phase:?} after the begin of a slice");
    }
}

#[test]
fn alone_a_process_is_never_interrupted() {
    let (mut bench, process) = Bench::with_process();
    bench.submit(process, spin(50 * MILLISECOND));
    bench.finish();
    assert_eq!(bench.turns(), 1);
}

#[test]
fn kernels_compute_what_they_say() {
    let (mut bench, process) = Bench::with_process();
    bench.allocate(process, BASE, 8 * MIB, Kind::Managed).unwrap();
    bench.allocate(process, 2 * BASE, 8, Kind::Device).unwrap();
    let n = 2 * MIB;
    bench.submit(process, Op::Kernel(Kernel::Fill { p: BASE, n, value: u32::MAX }));
    bench.submit(process, Op::Kernel(Kernel::Add { p: BASE, n, value: 4 }));
    bench.submit(process, Op::Kernel(Kernel::Checksum { p: BASE, n, out: 2 * BASE }));
    let sum = bench.download(process, 2 * BASE, 8);
    assert_eq!(u64::from_le_bytes(sum.try_into().unwrap()), 3 * n * n);
}

#[test]
fn copies_and_fills_reach_rows_and_nothing_between_them() {
    let (mut bench, process) = Bench::with_process();
    bench.allocate(process, BASE, 64, Kind::Device).unwrap();
    let (to, shape) = (Plane { address: BASE + 2, pitch: 16 }, Shape { width: 4, rows: 3 });
    bench.submit(process, Op::Set { to, shape, value: 0x0201, element: 2 });
    let bytes = bench.download(process, BASE, 64);
    assert_eq!(bytes[..16], [0, 0, 1, 2, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[34..38], [1, 2, 1, 2]);
    assert!(bytes[40..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_stream_waits_for_a_value_that_another_one_writes() {
    let (mut bench, process) = Bench::with_process();
    let (waiting, writing) = (StreamId(1), StreamId(2));
    bench.stream(process, waiting, StreamKind::NonBlocking);
    bench.stream(process, writing, StreamKind::NonBlocking);
    bench.allocate(process, BASE, 64, Kind::Device).unwrap();
    let wait = Op::WaitValue { address: BASE, value: 1, test: Test::GreaterOrEqual, wide: false };
    bench.submit_to(process, waiting, wait);
    bench.submit_to(process, waiting, Op::Record(EventId(1)));
    bench.advance(5 * MILLISECOND);
    assert!(!bench.done(process, Work::Event(EventId(1))));
    bench.submit_to(process, writing, Op::WriteValue { address: BASE, value: 1, wide: false });
    bench.advance(MILLISECOND);
    assert!(bench.done(process, Work::Event(EventId(1))));
}

#[test]
fn the_board_tells_which_record_of_an_event_was_reached_and_when() {
    let (mut bench, process) = Bench::with_process();
    let event = EventId(7);
    let mut last = (0, Duration::ZERO);
    for record in 1..=3 {
        bench.submit(process, spin(5 * MILLISECOND));
        bench.submit(process, Op::Record(event));
        bench.advance(4 * MILLISECOND);
        assert_eq!(bench.reached(process, event), last, "the next record is not reached yet");
        bench.finish();
        last = (record, bench.now());
        assert_eq!(bench.reached(process, event), last);
    }
}

#[test]
fn a_spinning_kernel_ends_when_its_flag_is_set_and_others_run_beside_it() {
    let (mut bench, process) = Bench::with_process();
    let (spinning, other) = (StreamId(1), StreamId(2));
    bench.stream(process, spinning, StreamKind::NonBlocking);
    bench.stream(process, other, StreamKind::NonBlocking);
    bench.allocate(process, BASE, 64, Kind::Device).unwrap();
    bench.submit_to(process, spinning, Op::Kernel(Kernel::Spin { flag: BASE, nanoseconds: u64::MAX }));
    bench.submit_to(process, other, Op::Kernel(Kernel::Empty));
    bench.advance(5 * MILLISECOND);
    assert!(bench.done(process, Work::Stream(other)));
    assert!(!bench.done(process, Work::Stream(spinning)));
    bench.submit_to(process, other, Op::Kernel(Kernel::Fill { p: BASE, n: 1, value: 1 }));
    bench.advance(MILLISECOND);
    assert!(bench.done(process, Work::Stream(spinning)));
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams() {
    let (mut bench, process) = Bench::with_process();
    let blocking = StreamId(1);
    bench.stream(process, blocking, StreamKind::Blocking);
    bench.submit_to(process, blocking, spin(10 * MILLISECOND));
    bench.submit(process, Op::Record(EventId(1)));
    bench.advance(9 * MILLISECOND);
    assert!(!bench.done(process, Work::Event(EventId(1))));
    bench.advance(2 * MILLISECOND);
    assert!(bench.done(process, Work::Event(EventId(1))));
}

#[test]
fn a_graph_replays_its_work_each_time() {
    let (mut bench, process) = Bench::with_process();
    bench.allocate(process, BASE, 64, Kind::Device).unwrap();
    let add = Op::Kernel(Kernel::Add { p: BASE, n: 1, value: 5 });
    bench.define_graph(process, vec![add.clone(), add]);
    for _ in 0..3 {
        bench.launch_graph(process);
    }
    assert_eq!(bench.download(process, BASE, 4), 30u32.to_le_bytes());
}

#[test]
fn device_memory_runs_out_and_managed_memory_does_not() {
    let (mut bench, process) = Bench::with_process();
    assert_eq!(bench.allocate(process, BASE, 300 * MIB, Kind::Device), Err(Failure::OutOfMemory));
    assert_eq!(bench.allocate(process, BASE, 300 * MIB, Kind::Managed), Ok(()));
    assert_eq!(bench.allocate(process, 1 << 40, 254 * MIB, Kind::Device), Ok(()));
    assert_eq!(bench.allocate(process, 2 << 40, MIB, Kind::Device), Err(Failure::OutOfMemory));
}

#[test]
fn device_memory_pushes_managed_pages_out() {
    let (mut bench, process) = Bench::with_process();
    bench.allocate(process, BASE, 254 * MIB, Kind::Managed).unwrap();
    bench.time(process, touch(BASE, 254 * MIB));
    bench.allocate(process, 1 << 40, 100 * MIB, Kind::Device).unwrap();
    assert_eq!(bench.resident(process), 154 * MIB);
    assert_eq!(bench.counters(process).evicted_bytes, 100 * MIB);
}

#[test]
fn a_death_stops_the_work_now_and_gives_the_memory_back_a_little_later() {
    let (mut bench, victim) = Bench::with_process();
    let other = bench.process();
    bench.allocate(victim, BASE, 100 * MIB, Kind::Device).unwrap();
    bench.allocate(victim, 1 << 40, 100 * MIB, Kind::Managed).unwrap();
    bench.submit(victim, touch(1 << 40, 100 * MIB));
    bench.submit(victim, spin(Duration::from_secs(100)));
    bench.advance(50 * MILLISECOND);
    let before = bench.free();
    bench.hang_up(victim);
    assert_eq!(bench.free(), before);
    bench.advance(Constants::default().death_release);
    assert_eq!(bench.free(), 254 * MIB);
    assert_eq!(bench.time(other, Op::Kernel(Kernel::Empty)), Constants::default().launch);
}

#[test]
fn a_goodbye_gives_the_memory_back_at_once() {
    let (mut bench, process) = Bench::with_process();
    bench.allocate(process, BASE, 100 * MIB, Kind::Device).unwrap();
    bench.goodbye(process);
    assert_eq!(bench.free(), 256 * MIB);
}

#[test]
fn an_illegal_address_ends_the_process_work_and_nobody_elses() {
    let (mut bench, bad) = Bench::with_process();
    let good = bench.process();
    bench.submit(bad, Op::Kernel(Kernel::Fill { p: 0xdead_0000, n: 4, value: 1 }));
    bench.advance(MILLISECOND);
    assert_eq!(bench.synchronize(bad), Err(Failure::Sticky(Sticky::IllegalAddress)));
    assert_eq!(bench.allocate(bad, BASE, 4, Kind::Device), Err(Failure::Sticky(Sticky::IllegalAddress)));
    assert_eq!(bench.synchronize(good), Ok(()));
}

#[test]
fn an_idle_card_has_no_deadline() {
    let (mut bench, process) = Bench::with_process();
    bench.submit(process, Op::Kernel(Kernel::Empty));
    bench.finish();
    assert_eq!(bench.next_deadline(), None);
}

#[test]
fn a_free_waits_for_the_work_before_it() {
    let (mut bench, process) = Bench::with_process();
    bench.allocate(process, BASE, 100 * MIB, Kind::Device).unwrap();
    bench.submit(process, spin(10 * MILLISECOND));
    let start = bench.now();
    bench.free_memory(process, BASE);
    assert!(bench.now() - start >= 10 * MILLISECOND);
    assert_eq!(bench.free(), 254 * MIB);
}
