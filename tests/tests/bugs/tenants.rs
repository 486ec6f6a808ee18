//! What most of these tests begin with: a small card, and sessions of which two do not fit on it.

use gpushare_proto::Bytes;
use gpushare_proto::admin::{LockView, Status};
use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::program::Program;
use gpushare_tests::world::{Sharing, World};

/// In turns, and a holder is dropped almost at once.
pub(crate) const SHORT_TURNS: [&str; 4] = ["--mode", "serialized", "--quantum", "20ms"];
/// In turns, and nobody is dropped for the time of a test unless it is idle.
pub(crate) const LONG_TURNS: [&str; 4] = ["--mode", "serialized", "--quantum", "10min"];

pub(crate) fn world() -> anyhow::Result<World> {
    World::simulated(Artifacts::of_tests()?, Bytes::mib(64))
}

/// A program of its own session with 40 MiB under the name `x`, of which two do not fit.
pub(crate) fn tenant(world: &World, name: &str) -> anyhow::Result<Program> {
    let mut program = Program::hold(world, &Sharing::session(name), name)?;
    program.must("alloc x 40MiB")?;
    Ok(program)
}

pub(crate) fn lock(status: &Status, name: &str) -> Option<LockView> {
    let session = status.sessions.iter().find(|session| session.name == name);
    session.map(|session| session.lock.clone())
}

pub(crate) fn holds(status: &Status, name: &str) -> bool {
    matches!(lock(status, name), Some(LockView::Holding { .. }))
}

pub(crate) fn waits(status: &Status, name: &str) -> bool {
    matches!(lock(status, name), Some(LockView::Waiting { .. }))
}
