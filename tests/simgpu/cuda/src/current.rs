//! State of a thread: its stack of contexts, its default streams, its capture mode.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use simgpu_card::ids::{ContextId, StreamId};
use simgpu_card::wire::StreamKind;

use crate::codes::{Answer, Code};
use crate::contexts;
use crate::driver::driver;
use crate::handles::{Handle, Tag};

thread_local! {
    static STACK: RefCell<Vec<ContextId>> = const { RefCell::new(Vec::new()) };
    static DEFAULT_STREAMS: RefCell<HashMap<ContextId, StreamId>> = RefCell::new(HashMap::new());
    /// `cuThreadExchangeStreamCaptureMode`; global at first.
    static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
}

/// Which default stream an export means by stream 0: the `_ptsz` and `_ptds` twins mean the thread's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Default {
    Legacy,
    PerThread,
}

const LEGACY: Handle = 1;
const PER_THREAD: Handle = 2;

/// The current context.
pub(crate) fn context() -> Answer<ContextId> {
    let context = STACK.with_borrow(|stack| stack.last().copied()).ok_or(Code::INVALID_CONTEXT)?;
    let driver = driver()?;
    driver.healthy()?;
    let exists = driver.state().contexts.contains_key(&context);
    if exists { Ok(context) } else { Err(Code::INVALID_CONTEXT) }
}

/// The device of the current context.
pub(crate) fn device() -> Answer<i32> {
    let context = context()?;
    driver()?
        .state()
        .contexts
        .get(&context)
        .map(|context| context.device)
        .ok_or(Code::INVALID_CONTEXT)
}

pub(crate) fn push(context: ContextId) {
    STACK.with_borrow_mut(|stack| stack.push(context));
}

pub(crate) fn pop() -> Answer<ContextId> {
    STACK.with_borrow_mut(Vec::pop).ok_or(Code::INVALID_CONTEXT)
}

pub(crate) fn top() -> Option<ContextId> {
    STACK.with_borrow(|stack| stack.last().copied())
}

/// Replaces the top of the stack, or empties it.
pub(crate) fn replace(context: Option<ContextId>) {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        stack.extend(context);
    });
}

pub(crate) fn capture_mode() -> u32 {
    CAPTURE_MODE.get()
}

pub(crate) fn exchange_capture_mode(mode: u32) -> u32 {
    CAPTURE_MODE.replace(mode)
}

/// The stream a handle means: 0 is the default, 1 the legacy and 2 the thread's own stream of the current
/// context.
pub(crate) fn stream(handle: Handle, default: Default) -> Answer<StreamId> {
    match (handle, default) {
        (LEGACY, _) | (0, Default::Legacy) => {
            let context = context()?;
            let state = driver()?.state();
            state
                .contexts
                .get(&context)
                .map(|context| context.legacy)
                .ok_or(Code::INVALID_CONTEXT)
        }
        (PER_THREAD, _) | (0, Default::PerThread) => own_stream(context()?),
        _ => {
            let id = Tag::Stream.id(handle).map(StreamId).ok_or(Code::INVALID_HANDLE)?;
            driver()?.state().stream(id).map(|_| id)
        }
    }
}

fn own_stream(context: ContextId) -> Answer<StreamId> {
    if let Some(stream) = DEFAULT_STREAMS.with_borrow(|streams| streams.get(&context).copied()) {
        return Ok(stream);
    }
    let stream = contexts::make_stream(context, StreamKind::Blocking, 0, 0)?;
    DEFAULT_STREAMS.with_borrow_mut(|streams| streams.insert(context, stream));
    Ok(stream)
}
