//! Harness of the end-to-end tests, used by `xtask` as well.
//!
//! A [`World`] is a temporary folder with everything that a run needs, and the environment of programs in it.
//! The card, the daemon and the programs are processes, each killed when its value is dropped:
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use gpushare_proto::Bytes;
//! use gpushare_tests::{Artifacts, Daemon, Program, Sharing, World};
//!
//! let world = World::simulated(Artifacts::of_tests()?, Bytes::mib(256))?;
//! let daemon = Daemon::start(&world, &["--quantum", "50ms"])?;
//! let mut program = Program::hold(&world, &Sharing::session("a"), "a")?;
//! program.must("alloc x 64MiB; fill x 7; check x 7")?;
//! assert_eq!(daemon.status()?.sessions.len(), 1);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod artifacts;
pub mod card;
pub mod cargo;
pub mod daemon;
pub mod dialogue;
pub mod dice;
pub mod foreign;
pub mod hangup;
pub mod lookups;
pub mod patience;
pub mod peer;
pub mod process;
pub mod program;
pub mod scripted;
pub mod slices;
pub mod training;
pub mod world;

pub use artifacts::{Artifacts, Part};
pub use daemon::Daemon;
pub use dialogue::Dialogue;
pub use dice::Dice;
pub use hangup::hang_up;
pub use peer::{Administrator, Tenant};
pub use process::{Process, output_of};
pub use program::{Answer, Program, Ticket};
pub use slices::slices;
pub use training::Training;
pub use world::{Sharing, World};
