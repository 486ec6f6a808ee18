//! Freezing and thawing of a process by the driver's checkpoints (`cuCheckpointProcess…`).
//!
//! The driver may hang, crash or act on a wrong process, so no call of it is made in the daemon. The daemon
//! starts its own program again as a helper, for one process and one operation:
//!
//! ```text
//!   daemon                              helper                                 driver
//!   freeze(target) ── starts ─────────▶ opens a pidfd, becomes the user,
//!                                       loads libcuda
//!                  ◀── ready ──────────
//!                  ─── lock ──────────▶ is it the same process? ─────────────▶ Lock(pid)
//!                  ◀── done ─────────── is it the same process still?  ◀──────
//!                  ─── checkpoint ────▶ …
//! ```
//!
//! Each answer has a deadline, after which the helper is killed. Which step it had reached is then unknown.
//! So [`thaw`] asks for the state of the process first, and can be called again in any state. The next helper
//! starts only after the killed one has ended, which the driver may delay.
//!
//! [`try_freeze`] freezes and thaws a process of the daemon's own, before any other one.

mod protocol;
mod target;
mod driver;
mod helper;
mod ending;
mod lines;
mod handle;
mod operation;
mod trial;

pub use handle::HelperError;
pub use helper::{SUBCOMMAND, run};
pub use operation::{FreezeError, Limits, ThawError, freeze, thaw, thaw_in_place};
pub use protocol::{Refusal, State};
pub use target::Target;
pub use trial::{TRIAL, TrialError, run_trial, try_freeze};
