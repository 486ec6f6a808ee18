//! Launch window: bounds the work of a process in flight, because a drop has to wait for it.
//!
//! ```text
//!   launch ──▶ launch_window ──▶ one more in flight ──▶ gate ──▶ the driver
//!                │  full? wait for the stream's oldest marker
//!                ▼
//!              markers   one event every W/8 launches, per stream ──▶ aimd   completions give W
//! ```
//!
//! The window is on while another session has a context on the card, or while the session has a compute
//! limit. Both are flags in the shared page. While neither is set, a launch pays one load. Nothing here takes
//! a lock, and nothing allocates once a stream has its events.

pub mod aimd;
pub(crate) mod driver;
pub mod graphs;
pub mod markers;
pub(crate) mod process;
pub mod launch_window;

#[cfg(test)]
mod tests;

use gpushare_proto::Nanos;

use crate::driver::types::{CUcontext, CUevent};
use markers::Stream;

/// Driver and environment of a launch window. No method waits for the card.
pub trait Card {
    /// Returns the context that a stream's events belong to.
    fn context_of(&self, stream: Stream) -> CUcontext;
    /// Creates an event in a context.
    fn create(&self, context: CUcontext) -> Option<CUevent>;
    /// Destroys an event.
    fn destroy(&self, event: CUevent);
    /// Records an event behind all work of a stream, and returns whether that succeeded.
    fn mark(&self, stream: Stream, event: CUevent) -> bool;
    /// Whether the work before an event is done.
    fn is_done(&self, event: CUevent) -> bool;
    /// Whether a marker of this stream orders other streams too, so that it may only follow a launch on this
    /// stream.
    fn orders_others(&self, stream: Stream) -> bool;
    /// Whether a capture runs, so that a launch may be recorded and not executed.
    fn is_capturing(&self) -> bool;
    /// Time since an arbitrary beginning.
    fn now(&self) -> Nanos;
    /// Sleeps for about `span`. Returns `false` if no thread may wait any more.
    fn pause(&self, span: Nanos) -> bool;
    /// Runs a question or a marker that a capture would not survive; `None` while a capture runs.
    fn undisturbed<T>(&self, ask: impl FnOnce() -> T) -> Option<T>;
}
