//! Programs that die and leave a child that has the card's files open: the card keeps their memory, and the
//! daemon goes on charging it to their sessions.

use std::fs;

use anyhow::Context;
use gpushare_proto::tenant::{GpuInfo, Hello, Returning, ReturningGpu, Role, TenantRequest};
use gpushare_proto::{Bytes, ClientId, Token};
use gpushare_tests::{Daemon, Program, Sharing, Tenant, World};
use rustix::process::{Pid, Signal, kill_process};

const CARD: Bytes = Bytes::mib(192);
const QUOTA: Bytes = Bytes::mib(64);

/// A child that sleeps until this is dropped.
struct Sleeper(Pid);

impl Sleeper {
    fn of(program: &mut Program) -> anyhow::Result<Self> {
        let pid = program.must("fork")?.number("pid");
        let pid = Pid::from_raw(i32::try_from(pid)?).context("it could not fork")?;
        Ok(Self(pid))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // It may be gone by itself.
        let _ = kill_process(self.0, Signal::KILL);
    }
}

fn session(daemon: &Daemon) -> anyhow::Result<Sharing> {
    daemon.ctl(&["session", "create", "two", "--memory", &QUOTA.0.to_string()])?;
    Ok(Sharing::Run(["--session", "two"].map(str::to_owned).to_vec()))
}

/// A program of the session with 40 MiB on a backend, that is killed and has a child; its pid.
fn killed(world: &World, member: &Sharing, backend: &str) -> anyhow::Result<(u32, Sleeper)> {
    let sharing = member.clone().and(&["--backend", backend]);
    let mut program = Program::hold(world, &sharing, "parent")?;
    program.must("alloc x 40MiB; fill x 7; sync")?;
    let child = Sleeper::of(&mut program)?;
    let pid = program.process().pid();
    program.kill()?;
    Ok((pid, child))
}

fn keeps_and_gives_back(backend: &str) -> anyhow::Result<()> {
    let (world, mut daemon) = World::of(CARD)?.with_daemon(&[])?;
    let member = session(&daemon)?;
    let (pid, child) = killed(&world, &member, backend)?;
    daemon.until("no process to be left", |status| {
        status.sessions.iter().all(|session| session.clients.is_empty())
    })?;
    let mut sibling = Program::hold(&world, &member, "sibling")?;
    let refused = sibling.ask("alloc y 25MiB")?;
    assert_eq!(refused.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    sibling.must("alloc y 24MiB")?;
    let explained = daemon.ctl(&["explain", "two"])?;
    let said = format!("40MiB on gpu0 belong to pid {pid}, which ended");
    assert!(explained.contains(&said), "{explained}");
    let json: serde_json::Value = serde_json::from_str(&daemon.ctl(&["explain", "two", "--json"])?)?;
    assert_eq!(json["orphaned"][0]["pid"], pid);
    assert_eq!(json["orphaned"][0]["bytes"], Bytes::mib(40).0);

    // The next daemon finds it, and knows whose it is.
    daemon.kill()?;
    daemon.restart()?;
    daemon.until("the sibling to be back", |status| {
        status.sessions.iter().any(|session| session.clients.len() == 1)
    })?;
    assert!(sibling.ask("alloc z 1MiB")?.error().is_some());

    drop(child);
    daemon.until("what it kept to be free", |status| status.gpus[0].allocated_bytes == Bytes::mib(24))?;
    sibling.must("alloc z 40MiB")?;
    assert!(!daemon.ctl(&["explain", "two"])?.contains("which ended"));
    Ok(())
}

#[test]
fn memory_of_the_dead_counts_as_long_as_the_card_keeps_it() -> anyhow::Result<()> {
    ["managed", "native"].into_iter().try_for_each(keeps_and_gives_back)
}

#[test]
fn a_lock_is_not_kept_by_a_child() -> anyhow::Result<()> {
    let (world, daemon) =
        World::of(Bytes::mib(64))?.with_daemon(&["--mode", "serialized", "--quantum", "10min"])?;
    // Memory of a dead program that is remapped stays on the card as long as the child keeps it.
    let managed = |name: &str| Sharing::session(name).and(&["--backend", "managed"]);
    let mut holder = Program::hold(&world, &managed("holder"), "holder")?;
    let mut waiter = Program::hold(&world, &managed("waiter"), "waiter")?;
    holder.must("alloc x 40MiB")?;
    waiter.must("alloc y 40MiB")?;
    holder.must("fill x 1")?;
    let child = Sleeper::of(&mut holder)?;
    holder.spin_for_good()?;
    let waits = waiter.tell("fill y 2")?;
    daemon.until("the other to wait", |status| !status.gpus[0].queue.is_empty())?;
    holder.kill()?;
    waiter.done(waits)?;
    waiter.must("check y 2")?;
    drop(child);
    Ok(())
}

/// Whoever asks right after a sibling's death is not refused for what the driver is about to have back.
#[test]
fn a_sibling_waits_for_memory_that_the_driver_takes_back() -> anyhow::Result<()> {
    let (world, daemon) = World::of(CARD)?.with_daemon(&[])?;
    let member = session(&daemon)?;
    let mut sibling = Program::hold(&world, &member, "sibling")?;
    for round in 0..5 {
        let mut other = Program::hold(&world, &member, &format!("other-{round}"))?;
        other.must("alloc x 60MiB")?;
        other.kill()?;
        sibling.must("alloc y 60MiB; free y")?;
    }
    Ok(())
}

#[test]
fn a_session_whose_memory_a_card_keeps_is_not_deleted() -> anyhow::Result<()> {
    let (world, daemon) = World::of(CARD)?.with_daemon(&[])?;
    let member = session(&daemon)?;
    let (pid, child) = killed(&world, &member, "native")?;
    let refused = daemon.ctl(&["session", "delete", "two"]).unwrap_err();
    assert!(format!("{refused:#}").contains(&format!("pid {pid}")), "{refused:#}");
    drop(child);
    daemon.until("what it kept to be free", |status| status.gpus[0].allocated_bytes == Bytes::ZERO)?;
    daemon.ctl(&["session", "delete", "two"])?;
    Ok(())
}

/// A card that another session's dead process filled is the next one's as soon as it is empty.
#[test]
fn another_session_waits_for_memory_that_the_driver_takes_back() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(CARD)?.with_daemon(&[])?;
    let mut waits = Program::hold(&world, &Sharing::session("other"), "other")?;
    for round in 0..5 {
        let fixed = Sharing::session("first").and(&["--backend", "native"]);
        let mut first = Program::hold(&world, &fixed, &format!("first-{round}"))?;
        first.must("alloc x 120MiB")?;
        assert!(waits.ask("alloc y 120MiB")?.error().is_some());
        first.kill()?;
        waits.must("alloc y 120MiB; free y")?;
    }
    Ok(())
}

/// A process that says that it comes back with memory is believed what its quota leaves, beside what the
/// dead have of it.
#[test]
fn a_returning_process_cannot_claim_orphaned_memory() -> anyhow::Result<()> {
    let (world, daemon) = World::of(CARD)?.with_daemon(&[])?;
    let member = session(&daemon)?;
    let (_, child) = killed(&world, &member, "managed")?;
    daemon.until("no process to be left", |status| {
        status.sessions.iter().all(|session| session.clients.is_empty())
    })?;
    let token = world.runtime_dir().state_dir().join("tokens/two.token");
    let token = Token::from_hex(&fs::read_to_string(token)?);
    let card = daemon.status()?.gpus.remove(0);
    let returning = Some(Returning {
        client: ClientId(u64::MAX),
        session: daemon.session("two")?.session,
        holding: None,
        gpus: vec![ReturningGpu {
            info: GpuInfo { uuid: card.uuid, name: card.name, total: CARD },
            used: QUOTA,
            contexts: 0,
        }],
        waiting: false,
    });
    let mut liar = Tenant::at(&world.runtime_dir())?;
    liar.say(&TenantRequest::Hello(Hello::new(Role::Client { token, returning })))?;
    daemon.until("the liar to be there", |status| {
        status.sessions.iter().any(|session| !session.clients.is_empty())
    })?;
    assert_eq!(daemon.status()?.gpus[0].allocated_bytes, QUOTA);
    drop(child);
    Ok(())
}
