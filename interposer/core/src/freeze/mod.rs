//! Freezing of the process by the daemon: calls of the driver wait, the process proves that none is under way, and
//! says so. Then the daemon lets the driver move all that the process has into host memory.
//!
//! ```text
//!   flag in the page ─▶ drainer ─▶ HOLD = 1 ─▶ every call looks at it right before the driver     (hold, entry)
//!                          │
//!                          ▼
//!                       each thread was seen asleep, or ran on for a while ─▶ Parked                (park)
//!   flag gone        ─▶ HOLD = 0 ─▶ calls go on
//! ```
//!
//! Every call of the driver is preceded by a look at [`hold::HOLD`]: gated calls behind the closed gate, other hooked
//! calls in their hook, all calls that gpushare makes itself and all functions that are not hooked in a small entry
//! point. Between the look and the driver are a few instructions without a system call. So a thread that is seen
//! asleep after `HOLD` was set is not between them, nor is one that has run for a while since. What is further in the
//! driver, the driver itself waits for before it freezes the process.

pub(crate) mod creations;
pub mod entry;
pub(crate) mod facts;
pub mod hold;
pub(crate) mod obstacles;
pub(crate) mod park;
mod room;
