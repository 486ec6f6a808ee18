//! Reports of the daemon: log records, audit lines, metrics, status, and events for watching tools.

// Facts, each with one owner.
pub(crate) mod audit;
pub(crate) mod sketch;
pub(crate) mod watch;

// Functions of the state.
pub(crate) mod log;
pub(crate) mod picture;
pub(crate) mod status;
