//! The daemon dies and comes back, or is not there at all.

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::thread;

use anyhow::Context as _;
use gpushare_proto::admin::{LockView, Status};
use gpushare_proto::{Bytes, Nanos, names};
use gpushare_tests::{Daemon, Program, Sharing, Training, World};

const CARD: Bytes = Bytes::mib(64);

#[test]
fn a_daemon_that_is_killed_under_load_and_restarted_loses_nothing() -> anyhow::Result<()> {
    let (world, mut daemon) = World::of(CARD)?.with_daemon(&["--quantum", "200ms"])?;
    let start = |name: &str| {
        let flags = ["--steps", "1000000", "--compute", "5ms"];
        Training::start(&world, &Sharing::session(name), name, Bytes::mib(40), &flags)
    };
    let (mut a, mut b) = (start("a")?, start("b")?);
    // The first handoffs may come while a program still allocates.
    let they_take_turns = |status: &Status| {
        let gpu = status.gpus.first();
        gpu.is_some_and(|gpu| gpu.handoffs >= 2 && gpu.allocated_bytes == Bytes::mib(80))
    };
    let before = daemon.until("they take turns", they_take_turns)?;
    daemon.kill()?;
    daemon.restart()?;
    let after = daemon.until("both are back and take turns", |status| {
        status.daemon.recovering == 0 && they_take_turns(status)
    })?;
    let names = |status: &Status| -> Vec<_> {
        status
            .sessions
            .iter()
            .map(|session| (session.session, session.name.clone()))
            .collect()
    };
    assert_eq!(names(&before), names(&after));
    for program in [&mut a, &mut b] {
        assert_eq!(program.finish()?.corrupted, 0);
    }
    Ok(())
}

#[test]
fn a_session_that_had_more_than_its_share_waits_after_a_restart() -> anyhow::Result<()> {
    let (world, mut daemon) = World::of(CARD)?.with_daemon(&["--quantum", "200ms"])?;
    let of_weight = |name: &str, weight: &str| Sharing::session(name).and(&["--weight", weight]);
    // A millisecond of the first is worth ten seconds of the second: its turn may be nearly over when the second
    // one comes.
    let load = ["--steps", "1000000", "--compute", "5ms"];
    let mut light = Training::start(&world, &of_weight("light", "1"), "light", Bytes::mib(40), &load)?;
    daemon.until("the first has the card", |status| {
        status.gpus.first().is_some_and(|gpu| gpu.allocated_bytes == Bytes::mib(40))
    })?;
    let mut heavy = Program::hold(&world, &of_weight("heavy", "10000"), "heavy")?;
    heavy.must("alloc x 40MiB")?;
    let held = |status: &Status, name: &str| {
        let session = status.sessions.iter().find(|session| session.name == name);
        session.map_or(Nanos::ZERO, |session| session.held_ns)
    };
    daemon.until("the first has had a turn", |status| held(status, "light") >= Nanos::from_millis(100))?;
    heavy.spin_for_good()?;
    let lock = |status: &Status, name: &str| {
        let session = status.sessions.iter().find(|session| session.name == name);
        session.map(|session| session.lock.clone())
    };
    let before = daemon
        .until("the first waits", |status| matches!(lock(status, "light"), Some(LockView::Waiting { .. })))?;
    // The answer comes when the usage and with it the virtual time is on the disk.
    daemon.ctl(&["usage"])?;
    daemon.kill()?;
    daemon.restart()?;
    let after = daemon.until("the second had several quanta", |status| {
        status.daemon.recovering == 0 && held(status, "heavy") >= held(&before, "heavy") + Nanos::from_secs(2)
    })?;
    // Level with the other, the second would have been asked for the lock after its quantum.
    assert!(matches!(lock(&after, "heavy"), Some(LockView::Holding { .. })), "{:?}", lock(&after, "heavy"));
    assert_eq!(held(&after, "light"), held(&before, "light"));
    light.kill()?;
    heavy.kill()
}

#[test]
fn holders_run_on_and_waiters_wait_while_the_daemon_is_away() -> anyhow::Result<()> {
    let (world, mut daemon) =
        World::of(CARD)?.with_daemon(&["--mode", "serialized", "--quantum", "10min"])?;
    let mut a = Program::hold(&world, &Sharing::session("a"), "a")?;
    let mut b = Program::hold(&world, &Sharing::session("b"), "b")?;
    a.must("alloc x 40MiB")?;
    b.must("alloc x 40MiB")?;
    a.must("alloc stop 4KiB; set stop 0; stream s; spin 3600s --until stop --on s")?;
    let fill = b.tell("fill x 2")?;
    daemon.until("b waits", |status| !status.gpus[0].queue.is_empty())?;
    daemon.kill()?;
    a.must("fill x 1")?;
    a.must("free-address 4660").unwrap_err();
    assert_eq!(b.peek(fill), None);
    // More memory than is leased: the allocation waits for the daemon.
    let alloc = a.tell("@second alloc y 8MiB")?;
    daemon.restart()?;
    a.done(alloc)?;
    a.must("write-value stop 1")?;
    b.done(fill)?;
    a.must("check x 1")?;
    b.must("check x 2")?;
    Ok(())
}

#[test]
fn without_a_daemon_a_program_runs_natively_with_one_line() -> anyhow::Result<()> {
    let world = World::of(CARD)?;
    let mut program = Program::hold(&world, &Sharing::Preload, "alone")?;
    program.must("alloc x 8MiB; fill x 1; check x 1")?;
    program.quit()?;
    let said = program.process().stderr();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("no scheduler answers") && said.contains("without sharing"), "{said}");
    Ok(())
}

#[test]
fn a_program_that_the_scheduler_refuses_does_not_use_the_card_all_the_same() -> anyhow::Result<()> {
    let world = World::of(CARD)?;
    let config = world.scheduler_config().context("the card has a configuration")?;
    let usual = fs::read_to_string(&config)?;
    fs::write(&config, format!("implicit_sessions = false\n{usual}"))?;
    let _daemon = Daemon::start(&world, &[])?;
    let mut program = Program::begin(world.workload(&Sharing::Preload), &world, "stranger")?;
    let error = format!("{:#}", program.ready().unwrap_err());
    assert!(error.contains("cuDevicePrimaryCtxRetain"), "{error}");
    let said = program.process().stderr();
    assert!(said.contains("the scheduler refused this process"), "{said}");
    Ok(())
}

#[test]
fn a_program_that_must_share_is_refused_its_first_context_without_a_daemon() -> anyhow::Result<()> {
    let world = World::of(CARD)?;
    let token = world.folder().join("token");
    fs::write(&token, "ab".repeat(32))?;
    for (name, value) in [(names::REQUIRED, "1".into()), (names::TOKEN_FILE, token.into_os_string())] {
        let mut command = world.workload(&Sharing::Preload);
        command.env(name, value);
        let mut program = Program::begin(command, &world, name)?;
        let error = format!("{:#}", program.ready().unwrap_err());
        assert!(error.contains("cuDevicePrimaryCtxRetain"), "{name}: {error}");
        assert!(error.contains("SYSTEM_NOT_READY") || error.contains("802"), "{name}: {error}");
        assert!(program.process().stderr().contains("must not use the GPU without it"), "{name}");
    }
    Ok(())
}

#[test]
fn a_scheduler_that_hangs_up_at_once_is_no_absent_one() -> anyhow::Result<()> {
    let world = World::of(CARD)?;
    // As it does where a user has all the connections that it may have.
    let runtime = world.runtime_dir();
    fs::create_dir_all(runtime.tenant_dir())?;
    let listener = UnixListener::bind(runtime.tenant_socket())?;
    thread::spawn(move || listener.incoming().for_each(drop));
    let mut program = Program::begin(world.workload(&Sharing::Preload), &world, "turned-away")?;
    assert!(program.ready().is_err());
    let said = program.process().stderr();
    assert!(said.contains("must not use the GPU without it"), "{said}");
    Ok(())
}

#[test]
fn a_scheduler_that_accepts_nobody_is_no_absent_one() -> anyhow::Result<()> {
    let world = World::of(CARD)?;
    let runtime = world.runtime_dir();
    fs::create_dir_all(runtime.tenant_dir())?;
    let listener = UnixListener::bind(runtime.tenant_socket())?;
    // It takes one connection, which is never accepted.
    rustix::net::listen(&listener, 0)?;
    let _waiting = UnixStream::connect(runtime.tenant_socket())?;
    let mut program = Program::begin(world.workload(&Sharing::Preload), &world, "kept-waiting")?;
    assert!(program.ready().is_err());
    let said = program.process().stderr();
    assert!(
        said.contains("more connections waiting than it takes")
            && said.contains("must not use the GPU without it"),
        "{said}"
    );
    Ok(())
}

/// `command` where `/etc/gpushare/client.toml` says `demands`; none where no mount namespace can be made.
fn under_demands(command: &Command, demands: &str) -> Option<Command> {
    const ENTER: &str = r#"mount -t tmpfs none /etc && mkdir -m 755 /etc/gpushare &&
        printf '%s' "$1" >/etc/gpushare/client.toml && shift && exec "$@""#;
    let works = Command::new("unshare")
        .args(["-rm", "mount", "-t", "tmpfs", "none", "/etc"])
        .output();
    if !works.is_ok_and(|tried| tried.status.success()) {
        eprintln!(
            "skipped: no mount namespace can be made here, so nothing can be put into /etc for one program"
        );
        return None;
    }
    let mut entered = Command::new("unshare");
    entered
        .args(["-rm", "sh", "-c", ENTER, "sh", demands])
        .arg(command.get_program())
        .args(command.get_args());
    entered.env_clear();
    let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    entered.envs(set);
    Some(entered)
}

#[test]
fn what_the_administrator_demands_beats_the_environment() -> anyhow::Result<()> {
    let world = World::of(CARD)?;
    let mut command = world.workload(&Sharing::Preload);
    command.env(names::RUNTIME_DIR, "/nonexistent");
    let Some(demanded) = under_demands(&command, "required = true\n") else {
        return Ok(());
    };
    let mut program = Program::begin(demanded, &world, "fled")?;
    let error = format!("{:#}", program.ready().unwrap_err());
    assert!(error.contains("cuDevicePrimaryCtxRetain"), "{error}");
    let said = program.process().stderr();
    assert!(said.contains("must not use the GPU without it"), "{said}");

    // Where root is nobody, its file is root's still.
    let mut inner = Command::new("unshare");
    inner.arg("-U").arg(command.get_program()).args(command.get_args());
    inner.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let nobody = under_demands(&inner, "required = true # always\n").context("as before")?;
    let mut program = Program::begin(nobody, &world, "nobody")?;
    assert!(program.ready().is_err());
    let said = program.process().stderr();
    assert!(said.contains("must not use the GPU without it"), "{said}");

    let garbled = under_demands(&command, "requird = true\n").context("as before")?;
    let mut program = Program::begin(garbled, &world, "garbled")?;
    assert!(program.ready().is_err());
    let said = program.process().stderr();
    assert!(said.contains("`requird = true` is neither"), "{said}");

    let daemon = Daemon::start(&world, &[])?;
    let pinned = format!("runtime_dir = \"{}\"\n", world.runtime_dir().root().display());
    let pinned = under_demands(&command, &pinned).context("as before")?;
    let mut program = Program::begin(pinned, &world, "pinned")?;
    program.ready()?;
    program.must("alloc x 8MiB")?;
    assert_eq!(daemon.status()?.gpus[0].allocated_bytes, Bytes::mib(8));
    Ok(())
}
