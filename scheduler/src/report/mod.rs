//! Reports of the daemon: log records, audit lines, metrics, status, and events and
//! increments for tools that look on.

// Facts, each with one owner.
pub(crate) mod audit;
pub(crate) mod follow;
pub(crate) mod handoffs;
pub(crate) mod progress;
pub(crate) mod sketch;
pub(crate) mod watch;

// Functions of the state.
pub(crate) mod increments;
pub(crate) mod log;
pub(crate) mod picture;
pub(crate) mod status;
