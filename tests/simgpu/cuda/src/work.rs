//! Work on its way to the card: written down if its stream captures, else sent.
//!
//! Sending needs no answer. So that a program cannot run away from the card, a stream may hold as many
//! pieces of work as a real one; then the caller waits for the oldest.

use simgpu_card::ids::StreamId;
use simgpu_card::wire::{Op, Request, Work};

use crate::capture::Route;
use crate::codes::{Answer, Code};
use crate::driver::driver;
use crate::faults;

/// How much a stream holds.
const DEPTH: u64 = 1024;

/// How often that is looked at.
const EVERY: u64 = 128;

/// Puts work into a stream.
pub(crate) fn submit(stream: StreamId, op: Op) -> Answer {
    faults::bend(op).into_iter().try_for_each(|op| submit_one(stream, op))
}

fn submit_one(stream: StreamId, op: Op) -> Answer {
    let driver = driver()?;
    let submitted = {
        let mut state = driver.state();
        match state.route(stream)? {
            Route::Capture(id) => {
                if matches!(op, Op::Prefetch { .. } | Op::Upload { .. } | Op::Download { .. }) {
                    return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
                }
                state.write_down(id, stream, op);
                return Ok(());
            }
            Route::Run => {
                driver.tell(Request::Submit(stream, op))?;
                let stream = state.stream(stream)?;
                stream.submitted += 1;
                stream.submitted
            }
        }
    };
    throttle(stream, submitted, 1)
}

/// Puts work into a stream and hears whether there was room for it.
pub(crate) fn submit_and_hear(stream: StreamId, op: Op) -> Answer {
    let driver = driver()?;
    let mut state = driver.state();
    match state.route(stream)? {
        Route::Capture(id) => state.write_down(id, stream, op),
        Route::Run => {
            driver.call(Request::Submit(stream, op))?;
            state.stream(stream)?.submitted += 1;
        }
    }
    Ok(())
}

/// Puts an upload into a stream; its bytes are the caller's again at once.
pub(crate) fn upload(stream: StreamId, op: Op, bytes: &[u8]) -> Answer {
    for other in faults::bend(op.clone()).into_iter().filter(|other| *other != op) {
        submit_one(stream, other)?;
    }
    let driver = driver()?;
    let mut state = driver.state();
    if state.route(stream)? != Route::Run {
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    driver.tell_with(Request::Submit(stream, op), bytes)?;
    state.stream(stream)?.submitted += 1;
    Ok(())
}

/// Puts a download into a stream and waits for its bytes.
pub(crate) fn download(stream: StreamId, op: Op) -> Answer<Vec<u8>> {
    for other in faults::bend(op.clone()).into_iter().filter(|other| *other != op) {
        submit_one(stream, other)?;
    }
    let driver = driver()?;
    {
        let mut state = driver.state();
        if state.route(stream)? != Route::Run {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        state.stream(stream)?.submitted += 1;
    }
    Ok(driver.call(Request::Submit(stream, op))?.payload)
}

/// Waits until a stream is done.
pub(crate) fn synchronize(work: Work) -> Answer {
    let driver = driver()?;
    driver.call(Request::Synchronize(work))?;
    driver.state().reached(work);
    Ok(())
}

/// Answers NOT_READY unless the work is done.
pub(crate) fn query(work: Work) -> Answer {
    match driver()?.call(Request::Query(work))?.answer {
        simgpu_card::wire::Answer::Ready(true) => Ok(()),
        _ => Err(Code::NOT_READY),
    }
}

/// Waits for the oldest work if the last `added` pieces made the stream too full.
pub(crate) fn throttle(stream: StreamId, submitted: u64, added: u64) -> Answer {
    let looked = submitted / EVERY != (submitted - added) / EVERY;
    if looked && submitted > DEPTH {
        return synchronize(Work::Position(stream, submitted - DEPTH));
    }
    Ok(())
}
