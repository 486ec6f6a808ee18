//! Which stream is meant by none, and what one thread's capture forbids another one.

use std::ffi::c_void;
use std::thread;

use crate::NOT_READY;
use crate::program::{Handle, Program};

const UNSUPPORTED: u32 = 900;
const INVALIDATED: u32 = 901;
const IMPLICIT: u32 = 906;
const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

/// The `_ptsz` export of a call that takes a stream only.
fn per_thread(program: &Program, name: &str) -> u32 {
    let symbol = program.symbol(&format!("{name}_ptsz")).unwrap();
    // SAFETY: cuStreamQuery and cuStreamSynchronize take a stream and answer a code.
    let function: extern "C" fn(Handle) -> u32 = unsafe { std::mem::transmute::<*const c_void, _>(symbol) };
    function(0)
}

pub(crate) fn uses_default_streams() {
    const LEGACY: Handle = 1;
    const PER_THREAD: Handle = 2;
    let program = &Program::start();
    let kernels = program.kernels();
    let (mut flag, mut context) = (0, 0);
    assert_eq!(program.cuMemAllocHost_v2(&mut flag, 4), 0);
    assert_eq!(program.cuCtxGetCurrent(&mut context), 0);
    // SAFETY: pinned memory of ours, four bytes long, that the card only reads.
    let set = |value: u32| unsafe { (flag as *mut u32).write_volatile(value) };

    // On this thread's own stream something spins; another thread's own stream is free meanwhile.
    assert_eq!(program.launch(kernels, "spin", PER_THREAD, &[flag, u64::MAX]), 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(program.cuCtxSetCurrent(context), 0);
            assert_eq!(program.launch(kernels, "empty", PER_THREAD, &[]), 0);
            assert_eq!(program.cuStreamSynchronize(PER_THREAD), 0);
            assert_eq!(per_thread(program, "cuStreamQuery"), 0);
        });
    });
    assert_eq!(per_thread(program, "cuStreamQuery"), NOT_READY);
    // The legacy stream waits for all of them, and is another one.
    assert_eq!(program.launch(kernels, "empty", LEGACY, &[]), 0);
    assert_eq!(program.cuStreamQuery(0), NOT_READY);
    set(1);
    assert_eq!(program.cuStreamSynchronize(0), 0);
    assert_eq!(per_thread(program, "cuStreamSynchronize"), 0);

    // On the legacy stream, whoever launches waits for whoever launched before.
    set(0);
    assert_eq!(program.launch(kernels, "spin", LEGACY, &[flag, u64::MAX]), 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(program.cuCtxSetCurrent(context), 0);
            assert_eq!(program.launch(kernels, "empty", 0, &[]), 0);
            assert_eq!(program.cuStreamQuery(0), NOT_READY);
            assert_eq!(program.launch(kernels, "empty", PER_THREAD, &[]), 0);
            assert_eq!(per_thread(program, "cuStreamQuery"), NOT_READY);
        });
    });
    set(1);
    assert_eq!(program.cuCtxSynchronize(), 0);
}

pub(crate) fn captures_in_modes() {
    let program = &Program::start();
    let (mut stream, mut event, mut context) = (0, 0, 0);
    assert_eq!(program.cuStreamCreate(&mut stream, 1), 0);
    assert_eq!(program.cuEventCreate(&mut event, 2), 0);
    assert_eq!(program.cuEventRecord(event, 0), 0);
    assert_eq!(program.cuCtxGetCurrent(&mut context), 0);
    let elsewhere = |mut mode: u32, call: &(dyn Fn() -> u32 + Sync)| {
        let run = || {
            assert_eq!(program.cuCtxSetCurrent(context), 0);
            assert_eq!(program.cuThreadExchangeStreamCaptureMode(&mut mode), 0);
            call()
        };
        thread::scope(|scope| scope.spawn(run).join().unwrap())
    };
    let query = || program.cuEventQuery(event);
    let allocate = || {
        let mut memory = 0;
        program.cuMemAlloc_v2(&mut memory, 64)
    };
    let during = |mode: u32, call: &dyn Fn() -> u32| {
        let mut graph = 0;
        assert_eq!(program.cuStreamBeginCapture_v2(stream, mode), 0);
        let answer = call();
        (answer, program.cuStreamEndCapture(stream, &mut graph))
    };
    let broken = (UNSUPPORTED, INVALIDATED);
    assert_eq!(during(GLOBAL, &query), broken);
    assert_eq!(during(THREAD_LOCAL, &query), broken);
    assert_eq!(during(RELAXED, &query), (0, 0));
    assert_eq!(during(RELAXED, &allocate), (0, 0));
    // Another thread: its own mode counts as well.
    assert_eq!(during(GLOBAL, &|| elsewhere(GLOBAL, &query)), broken);
    assert_eq!(during(GLOBAL, &|| elsewhere(GLOBAL, &allocate)), broken);
    assert_eq!(during(GLOBAL, &|| elsewhere(RELAXED, &query)), (0, 0));
    assert_eq!(during(GLOBAL, &|| elsewhere(THREAD_LOCAL, &query)), (0, 0));
    assert_eq!(during(THREAD_LOCAL, &|| elsewhere(GLOBAL, &query)), (0, 0));
    // To synchronise the capturing stream breaks any capture, and to mark the whole context does.
    assert_eq!(during(RELAXED, &|| program.cuStreamSynchronize(stream)), broken);
    assert_eq!(during(RELAXED, &|| program.cuCtxRecordEvent(0, event)), broken);
    assert_eq!(during(RELAXED, &|| program.cuCtxSynchronize()), broken);
}

/// An invalidated capture that is not ended keeps its context from being marked or waited for, at once and
/// whatever is in flight there. The other streams can be asked one by one.
pub(crate) fn asks_beside_a_broken_capture() {
    let program = &Program::start();
    let kernels = program.kernels();
    let (mut capturing, mut ordered, mut busy, mut event, mut flag) = (0, 0, 0, 0, 0);
    let (mut relaxed, mut graph, mut status) = (RELAXED, 0, 0);
    assert_eq!(program.cuStreamCreate(&mut capturing, 1), 0);
    assert_eq!(program.cuStreamCreate(&mut ordered, 0), 0);
    assert_eq!(program.cuStreamCreate(&mut busy, 1), 0);
    assert_eq!(program.cuEventCreate(&mut event, 2), 0);
    assert_eq!(program.cuMemAllocManaged(&mut flag, 4, 1), 0);
    assert_eq!(program.cuThreadExchangeStreamCaptureMode(&mut relaxed), 0);

    assert_eq!(program.cuStreamWaitValue32_v2(busy, flag, 1, 0), 0);
    assert_eq!(program.cuStreamBeginCapture_v2(capturing, GLOBAL), 0);
    assert_eq!(program.cuStreamSynchronize(capturing), UNSUPPORTED);
    let is_refused = || (program.cuCtxRecordEvent(0, event), program.cuCtxSynchronize());
    assert_eq!(is_refused(), (UNSUPPORTED, UNSUPPORTED));
    assert_eq!([busy, ordered, 0].map(|stream| program.cuStreamQuery(stream)), [NOT_READY, 0, 0]);
    assert_eq!(program.cuStreamQuery(capturing), UNSUPPORTED);
    assert_eq!(program.cuStreamWriteValue32_v2(ordered, flag, 1, 0), 0);
    assert_eq!(program.cuStreamSynchronize(busy), 0);
    assert_eq!((program.cuStreamQuery(busy), is_refused()), (0, (UNSUPPORTED, UNSUPPORTED)));
    assert_eq!(program.cuStreamEndCapture(capturing, &mut graph), INVALIDATED);
    assert_eq!(is_refused(), (0, 0));

    // The legacy stream takes no work while a stream that is ordered with it captures.
    assert_eq!(program.cuStreamBeginCapture_v2(ordered, GLOBAL), 0);
    assert_eq!(program.cuStreamSynchronize(ordered), UNSUPPORTED);
    assert_eq!(program.cuStreamIsCapturing(0, &mut status), IMPLICIT);
    assert_eq!(program.cuStreamQuery(0), IMPLICIT);
    assert_eq!(program.launch(kernels, "empty", 0, &[]), IMPLICIT);
    assert_eq!(program.cuStreamEndCapture(ordered, &mut graph), INVALIDATED);
    assert_eq!(program.launch(kernels, "empty", 0, &[]), 0);
}
