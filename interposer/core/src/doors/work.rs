//! Calls that give work to the card.

use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use gpushare_proto::page::FLAG_CONTENDED;

use crate::gate::Pass;
use crate::guest::guest_or;
use crate::process::{GATE, State, page};
use crate::waiting;

/// Whose default stream a call without a stream argument means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultStream {
    /// The one that orders all blocking streams.
    Legacy,
    /// The calling thread's own.
    PerThread,
}

/// Passes the gate; holds it open while the pass lives.
#[inline]
pub fn pass() -> Pass<'static> {
    match GATE.enter(&page().gate) {
        Ok(pass) => pass,
        Err(word) => waiting::at_gate(word),
    }
}

/// Passes the gate for a call that blocks until its default stream has done everything before it. While
/// others use the card it waits for that stream first, outside the gate, so that it is inside only for its own copy.
#[inline]
pub fn pass_blocking(stream: DefaultStream) -> Pass<'static> {
    if page().flags.load(Ordering::Relaxed) & FLAG_CONTENDED != 0 {
        guest_or(|| settle(stream), || ());
    }
    pass()
}

#[cold]
fn settle(stream: DefaultStream) {
    let Some(state) = State::existing() else { return };
    // A wait would break a capture; the call itself then tells the application what it may not do.
    if state.captures.any() {
        return;
    }
    let synchronize = match stream {
        DefaultStream::Legacy => state.driver.stream_synchronize,
        DefaultStream::PerThread => state.driver.stream_synchronize_ptsz,
    };
    // SAFETY: null is the default stream of either kind. An error comes again from the call itself.
    unsafe { synchronize(null_mut()) };
}
