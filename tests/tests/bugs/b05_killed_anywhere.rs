//! Bug 5: a process that is killed between reserving, allocating and booking takes its quota with it, or
//! leaves somebody asleep. Its siblings get all of it as soon as the daemon knows, and nobody blocks.
//!
//! ```text
//!   reserve ──▶ the driver allocates ──▶ booked ──▶ … ──▶ struck ──▶ the driver frees ──▶ given back
//!      ▲                 ▲                  ▲                                ▲
//!   the daemon does   the call never     at any of many                the call never
//!   not answer        returns            instants                      returns
//! ```

use std::thread;
use std::time::Duration;

use anyhow::Context;
use gpushare_proto::{Bytes, names};
use gpushare_tests::{Daemon, Program, Sharing, World};
use rustix::process::Signal;

use crate::tenants::{member, session_of};

const OUT_OF_MEMORY: Option<&str> = Some("CUDA_ERROR_OUT_OF_MEMORY");
const QUOTA: Bytes = Bytes::mib(64);
const BLOCK: Bytes = Bytes::mib(8);
/// How often somebody is killed at an instant that nobody chose.
const DEATHS: u64 = 24;

/// Ways to memory, and the call of the driver that each of them is inside of, with the program's backend.
const DOORS: &[(&str, &str, &str)] = &[
    ("managed", "mem", "cuMemAllocManaged"),
    ("managed", "pitch", "cuMemAllocManaged"),
    ("managed", "managed", "cuMemAllocManaged"),
    ("managed", "handle", "cuMemCreate"),
    ("managed", "handle", "cuMemMap"),
    ("managed", "array", "cuArray3DCreate"),
    ("managed", "mipmap", "cuMipmappedArrayCreate"),
    ("remap", "mem", "cuMemCreate"),
    ("remap", "pitch", "cuMemMap"),
    ("remap", "managed", "cuMemAllocManaged"),
];

/// Waits until the daemon knows that only the survivor lives; then there is all of the quota for it, at the
/// first try: it is not refused what the driver is about to have back.
fn all_is_there(daemon: &Daemon, survivor: &mut Program, death: &str) -> anyhow::Result<()> {
    daemon.until("the daemon knows of the death", |status| {
        status.sessions.iter().all(|session| session.clients.len() == 1)
    })?;
    survivor.must(&format!("alloc all {QUOTA}")).with_context(|| death.to_owned())?;
    assert_eq!(survivor.ask("alloc more 4KiB")?.error(), OUT_OF_MEMORY, "{death}");
    survivor.must("free all")?;
    waits_for(daemon, death, Bytes::ZERO)
}

/// The daemon's figure of what the session has; a process does not say when it is inside of a call.
fn waits_for(daemon: &Daemon, what: &str, bytes: Bytes) -> anyhow::Result<()> {
    daemon.until(what, |status| status.gpus.first().is_some_and(|gpu| gpu.allocated_bytes == bytes))?;
    Ok(())
}

#[test]
fn who_dies_inside_an_allocation_leaves_its_quota_to_its_siblings() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::gib(1))?.with_daemon(&[])?;
    let mut survivor = session_of(&world, "a", QUOTA, 1)?.remove(0);
    for (number, (backend, door, call)) in DOORS.iter().enumerate() {
        let mut command = member(&world, &survivor)?;
        command
            .env("SIMGPU_FAULTS", format!("{call}=hangs"))
            .env(names::BACKEND, backend);
        let mut victim = Program::begin(command, &world, &format!("victim-{number}"))?;
        victim.ready()?;
        let inside = victim.tell(&format!("alloc x {BLOCK} --door {door}"))?;
        waits_for(&daemon, "the victim's reservation", BLOCK)?;
        // It counts while it lives, booked or not.
        assert_eq!(survivor.ask(&format!("alloc all {QUOTA}"))?.error(), OUT_OF_MEMORY);
        assert_eq!(victim.peek(inside), None, "{door} is not inside {call}");
        victim.kill()?;
        all_is_there(&daemon, &mut survivor, &format!("killed inside {call} by {door}"))?;
    }
    Ok(())
}

#[test]
fn who_dies_inside_a_free_leaves_its_quota_to_its_siblings() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::gib(1))?.with_daemon(&[])?;
    let mut survivor = session_of(&world, "a", QUOTA, 1)?.remove(0);
    let ways = [
        ("managed", "mem", "cuMemFree"),
        ("managed", "array", "cuArrayDestroy"),
        ("managed", "handle", "cuMemUnmap"),
        ("remap", "mem", "cuMemUnmap"),
        ("remap", "mem", "cuMemRelease"),
    ];
    for (number, (backend, door, call)) in ways.into_iter().enumerate() {
        let mut command = member(&world, &survivor)?;
        command
            .env("SIMGPU_FAULTS", format!("{call}=hangs"))
            .env(names::BACKEND, backend);
        let mut victim = Program::begin(command, &world, &format!("victim-{number}"))?;
        victim.ready()?;
        // A smaller block of remapped memory is a part of one that is kept.
        let size = if backend == "remap" { Bytes::mib(16) } else { BLOCK };
        victim.must(&format!("alloc x {size} --door {door}"))?;
        let inside = victim.tell("free x")?;
        thread::sleep(Duration::from_millis(20));
        assert_eq!(victim.peek(inside), None, "{door} is not inside {call}");
        // What the driver may still have is charged.
        waits_for(&daemon, "what is not given back yet", size)?;
        victim.kill()?;
        all_is_there(&daemon, &mut survivor, &format!("killed inside {call}"))?;
    }
    Ok(())
}

/// The question is on its way, or answered and not heard.
#[test]
fn who_dies_while_the_daemon_thinks_leaves_its_quota_to_its_siblings() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::gib(1))?.with_daemon(&[])?;
    let mut survivor = session_of(&world, "a", QUOTA, 1)?.remove(0);
    for number in 0..5 {
        let mut victim = Program::begin(member(&world, &survivor)?, &world, &format!("victim-{number}"))?;
        victim.ready()?;
        daemon.process().signal(Signal::STOP)?;
        let asking = victim.tell(&format!("alloc x {QUOTA}"))?;
        thread::sleep(Duration::from_millis(5 * number));
        assert_eq!(victim.peek(asking), None, "the daemon is stopped");
        victim.kill()?;
        daemon.process().signal(Signal::CONT)?;
        all_is_there(&daemon, &mut survivor, "killed while it asked")?;
    }
    Ok(())
}

/// At instants from all over a loop of allocations and frees, with a driver that takes its time now and
/// then. The next instant follows from the one before, so that a failure happens again.
#[test]
fn who_dies_at_any_instant_of_a_loop_leaves_its_quota_to_its_siblings() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::gib(1))?.with_daemon(&[])?;
    let mut survivor = session_of(&world, "a", QUOTA, 1)?.remove(0);
    let mut seed = 5_u64;
    for death in 0..DEATHS {
        let mut victims = Vec::new();
        for (which, door) in ["mem", "handle", "array", "async", "pool", "graph"].into_iter().enumerate() {
            if !(death + which as u64).is_multiple_of(3) {
                continue;
            }
            let mut command = member(&world, &survivor)?;
            if death % 2 == 0 {
                command.env(
                    "SIMGPU_FAULTS",
                    "cuMemAllocManaged=slow:1ms, cuMemCreate=slow:1ms, cuMemFree=slow:500us",
                );
            }
            let mut victim = Program::begin(command, &world, &format!("victim-{death}-{door}"))?;
            victim.ready()?;
            for _ in 0..200 {
                // What is refused because a sibling of it has the room is part of the loop.
                victim.tell(&format!("alloc x {BLOCK} --door {door}"))?;
                victim.tell("free x")?;
            }
            victims.push(victim);
        }
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let instant = Duration::from_micros((seed >> 33) % 30_000);
        thread::sleep(instant);
        // Signals first, so that they die at about the same time, inside of each other's recalls.
        victims.iter().try_for_each(|victim| victim.process().signal(Signal::KILL))?;
        victims.iter_mut().try_for_each(Program::kill)?;
        all_is_there(&daemon, &mut survivor, &format!("death {death} after {instant:?}"))?;
    }
    Ok(())
}

/// Where nobody has a quota, the card and its turns are what a dead process could keep.
#[test]
fn who_dies_inside_an_allocation_holds_up_no_other_session() -> anyhow::Result<()> {
    let (world, daemon) =
        World::of(Bytes::mib(64))?.with_daemon(&["--mode", "serialized", "--quantum", "20ms"])?;
    let managed = |name: &str| Sharing::session(name).and(&["--backend", "managed"]);
    let mut other = Program::hold(&world, &managed("other"), "other")?;
    other.must("alloc x 40MiB")?;
    for round in 1..=3 {
        let mut victim = Program::hold_with(
            &world,
            &managed("victim"),
            &format!("victim-{round}"),
            "SIMGPU_FAULTS",
            "cuMemAllocManaged@2+=hangs",
        )?;
        victim.must("alloc x 40MiB; fill x 1")?;
        victim.tell("alloc y 8MiB")?;
        waits_for(&daemon, "the reservation", Bytes::mib(88))?;
        let fill = other.tell(&format!("fill x {round}"))?;
        victim.kill()?;
        other.done(fill)?;
        other.must(&format!("check x {round}"))?;
        waits_for(&daemon, "only the other one's memory", Bytes::mib(40))?;
    }
    Ok(())
}
