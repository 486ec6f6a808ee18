//! State that outlives the daemon: the book of sessions and clients, their usage, and the restart from it.

// Facts with one owner.
pub(crate) mod queue;

// Events, which concern several facts.
pub(crate) mod restart;
pub(crate) mod store;
pub(crate) mod usage;
