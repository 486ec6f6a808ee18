//! The pure decision machine of gpushare: no I/O, no clock, no threads, no floats.
//!
//! Events go in with the time they happened, effects come out, and the shell sleeps until the next
//! deadline. The same events always give the same effects.
#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

pub mod config;

pub mod event;

mod core;

mod processes;

mod few;

mod gpu_set;

mod registry;

mod agenda;

mod settle;

mod turns;

mod passed_over;

mod grants;

mod preempt;

mod drops;

mod lending;

mod session;

mod sums;

mod books;

mod gpu;

mod lease;

mod recovery;

mod orphans;

mod places;

pub mod waiting;

pub mod forecast;

mod tell;

pub mod snapshot;

pub mod account;

pub mod invariants;

pub mod log;

pub mod replay;

mod average;

mod stopwatch;

#[cfg(test)]
mod tests;

pub use crate::core::Core;
pub use config::Config;
pub use event::{Effect, Event, Notice, Standing, WaitsFor};
pub use gpu::knobs::Knobs;
pub use gpu_set::GpuSet;
pub use lease::Kind;
pub use session::gate::FIRST_WORD;
pub use snapshot::Snapshot;
