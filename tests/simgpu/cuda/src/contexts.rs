//! Contexts and the streams in them: made and ended here, for the card and for the tables.

use simgpu_card::ids::{ContextId, StreamId};
use simgpu_card::wire::{Request, StreamKind};

use crate::codes::{Answer, Code};
use crate::driver::driver;
use crate::state::{Context, Primary, Stream};

/// Makes a context on a device.
pub(crate) fn create(device: i32, flags: u32, primary: bool) -> Answer<ContextId> {
    let driver = driver()?;
    let gpu = driver.gpu(device)?.index;
    let id = ContextId(driver.state().fresh());
    driver.call(Request::CreateContext(id, gpu))?;
    let mut context = Context {
        device,
        flags,
        primary,
        part: false,
        users: 1,
        legacy: StreamId(0),
        markers: StreamId(0),
        peers: Vec::new(),
    };
    context.legacy = make_stream(id, StreamKind::Legacy, 0, 0)?;
    context.markers = make_stream(id, StreamKind::NonBlocking, 1, 0)?;
    driver.state().contexts.insert(id, context);
    Ok(id)
}

/// Ends a context with all that was made in it, after its work.
pub(crate) fn destroy(context: ContextId) -> Answer {
    let driver = driver()?;
    driver.call(Request::DestroyContext(context))?;
    let mut state = driver.state();
    state.contexts.remove(&context);
    state.streams.retain(|_, stream| stream.context != context);
    state.events.retain(|_, event| event.context != context);
    state.arrays.retain(|_, array| array.context != context);
    state.mipmaps.retain(|_, mipmap| mipmap.context != context);
    state.allocations.retain(|_, allocation| allocation.context != context);
    Ok(())
}

/// One more user of a device's primary context, which is made if there is none.
pub(crate) fn retain_primary(device: i32) -> Answer<ContextId> {
    let driver = driver()?;
    driver.gpu(device)?;
    let index = usize::try_from(device).map_err(|_| Code::INVALID_DEVICE)?;
    let primary = driver.state().primaries[index];
    let context = match primary.context {
        Some(context) => context,
        None => create(device, primary.flags, true)?,
    };
    let mut state = driver.state();
    let primary = &mut state.primaries[index];
    primary.context = Some(context);
    primary.references += 1;
    Ok(context)
}

/// One user less; the last one, or a reset, ends it.
pub(crate) fn release_primary(device: i32, reset: bool) -> Answer {
    let driver = driver()?;
    driver.gpu(device)?;
    let index = usize::try_from(device).map_err(|_| Code::INVALID_DEVICE)?;
    let ended = {
        let mut state = driver.state();
        if reset && state.contexts.values().any(|found| found.part && found.device == device) {
            return Err(Code::NOT_PERMITTED);
        }
        let primary = &mut state.primaries[index];
        if !reset && primary.references == 0 {
            return Err(Code::INVALID_CONTEXT);
        }
        primary.references = if reset { 0 } else { primary.references - 1 };
        if primary.references == 0 {
            let Primary { context, flags, .. } = *primary;
            *primary = Primary { flags, ..Primary::default() };
            context
        } else {
            None
        }
    };
    ended.map_or(Ok(()), destroy)
}

/// A part of a card: a context like another here, and one more user of the primary one.
pub(crate) fn make_part(device: i32) -> Answer<ContextId> {
    let part = create(device, 0, false)?;
    retain_primary(device)?;
    if let Some(made) = driver()?.state().contexts.get_mut(&part) {
        made.part = true;
    }
    Ok(part)
}

/// Ends a part, and its use of the primary context.
pub(crate) fn destroy_part(part: ContextId) -> Answer {
    let found = driver()?.state().contexts.get(&part).map(|found| (found.device, found.part));
    let Some((device, true)) = found else {
        return Err(Code::INVALID_CONTEXT);
    };
    destroy(part)?;
    release_primary(device, false)
}

/// Makes a stream in a context.
pub(crate) fn make_stream(
    context: ContextId,
    kind: StreamKind,
    flags: u32,
    priority: i32,
) -> Answer<StreamId> {
    let driver = driver()?;
    let mut state = driver.state();
    let id = StreamId(state.fresh());
    state
        .streams
        .insert(id, Stream { context, flags, priority, kind, submitted: 0, capture: None });
    driver.tell(Request::CreateStream(id, context, kind))?;
    Ok(id)
}
