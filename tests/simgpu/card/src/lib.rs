//! The simulated card: one process that owns bytes, residency, queues and time.
//!
//! In reading order:

#![deny(unsafe_code)]

pub mod constants;
pub mod ids;
pub mod wire;
// What lies on the card.
#[allow(unsafe_code, reason = "maps memory that other processes share")]
pub mod bytes;
pub mod board;
mod memory;
mod pool;
mod residency;
// What it computes.
pub mod kernel;
pub mod ptx;
mod walk;
// When it does so.
mod compute;
mod gauge;
mod link;
pub mod machine;
mod queue;
mod race;
// What is known about it afterwards.
pub mod stats;
// What can be asked of its driver beforehand.
pub mod driver_version;
pub mod fault;
// Its process, and the way to it.
pub mod clock;
pub mod connection;
pub mod frame;
pub mod server;
#[allow(unsafe_code, reason = "rustix has no signalfd")]
pub mod signals;
