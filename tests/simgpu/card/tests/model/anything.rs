//! Property test of the card's memory: processes do random things with it in random order. The card never
//! panics, loses no byte and counts none twice.

use proptest::prelude::*;
use simgpu_card::constants::Constants;
use simgpu_card::ids::{ContextId, GpuIndex, GraphId, HandleId, PoolId, StreamId};
use simgpu_card::kernel::Kernel;
use simgpu_card::wire::{Kind, Op, Place, Request, StreamKind, Work};

use crate::bench::{BASE, Bench, MIB};

const GPUS: usize = 2;
const STREAMS: u32 = 3;
const SPACES: u64 = 4;
/// Memory of the host.
const HOST: u64 = 16 * MIB;

/// Something that one of two processes asks for.
fn request() -> impl Strategy<Value = Request> {
    let address = (0..SPACES).prop_map(|space| BASE + space * 64 * MIB);
    let len = prop_oneof![Just(512), Just(2 * MIB), Just(6 * MIB), Just(300 * MIB)];
    let pool = (0..2u32).prop_map(PoolId);
    let handle = (0..3u32).prop_map(HandleId);
    let stream = (1..=STREAMS).prop_map(StreamId);
    let gpu = (0..GPUS as u32).prop_map(GpuIndex);
    let kind = prop_oneof![Just(Kind::Device), Just(Kind::Managed), Just(Kind::Pinned)];
    let context = Just(ContextId(0));
    let place = prop_oneof![gpu.clone().prop_map(Place::Gpu), Just(Place::Host)];
    let block = (address.clone(), len.clone(), pool.clone()).prop_map(|(address, len, pool)| Op::Allocate {
        address,
        len,
        pool,
    });
    let op = prop_oneof![
        3 => block,
        3 => address.clone().prop_map(Op::Release),
        1 => (address.clone(), 1..4u64).prop_map(|(p, n)| Op::Kernel(Kernel::Touch { p, n, stride: 1 })),
        1 => Just(Op::Kernel(Kernel::Spin { flag: 0, nanoseconds: 3_000 })),
    ];
    prop_oneof![
        8 => (stream.clone(), op.clone()).prop_map(|(stream, op)| Request::Submit(stream, op)),
        2 => prop::collection::vec(op, 1..5).prop_map(|ops| Request::DefineGraph(GraphId(0), ops)),
        2 => stream.clone().prop_map(|stream| Request::LaunchGraph(stream, GraphId(0))),
        2 => stream.prop_map(|stream| Request::Synchronize(Work::Stream(stream))),
        1 => (address.clone(), len.clone(), kind, context)
            .prop_map(|(address, len, kind, context)| Request::Allocate { address, len, kind, context }),
        2 => address.clone().prop_map(Request::Free),
        1 => (pool.clone(), gpu, Just(8 * MIB)).prop_map(|(pool, gpu, limit)| Request::CreatePool { pool, gpu, limit }),
        1 => pool.clone().prop_map(Request::DestroyPool),
        1 => (pool, Just(2 * MIB)).prop_map(|(pool, keep)| Request::TrimPool(pool, keep)),
        2 => (handle.clone(), len.clone(), place).prop_map(|(handle, len, place)| {
            Request::CreateHandle { handle, len, place, shareable: true }
        }),
        1 => handle.clone().prop_map(Request::ReleaseHandle),
        2 => (address.clone(), len.clone(), handle)
            .prop_map(|(address, len, handle)| Request::Map { address, len, handle }),
        1 => (address.clone(), len.clone()).prop_map(|(address, len)| Request::Register {
            address, len, untouched: 0, context: ContextId(0),
        }),
        1 => address.clone().prop_map(Request::Unregister),
        1 => (address, len).prop_map(|(address, len)| Request::Unmap { address, len }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_memory_is_back_when_everybody_is_gone(
        asked in prop::collection::vec((0..2usize, request()), 1..60),
        dies in any::<bool>(),
    ) {
        let constants = Constants { host_memory: HOST, ..Constants::default() };
        let mut bench = Bench::with_gpus(constants.clone(), GPUS);
        let processes = [bench.process(), bench.process()];
        for process in processes {
            for stream in 1..=STREAMS {
                bench.stream(process, StreamId(stream), StreamKind::NonBlocking);
            }
        }
        for (who, request) in asked {
            let _ = bench.request(processes[who], request);
            prop_assert!(bench.host_used() <= HOST);
            for gpu in 0..GPUS as u32 {
                prop_assert!(bench.free_of(GpuIndex(gpu)) <= constants.memory);
            }
        }
        for process in processes {
            if dies {
                bench.hang_up(process);
            } else {
                bench.goodbye(process);
            }
        }
        bench.finish();
        prop_assert_eq!(bench.host_used(), 0);
        for gpu in 0..GPUS as u32 {
            prop_assert_eq!(bench.free_of(GpuIndex(gpu)), constants.memory);
        }
    }
}
