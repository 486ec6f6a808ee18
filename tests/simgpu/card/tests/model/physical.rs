//! Physical memory with handles: mapped where one likes, on card or host, shared between processes.

use simgpu_card::constants::Constants;
use simgpu_card::ids::{ClientId, ContextId, GpuIndex, HandleId};
use simgpu_card::kernel::Kernel;
use simgpu_card::wire::{Answer, Failure, Op, Place, Request, Sticky};

use crate::bench::{BASE, Bench, MIB};

const GPU: GpuIndex = GpuIndex(0);
const ONE: HandleId = HandleId(1);
const TWO: HandleId = HandleId(2);

fn create(bench: &mut Bench, client: ClientId, handle: HandleId, place: Place) -> Result<Answer, Failure> {
    let (len, shareable) = (2 * MIB, true);
    bench.request(client, Request::CreateHandle { handle, len, place, shareable })
}

fn map(bench: &mut Bench, client: ClientId, address: u64, handle: HandleId) -> Result<Answer, Failure> {
    let len = 2 * MIB;
    bench.request(client, Request::Map { address, len, handle })
}

fn allow(bench: &mut Bench, client: ClientId, address: u64, len: u64) {
    let (gpu, allowed) = (GPU, true);
    let request = Request::SetAccess { address, len, gpu, allowed };
    bench.request(client, request).unwrap();
}

fn fill(address: u64, len: u64, value: u32) -> Op {
    Op::Kernel(Kernel::Fill { p: address, n: len / 4, value })
}

#[test]
fn a_kernel_walks_over_mappings_that_lie_side_by_side() {
    let (mut bench, process) = Bench::with_process();
    for (handle, address) in [(ONE, BASE), (TWO, BASE + 2 * MIB)] {
        create(&mut bench, process, handle, Place::Gpu(GPU)).unwrap();
        map(&mut bench, process, address, handle).unwrap();
    }
    allow(&mut bench, process, BASE, 4 * MIB);
    bench.submit(process, fill(BASE, 4 * MIB, 7));
    assert_eq!(bench.synchronize(process), Ok(()));
    let around = bench.download(process, BASE + 2 * MIB - 4, 8);
    assert_eq!(around, [7u32.to_le_bytes(), 7u32.to_le_bytes()].concat());
}

#[test]
fn memory_is_reached_only_where_access_was_given() {
    let (mut bench, process) = Bench::with_process();
    create(&mut bench, process, ONE, Place::Gpu(GPU)).unwrap();
    map(&mut bench, process, BASE, ONE).unwrap();
    bench.submit(process, fill(BASE, 64, 1));
    assert_eq!(bench.synchronize(process), Err(Failure::Sticky(Sticky::IllegalAddress)));
}

#[test]
fn the_same_memory_moves_to_another_address_with_its_bytes() {
    let (mut bench, process) = Bench::with_process();
    create(&mut bench, process, ONE, Place::Gpu(GPU)).unwrap();
    map(&mut bench, process, BASE, ONE).unwrap();
    allow(&mut bench, process, BASE, 2 * MIB);
    bench.submit(process, fill(BASE, 2 * MIB, 9));
    bench.synchronize(process).unwrap();
    assert_eq!(
        map(&mut bench, process, BASE + MIB, ONE).unwrap_err(),
        Failure::Unknown,
        "something is there"
    );
    let (address, len) = (BASE, 2 * MIB);
    bench.request(process, Request::Unmap { address, len }).unwrap();
    let elsewhere = BASE + 64 * MIB;
    map(&mut bench, process, elsewhere, ONE).unwrap();
    assert_eq!(bench.download(process, elsewhere, 4), 9u32.to_le_bytes());
}

#[test]
fn room_comes_back_with_the_last_handle_mapping_or_import() {
    let (mut bench, exporter) = Bench::with_process();
    let importer = bench.process();
    let before = bench.free();
    create(&mut bench, exporter, ONE, Place::Gpu(GPU)).unwrap();
    assert_eq!(bench.free(), before - 2 * MIB);
    let inode = bench.share(exporter, ONE);
    let imported = bench.request(importer, Request::ImportHandle { handle: TWO, inode });
    let (len, place) = (2 * MIB, Place::Gpu(GPU));
    assert!(matches!(imported, Ok(Answer::Imported { len: l, place: p }) if (l, p) == (len, place)));
    map(&mut bench, importer, BASE, TWO).unwrap();
    bench.goodbye(exporter);
    bench.request(importer, Request::ReleaseHandle(TWO)).unwrap();
    let context_gone = Constants::default().context_memory;
    assert_eq!(bench.free(), before + context_gone - 2 * MIB);
    bench.request(importer, Request::Unmap { address: BASE, len }).unwrap();
    assert_eq!(bench.free(), before + context_gone);
}

#[test]
fn host_memory_is_slow_to_make_slow_to_compute_on_and_no_room_of_the_card() {
    let constants = Constants::default();
    let mut bench = Bench::new(constants.clone());
    let process = bench.process();
    let (before, free) = (bench.now(), bench.free());
    create(&mut bench, process, ONE, Place::Host).unwrap();
    assert_eq!(bench.now() - before, constants.host_handles.create.time_for(2 * MIB));
    map(&mut bench, process, BASE, ONE).unwrap();
    allow(&mut bench, process, BASE, 2 * MIB);
    assert_eq!(bench.free(), free);
    let on_host = bench.time(process, fill(BASE, 2 * MIB, 1));
    let add = constants.launch + constants.kernel_on_host.time_for(2 * MIB);
    assert_eq!(on_host, add);
}

#[test]
fn an_unshared_handle_cannot_be_exported() {
    let (mut bench, process) = Bench::with_process();
    let request =
        Request::CreateHandle { handle: ONE, len: 2 * MIB, place: Place::Gpu(GPU), shareable: false };
    bench.request(process, request).unwrap();
    let shared = bench.request(process, Request::ShareHandle(ONE));
    assert_eq!(shared.unwrap_err(), Failure::Unknown);
}

#[test]
fn an_unmap_does_not_wait_and_what_runs_there_fails() {
    let (mut bench, process) = Bench::with_process();
    create(&mut bench, process, ONE, Place::Gpu(GPU)).unwrap();
    map(&mut bench, process, BASE, ONE).unwrap();
    allow(&mut bench, process, BASE, 2 * MIB);
    bench.submit(process, fill(BASE, 2 * MIB, 1));
    let len = 2 * MIB;
    bench.request(process, Request::Unmap { address: BASE, len }).unwrap();
    let failure = Err(Failure::Sticky(Sticky::IllegalAddress));
    assert_eq!(bench.synchronize(process), failure);
}

/// Measured on an H100 with driver 580: the memory of a killed process with 32 GiB is back after 60 to 80 ms.
#[test]
fn a_death_gives_back_handles_mapped_or_not_a_little_later() {
    let (mut bench, process) = Bench::with_process();
    for (handle, place) in [(ONE, Place::Gpu(GPU)), (TWO, Place::Gpu(GPU)), (HandleId(3), Place::Host)] {
        create(&mut bench, process, handle, place).unwrap();
    }
    map(&mut bench, process, BASE, ONE).unwrap();
    let (before, constants) = (bench.free(), Constants::default());
    bench.hang_up(process);
    bench.advance(constants.death_release / 2);
    assert_eq!((bench.free(), bench.host_used()), (before, 2 * MIB));
    bench.advance(constants.death_release / 2);
    assert_eq!((bench.free(), bench.host_used()), (constants.memory, 0));
}

#[test]
fn a_process_without_a_context_leaves_its_handles_for_as_long() {
    let (mut bench, process) = Bench::with_process();
    create(&mut bench, process, ONE, Place::Gpu(GPU)).unwrap();
    bench.request(process, Request::DestroyContext(ContextId(0))).unwrap();
    bench.hang_up(process);
    let constants = Constants::default();
    assert_eq!(bench.free(), constants.memory - 2 * MIB);
    bench.advance(constants.death_release);
    assert_eq!(bench.free(), constants.memory);
}
