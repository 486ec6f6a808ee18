//! Starting points of most of these tests: a small card with sessions of which two do not fit, or one session
//! with a quota and any number of processes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;
use gpushare_proto::admin::{LockView, Status};
use gpushare_proto::{Bytes, names};
use gpushare_tests::{Program, Sharing, World};

/// In turns, and a holder is dropped almost at once.
pub(crate) const SHORT_TURNS: [&str; 4] = ["--mode", "serialized", "--quantum", "20ms"];
/// In turns, and nobody is dropped for the time of a test unless it is idle.
pub(crate) const LONG_TURNS: [&str; 4] = ["--mode", "serialized", "--quantum", "10min"];

pub(crate) fn world() -> anyhow::Result<World> {
    World::of(Bytes::mib(64))
}

/// A program of its own session with 40 MiB under the name `x`, of which two do not fit.
pub(crate) fn tenant(world: &World, name: &str) -> anyhow::Result<Program> {
    let mut program = Program::hold(world, &Sharing::session(name), name)?;
    program.must("alloc x 40MiB")?;
    Ok(program)
}

/// A program of its own session with 40 MiB of managed memory, which leaves a card that others fill without an account.
pub(crate) fn managed_tenant(world: &World, name: &str) -> anyhow::Result<Program> {
    let mut program = Program::hold(world, &Sharing::session(name).and(&["--backend", "managed"]), name)?;
    program.must("alloc x 40MiB")?;
    Ok(program)
}

/// Two programs as of [`tenant`].
pub(crate) fn tenants(world: &World, names: [&str; 2]) -> anyhow::Result<[Program; 2]> {
    Ok([tenant(world, names[0])?, tenant(world, names[1])?])
}

/// Lets two programs do the same at the same time, line by line, so that they contend.
pub(crate) fn both_do(programs: &mut [Program; 2], lines: &[impl AsRef<str>]) -> anyhow::Result<()> {
    let mut told = Vec::new();
    for line in lines {
        for (number, program) in programs.iter_mut().enumerate() {
            told.push((number, program.tell(line.as_ref())?));
        }
    }
    told.into_iter().try_for_each(|(number, line)| programs[number].done(line))
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

/// Processes of one session with a quota. The first of them made it.
pub(crate) fn session_of(
    world: &World,
    name: &str,
    quota: Bytes,
    count: usize,
) -> anyhow::Result<Vec<Program>> {
    let first = Program::hold(world, &Sharing::limited(name, quota), name)?;
    let mut others = (1..count)
        .map(|number| Program::begin(member(world, &first)?, world, &format!("{name}-{number}")))
        .collect::<anyhow::Result<Vec<_>>>()?;
    others.iter_mut().try_for_each(Program::ready)?;
    others.insert(0, first);
    Ok(others)
}

/// The CUDA program as one more process of a program's session.
pub(crate) fn member(world: &World, of: &Program) -> anyhow::Result<Command> {
    let mut command = world.workload(&Sharing::Preload);
    command.env(names::TOKEN_FILE, token_file(of)?);
    Ok(command)
}

/// Where the secret of a program's session is.
pub(crate) fn token_file(program: &Program) -> anyhow::Result<PathBuf> {
    let environment = fs::read(format!("/proc/{}/environ", program.process().pid()))?;
    let environment = String::from_utf8(environment)?;
    let mut variables = environment.split('\0');
    let token = variables.find_map(|variable| variable.strip_prefix(names::TOKEN_FILE)?.strip_prefix('='));
    Ok(token.context("the program has no token")?.into())
}
