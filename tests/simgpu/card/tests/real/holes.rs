//! Reserved addresses without memory, and memory that goes away and comes back.

use crate::memory::{DEVICE, HOST_NUMA, READ_WRITE, on};
use crate::program::{Handle, Program};
use crate::registered::Pages;
use crate::{MIB, NOT_READY};

const INVALID_VALUE: u32 = 1;
const ILLEGAL_ADDRESS: u32 = 700;
const PIECE: usize = 2 * MIB;
const WORDS: u64 = (PIECE / 4) as u64;

/// Addresses for two pieces of memory.
fn reserve(program: &Program) -> [u64; 2] {
    let mut start = 0;
    assert_eq!(program.cuMemAddressReserve(&mut start, 2 * PIECE, 0, 0, 0), 0);
    [start, start + PIECE as u64]
}

/// Puts fresh memory at an address, reached by the card.
fn map(program: &Program, place: [u32; 2], address: u64) -> u64 {
    let mut handle = 0;
    assert_eq!(program.cuMemCreate(&mut handle, PIECE, &on(place), 0), 0);
    assert_eq!(program.cuMemMap(address, PIECE, 0, handle, 0), 0);
    assert_eq!(program.cuMemSetAccess(address, PIECE, &[DEVICE[0], DEVICE[1], READ_WRITE], 1), 0);
    handle
}

fn unmap(program: &Program, address: u64, handle: u64) {
    assert_eq!(program.cuMemUnmap(address, PIECE), 0);
    assert_eq!(program.cuMemRelease(handle), 0);
}

pub(crate) fn refuses_copies() {
    let program = Program::start();
    let [start, hole] = reserve(&program);
    let (handle, mut word) = (map(&program, DEVICE, start), [0u8; 4]);
    let (host, mut kind, mut flags) = (word.as_mut_ptr(), 0, 0);
    assert_eq!(program.cuMemcpyHtoD_v2(hole, host, 4), INVALID_VALUE);
    assert_eq!(program.cuMemcpyDtoH_v2(host, hole, 4), INVALID_VALUE);
    for (to, from) in [(hole, start), (start, hole), (hole, host as u64), (host as u64, hole)] {
        assert_eq!(program.cuMemcpy(to, from, 4), INVALID_VALUE);
        assert_eq!(program.cuMemcpyAsync(to, from, 4, 0), INVALID_VALUE);
    }
    assert_eq!(program.cuMemcpyAsync(start, start + 4, PIECE, 0), INVALID_VALUE, "its end");
    assert_eq!(program.cuMemsetD32Async(hole, 1, 1, 0), INVALID_VALUE);
    assert_eq!(program.cuPointerGetAttribute(&mut kind, 2, hole), INVALID_VALUE);
    assert_eq!(program.cuMemGetAccess(&mut flags, &DEVICE, hole), INVALID_VALUE);
    assert_eq!(program.cuMemUnmap(hole, PIECE), INVALID_VALUE);
    assert_eq!(program.cuMemHostRegister_v2(hole, PIECE, 0), INVALID_VALUE);
    assert_eq!(program.cuCtxSynchronize(), 0, "nothing is lost by a refusal");
    unmap(&program, start, handle);
}

/// After an illegal address every call answers it until the process ends, those about physical memory too.
/// It was not measured what driver 580 then answers to `cuMemUnmap` and `cuMemRelease`, so programs must not rely
/// on it.
pub(crate) fn is_lost() {
    let program = Program::start();
    let kernels = program.kernels();
    let [start, hole] = reserve(&program);
    let (handle, mut other, mut event) = (map(&program, DEVICE, start), 0, 0);
    assert_eq!(program.launch(kernels, "fill", 0, &[start, WORDS, 1]), 0);
    assert_eq!(program.cuCtxSynchronize(), 0);
    assert_eq!(program.launch(kernels, "fill", 0, &[hole, 1, 1]), 0, "the launch itself goes through");
    assert_eq!(program.cuCtxSynchronize(), ILLEGAL_ADDRESS);
    let answers = [
        program.cuMemcpyDtoH_v2([0u8; 4].as_mut_ptr(), start, 4),
        program.launch(kernels, "fill", 0, &[start, 1, 1]),
        program.cuMemCreate(&mut other, PIECE, &on(DEVICE), 0),
        program.cuMemMap(hole, PIECE, 0, handle, 0),
        program.cuMemSetAccess(start, PIECE, &[DEVICE[0], DEVICE[1], READ_WRITE], 1),
        program.cuMemUnmap(start, PIECE),
        program.cuMemRelease(handle),
        program.cuMemHostRegister_v2(start, PIECE, 0),
        program.cuEventCreate(&mut event, 0),
        program.cuStreamQuery(0),
    ];
    assert_eq!(answers, [ILLEGAL_ADDRESS; 10]);
}

/// A kernel that runs from mapped memory into a hole has written what was mapped.
pub(crate) fn is_lost_half_way() {
    let program = Program::start();
    let kernels = program.kernels();
    let [start, _] = reserve(&program);
    let (handle, mut elsewhere) = (map(&program, HOST_NUMA, start), 0);
    assert_eq!(program.cuMemAddressReserve(&mut elsewhere, PIECE, 0, 0, 0), 0);
    assert_eq!(program.cuMemMap(elsewhere, PIECE, 0, handle, 0), 0);
    assert_eq!(program.cuMemSetAccess(elsewhere, PIECE, &[HOST_NUMA[0], 0, READ_WRITE], 1), 0);
    assert_eq!(program.launch(kernels, "fill", 0, &[start, WORDS + 1, 3]), 0);
    assert_eq!(program.cuCtxSynchronize(), ILLEGAL_ADDRESS);
    // SAFETY: mapped for the host by this test, and nothing writes it any more.
    assert_eq!(unsafe { (elsewhere as *const u32).read_volatile() }, 3);
}

/// Seen on an H100 with driver 580: a captured graph (a copy on the card, one to the host, a fill) does its
/// work on the memory that is at its addresses when it is launched.
pub(crate) fn replays_after_a_swap() {
    let program = Program::start();
    let kernels = program.kernels();
    let [first, second] = reserve(&program);
    let mut handles = [first, second].map(|address| map(&program, DEVICE, address));
    let (host, away) = (Pages::new(PIECE), [Pages::new(PIECE), Pages::new(PIECE)]);
    for pages in [&host, &away[0], &away[1]] {
        assert_eq!(program.cuMemHostRegister_v2(pages.address(), PIECE, 0), 0);
    }
    let (mut stream, mut graph, mut exec): (Handle, Handle, Handle) = (0, 0, 0);
    assert_eq!(program.cuStreamCreate(&mut stream, 1), 0);
    assert_eq!(program.cuStreamBeginCapture_v2(stream, 0), 0);
    assert_eq!(program.launch(kernels, "add", stream, &[first, WORDS, 1]), 0);
    assert_eq!(program.cuMemcpyAsync(second, first, PIECE, stream), 0);
    assert_eq!(program.cuMemsetD32Async(second, 9, 1, stream), 0);
    assert_eq!(program.cuMemcpyAsync(host.address(), second, PIECE, stream), 0);
    assert_eq!(program.cuStreamEndCapture(stream, &mut graph), 0);
    assert_eq!(program.cuGraphInstantiateWithFlags(&mut exec, graph, 0), 0);
    let mut last = 0;
    for place in [HOST_NUMA, DEVICE, DEVICE] {
        last += 1;
        assert_eq!(program.cuGraphLaunch(exec, stream), 0);
        assert_eq!(program.cuStreamSynchronize(stream), 0);
        assert_eq!(program.words(host.address(), 2), [9, last]);
        for ((address, handle), away) in [first, second].into_iter().zip(&mut handles).zip(&away) {
            assert_eq!(program.cuMemcpyAsync(away.address(), address, PIECE, stream), 0);
            assert_eq!(program.cuStreamSynchronize(stream), 0);
            unmap(&program, address, *handle);
            *handle = map(&program, place, address);
            assert_eq!(program.cuMemcpyAsync(address, away.address(), PIECE, stream), 0);
        }
    }
    assert_eq!(program.cuGraphLaunch(exec, stream), 0);
    assert_eq!(program.cuStreamSynchronize(stream), 0);
    assert_eq!(program.words(second, 2), [9, last + 1]);
}

/// Seen on an H100 with driver 580: none of these calls waits for work, so idleness is the program's own
/// business.
pub(crate) fn moves_beside_blocked_work() {
    let program = Program::start();
    let kernels = program.kernels();
    assert_eq!(program.launch(kernels, "spin", 0, &[0, u64::MAX]), 0);
    let [first, second] = reserve(&program);
    let own = Pages::new(PIECE);
    for (address, place) in [(first, DEVICE), (second, HOST_NUMA)] {
        let handle = map(&program, place, address);
        unmap(&program, address, handle);
    }
    assert_eq!(program.cuMemHostRegister_v2(own.address(), PIECE, 0), 0);
    assert_eq!(program.cuStreamQuery(0), NOT_READY);
}
