//! Views of the decision machine: updates for processes, figures for `status`, recordings, and invariants.

pub(crate) mod figures;
mod places;
pub(crate) mod updates;

pub mod forecast;
pub mod snapshot;
pub mod waiting;

pub mod invariants;
pub mod log;
