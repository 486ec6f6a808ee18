//! The machine as others see it: what processes are told, what `status` shows, recordings, and the rules that
//! hold.

pub(crate) mod figures;
mod places;
pub(crate) mod updates;

pub mod forecast;
pub mod snapshot;
pub mod waiting;

pub mod invariants;
pub mod log;
pub mod replay;
