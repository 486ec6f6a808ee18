//! Events: marks in streams.

use std::time::Duration;

use simgpu_card::ids::EventId;
use simgpu_card::wire::{Answer as CardAnswer, Op, Request, Work};

use crate::api::prelude::*;
use crate::capture::Status;
use crate::current::Default;
use crate::state::{Event, Recorded};

const DISABLE_TIMING: u32 = 2;

api! {
    fn cuEventCreate("cuEventCreate", 2000)(event: Out<Handle>, flags: u32) {
        const INTERPROCESS: u32 = 4;
        if event.is_null() || flags >= 2 * INTERPROCESS {
            return Err(Code::INVALID_VALUE);
        }
        if flags & INTERPROCESS != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let context = current::context()?;
        let mut state = driver()?.state();
        let id = EventId(state.fresh());
        let timing = flags & DISABLE_TIMING == 0;
        state.events.insert(id, Event {
            context,
            timing,
            recorded: Recorded::Never,
            records: 0,
            asked: false,
            in_graphs: false,
        });
        event.set(Tag::Event.handle(id.0))
    }

    fn cuEventDestroy("cuEventDestroy", 2000) = cuEventDestroy_v2("cuEventDestroy", 4000)(event: Handle) {
        destroy(event)
    }

    fn cuEventRecord("cuEventRecord", 2000; "_ptsz", 7000)[default](event: Handle, stream: Handle) {
        record(event, stream, default, false)
    }

    fn cuEventRecordWithFlags("cuEventRecordWithFlags", 11010; "_ptsz", 11010)[default](
        event: Handle, stream: Handle, flags: u32,
    ) {
        const EXTERNAL: u32 = 1;
        record(event, stream, default, flags & EXTERNAL != 0)
    }

    fn cuEventQuery("cuEventQuery", 2000)(event: Handle) {
        query(outside_captures(event)?)
    }

    fn cuEventSynchronize("cuEventSynchronize", 2000)(event: Handle) {
        let event = outside_captures(event)?;
        work::synchronize(Work::Event(event))
    }

    fn cuEventElapsedTime("cuEventElapsedTime", 2000)
        = cuEventElapsedTime_v2("cuEventElapsedTime", 12080)(milliseconds: Out<f32>, from: Handle, to: Handle) {
        elapsed(milliseconds, from, to)
    }
}

fn destroy(event: Handle) -> Answer {
    let driver = driver()?;
    let mut state = driver.state();
    let id = state.event(event)?;
    state.events.remove(&id);
    driver.tell(Request::DropEvent(id))
}

/// In a capture an event stands for its place in the graph, and only an external one becomes work.
fn record(event: Handle, stream: Handle, default: Default, external: bool) -> Answer {
    let stream = current::stream(stream, default)?;
    let event = {
        let mut state = driver()?.state();
        let event = state.event(event)?;
        let (of_event, of_stream) =
            (state.events.get(&event).map(|e| e.context), state.stream(stream)?.context);
        if of_event != Some(of_stream) {
            return Err(Code::INVALID_HANDLE);
        }
        let captured = match state.capture_status(stream) {
            Status::Active(capture) if !external => {
                state.record_in_capture(capture, stream, event);
                return Ok(());
            }
            status => matches!(status, Status::Active(_)),
        };
        if let Some(event) = state.events.get_mut(&event) {
            event.records += 1;
            event.asked = false;
            event.in_graphs |= captured;
        }
        event
    };
    work::submit(stream, Op::Record(event))?;
    if let Some(event) = driver()?.state().events.get_mut(&event) {
        event.recorded = Recorded::InStream;
    }
    Ok(())
}

/// When an event was reached, or NOT_READY, as the board tells it. `None` if only the card knows.
fn reached(event: EventId) -> Answer<Option<Answer<Duration>>> {
    let driver = driver()?;
    driver.healthy()?;
    let state = driver.state();
    let found = state.events.get(&event).filter(|event| event.records > 0 && !event.in_graphs);
    let Some((records, (record, at))) = found.map(|found| found.records).zip(driver.board.event(event))
    else {
        return Ok(None);
    };
    Ok(Some(if record < records { Err(Code::NOT_READY) } else { Ok(at) }))
}

/// Asks the card once after each record, so that it has heard of that, and then looks at the board.
fn query(event: EventId) -> Answer {
    let seen = reached(event)?;
    let mut state = driver()?.state();
    let found = state.events.get_mut(&event);
    let asked = found.is_some_and(|event| std::mem::replace(&mut event.asked, true));
    drop(state);
    match seen {
        Some(answer) if asked || answer.is_ok() => answer.map(|_| ()),
        _ => work::query(Work::Event(event)),
    }
}

fn outside_captures(event: Handle) -> Answer<EventId> {
    let mut state = driver()?.state();
    let id = state.event(event)?;
    if matches!(state.events.get(&id).map(|event| &event.recorded), Some(Recorded::InCapture(..))) {
        return Err(Code::CAPTURED_EVENT);
    }
    state.unsafe_call()?;
    Ok(id)
}

fn elapsed(milliseconds: Out<f32>, from: Handle, to: Handle) -> Answer {
    let (from, to) = {
        let state = driver()?.state();
        let ids = (state.event(from)?, state.event(to)?);
        let timed = |id| state.events.get(id).is_some_and(|event| event.timing);
        if !timed(&ids.0) || !timed(&ids.1) {
            return Err(Code::INVALID_HANDLE);
        }
        ids
    };
    let time = if let (Some(from), Some(to)) = (reached(from)?, reached(to)?) {
        to?.saturating_sub(from?)
    } else {
        let CardAnswer::Elapsed(time) = driver()?.call(Request::Elapsed(from, to))?.answer else {
            return Err(Code::UNKNOWN);
        };
        time
    };
    milliseconds.set(time.as_secs_f32() * 1000.0)
}
