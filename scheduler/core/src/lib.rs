//! Decision machine of gpushare: it has no I/O, no clock, no threads and no floats.
//!
//! Events and the time of each go in, effects come out, and the shell (the daemon's code around this crate)
//! sleeps until the next deadline. The same events always give the same effects.
#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

pub mod config;
pub mod events;

mod values;

mod memory;
mod residency;
mod session;

mod card;

mod machine;

mod turns;

mod recovery;

mod view;

pub mod harness;

#[cfg(test)]
mod tests;

pub use card::knobs::Knobs;
pub use config::Config;
pub use events::{Effect, Event, FreezeEnd, Lack, Notice, Obstacle, Standing, ThawEnd, ThawWait, WaitsFor};
pub use machine::Core;
pub use memory::recalls::Kind;
pub use residency::facts::Reported;
pub use session::gate::FIRST_WORD;
pub use session::share::UserId;
pub use values::gpu_set::GpuSet;
pub use view::figures::MemoryFigures;
pub use view::sight::SessionSight;
pub use view::snapshot::Snapshot;
pub use view::{forecast, invariants, log, snapshot, summary, waiting};
