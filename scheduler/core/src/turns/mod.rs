//! Turns: which session gets the lock next, and when a holder gives it back.
//!
//! Each module reads the [`View`](crate::view::View), decides, and then changes locks through the core.

mod order;

mod grants;

mod backfill;

mod preempt;

mod drops;
