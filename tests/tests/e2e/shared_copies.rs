//! Host copies of equal bytes, which programs of one user have in common while they rest.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context, bail};
use gpushare_proto::Bytes;
use gpushare_proto::admin::{AdminReply, AdminRequest, CopiesView};
use gpushare_tests::patience::{PATIENCE, until, until_within};
use gpushare_tests::peer::Administrator;
use gpushare_tests::{Daemon, Program, Sharing, World};
use simgpu_card::wire::ProcessState;

const CARD: Bytes = Bytes::mib(512);
/// Time to share copies in. The threads that do it run after all others of a busy machine.
const LONG_PATIENCE: Duration = PATIENCE.saturating_mul(5);

/// Programs `a` and `b` with equal weights, which have left the card for those of `c`.
fn replicas() -> anyhow::Result<(World, Daemon, [Program; 3])> {
    let (world, daemon) = World::of(CARD)?.with_daemon(&["--host-budget", "4GiB"])?;
    let start = |name: &str| {
        let sharing = Sharing::session(name).and(&["--backend", "remap"]);
        Program::hold(&world, &sharing, name)
    };
    let [mut a, mut b, mut c] = [start("a")?, start("b")?, start("c")?];
    for replica in [&mut a, &mut b] {
        replica.must("alloc x 160MiB; alloc y 96MiB; fill x 1; fill y 2; sync")?;
    }
    c.must("alloc z 440MiB; fill z 9; sync")?;
    for session in ["a", "b"] {
        until("the replicas are away", || {
            Ok((daemon.residence(session)?.hosted_bytes >= Bytes::mib(176)).then_some(()))
        })?;
    }
    Ok((world, daemon, [a, b, c]))
}

/// Lets the replicas and the other program read their memory, twice each.
fn take_turns(a: &mut Program, b: &mut Program, c: &mut Program) -> anyhow::Result<()> {
    for _ in 0..2 {
        a.must("check x 1; check y 2")?;
        b.must("check x 1; check y 2")?;
        c.must("check z 9")?;
    }
    Ok(())
}

fn copies(world: &World) -> anyhow::Result<CopiesView> {
    let mut administrator = Administrator::of(&world.runtime_dir())?;
    administrator.say(&AdminRequest::Copies)?;
    match administrator.hear()? {
        AdminReply::Copies(view) => Ok(view),
        other => bail!("{other:?}"),
    }
}

/// Files of copies that a process maps, by their inodes.
fn mapped(program: &Program) -> anyhow::Result<BTreeSet<String>> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", program.process().pid()))?;
    let of_copy = |line: &str| {
        let mut words = line.split_whitespace();
        let inode = words.nth(4)?.to_owned();
        words.next().filter(|name| name.contains("gpushare-copy")).map(|_| inode)
    };
    Ok(maps.lines().filter_map(of_copy).collect())
}

/// Waits until two programs map the same copies, and returns how many.
fn until_shared(a: &Program, b: &Program) -> anyhow::Result<usize> {
    until_within(LONG_PATIENCE, "both programs map the same copies", || {
        let (a, b) = (mapped(a)?, mapped(b)?);
        Ok((!a.is_empty() && a == b).then_some(a.len()))
    })
}

#[test]
fn replicas_of_one_user_have_one_host_copy_of_equal_weights_and_each_its_own_of_what_it_changes()
-> anyhow::Result<()> {
    let (world, _daemon, [mut a, mut b, mut c]) = replicas()?;
    until_shared(&a, &b)?;
    let view = copies(&world)?;
    assert_eq!(view.users, 1);
    assert!(view.bytes <= Bytes::mib(256), "each counts once: {view:?}");

    // Both read what they share.
    for replica in [&mut a, &mut b] {
        replica.must("check x 1; check y 2")?;
    }
    // A change of one is none of the other's.
    a.must("fill x 3; sync")?;
    c.must("check z 9")?;
    b.must("check x 1; check y 2")?;
    c.must("check z 9")?;
    a.must("check x 3; check y 2")?;
    b.must("check x 1; check y 2")?;
    Ok(())
}

#[test]
fn who_dies_leaves_the_copy_to_the_others_and_the_last_one_gives_it_up() -> anyhow::Result<()> {
    let (world, _daemon, [mut a, mut b, mut c]) = replicas()?;
    until_shared(&a, &b)?;
    a.kill()?;
    c.must("check z 9")?;
    b.must("check x 1; check y 2")?;
    c.must("check z 9")?;
    b.quit()?;
    until("no copy is left", || Ok((copies(&world)?.copies == 0).then_some(())))
}

#[test]
fn a_copy_outlives_the_daemon_and_programs_share_anew_under_the_next_one() -> anyhow::Result<()> {
    let (_world, mut daemon, [mut a, mut b, mut c]) = replicas()?;
    until_shared(&a, &b)?;
    daemon.kill()?;
    daemon.restart()?;
    take_turns(&mut a, &mut b, &mut c)?;
    a.must("fill x 4; sync")?;
    b.must("fill x 4; sync")?;
    c.must("check z 9")?;
    until_shared(&a, &b)?;
    a.must("check x 4; check y 2")?;
    b.must("check x 4; check y 2")?;
    Ok(())
}

#[test]
fn programs_that_shared_a_part_share_all_under_the_next_daemon() -> anyhow::Result<()> {
    let (_world, mut daemon, [mut a, mut b, mut c]) = replicas()?;
    // Only a part of the bytes is equal.
    b.must("fill y 3; sync")?;
    c.must("check z 9")?;
    until_within(LONG_PATIENCE, "they share a copy of the equal part", || {
        Ok((!mapped(&a)?.is_disjoint(&mapped(&b)?)).then_some(()))
    })?;
    daemon.kill()?;
    daemon.restart()?;
    b.must("fill y 2; sync")?;
    take_turns(&mut a, &mut b, &mut c)?;
    until_shared(&a, &b)?;
    Ok(())
}

/// Programs that stay at rest meanwhile.
#[test]
fn a_new_daemon_hears_of_all_copies() -> anyhow::Result<()> {
    let (world, mut daemon, [a, b, _c]) = replicas()?;
    let shared = until_shared(&a, &b)?;
    daemon.kill()?;
    daemon.restart()?;
    until_within(LONG_PATIENCE, "the daemon knows as many copies as before", || {
        Ok((copies(&world)?.copies >= shared as u64).then_some(()))
    })
}

#[test]
fn a_program_with_copies_is_frozen_and_comes_back_with_them() -> anyhow::Result<()> {
    let (world, daemon, [mut a, mut b, mut c]) = replicas()?;
    let pid = a.process().pid();
    let state = || -> anyhow::Result<_> {
        let stats = world.card().context("a simulated card")?.stats()?;
        let known = stats.processes.into_iter().find(|known| known.pid == pid);
        Ok(known.context("the program is on the card")?.state)
    };
    for _ in 0..2 {
        // A program uses each copy before it maps the next one.
        until_within(
            LONG_PATIENCE,
            "the program uses a copy",
            || Ok((mapped(&a)?.len() >= 2).then_some(())),
        )?;
        assert_eq!(daemon.ctl(&["session", "freeze", "a"])?, "session a: running → frozen\n");
        assert_eq!(state()?, ProcessState::Checkpointed);
        assert!(!mapped(&a)?.is_empty(), "the mappings of used copies stay");
        b.must("check x 1; check y 2")?;
        a.must("check x 1; check y 2")?;
        assert_eq!(state()?, ProcessState::Running);
        c.must("check z 9")?;
    }
    Ok(())
}
