//! Turns: which session gets the lock next, and when a holder gives it back.
//!
//! Each module reads the [`View`](crate::view::View), decides, and then changes locks through the core.

mod line;

mod order;

mod leads;

mod grants;

pub(crate) mod backfill;

mod preempt;

mod drops;

pub(crate) use drops::sharers;
