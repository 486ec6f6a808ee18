//! A simulated libnvidia-ml: a client of the simulated card.
//!
//! In reading order:

// What C passes and gets.
mod ffi;
// The session between init and shutdown.
mod session;
// Xids, as they happen.
mod events;
// Structures that its functions fill.
mod structures;
// What it exports: the library, its devices, what happens on them.
mod api;
