//! Processes that use a GPU: how they join, leave, disconnect and return, and the memory of dead processes.

// Facts, each with one owner.
pub(crate) mod ancestry;
pub(crate) mod awaited;
pub(crate) mod away;
pub(crate) mod hello;
pub(crate) mod introductions;
pub(crate) mod joined;
pub(crate) mod orphans;
pub(crate) mod page;
pub(crate) mod table;
pub(crate) mod unknown_pods;

// Events, which concern several facts.
pub(crate) mod join;
pub(crate) mod leave;
pub(crate) mod pods;
pub(crate) mod returning;
mod ringer;
