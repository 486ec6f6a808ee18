//! Launch window: limits the work of a process in flight, because a drop (request to give the lock back)
//! waits for that work.
//!
//! ```text
//!   launch ──▶ launch_window ──▶ one more in flight ──▶ gate ──▶ the driver
//!                │  full? wait for the stream's oldest marker
//!                ▼
//!              markers   one event every W/16 launches, per stream ──▶ aimd    completions give W
//!                                                              └─▶ costs   intervals give each kernel's time
//! ```
//!
//! The window is on while another session has a context on the card, or while the session has a compute
//! limit. Both are flags in the shared page. While neither is set, a launch costs one load. Nothing in this
//! module takes a lock, and nothing allocates once a stream has its events.

pub mod aimd;
pub mod costs;
pub(crate) mod driver;
pub mod graphs;
mod held;
pub mod markers;
pub mod slot;
pub mod stream;
pub(crate) mod process;
pub mod launch_window;
mod spare_events;

#[cfg(test)]
mod tests;

use gpushare_proto::Nanos;

use crate::driver::types::{CUcontext, CUevent};
use stream::Stream;

/// Driver and clock that a launch window uses. No method blocks until the card has done work.
pub trait Card {
    /// Returns the context to which a stream's events belong.
    fn context_of(&self, stream: Stream) -> CUcontext;
    /// Creates a CUDA event in a context.
    fn create(&self, context: CUcontext) -> Option<CUevent>;
    /// Destroys a CUDA event that [`Self::create`] returned.
    fn destroy(&self, event: CUevent);
    /// Records an event behind all present work of a stream, and returns whether that succeeded.
    fn mark(&self, stream: Stream, event: CUevent) -> bool;
    /// Returns whether the work before an event is completed.
    fn is_done(&self, event: CUevent) -> bool;
    /// Returns the time that the card took from the one completed event to the other; `None` if it is not known.
    fn elapsed(&self, from: CUevent, to: CUevent) -> Option<Nanos>;
    /// Returns whether a marker in this stream orders other streams too. Such a marker may only follow a
    /// launch on this stream.
    fn orders_others(&self, stream: Stream) -> bool;
    /// Returns whether a stream capture runs, during which a launch may be recorded and not executed.
    fn is_capturing(&self) -> bool;
    /// Returns the present time on a clock with an arbitrary beginning, which is never set back.
    fn now(&self) -> Nanos;
    /// Sleeps for about `span`. Returns `false` if threads must not wait any more.
    fn pause(&self, span: Nanos) -> bool;
    /// Runs driver calls about events, which would break a capture; returns `None` while a capture runs.
    fn undisturbed<T>(&self, ask: impl FnOnce() -> T) -> Option<T>;
}
