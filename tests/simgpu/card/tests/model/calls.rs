//! Time of the calls about physical memory, and what goes on meanwhile.

use std::time::Duration;

use simgpu_card::constants::{Constants, HandleRates};
use simgpu_card::ids::{ClientId, ContextId, GpuIndex, HandleId, StreamId};
use simgpu_card::kernel::Kernel;
use simgpu_card::stats::Refused;
use simgpu_card::wire::{Failure, Kind, Op, Place, Refusable, Request, StreamKind, Work};

use crate::bench::{BASE, Bench, MIB};

const LEN: u64 = 64 * MIB;
const GPU: GpuIndex = GpuIndex(0);
const ONE: HandleId = HandleId(1);
const PLACES: [Place; 2] = [Place::Gpu(GPU), Place::Host];

fn create(handle: HandleId, place: Place) -> Request {
    Request::CreateHandle { handle, len: LEN, place, shareable: false }
}

/// All calls of one life: made, mapped, reached, unmapped, ended.
fn life(place: Place) -> [Request; 5] {
    [
        create(ONE, place),
        Request::Map { address: BASE, len: LEN, handle: ONE },
        Request::SetAccess { address: BASE, len: LEN, gpu: GPU, allowed: true },
        Request::Unmap { address: BASE, len: LEN },
        Request::ReleaseHandle(ONE),
    ]
}

/// How long a request takes.
fn time(bench: &mut Bench, process: ClientId, request: Request) -> Duration {
    let start = bench.now();
    bench.request(process, request).unwrap();
    bench.now() - start
}

#[test]
fn each_call_takes_the_time_of_its_bytes() {
    let constants = Constants::default();
    for (place, rates) in PLACES.into_iter().zip([constants.device_handles, constants.host_handles]) {
        let (mut bench, process) = Bench::with_process();
        let times = life(place).map(|request| time(&mut bench, process, request));
        let HandleRates { create, map, unmap, release } = rates;
        let [create, map, unmap, release] = [create, map, unmap, release].map(|rate| rate.time_for(LEN));
        assert_eq!(times, [create, map, Duration::ZERO, unmap, release], "{place:?}");
    }
}

#[test]
fn the_call_that_ends_the_memory_takes_the_time_of_the_end() {
    let rates = Constants::default().device_handles;
    let (mut bench, process) = Bench::with_process();
    let [create, map, access, unmap, release] = life(PLACES[0]);
    for request in [create, map, access] {
        bench.request(process, request).unwrap();
    }
    assert_eq!(time(&mut bench, process, release), Duration::ZERO, "it is mapped");
    let end = rates.unmap.time_for(LEN) + rates.release.time_for(LEN);
    assert_eq!(time(&mut bench, process, unmap), end);
}

#[test]
fn calls_of_one_process_wait_for_each_other_and_those_of_two_do_not() {
    let each = Constants::default().host_handles.create.time_for(LEN);
    let mut bench = Bench::new(Constants::default());
    let processes = [bench.process(), bench.process()];
    let start = bench.now();
    let asked = [(0, 1), (1, 1), (0, 2)];
    let tokens = asked.map(|(who, handle)| bench.say(processes[who], create(HandleId(handle), Place::Host)));
    let ends = tokens.map(|token| {
        bench.wait(token).unwrap();
        bench.now() - start
    });
    assert_eq!(ends, [each, each, 2 * each]);
}

#[test]
fn room_comes_back_when_the_release_is_over() {
    let (mut bench, process) = Bench::with_process();
    let free = bench.free();
    bench.request(process, create(ONE, PLACES[0])).unwrap();
    let token = bench.say(process, Request::ReleaseHandle(ONE));
    assert_eq!(bench.free(), free - LEN);
    bench.wait(token).unwrap();
    assert_eq!(bench.free(), free);
}

#[test]
fn a_death_in_the_middle_of_a_release_gives_the_room_back_once() {
    let (mut bench, process) = Bench::with_process();
    bench.request(process, create(ONE, PLACES[0])).unwrap();
    bench.say(process, Request::ReleaseHandle(ONE));
    bench.hang_up(process);
    bench.finish();
    assert_eq!(bench.free(), Constants::default().memory);
}

/// Seen on an H100 with driver 580: create, map, set access, unmap and release all return while the legacy
/// stream is blocked. So the driver does not see to it that nobody uses what is unmapped.
#[test]
fn no_call_waits_for_work() {
    for place in PLACES {
        let (mut bench, process) = Bench::with_process();
        bench.stream(process, StreamId(1), StreamKind::NonBlocking);
        let forever = Op::Kernel(Kernel::Spin { flag: 0, nanoseconds: 1 << 60 });
        bench.submit(process, forever.clone());
        bench.submit_to(process, StreamId(1), forever);
        let took: Duration = life(place).map(|request| time(&mut bench, process, request)).iter().sum();
        assert!(took < Duration::from_secs(1), "{took:?}");
        for stream in [StreamId(0), StreamId(1)] {
            assert!(!bench.done(process, Work::Stream(stream)));
        }
    }
}

#[test]
fn fresh_memory_reads_zero_where_other_bytes_were_before() {
    for place in PLACES {
        let mut bench = Bench::new(Constants::default());
        let [first, second] = [bench.process(), bench.process()];
        for process in [first, first, second] {
            let [create, map, access, unmap, release] = life(place);
            for request in [create, map, access] {
                bench.request(process, request).unwrap();
            }
            assert!(bench.download(process, BASE, LEN).iter().all(|byte| *byte == 0));
            bench.submit(process, Op::Kernel(Kernel::Fill { p: BASE, n: LEN / 4, value: 0xa5a5_a5a5 }));
            bench.synchronize(process).unwrap();
            for request in [unmap, release] {
                bench.request(process, request).unwrap();
            }
        }
    }
}

#[test]
fn a_refused_call_takes_no_time_and_changes_nothing() {
    let (mut bench, process) = Bench::with_process();
    let (start, free) = (bench.now(), bench.free());
    let too_much = Request::CreateHandle { handle: ONE, len: 300 * MIB, place: PLACES[0], shareable: false };
    assert_eq!(bench.request(process, too_much).unwrap_err(), Failure::OutOfMemory);
    for request in life(PLACES[0]).into_iter().skip(1) {
        assert_eq!(bench.request(process, request).unwrap_err(), Failure::Unknown);
    }
    assert_eq!((bench.now(), bench.free()), (start, free));
}

#[test]
fn an_observer_lets_the_next_calls_of_one_process_fail() {
    let mut bench = Bench::new(Constants::default());
    let [chosen, other] = [bench.process(), bench.process()];
    let kinds = [Refusable::CreateOnGpu, Refusable::CreateOnHost, Refusable::Map, Refusable::Register];
    for call in kinds {
        bench.request(other, Request::Refuse { pid: chosen.0, call, count: 2 }).unwrap();
    }
    let register = || Request::Register { address: 2 * BASE, len: 4096, untouched: 0, context: ContextId(0) };
    for refused in [true, true, false] {
        let [on_gpu, map, ..] = life(PLACES[0]);
        let others = [create(HandleId(2), PLACES[1]), map, register()];
        for request in [on_gpu].into_iter().chain(others) {
            let answer = bench.request(chosen, request.clone());
            assert_eq!(answer.is_err(), refused, "{request:?}");
            assert!(!refused || answer.unwrap_err() == Failure::OutOfMemory);
        }
    }
    bench
        .request(other, Request::Refuse { pid: chosen.0, call: Refusable::AllocateManaged, count: 1 })
        .unwrap();
    let context = ContextId(0);
    let managed = Request::Allocate { address: 4 * BASE, len: 4096, kind: Kind::Managed, context };
    assert_eq!(bench.request(chosen, managed).unwrap_err(), Failure::OutOfMemory);
    let each_twice =
        Refused { create_on_gpu: 2, create_on_host: 2, map: 2, register: 2, allocate_managed: 1 };
    assert_eq!(bench.counters(chosen).refused, each_twice);
    bench.request(other, create(ONE, PLACES[0])).unwrap();
    let nobody = Request::Refuse { pid: 99, call: Refusable::Map, count: 1 };
    assert_eq!(bench.request(other, nobody).unwrap_err(), Failure::Unknown);
}
