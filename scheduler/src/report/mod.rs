//! Reports of the daemon: records in the log, lines in the audit log, metrics, status, and
//! watchers.

// Facts, each with one owner.
pub(crate) mod audit;
pub(crate) mod watch;

// Functions of the state.
pub(crate) mod log;
pub(crate) mod status;
