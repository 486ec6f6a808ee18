//! Sessions that an administrator makes: whose they are, what they may have, and what becomes of them while
//! they run.

use std::path::PathBuf;
use std::process::Command;

use gpushare_proto::session::SessionPhase;
use gpushare_proto::{Bytes, names};
use gpushare_tests::{Daemon, Part, Program, Sharing, World};

const OUT_OF_MEMORY: Option<&str> = Some("CUDA_ERROR_OUT_OF_MEMORY");

/// `gpushare-ctl run --session NAME`.
fn member(name: &str) -> Sharing {
    Sharing::Run(vec!["--session".to_owned(), name.to_owned()])
}

/// Where `session create` puts the token of a session.
fn token_file(world: &World, name: &str) -> PathBuf {
    world.runtime_dir().state_dir().join(format!("tokens/{name}.token"))
}

fn standing(daemon: &Daemon, name: &str) -> anyhow::Result<SessionPhase> {
    Ok(daemon.session(name)?.state.standing)
}

#[test]
fn programs_join_a_session_by_its_name_and_share_its_quota() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let said = daemon.ctl(&["session", "create", "team", "--memory", "64MiB", "--label", "owner=alice"])?;
    assert!(said.contains("gpushare-ctl run --session team"), "{said}");
    let mut a = Program::hold(&world, &member("team"), "a")?;
    let mut b = Program::hold(&world, &member("team"), "b")?;
    a.must("alloc x 40MiB")?;
    assert_eq!(b.ask("alloc y 40MiB")?.error(), OUT_OF_MEMORY);
    b.must("alloc y 24MiB")?;
    let session = daemon.session("team")?;
    assert_eq!((session.clients.len(), session.state.kept), (2, true));
    assert_eq!(session.state.terms.labels["owner"], "alice");
    a.quit()?;
    b.quit()?;
    daemon.until("it is without processes", |status| status.sessions[0].clients.is_empty())?;
    assert_eq!(daemon.session("team")?.gpus[0].peak_bytes, Bytes::mib(64), "it lives on");
    daemon.ctl(&["session", "delete", "team"])?;
    daemon.until("it is deleted", |status| status.sessions.is_empty())?;
    Ok(())
}

#[test]
fn a_share_of_the_card_is_what_the_card_has_of_it() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let sharing = Sharing::session("half").and(&["--memory", "50%"]);
    let mut program = Program::hold(&world, &sharing, "half")?;
    assert_eq!(program.must("mem-info")?.number("total_bytes"), Bytes::mib(128).0);
    program.must("alloc x 128MiB")?;
    assert_eq!(program.ask("alloc y 1MiB")?.error(), OUT_OF_MEMORY);
    assert_eq!(daemon.session("half")?.gpus[0].limit_bytes, Some(Bytes::mib(128)));
    Ok(())
}

#[test]
fn the_environment_may_say_the_limit_by_card() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut program = Program::hold_with(
        &world,
        &Sharing::session("env"),
        "env",
        names::MEMORY_LIMIT,
        r#"{"0": 33554432}"#,
    )?;
    program.must("alloc x 32MiB")?;
    assert_eq!(program.ask("alloc y 1MiB")?.error(), OUT_OF_MEMORY);
    Ok(())
}

#[test]
fn the_limit_of_the_first_process_without_token_stays() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut programs = Vec::new();
    for (limit, name) in [("16MiB", "first"), ("64MiB", "second")] {
        let mut program = Program::hold_with(&world, &Sharing::Preload, name, names::MEMORY_LIMIT, limit)?;
        assert_eq!(program.ask("alloc x 17MiB")?.error(), OUT_OF_MEMORY, "{name}");
        programs.push(program);
    }
    assert_eq!(daemon.status()?.sessions.len(), 1);
    Ok(())
}

#[test]
fn an_environment_limit_survives_a_daemon_that_lost_its_registry() -> anyhow::Result<()> {
    let (world, mut daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut program =
        Program::hold_with(&world, &Sharing::Preload, "unwritten", names::MEMORY_LIMIT, "16MiB")?;
    program.must("alloc x 8MiB")?;
    daemon.kill()?;
    std::fs::remove_file(world.runtime_dir().registry())?;
    daemon.restart()?;
    daemon.until("it is back, with its limit", |status| {
        let session = status.sessions.first();
        session.is_some_and(|session| {
            session.memory_limit_bytes == Some(Bytes::mib(16))
                && session.gpus.iter().any(|gpu| gpu.allocated_bytes == Bytes::mib(8))
        })
    })?;
    program.must("alloc y 8MiB")?;
    assert_eq!(program.ask("alloc z 1MiB")?.error(), OUT_OF_MEMORY);
    Ok(())
}

#[test]
fn an_invalid_limit_refuses_the_program() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut command = world.workload(&Sharing::Preload);
    command.env(names::MEMORY_LIMIT, "plenty");
    let mut program = Program::begin(command, &world, "plenty")?;
    let refused = program.ready().unwrap_err().to_string();
    assert!(refused.contains("CUresult 802"), "{refused}");
    let stderr = program.process().stderr();
    assert!(stderr.contains("GPUSHARE_MEMORY_LIMIT: `plenty` is not"), "{stderr}");
    Ok(())
}

/// Message of a program that its limit kept from the card.
fn said_when_refused(world: &World, limit: &str) -> anyhow::Result<String> {
    let mut command = world.workload(&Sharing::Preload);
    command.env(names::MEMORY_LIMIT, limit);
    let mut program = Program::begin(command, world, "refused")?;
    let refused = program.ready().unwrap_err().to_string();
    assert!(refused.contains("CUresult 802"), "{refused}");
    Ok(program.process().stderr())
}

#[test]
fn a_limit_without_a_daemon_to_enforce_it_refuses_the_program() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(256))?;
    for (name, limit) in [(names::MEMORY_LIMIT, "16MiB"), (names::COMPUTE_LIMIT, "25%")] {
        let mut command = world.workload(&Sharing::Preload);
        command.env(name, limit);
        let mut program = Program::begin(command, &world, name)?;
        let refused = program.ready().unwrap_err().to_string();
        assert!(refused.contains("CUresult 802"), "{refused}");
        let said = program.process().stderr();
        assert!(said.contains("no scheduler answers") && said.contains(&format!("{name} is set")), "{said}");
    }
    Ok(())
}

#[test]
fn a_limit_for_an_absent_card_refuses_the_program() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let said = said_when_refused(&world, r#"{"7": 2147483648}"#)?;
    assert!(
        said.contains("memory limit (7=2GiB) is for no card of this machine, which has 0 (GPU-"),
        "{said}"
    );
    let said = said_when_refused(&world, "{}")?;
    assert!(said.contains("GPUSHARE_MEMORY_LIMIT: the limit names no card"), "{said}");
    let mut program =
        Program::hold_with(&world, &Sharing::Preload, "right", names::MEMORY_LIMIT, r#"{"0": 16777216}"#)?;
    assert_eq!(program.ask("alloc x 17MiB")?.error(), OUT_OF_MEMORY);
    Ok(())
}

#[test]
fn setsid_leaves_a_program_in_its_session_with_or_without_token() -> anyhow::Result<()> {
    [&[][..], &["env", "-u", names::TOKEN_FILE]]
        .into_iter()
        .try_for_each(stays_in_jail)
}

/// In a POSIX session of its own, and started by way of `through`, a program is held to the quota of the
/// session that it was started in.
fn stays_in_jail(through: &[&str]) -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let sharing = Sharing::limited("jail", Bytes::mib(16));
    let mut command = world.sharing(&sharing, "/usr/bin/setsid".as_ref());
    command.args(["--wait", "--fork"]).args(through);
    command.arg(world.path(Part::Workload));
    let mut program = Program::begin(command, &world, "inmate")?;
    program.ready()?;
    assert_eq!(program.ask("alloc x 17MiB")?.error(), OUT_OF_MEMORY);
    let names: Vec<String> = daemon.status()?.sessions.into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["jail"]);
    Ok(())
}

#[test]
fn a_program_without_token_stays_in_the_session_its_shell_joined() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    daemon.ctl(&["session", "create", "jail", "--memory", "16MiB"])?;
    let mut command = world.sharing(&member("jail"), "/bin/sh".as_ref());
    let away = format!("setsid --wait --fork env -u {} \"$0\" \"$@\"; exit $?", names::TOKEN_FILE);
    command.arg("-c").arg(away).arg(world.path(Part::Workload));
    let mut program = Program::begin(command, &world, "inmate")?;
    program.ready()?;
    assert_eq!(program.ask("alloc x 17MiB")?.error(), OUT_OF_MEMORY);
    let names: Vec<String> = daemon.status()?.sessions.into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["jail"]);
    Ok(())
}

#[test]
fn setsid_gets_a_program_no_quota_of_its_own() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let limited = |mut command: Command| {
        command.env(names::MEMORY_LIMIT, "16MiB");
        command
    };
    let mut first = Program::begin(limited(world.workload(&Sharing::Preload)), &world, "first")?;
    first.ready()?;
    first.must("alloc x 16MiB")?;
    let mut away = limited(world.sharing(&Sharing::Preload, "/usr/bin/setsid".as_ref()));
    away.args(["--wait", "--fork"]).arg(world.path(Part::Workload));
    let mut second = Program::begin(away, &world, "second")?;
    second.ready()?;
    assert_eq!(daemon.status()?.sessions.len(), 1);
    assert_eq!(second.ask("alloc x 1MiB")?.error(), OUT_OF_MEMORY);
    Ok(())
}

#[test]
fn a_program_is_told_that_the_time_of_its_session_is_over() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    daemon.ctl(&["session", "create", "short", "--ttl", "1h"])?;
    let mut program = Program::hold(&world, &member("short"), "short")?;
    program.must("alloc x 1MiB")?;
    daemon.ctl(&["session", "renew", "short", "--ttl", "1ms"])?;
    daemon.until("its time is over", |status| status.sessions[0].state.standing == SessionPhase::Expired)?;
    assert_eq!(program.ask("alloc y 200MiB")?.error(), OUT_OF_MEMORY);
    let said = program.process().stderr();
    assert!(
        said.contains("session short has expired or was revoked")
            && said.contains("gpushare-ctl session renew short"),
        "{said}"
    );
    let explained = daemon.ctl(&["explain", "short"])?;
    assert!(explained.contains("the session was expired or revoked"), "{explained}");
    assert!(!explained.contains("set memory"), "{explained}");
    daemon.ctl(&["session", "renew", "short", "--ttl", "none"])?;
    program.must("alloc y 200MiB")?;
    Ok(())
}

#[test]
fn a_quota_changes_while_its_programs_run() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &Sharing::limited("a", Bytes::mib(64)), "a")?;
    program.must("alloc x 48MiB")?;
    let said = daemon.ctl(&["set", "memory", "32MiB", "--session", "a"])?;
    assert_eq!(
        said,
        "memory of session a: 64MiB → 32MiB; it uses 48MiB on gpu0 already, which it keeps: it gets nothing more until it is below\n"
    );
    assert_eq!(program.ask("alloc y 1MiB")?.error(), OUT_OF_MEMORY);
    assert_eq!(program.must("mem-info")?.number("total_bytes"), Bytes::mib(32).0);
    program.must("fill x 5")?;
    assert_eq!(program.must("get x")?.number("first"), 5);
    daemon.ctl(&["set", "memory", "none", "--session", "a"])?;
    program.must("alloc y 100MiB")?;
    Ok(())
}

#[test]
fn a_paused_program_waits_and_says_why_and_goes_on() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &Sharing::session("a"), "a")?;
    program.must("alloc x 4MiB")?;
    assert_eq!(daemon.ctl(&["session", "pause", "a"])?, "session a: running → paused\n");
    let filled = program.tell("fill x 7")?;
    let status = daemon.until("it waits", |status| status.sessions[0].clients[0].waiting)?;
    assert!(format!("{:?}", status.sessions[0].lock).contains("paused"), "{:?}", status.sessions[0].lock);
    assert_eq!(program.peek(filled), None);
    daemon.ctl(&["session", "resume", "a"])?;
    assert_eq!(program.answer(filled)?.error(), None);
    program.must("check x 7")?;
    Ok(())
}

#[test]
fn an_expired_session_keeps_its_memory_and_gets_no_more_until_renewed() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    daemon.ctl(&["session", "create", "short", "--ttl", "1h"])?;
    let mut program = Program::hold(&world, &member("short"), "short")?;
    program.must("alloc x 4MiB; fill x 9; sync")?;
    daemon.ctl(&["session", "renew", "short", "--ttl", "1ms"])?;
    daemon.until("its time is over", |status| status.sessions[0].state.standing == SessionPhase::Expired)?;
    assert_eq!(program.ask("alloc y 4MiB")?.error(), OUT_OF_MEMORY);
    let copied = program.tell("get x")?;
    daemon.until("it waits", |status| status.sessions[0].clients[0].waiting)?;
    daemon.ctl(&["session", "renew", "short", "--ttl", "1h"])?;
    assert_eq!(program.answer(copied)?.number("first"), 9, "nothing of it is lost");
    program.must("alloc y 4MiB")?;
    assert_eq!(standing(&daemon, "short")?, SessionPhase::Good);
    Ok(())
}

#[test]
fn a_revoked_token_joins_no_session() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    daemon.ctl(&["session", "create", "gone"])?;
    let mut program = Program::hold(&world, &member("gone"), "gone")?;
    program.must("alloc x 4MiB")?;
    let (kept, copy) = (token_file(&world, "gone"), world.folder().join("copy"));
    std::fs::copy(&kept, &copy)?;
    daemon.ctl(&["session", "revoke", "gone"])?;
    assert!(!kept.exists());
    assert_eq!(program.ask("alloc y 4MiB")?.error(), OUT_OF_MEMORY);
    for which in ["gone", &copy.display().to_string()] {
        let mut late = Program::begin(world.workload(&member(which)), &world, "late")?;
        let refused = late.ready().unwrap_err().to_string();
        assert!(refused.contains("deleted or revoked"), "{refused}");
    }
    let error = daemon
        .ctl(&["session", "renew", "gone", "--ttl", "1h"])
        .unwrap_err()
        .to_string();
    assert!(error.contains("for good"), "{error}");
    let error = daemon.ctl(&["session", "delete", "gone"]).unwrap_err().to_string();
    assert!(error.contains("stop them first"), "{error}");
    Ok(())
}

#[test]
fn a_new_token_shuts_out_the_old_one_and_no_joined_process() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    daemon.ctl(&["session", "create", "team"])?;
    let mut program = Program::hold(&world, &member("team"), "member")?;
    let stolen = world.folder().join("stolen");
    std::fs::copy(token_file(&world, "team"), &stolen)?;
    daemon.ctl(&["session", "token", "team"])?;
    let thief = member(&stolen.display().to_string());
    let mut late = Program::begin(world.workload(&thief), &world, "thief")?;
    let refused = late.ready().unwrap_err().to_string();
    assert!(refused.contains("is invalid: its session was deleted"), "{refused}");
    program.must("alloc x 4MiB")?;
    let mut other = Program::hold(&world, &member("team"), "other")?;
    other.must("alloc x 4MiB")?;
    assert_eq!(daemon.session("team")?.clients.len(), 2);
    Ok(())
}

#[test]
fn a_name_that_a_program_took_is_the_administrators_all_the_same() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut squatter = Program::hold(&world, &Sharing::session("b"), "squatter")?;
    daemon.ctl(&["session", "create", "b", "--memory", "16MiB"])?;
    let mut own = Program::hold(&world, &member("b"), "own")?;
    assert_eq!(own.ask("alloc x 17MiB")?.error(), OUT_OF_MEMORY);
    squatter.must("alloc x 17MiB")?;
    assert!(daemon.session("b")?.state.kept);
    assert_eq!(daemon.session("b-1")?.clients.len(), 1);
    Ok(())
}

#[test]
fn a_session_may_be_that_of_a_user_whatever_token_its_processes_have() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let uid = rustix::process::getuid().as_raw().to_string();
    daemon.ctl(&["session", "create", "mine", "--memory", "16MiB", "--uid", &uid])?;
    for (sharing, name) in [(Sharing::Preload, "preloaded"), (Sharing::session("other"), "other")] {
        let mut program = Program::hold(&world, &sharing, name)?;
        assert_eq!(program.ask("alloc x 17MiB")?.error(), OUT_OF_MEMORY, "{name}");
        assert_eq!(program.must("mem-info")?.number("total_bytes"), Bytes::mib(16).0, "{name}");
        assert_eq!(daemon.session("mine")?.clients.len(), 1);
        program.quit()?;
        daemon
            .until("it is gone", |status| status.sessions.iter().all(|session| session.clients.is_empty()))?;
    }
    Ok(())
}

#[test]
fn a_session_that_was_made_to_last_is_there_after_a_restart() -> anyhow::Result<()> {
    let (world, mut daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    daemon.ctl(&["session", "create", "team", "--memory", "0=64MiB", "--ttl", "1h", "--weight", "200"])?;
    daemon.ctl(&["session", "pause", "team"])?;
    let before = daemon.session("team")?.state;
    daemon.kill()?;
    daemon.restart()?;
    let after = daemon.session("team")?.state;
    assert_eq!((after.terms, after.standing), (before.terms, SessionPhase::Paused));
    assert!(after.expires_in_ns <= before.expires_in_ns && after.expires_in_ns.is_some());
    daemon.ctl(&["session", "resume", "team"])?;
    let mut program = Program::hold(&world, &member("team"), "team")?;
    assert_eq!(program.ask("alloc x 65MiB")?.error(), OUT_OF_MEMORY);
    program.must("alloc x 64MiB")?;
    Ok(())
}
