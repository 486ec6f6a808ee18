//! The harness of end-to-end tests, which the demo and `ci-extra` stand on too.
//!
//! A [`world::World`] is a folder with everything in it that a run needs, and the rules of how programs
//! start in it; a card, a daemon and programs are processes that end with the values that stand for them:
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use gpushare_proto::Bytes;
//! use gpushare_tests::{artifacts::Artifacts, daemon::Daemon, program::Program, world::{Sharing, World}};
//!
//! let world = World::simulated(Artifacts::of_tests()?, Bytes::mib(256))?;
//! let daemon = Daemon::start(&world, &["--quantum", "50ms"])?;
//! let mut program = Program::hold(&world, &Sharing::session("a"), "a")?;
//! program.must("alloc x 64MiB")?;
//! program.must("fill x 7")?;
//! assert!(program.must("check x 7")?.flag("matches"));
//! assert_eq!(daemon.status()?.sessions.len(), 1);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod cargo;

pub mod artifacts;

pub mod patience;

pub mod process;

pub mod world;

pub mod card;

pub mod daemon;

pub mod peer;

pub mod hangup;

pub mod dice;

pub mod program;

pub mod training;

pub mod foreign;

pub mod lookups;
pub mod slices;
