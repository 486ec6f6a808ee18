//! State that outlives the daemon: sessions, clients and their usage, and the restart from this state.

// Facts with one owner.
pub(crate) mod question;
pub(crate) mod queue;

// Events, which concern several facts.
pub(crate) mod restart;
pub(crate) mod store;
pub(crate) mod usage;
