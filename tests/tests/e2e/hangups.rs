//! Programs that hang up and live: closing the socket wins no byte and no lock for anybody.

use std::fs;

use anyhow::Context;
use gpushare_proto::Bytes;
use gpushare_proto::admin::Status;
use gpushare_tests::{Daemon, Program, Sharing, World, hang_up};
use rustix::process::Signal;
use simgpu_card::constants::Constants;

const QUOTA: Bytes = Bytes::mib(64);

fn context() -> Bytes {
    Bytes(Constants::default().context_memory)
}

/// It keeps its bytes, and cannot come back.
fn hangs_up_and_stops(program: &Program, world: &World, daemon: &Daemon) -> anyhow::Result<()> {
    program.process().signal(Signal::STOP)?;
    assert!(hang_up(program.process().pid(), &world.runtime_dir())? > 0);
    // Whoever asks now is heard after that.
    daemon.status()?;
    Ok(())
}

#[test]
fn a_program_that_hangs_up_keeps_its_memory_until_it_dies() -> anyhow::Result<()> {
    // The stopped program is thought to grow within its lease, in partly free blocks.
    let (world, daemon) = World::of(Bytes::mib(512))?.with_daemon(&[])?;
    daemon.ctl(&["session", "create", "two", "--memory", &QUOTA.0.to_string()])?;
    let member = Sharing::Run(["--session", "two"].map(str::to_owned).to_vec());
    let mut quiet = Program::hold(&world, &member, "quiet")?;
    let mut sibling = Program::hold(&world, &member, "sibling")?;
    quiet.must("alloc x 40MiB; fill x 7")?;
    hangs_up_and_stops(&quiet, &world, &daemon)?;

    let refused = sibling.ask("alloc y 25MiB")?;
    assert_eq!(refused.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    sibling.must("alloc y 23MiB")?;
    assert_eq!(daemon.session("two")?.clients.len(), 2);

    // It goes on, is back by itself with what it has, and no byte of that was lost or counted twice.
    quiet.process().signal(Signal::CONT)?;
    quiet.must("check x 7; free x")?;
    daemon.until("what it freed to be free", |status| {
        status.gpus.first().is_some_and(|gpu| gpu.allocated_bytes == Bytes::mib(23))
    })?;
    quiet.must("alloc x 40MiB")?;
    assert!(sibling.ask("alloc z 2MiB")?.error().is_some());

    hangs_up_and_stops(&quiet, &world, &daemon)?;
    assert!(sibling.ask("alloc z 2MiB")?.error().is_some());
    quiet.kill()?;
    daemon.until("all that it had to be free", |status| {
        status.gpus.first().is_some_and(|gpu| gpu.allocated_bytes == Bytes::mib(23))
    })?;
    sibling.must("alloc z 40MiB")?;
    Ok(())
}

#[test]
fn memory_is_freed_after_an_exec_once_the_driver_drops_the_process() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(192))?;
    // Much more than a context has, so that it is seen when one was measured.
    let config = world.scheduler_config().context("no configuration")?;
    fs::write(config, "[scheduling]\ncontext_reserve = \"12MiB\"\n")?;
    let daemon = Daemon::start(&world, &[])?;
    daemon.ctl(&["session", "create", "two", "--memory", &QUOTA.0.to_string()])?;
    // Two chunks of remapped memory that are under way would count against the capacity.
    let member = ["--session", "two", "--backend", "managed"].map(str::to_owned).to_vec();
    let member = Sharing::Run(member);
    let mut changing = Program::hold(&world, &member, "changing")?;
    let mut quiet = Program::hold(&world, &member, "quiet")?;
    changing.must("alloc x 40MiB")?;
    quiet.must("alloc y 20MiB")?;
    // The driver listed both by then.
    daemon.until("both to be measured", |status| {
        status.gpus[0].capacity_bytes == Bytes::mib(192) - context() - context()
    })?;

    // Who hangs up and is still on the card keeps what it has, however often the driver is asked.
    hangs_up_and_stops(&quiet, &world, &daemon)?;
    let pids = |status: &Status| -> Vec<u32> {
        let clients = status.sessions.iter().flat_map(|session| &session.clients);
        clients.map(|client| client.pid).collect()
    };
    let both = daemon.status()?;
    assert_eq!((pids(&both).len(), both.gpus[0].allocated_bytes), (2, Bytes::mib(60)));
    changing.tell("exec cat")?;
    let left = daemon.until("what became another program to be no client", |status| {
        pids(status) == [quiet.process().pid()]
    })?;
    assert_eq!(left.gpus[0].allocated_bytes, Bytes::mib(20));
    assert!(!changing.ended()?, "the process lives");

    let mut next = Program::hold(&world, &member, "next")?;
    next.must("alloc x 44MiB")?;
    assert!(next.ask("alloc z 1MiB")?.error().is_some());
    quiet.process().signal(Signal::CONT)?;
    quiet.must("free y")?;
    Ok(())
}

#[test]
fn a_program_that_hangs_up_keeps_its_lock_until_it_dies() -> anyhow::Result<()> {
    let (world, daemon) =
        World::of(Bytes::mib(64))?.with_daemon(&["--mode", "serialized", "--quantum", "50ms"])?;
    let mut holder = Program::hold(&world, &Sharing::session("holder"), "holder")?;
    let mut waiter = Program::hold(&world, &Sharing::session("waiter"), "waiter")?;
    holder.must("alloc x 40MiB")?;
    waiter.must("alloc y 40MiB")?;
    holder.must("fill x 1")?;
    // Work that is still in flight when nobody hears of it any more.
    holder.must("stream s; spin 3s --on s")?;
    hangs_up_and_stops(&holder, &world, &daemon)?;
    let waits = waiter.tell("fill y 2")?;
    let named = format!("pid {} hung up and lives", holder.process().pid());
    daemon.until("the holder to be asked and named", |status| {
        let mut sessions = status.sessions.iter();
        sessions.any(|session| session.name == "holder" && format!("{:?}", session.lock).contains(&named))
    })?;
    assert!(waiter.peek(waits).is_none());
    holder.kill()?;
    waiter.done(waits)?;
    waiter.must("check y 2")?;
    Ok(())
}
