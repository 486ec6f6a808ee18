//! Physical memory and pools, as programs use them.

use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Stdio;

use crate::program::{Handle, Program, Properties};
use crate::{MIB, assert_success};

const INVALID_VALUE: u32 = 1;
const NOT_SUPPORTED: u32 = 801;
const OUT_OF_MEMORY: u32 = 2;
pub(crate) const DEVICE: [u32; 2] = [1, 0];
pub(crate) const HOST_NUMA: [u32; 2] = [3, 0];
pub(crate) const READ_WRITE: u32 = 3;

/// Physical memory in a place.
pub(crate) fn on(place: [u32; 2]) -> Properties {
    Properties { kind: 1, handle_types: 1, place, security: 0, flags: [0; 8] }
}

fn used(program: &Program) -> usize {
    let (mut free, mut total) = (0, 0);
    assert_eq!(program.cuMemGetInfo_v2(&mut free, &mut total), 0);
    total - free
}

pub(crate) fn is_next_to_the_host() {
    let program = Program::start();
    let (mut node, mut memory) = (0, 0);
    assert_eq!(program.cuDeviceGetAttribute(&mut node, 134, 0), 0);
    assert_eq!(node, 1);
    assert_eq!(program.cuMemCreate(&mut memory, 2 * MIB, &on(HOST_NUMA), 0), INVALID_VALUE);
    assert_eq!(program.cuMemCreate(&mut memory, 2 * MIB, &on([HOST_NUMA[0], 1]), 0), 0);
    assert_eq!(program.cuMemRelease(memory), 0);
}

pub(crate) fn maps_memory() {
    let program = Program::start();
    let kernels = program.kernels();
    let (mut granularity, mut start, mut one, mut two, mut host) = (0, 0, 0, 0, 0);
    assert_eq!(program.cuMemGetAllocationGranularity(&mut granularity, &on(DEVICE), 0), 0);
    assert_eq!(granularity, 2 * MIB);
    let before = used(&program);
    assert_eq!(program.cuMemAddressReserve(&mut start, 8 * MIB, 0, 0, 0), 0);
    assert_eq!(program.cuMemCreate(&mut one, 3 * MIB, &on(DEVICE), 0), INVALID_VALUE);
    assert_eq!(program.cuMemCreate(&mut one, 2 * MIB, &on(DEVICE), 0), 0);
    assert_eq!(program.cuMemCreate(&mut two, 2 * MIB, &on(DEVICE), 0), 0);
    assert_eq!(program.cuMemCreate(&mut host, 2 * MIB, &on(HOST_NUMA), 0), 0);
    assert_eq!(used(&program), before + 4 * MIB, "host memory takes no room of the card");
    assert_eq!(program.cuMemMap(start + (8 * MIB) as u64, 2 * MIB, 0, one, 0), INVALID_VALUE);
    assert_eq!(program.cuMemMap(start, 2 * MIB, 0, one, 0), 0);
    assert_eq!(program.cuMemMap(start, 2 * MIB, 0, two, 0), INVALID_VALUE);
    let next = start + (2 * MIB) as u64;
    assert_eq!(program.cuMemMap(next, 2 * MIB, 0, two, 0), 0);

    let (everybody, mut flags) = ([DEVICE[0], DEVICE[1], READ_WRITE], 9);
    assert_eq!(program.cuMemGetAccess(&mut flags, &DEVICE, start), 0);
    assert_eq!(flags, 0);
    assert_eq!(program.cuMemSetAccess(start, 4 * MIB, &everybody, 1), 0);
    assert_eq!(program.cuMemGetAccess(&mut flags, &DEVICE, next), 0);
    assert_eq!(flags, u64::from(READ_WRITE));

    // One range over two mappings, for kernels and for copies.
    let words = 4 * MIB / 4;
    assert_eq!(program.launch(kernels, "fill", 0, &[start, words as u64, 7]), 0);
    assert_eq!(program.words(next - 8, 4), [7; 4]);

    // What a real driver says of such addresses.
    let mut word = 0;
    assert_eq!(program.cuPointerGetAttribute(&mut word, 2, start), 0);
    assert_eq!(word, 2, "device memory");
    assert_eq!(program.cuPointerGetAttribute(&mut word, 10, start), 0);
    assert_eq!(word, 0, "no legacy IPC");
    assert_eq!(program.cuMemFree_v2(start), INVALID_VALUE);
    let mut plain = 0;
    assert_eq!(program.cuMemAlloc_v2(&mut plain, 4096), 0);
    let mut again = 0;
    assert_eq!(program.cuMemRetainAllocationHandle(&mut again, plain), INVALID_VALUE);
    assert_eq!(program.cuMemFree_v2(plain), 0);
    assert_eq!(program.cuMemRetainAllocationHandle(&mut again, start + 5), 0);
    assert_eq!(again, one);
    let mut properties = on(HOST_NUMA);
    assert_eq!(program.cuMemGetAllocationPropertiesFromHandle(&mut properties, one), 0);
    assert_eq!(properties, on(DEVICE));
    assert_eq!(program.cuMemRelease(again), 0);

    // To the host and back, at the same address: out of the card, as a handoff does it.
    let (mut away, mut value) = (0, [0u32; 1]);
    assert_eq!(program.cuMemAddressReserve(&mut away, 2 * MIB, 0, 0, 0), 0);
    assert_eq!(program.cuMemMap(away, 2 * MIB, 0, host, 0), 0);
    assert_eq!(program.cuMemSetAccess(away, 2 * MIB, &everybody, 1), 0);
    assert_eq!(program.cuMemSetAccess(away, 2 * MIB, &[HOST_NUMA[0], 0, READ_WRITE], 1), 0);
    assert_eq!(program.cuMemcpyDtoD_v2(away, start, 2 * MIB), 0);
    assert_eq!(program.cuCtxSynchronize(), 0);
    // SAFETY: the mapping is the host's too since access was set, and nobody else uses it.
    value[0] = unsafe { *(away as *const u32) };
    assert_eq!(value, [7]);
    assert_eq!(program.cuPointerGetAttribute(&mut word, 2, away), 0);
    assert_eq!(word, 1, "host-backed memory is host memory");
    assert_eq!(program.cuMemUnmap(start, 2 * MIB), 0);
    assert_eq!(program.cuPointerGetAttribute(&mut word, 2, start), INVALID_VALUE);
    assert_eq!(program.cuMemMap(start, 2 * MIB, 0, host, 0), 0);
    assert_eq!(program.cuMemSetAccess(start, 2 * MIB, &everybody, 1), 0);
    assert_eq!(program.words(start + 64, 1), [7]);
    assert_eq!(program.cuMemRelease(one), 0);
    assert_eq!(used(&program), before + 2 * MIB);

    assert_eq!(program.cuMemAddressFree(start, 8 * MIB), INVALID_VALUE, "something is mapped");
    assert_eq!(program.cuMemUnmap(start, MIB), INVALID_VALUE, "half a mapping");
    assert_eq!(program.cuMemUnmap(start, 4 * MIB), 0);
    assert_eq!(program.cuMemAddressFree(start, 8 * MIB), 0);
    assert_eq!(program.cuMemRelease(two), 0);
    assert_eq!(program.cuMemRelease(two), INVALID_VALUE);
    assert_eq!(used(&program), before);
}

/// Starts itself again as the importer, which inherits the descriptor.
pub(crate) fn exports() {
    let program = Program::start();
    let kernels = program.kernels();
    let everybody = [DEVICE[0], DEVICE[1], READ_WRITE];
    if let Ok(descriptor) = std::env::var("IMPORT") {
        let (mut handle, mut start) = (0, 0);
        let descriptor: usize = descriptor.parse().unwrap();
        assert_eq!(program.cuMemImportFromShareableHandle(&mut handle, descriptor, 1), 0);
        assert_eq!(program.cuMemAddressReserve(&mut start, 2 * MIB, 0, 0, 0), 0);
        assert_eq!(program.cuMemMap(start, 2 * MIB, 0, handle, 0), 0);
        assert_eq!(program.cuMemSetAccess(start, 2 * MIB, &everybody, 1), 0);
        assert_eq!(program.words(start, 1), [5]);
        assert_eq!(program.launch(kernels, "add", 0, &[start, 1, 1]), 0);
        assert_eq!(program.cuCtxSynchronize(), 0);
        return;
    }
    let (mut handle, mut start, mut descriptor) = (0, 0, -1);
    assert_eq!(program.cuMemAddressReserve(&mut start, 2 * MIB, 0, 0, 0), 0);
    assert_eq!(program.cuMemCreate(&mut handle, 2 * MIB, &on(DEVICE), 0), 0);
    assert_eq!(program.cuMemMap(start, 2 * MIB, 0, handle, 0), 0);
    assert_eq!(program.cuMemSetAccess(start, 2 * MIB, &everybody, 1), 0);
    assert_eq!(program.launch(kernels, "fill", 0, &[start, 1, 5]), 0);
    assert_eq!(program.cuMemExportToShareableHandle(&mut descriptor, handle, 1, 0), 0);
    // SAFETY: the driver has just made it for us.
    let shared = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    // Becomes the child's standard input, the one descriptor that is inherited without ado.
    child
        .args(["--exact", "scenario", "--nocapture"])
        .env("IMPORT", "0")
        .stdin(Stdio::from(shared));
    assert_success("imports", &child.output().unwrap());
    assert_eq!(program.words(start, 1), [6]);
}

pub(crate) fn uses_pools() {
    const RESERVED: u32 = 5;
    const USED: u32 = 7;
    let program = Program::start();
    let kernels = program.kernels();
    let (mut pool, mut same, mut stream, mut block, mut reading) = (0, 0, 0, 0, 0);
    assert_eq!(program.cuStreamCreate(&mut stream, 1), 0);
    assert_eq!(program.cuDeviceGetDefaultMemPool(&mut pool, 0), 0);
    assert_eq!(program.cuDeviceGetMemPool(&mut same, 0), 0);
    assert_eq!(pool, same);
    assert_eq!(program.cuMemPoolDestroy(pool), INVALID_VALUE, "the device's own");

    assert_eq!(program.cuMemAllocAsync(&mut block, 3 * MIB, stream), 0);
    assert_eq!(program.launch(kernels, "fill", stream, &[block, 16, 3]), 0);
    let mut read = [0u8; 4];
    assert_eq!(program.cuMemcpyDtoHAsync_v2(read.as_mut_ptr(), block, 4, stream), 0);
    assert_eq!(program.cuStreamSynchronize(stream), 0);
    assert_eq!(read, 3u32.to_le_bytes());
    assert_eq!(program.cuMemPoolGetAttribute(pool, RESERVED, &mut reading), 0);
    assert_eq!(reading, 4 << 20);
    let mut is_of_pool = 0;
    assert_eq!(program.cuPointerGetAttribute(&mut is_of_pool, 10, block), 0);
    assert_eq!(is_of_pool, 0, "no legacy IPC");

    let first = block;
    assert_eq!(program.cuMemFreeAsync(first, stream), 0);
    assert_eq!(program.cuMemFreeAsync(first, stream), INVALID_VALUE);
    assert_eq!(program.cuMemAllocAsync(&mut block, 3 * MIB, stream), 0);
    assert_eq!(block, first, "a stream gets again what it freed");
    assert_eq!(program.cuMemFree_v2(block), 0);
    assert_eq!(program.cuMemPoolGetAttribute(pool, USED, &mut reading), 0);
    assert_eq!(reading, 0);
    assert_eq!(program.cuStreamSynchronize(stream), 0);
    assert_eq!(program.cuMemPoolGetAttribute(pool, RESERVED, &mut reading), 0);
    assert_eq!(reading, 0, "a synchronise keeps the threshold, which is none");
    assert_eq!(program.cuMemAllocAsync(&mut block, 300 * MIB, stream), OUT_OF_MEMORY);

    // A pool of one's own, with a limit and a threshold.
    let properties = [1, 1, 0, (8 * MIB) as u64, 0, 0, 0, 0, 0, 0, 0];
    let mut own = 0;
    assert_eq!(program.cuMemPoolCreate(&mut own, &properties), 0);
    assert_eq!(program.cuMemPoolSetAttribute(own, 4, &u64::MAX), 0);
    assert_eq!(program.cuDeviceSetMemPool(0, own), 0);
    assert_eq!(program.cuMemAllocAsync(&mut block, 8 * MIB, stream), 0);
    let mut more = 0;
    assert_eq!(program.cuMemAllocFromPoolAsync(&mut more, 2 * MIB, own, stream), OUT_OF_MEMORY);
    assert_eq!(program.cuMemFreeAsync(block, stream), 0);
    assert_eq!(program.cuStreamSynchronize(stream), 0);
    assert_eq!(program.cuMemPoolGetAttribute(own, RESERVED, &mut reading), 0);
    assert_eq!(reading, 8 << 20);
    assert_eq!(program.cuMemPoolTrimTo(own, 0), 0);
    assert_eq!(program.cuMemPoolGetAttribute(own, RESERVED, &mut reading), 0);
    assert_eq!(reading, 0);
    assert_eq!(program.cuMemAllocAsync(&mut block, 8 * MIB, stream), 0);
    assert_eq!(program.cuMemPoolDestroy(own), 0);
    assert_eq!(program.cuMemPoolDestroy(own), INVALID_VALUE);
    assert_eq!(program.cuMemPoolGetAttribute(own, USED, &mut reading), INVALID_VALUE);
    assert_eq!(program.cuDeviceGetMemPool(&mut same, 0), 0);
    assert_eq!(pool, same);
    // What was allocated from it is there until it is freed.
    assert_eq!(program.launch(kernels, "fill", stream, &[block, 16, 9]), 0);
    assert_eq!(program.cuStreamSynchronize(stream), 0);
    assert_eq!(program.words(block, 16), [9; 16]);
    assert_eq!(program.cuMemFreeAsync(block, stream), 0);
    assert_eq!(program.cuStreamSynchronize(stream), 0);
    let mut managed = 0;
    assert_eq!(program.cuMemAllocManaged(&mut managed, 64, 1), 0);
    assert_eq!(program.cuMemFreeAsync(managed, stream), NOT_SUPPORTED);
}

/// In a capture, allocations and frees become nodes; the pool has nothing to do with them.
pub(crate) fn captures_pools() {
    const USED: u32 = 7;
    let program = Program::start();
    let kernels = program.kernels();
    let (mut stream, mut sum, mut block, mut graph, mut exec, mut nodes) = (0, 0, 0, 0, 0, 0);
    assert_eq!(program.cuStreamCreate(&mut stream, 1), 0);
    assert_eq!(program.cuMemAlloc_v2(&mut sum, 8), 0);
    assert_eq!(program.cuMemsetD32Async(sum, 0, 2, stream), 0);
    assert_eq!(program.cuStreamBeginCapture_v2(stream, 0), 0);
    assert_eq!(program.cuMemAllocAsync(&mut block, 2 * MIB, stream), 0);
    assert_eq!(program.launch(kernels, "fill", stream, &[block, 4, 2]), 0);
    assert_eq!(program.launch(kernels, "checksum", stream, &[block, 4, sum]), 0);
    assert_eq!(program.cuMemFreeAsync(block, stream), 0);
    assert_eq!(program.cuStreamEndCapture(stream, &mut graph), 0);
    assert_eq!(program.cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes), 0);
    assert_eq!(nodes, 4);
    assert_eq!(program.cuGraphInstantiateWithFlags(&mut exec, graph, 0), 0);
    for _ in 0..3 {
        assert_eq!(program.cuGraphLaunch(exec, stream), 0);
    }
    assert_eq!(program.cuStreamSynchronize(stream), 0);
    assert_eq!(program.words(sum, 1), [3 * 2 * (1 + 3 + 5 + 7)]);
    let (mut pool, mut used, mut of_graphs) = (0, 9, 9);
    assert_eq!(program.cuDeviceGetDefaultMemPool(&mut pool, 0), 0);
    assert_eq!(program.cuMemPoolGetAttribute(pool, USED, &mut used), 0);
    assert_eq!(program.cuDeviceGetGraphMemAttribute(0, 1, &mut of_graphs), 0);
    assert_eq!((used, of_graphs), (0, 2 << 20));
}

/// On the first of two cards, with the second one as its peer: memory with a handle on the second one is
/// out of reach until access is given, whatever the peers are.
pub(crate) fn has_its_own_access(program: &Program, kernels: Handle) {
    const ILLEGAL_ADDRESS: u32 = 700;
    let (mut start, mut handle) = (0, 0);
    assert_eq!(program.cuMemAddressReserve(&mut start, 2 * MIB, 0, 0, 0), 0);
    assert_eq!(program.cuMemCreate(&mut handle, 2 * MIB, &on([1, 1]), 0), 0);
    assert_eq!(program.cuMemMap(start, 2 * MIB, 0, handle, 0), 0);
    assert_eq!(program.cuMemSetAccess(start, 2 * MIB, &[1, 1, READ_WRITE], 1), 0);
    assert_eq!(program.cuMemSetAccess(start, 2 * MIB, &[1, 0, READ_WRITE], 1), 0);
    assert_eq!(program.launch(kernels, "fill", 0, &[start, 4, 6]), 0);
    assert_eq!(program.words(start, 4), [6; 4]);
    assert_eq!(program.cuMemSetAccess(start, 2 * MIB, &[1, 0, 0], 1), 0);
    assert_eq!(program.launch(kernels, "fill", 0, &[start, 4, 6]), 0);
    assert_eq!(program.cuCtxSynchronize(), ILLEGAL_ADDRESS);
}
