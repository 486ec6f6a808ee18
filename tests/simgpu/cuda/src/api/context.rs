//! Contexts: making, choosing, waiting.

use simgpu_card::ids::ContextId;
use simgpu_card::wire::{Op, Request, Work};

use crate::api::prelude::*;
use crate::contexts;
use crate::state::Recorded;

api! {
    fn cuCtxCreate_v2("cuCtxCreate", 3020)(context: Out<Handle>, flags: u32, device: i32) {
        create(context, flags, device)
    }

    fn cuCtxCreate_v3("cuCtxCreate", 11040)(
        context: Out<Handle>, _affinity: In<c_void>, _affinities: i32, flags: u32, device: i32,
    ) {
        create(context, flags, device)
    }

    fn cuCtxCreate_v4("cuCtxCreate", 12050)(context: Out<Handle>, _parameters: In<c_void>, flags: u32, device: i32) {
        create(context, flags, device)
    }

    fn cuCtxDestroy("cuCtxDestroy", 2000) = cuCtxDestroy_v2("cuCtxDestroy", 4000)(context: Handle) {
        destroy(context)
    }

    fn cuCtxAttach("cuCtxAttach", 2000)(context: Out<Handle>, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let id = current::context()?;
        if let Some(found) = driver()?.state().contexts.get_mut(&id) {
            found.users += 1;
        }
        context.set(Tag::Context.handle(id.0))
    }

    fn cuCtxDetach("cuCtxDetach", 2000)(context: Handle) {
        let last = {
            let mut state = driver()?.state();
            let id = state.context(context)?;
            let found = state.contexts.get_mut(&id).ok_or(Code::INVALID_CONTEXT)?;
            // A primary context is its retainers', whoever detaches from it.
            found.users = found.users.saturating_sub(1);
            found.users == 0 && !found.primary
        };
        if last { destroy(context) } else { Ok(()) }
    }

    /// No simulated kernel is counted by its multiprocessors.
    fn cuGreenCtxCreate("cuGreenCtxCreate", 12040)(part: Out<Handle>, _resources: Handle, device: i32, flags: u32) {
        const DEFAULT_STREAM: u32 = 1;
        let driver = driver()?;
        driver.gpu(device)?;
        if part.is_null() || flags != DEFAULT_STREAM {
            return Err(Code::INVALID_VALUE);
        }
        part.set(Tag::Context.handle(contexts::make_part(device)?.0))
    }

    fn cuCtxFromGreenCtx("cuCtxFromGreenCtx", 12040)(context: Out<Handle>, part: Handle) {
        let id = driver()?.state().context(part)?;
        context.set(Tag::Context.handle(id.0))
    }

    fn cuGreenCtxDestroy("cuGreenCtxDestroy", 12040)(part: Handle) {
        let id = driver()?.state().context(part)?;
        contexts::destroy_part(id)
    }

    fn cuCtxPushCurrent_v2("cuCtxPushCurrent", 4000)(context: Handle) {
        current::push(driver()?.state().context(context)?);
        Ok(())
    }

    fn cuCtxPopCurrent_v2("cuCtxPopCurrent", 4000)(context: Out<Handle>) {
        driver()?;
        context.set_if_wanted(Tag::Context.handle(current::pop()?.0));
        Ok(())
    }

    fn cuCtxSetCurrent("cuCtxSetCurrent", 4000)(context: Handle) {
        let chosen = if context == 0 { None } else { Some(driver()?.state().context(context)?) };
        driver()?;
        current::replace(chosen);
        Ok(())
    }

    fn cuCtxGetCurrent("cuCtxGetCurrent", 4000)(context: Out<Handle>) {
        driver()?;
        context.set(current::top().map_or(0, |context| Tag::Context.handle(context.0)))
    }

    fn cuCtxGetDevice("cuCtxGetDevice", 2000)(device: Out<i32>) {
        device.set(current::device()?)
    }

    fn cuCtxGetDevice_v2("cuCtxGetDevice", 13000)(device: Out<i32>, context: Handle) {
        let context = current_or(context)?;
        let found = driver()?.state().contexts.get(&context).map(|context| context.device);
        device.set(found.ok_or(Code::INVALID_CONTEXT)?)
    }

    fn cuCtxGetId("cuCtxGetId", 12000)(context: Handle, id: Out<u64>) {
        id.set(u64::from(current_or(context)?.0))
    }

    fn cuCtxGetFlags("cuCtxGetFlags", 7000)(flags: Out<u32>) {
        let context = current::context()?;
        flags.set(driver()?.state().contexts.get(&context).map_or(0, |context| context.flags))
    }

    fn cuCtxSetFlags("cuCtxSetFlags", 12010)(flags: u32) {
        let context = current::context()?;
        if let Some(context) = driver()?.state().contexts.get_mut(&context) {
            context.flags = flags;
        }
        Ok(())
    }

    fn cuCtxGetApiVersion("cuCtxGetApiVersion", 3020)(context: Handle, version: Out<u32>) {
        current_or(context)?;
        version.set(3020)
    }

    fn cuCtxGetStreamPriorityRange("cuCtxGetStreamPriorityRange", 5050)(least: Out<i32>, greatest: Out<i32>) {
        current::context()?;
        least.set_if_wanted(0);
        greatest.set_if_wanted(-5);
        Ok(())
    }

    /// The limits can be set and are not kept: no simulated kernel has a stack or a heap.
    fn cuCtxSetLimit("cuCtxSetLimit", 3010)(_limit: u32, _value: usize) {
        current::context().map(|_| ())
    }

    fn cuCtxGetLimit("cuCtxGetLimit", 3010)(value: Out<usize>, limit: u32) {
        current::context()?;
        value.set(match limit {
            0 => 1 << 10, // stack of a thread
            1 => 1 << 20, // printf buffer
            2 => 8 << 20, // heap
            _ => return Err(Code::NOT_SUPPORTED),
        })
    }

    fn cuCtxSetCacheConfig("cuCtxSetCacheConfig", 3020)(_config: u32) {
        current::context().map(|_| ())
    }

    fn cuCtxGetCacheConfig("cuCtxGetCacheConfig", 3020)(config: Out<u32>) {
        current::context()?;
        config.set(0)
    }

    fn cuCtxSynchronize("cuCtxSynchronize", 2000)() {
        synchronize(current::context()?)
    }

    fn cuCtxSynchronize_v2("cuCtxSynchronize", 13000)(context: Handle) {
        synchronize(current_or(context)?)
    }

    fn cuCtxRecordEvent("cuCtxRecordEvent", 12050)(context: Handle, event: Handle) {
        let context = current_or(context)?;
        let (event, markers) = {
            let mut state = driver()?.state();
            let event = state.event(event)?;
            state.refuse_capturing_in(context)?;
            if let Some(event) = state.events.get_mut(&event) {
                event.recorded = Recorded::InStream;
                event.records += 1;
                event.asked = false;
            }
            (event, state.contexts.get(&context).ok_or(Code::INVALID_CONTEXT)?.markers)
        };
        work::submit(markers, Op::RecordContext(event))
    }

    fn cuCtxEnablePeerAccess("cuCtxEnablePeerAccess", 4000)(peer: Handle, flags: u32) {
        let context = current::context()?;
        let mut state = driver()?.state();
        let peer = state.context(peer)?;
        if flags != 0 || peer == context {
            return Err(Code::INVALID_VALUE);
        }
        let of_peer = state.contexts.get(&peer).map_or(0, |peer| peer.device);
        let context = state.contexts.get_mut(&context).ok_or(Code::INVALID_CONTEXT)?;
        if context.device == of_peer {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        if context.peers.contains(&peer) {
            return Err(Code::PEER_ACCESS_ALREADY_ENABLED);
        }
        context.peers.push(peer);
        tell_peers(context.device, of_peer, true)
    }

    fn cuCtxDisablePeerAccess("cuCtxDisablePeerAccess", 4000)(peer: Handle) {
        let context = current::context()?;
        let mut state = driver()?.state();
        let peer = state.context(peer)?;
        let of_peer = state.contexts.get(&peer).map_or(0, |peer| peer.device);
        let context = state.contexts.get_mut(&context).ok_or(Code::INVALID_CONTEXT)?;
        let index = context.peers.iter().position(|found| *found == peer);
        context.peers.remove(index.ok_or(Code::PEER_ACCESS_NOT_ENABLED)?);
        tell_peers(context.device, of_peer, false)
    }
}

/// Kernels on one device reach the other one's plain allocations, or no longer.
fn tell_peers(from: i32, to: i32, allowed: bool) -> Answer {
    let driver = driver()?;
    let (from, to) = (driver.gpu(from)?.index, driver.gpu(to)?.index);
    driver.tell(Request::Peer { from, to, allowed })
}

/// A null context means the current one.
fn current_or(context: Handle) -> Answer<ContextId> {
    if context == 0 {
        current::context()
    } else {
        driver()?.state().context(context)
    }
}

fn create(context: Out<Handle>, flags: u32, device: i32) -> Answer {
    if context.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let id = contexts::create(device, flags, false)?;
    current::push(id);
    context.set(Tag::Context.handle(id.0))
}

fn destroy(context: Handle) -> Answer {
    let id = {
        let state = driver()?.state();
        let id = state.context(context)?;
        if state.contexts.get(&id).is_some_and(|context| context.primary) {
            return Err(Code::INVALID_CONTEXT);
        }
        id
    };
    contexts::destroy(id)?;
    if current::top() == Some(id) {
        current::pop()?;
    }
    Ok(())
}

fn synchronize(context: ContextId) -> Answer {
    {
        let mut state = driver()?.state();
        state.refuse_capturing_in(context)?;
        state.unsafe_call()?;
    }
    work::synchronize(Work::Context(context))
}
