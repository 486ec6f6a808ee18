//! The kernel window: how much of a process's work may be in flight, because that is what a drop has to wait for.
//!
//! ```text
//!   launch ──▶ throttle ──▶ one more in flight ──▶ gate ──▶ the driver
//!                │  full? wait for the stream's oldest marker
//!                ▼
//!              markers   one event every W/8 launches, per stream ──▶ aimd   what completed in what time: W
//! ```
//!
//! It is on while another session has a context on the card or the session has a compute limit: both are flags in the shared page,
//! and while neither is set a launch pays one look at them. Nothing here locks, and nothing allocates once a stream has its events.

pub mod aimd;
pub(crate) mod driver;
pub mod graphs;
pub mod markers;
pub mod throttle;

#[cfg(test)]
mod tests;

use gpushare_proto::Nanos;

use crate::driver::types::{CUcontext, CUevent};
use markers::Stream;

/// What markers and throttle ask of the driver and of the world. None of it waits for the card.
pub trait Card {
    /// The context that a stream's events belong to.
    fn context_of(&self, stream: Stream) -> CUcontext;
    /// A new event there.
    fn create(&self, context: CUcontext) -> Option<CUevent>;
    /// An event that is not needed any more.
    fn destroy(&self, event: CUevent);
    /// Puts an event behind everything that `stream` was given; whether that went well.
    fn mark(&self, stream: Stream, event: CUevent) -> bool;
    /// Whether an event's work is done.
    fn is_done(&self, event: CUevent) -> bool;
    /// Whether a marker of this stream would order other streams, so that it may only come right after a launch there.
    fn orders_others(&self, stream: Stream) -> bool;
    /// Whether a capture runs: what is launched may be recorded and not executed.
    fn is_capturing(&self) -> bool;
    /// Time since some beginning.
    fn now(&self) -> Nanos;
    /// Sleeps for about so long; `false` if nobody may wait any more.
    fn pause(&self, span: Nanos) -> bool;
    /// Runs a question or a marker where no capture can be broken by it; `None` while one runs.
    fn undisturbed<T>(&self, ask: impl FnOnce() -> T) -> Option<T>;
}
