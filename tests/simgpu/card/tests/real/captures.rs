//! Captures: recorded, replayed and broken.

use std::sync::atomic::Ordering;

use crate::program::Program;
use crate::{CALLS, count_call};

pub(crate) fn captures() {
    let program = Program::start();
    let kernels = program.kernels();
    let (mut origin, mut second, mut forked, mut joined) = (0, 0, 0, 0);
    assert_eq!(program.cuStreamCreate(&mut origin, 1), 0);
    assert_eq!(program.cuStreamCreate(&mut second, 1), 0);
    assert_eq!(program.cuEventCreate(&mut forked, 2), 0);
    assert_eq!(program.cuEventCreate(&mut joined, 2), 0);
    let mut words = 0;
    assert_eq!(program.cuMemAlloc_v2(&mut words, 64), 0);
    assert_eq!(program.cuMemsetD32Async(words, 1, 16, origin), 0);

    assert_eq!(program.cuStreamBeginCapture_v2(origin, 0), 0);
    assert_eq!(program.launch(kernels, "add", origin, &[words, 16, 2]), 0);
    assert_eq!(program.cuEventRecord(forked, origin), 0);
    assert_eq!(program.cuStreamWaitEvent(second, forked, 0), 0);
    assert_eq!(program.launch(kernels, "add", second, &[words, 1, 10]), 0);
    assert_eq!(program.cuEventRecord(joined, second), 0);
    assert_eq!(program.cuLaunchHostFunc(origin, count_call, std::ptr::null_mut()), 0);
    assert_eq!(program.cuStreamWaitEvent(origin, joined, 0), 0);
    let (mut graph, mut exec, mut nodes) = (0, 0, 0);
    assert_eq!(program.cuStreamEndCapture(origin, &mut graph), 0);
    assert_eq!((program.cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes), nodes), (0, 3));

    assert_eq!(program.words(words, 2), [1, 1]);
    assert_eq!(program.cuGraphInstantiateWithFlags(&mut exec, graph, 0), 0);
    for _ in 0..3 {
        assert_eq!(program.cuGraphLaunch(exec, origin), 0);
    }
    assert_eq!(program.cuStreamSynchronize(origin), 0);
    assert_eq!(program.words(words, 2), [37, 7]);
    assert_eq!(CALLS.load(Ordering::SeqCst), 3);
}

pub(crate) fn breaks_captures() {
    const UNSUPPORTED: u32 = 900;
    const INVALIDATED: u32 = 901;
    const UNJOINED: u32 = 904;
    const IMPLICIT: u32 = 906;
    let program = Program::start();
    let kernels = program.kernels();
    let (mut blocking, mut other, mut event, mut graph, mut memory) = (0, 0, 0, 0, 0);
    assert_eq!(program.cuStreamCreate(&mut blocking, 0), 0);
    assert_eq!(program.cuStreamCreate(&mut other, 1), 0);
    assert_eq!(program.cuEventCreate(&mut event, 2), 0);
    let mut broken = |breaking: &mut dyn FnMut() -> u32, code: u32, end: u32| {
        assert_eq!(program.cuStreamBeginCapture_v2(blocking, 0), 0);
        assert_eq!(breaking(), code);
        assert_eq!(program.cuStreamEndCapture(blocking, &mut graph), end);
        assert_eq!(program.launch(kernels, "empty", blocking, &[]), 0);
    };
    broken(&mut || program.cuStreamSynchronize(blocking), UNSUPPORTED, INVALIDATED);
    broken(&mut || program.cuCtxSynchronize(), UNSUPPORTED, INVALIDATED);
    broken(&mut || program.cuStreamQuery(other), UNSUPPORTED, INVALIDATED);
    broken(&mut || program.cuCtxRecordEvent(0, event), UNSUPPORTED, INVALIDATED);
    broken(&mut || program.cuMemAlloc_v2(&mut memory, 64), UNSUPPORTED, INVALIDATED);
    // Seen on an H200, driver 580: a pool's figures cannot be asked for, those of graphs and of the card can.
    let (mut pool, mut reserved, mut free, mut total) = (0, 0, 0, 0);
    broken(&mut || program.cuDeviceGetDefaultMemPool(&mut pool, 0), 0, 0);
    broken(&mut || program.cuMemPoolGetAttribute(pool, 5, &mut reserved), UNSUPPORTED, INVALIDATED);
    broken(&mut || program.cuMemPoolTrimTo(pool, 0), UNSUPPORTED, INVALIDATED);
    broken(&mut || program.cuMemAllocAsync(&mut memory, 64, other), UNSUPPORTED, INVALIDATED);
    broken(&mut || program.cuDeviceGetGraphMemAttribute(0, 2, &mut reserved), 0, 0);
    broken(&mut || program.cuMemGetInfo_v2(&mut free, &mut total), 0, 0);
    broken(&mut || program.launch(kernels, "empty", 0, &[]), IMPLICIT, INVALIDATED);
    broken(&mut || program.launch(kernels, "empty", other, &[]), 0, 0);
    let mut status = 0;
    broken(&mut || program.cuStreamIsCapturing(0, &mut status), IMPLICIT, 0);
    broken(&mut || program.cuStreamIsCapturing(blocking, &mut status), 0, 0);
    assert_eq!(status, 1);
    broken(
        &mut || {
            assert_eq!(program.cuEventRecord(event, blocking), 0);
            assert_eq!(program.cuStreamWaitEvent(other, event, 0), 0);
            program.launch(kernels, "empty", other, &[])
        },
        0,
        UNJOINED,
    );
    assert_eq!(program.cuStreamBeginCapture_v2(0, 0), UNSUPPORTED);
}
