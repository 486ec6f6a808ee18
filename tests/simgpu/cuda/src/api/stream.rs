//! Streams: making, waiting, values and host functions.

use simgpu_card::ids::StreamId;
use simgpu_card::wire::{Op, Request, StreamKind, Test, Work};

use crate::api::prelude::*;
use crate::callbacks::{self, Calls, HostFunction, UserData};
use crate::capture::Status;
use crate::contexts;

const NON_BLOCKING: u32 = 1;

api! {
    fn cuStreamCreate("cuStreamCreate", 2000)(stream: Out<Handle>, flags: u32) {
        create(stream, flags, 0)
    }

    fn cuStreamCreateWithPriority("cuStreamCreateWithPriority", 5050)(stream: Out<Handle>, flags: u32, priority: i32) {
        create(stream, flags, priority)
    }

    fn cuStreamDestroy("cuStreamDestroy", 2000) = cuStreamDestroy_v2("cuStreamDestroy", 4000)(stream: Handle) {
        destroy(stream)
    }

    fn cuStreamGetFlags("cuStreamGetFlags", 5050; "_ptsz", 7000)[default](stream: Handle, flags: Out<u32>) {
        let stream = current::stream(stream, default)?;
        flags.set(driver()?.state().stream(stream)?.flags)
    }

    fn cuStreamGetPriority("cuStreamGetPriority", 5050; "_ptsz", 7000)[default](stream: Handle, priority: Out<i32>) {
        let stream = current::stream(stream, default)?;
        priority.set(driver()?.state().stream(stream)?.priority)
    }

    fn cuStreamGetId("cuStreamGetId", 12000; "_ptsz", 12000)[default](stream: Handle, id: Out<u64>) {
        id.set(u64::from(current::stream(stream, default)?.0))
    }

    fn cuStreamGetCtx("cuStreamGetCtx", 9020; "_ptsz", 9020)[default](stream: Handle, context: Out<Handle>) {
        let stream = current::stream(stream, default)?;
        context.set(Tag::Context.handle(driver()?.state().stream(stream)?.context.0))
    }

    fn cuStreamGetCtx_v2("cuStreamGetCtx", 12050; "_ptsz", 12050)[default](
        stream: Handle, context: Out<Handle>, green: Out<Handle>,
    ) {
        let stream = current::stream(stream, default)?;
        green.set_if_wanted(0);
        context.set(Tag::Context.handle(driver()?.state().stream(stream)?.context.0))
    }

    fn cuStreamGetDevice("cuStreamGetDevice", 12080; "_ptsz", 12080)[default](stream: Handle, device: Out<i32>) {
        let stream = current::stream(stream, default)?;
        let mut state = driver()?.state();
        let context = state.stream(stream)?.context;
        device.set(state.contexts.get(&context).ok_or(Code::INVALID_CONTEXT)?.device)
    }

    fn cuStreamQuery("cuStreamQuery", 2000; "_ptsz", 7000)[default](stream: Handle) {
        let stream = current::stream(stream, default)?;
        may_wait(stream)?;
        work::query(Work::Stream(stream))
    }

    fn cuStreamSynchronize("cuStreamSynchronize", 2000; "_ptsz", 7000)[default](stream: Handle) {
        let stream = current::stream(stream, default)?;
        may_wait(stream)?;
        work::synchronize(Work::Stream(stream))
    }

    fn cuStreamWaitEvent("cuStreamWaitEvent", 3020; "_ptsz", 7000)[default](
        stream: Handle, event: Handle, _flags: u32,
    ) {
        let stream = current::stream(stream, default)?;
        let event = {
            let mut state = driver()?.state();
            let event = state.event(event)?;
            if state.join(stream, event)? {
                return Ok(());
            }
            event
        };
        work::submit(stream, Op::WaitEvent(event))
    }

    fn cuStreamAddCallback("cuStreamAddCallback", 5000; "_ptsz", 7000)[default](
        stream: Handle, function: extern "C" fn(Handle, u32, *mut c_void), data: UserData, flags: u32,
    ) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let target = current::stream(stream, default)?;
        driver()?.state().refuse_capturing(target)?;
        let call = callbacks::register(HostFunction::WithStream(function, stream, data), Calls::Once)?;
        work::submit(target, Op::HostCall(call))
    }

    fn cuLaunchHostFunc("cuLaunchHostFunc", 10000; "_ptsz", 10000)[default](
        stream: Handle, function: extern "C" fn(*mut c_void), data: UserData,
    ) {
        let stream = current::stream(stream, default)?;
        let running = driver()?.state().capture_status(stream) == Status::None;
        let calls = if running { Calls::Once } else { Calls::Many };
        let call = callbacks::register(HostFunction::Plain(function, data), calls)?;
        work::submit(stream, Op::HostCall(call))
    }

    fn cuStreamWaitValue32("cuStreamWaitValue32", 8000; "_ptsz", 8000)
        = cuStreamWaitValue32_v2("cuStreamWaitValue32", 11070; "_ptsz", 11070)[default](
        stream: Handle, address: u64, value: u32, flags: u32,
    ) {
        wait_value(current::stream(stream, default)?, address, value.into(), flags, false)
    }

    fn cuStreamWaitValue64("cuStreamWaitValue64", 9000; "_ptsz", 9000)
        = cuStreamWaitValue64_v2("cuStreamWaitValue64", 11070; "_ptsz", 11070)[default](
        stream: Handle, address: u64, value: u64, flags: u32,
    ) {
        wait_value(current::stream(stream, default)?, address, value, flags, true)
    }

    fn cuStreamWriteValue32("cuStreamWriteValue32", 8000; "_ptsz", 8000)
        = cuStreamWriteValue32_v2("cuStreamWriteValue32", 11070; "_ptsz", 11070)[default](
        stream: Handle, address: u64, value: u32, flags: u32,
    ) {
        write_value(current::stream(stream, default)?, address, value.into(), flags, false)
    }

    fn cuStreamWriteValue64("cuStreamWriteValue64", 9000; "_ptsz", 9000)
        = cuStreamWriteValue64_v2("cuStreamWriteValue64", 11070; "_ptsz", 11070)[default](
        stream: Handle, address: u64, value: u64, flags: u32,
    ) {
        write_value(current::stream(stream, default)?, address, value, flags, true)
    }
}

fn create(stream: Out<Handle>, flags: u32, priority: i32) -> Answer {
    if stream.is_null() || flags > NON_BLOCKING {
        return Err(Code::INVALID_VALUE);
    }
    let kind = if flags == NON_BLOCKING {
        StreamKind::NonBlocking
    } else {
        StreamKind::Blocking
    };
    let id = contexts::make_stream(current::context()?, kind, flags, priority.clamp(-5, 0))?;
    stream.set(Tag::Stream.handle(id.0))
}

fn destroy(stream: Handle) -> Answer {
    let id = Tag::Stream.id(stream).map(StreamId).ok_or(Code::INVALID_HANDLE)?;
    let driver = driver()?;
    let mut state = driver.state();
    state.refuse_capturing(id)?;
    state.streams.remove(&id).ok_or(Code::INVALID_HANDLE)?;
    driver.tell(Request::DestroyStream(id))
}

/// Waiting for a stream, or asking about it, breaks captures that forbid it.
fn may_wait(stream: StreamId) -> Answer {
    let mut state = driver()?.state();
    state.refuse_capturing(stream)?;
    state.refuse_waiting_for_legacy(stream)?;
    state.unsafe_call()
}

pub(crate) fn wait_value(stream: StreamId, address: u64, value: u64, flags: u32, wide: bool) -> Answer {
    const FLUSH: u32 = 1 << 30;
    let test = match flags & !FLUSH {
        0 => Test::GreaterOrEqual,
        1 => Test::Equal,
        2 => Test::And,
        3 => Test::Nor,
        _ => return Err(Code::INVALID_VALUE),
    };
    reachable(address, wide)?;
    work::submit(stream, Op::WaitValue { address, value, test, wide })
}

pub(crate) fn write_value(stream: StreamId, address: u64, value: u64, flags: u32, wide: bool) -> Answer {
    const NO_MEMORY_BARRIER: u32 = 1;
    if flags > NO_MEMORY_BARRIER {
        return Err(Code::INVALID_VALUE);
    }
    reachable(address, wide)?;
    work::submit(stream, Op::WriteValue { address, value, wide })
}

fn reachable(address: u64, wide: bool) -> Answer {
    let aligned = address.is_multiple_of(if wide { 8 } else { 4 });
    let known = driver()?.state().kind_at(address).is_some();
    if aligned && known { Ok(()) } else { Err(Code::INVALID_VALUE) }
}
