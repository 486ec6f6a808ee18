//! Users of the system's daemon: their part of a card's time, however many sessions each of them has.
//!
//! The programs run under several user ids, so the tests need root.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::Context as _;
use gpushare_proto::admin::{LockView, Status};
use gpushare_proto::{Bytes, Nanos};
use gpushare_tests::{Daemon, Program, Sharing, Training, World};

use crate::shares::{SHORT_TURNS, WORK, share_of};

/// User that the tests call by its name.
const NAMED: &str = "daemon";
/// User that the tests call by its number, which has no name.
pub(crate) const NUMBERED: u32 = 4_000_001;
/// Configuration under which users may start sessions themselves.
const SELF_SERVICE: &str = "[self_service]\nmax_memory = \"1GiB\"\n";

#[test]
fn a_users_weight_divides_the_time_however_many_sessions_it_has() -> anyhow::Result<()> {
    let Some(named) = users()? else { return Ok(()) };
    let (world, mut daemon) = started(Bytes::mib(256), &SHORT_TURNS)?;
    let hog = |user, name: &str| start(&world, user, name, Bytes::mib(16));
    let _programs = [hog(named, "lone")?, hog(NUMBERED, "a")?, hog(NUMBERED, "b")?, hog(NUMBERED, "c")?];
    let share = || share_of(&daemon, &["lone"], &["a", "b", "c"]);
    let equal = share()?;
    assert!((0.4..0.6).contains(&equal), "one session of a user beside three of another got {equal}");

    daemon.set(&["weight", "300", "--user", NAMED])?;
    let more = share()?;
    assert!((0.62..0.88).contains(&more), "a user of weight 300 beside one of 100 got {more}");

    let status = daemon.ctl(&["status", "--verbose"])?;
    let rows: Vec<Vec<&str>> = status.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(rows.contains(&vec![NAMED, "300", "1"]), "{status}");
    assert!(rows.contains(&vec![&*NUMBERED.to_string(), "100", "3"]), "{status}");

    daemon.kill()?;
    daemon.restart()?;
    daemon.until("all are back", |status| status.sessions.len() == 4 && status.daemon.recovering == 0)?;
    let again = share_of(&daemon, &["lone"], &["a", "b", "c"])?;
    assert!((0.62..0.88).contains(&again), "after a restart, a user of weight 300 got {again}");

    daemon.set(&["weight", "900", "--user", &NUMBERED.to_string()])?;
    let less = share_of(&daemon, &["lone"], &["a", "b", "c"])?;
    assert!((0.12..0.38).contains(&less), "a user of weight 300 beside one of 900 got {less}");
    Ok(())
}

#[test]
fn a_user_that_had_more_than_its_share_waits_after_a_restart() -> anyhow::Result<()> {
    let Some(named) = users()? else { return Ok(()) };
    let (world, mut daemon) = started(Bytes::mib(64), &["--mode", "serialized", "--quantum", "200ms"])?;
    // A millisecond of the light user is worth ten seconds of the heavy one.
    daemon.set(&["weight", "1", "--user", NAMED])?;
    daemon.set(&["weight", "10000", "--user", &NUMBERED.to_string()])?;
    let mut first = start(&world, named, "first", Bytes::mib(40))?;
    daemon.until("the light user has the card", |status| {
        status.gpus.first().is_some_and(|gpu| gpu.allocated_bytes == Bytes::mib(40))
    })?;
    let mut beside = start(&world, NUMBERED, "beside", Bytes::mib(40))?;
    daemon.until("its session is there", |status| status.sessions.len() == 2)?;
    // Its turns are worth much of its user's other session.
    daemon.set(&["weight", "1", "--session", "beside"])?;
    let waiting = daemon.until("the light user waits beside the heavy one", |status| {
        held(status, "beside") > Nanos::ZERO && waits(status, "first")
    })?;
    // It is ahead by then, or was level and had a turn meanwhile, so that it is ahead since.
    daemon.until("the heavy user has had several quanta", |status| {
        held(status, "beside") >= held(&waiting, "beside") + Nanos::from_secs(1)
    })?;
    let mut heavy = Program::begin(command_of(&world, NUMBERED, "heavy", Bytes::mib(48))?, &world, "heavy")?;
    heavy.ready()?;
    heavy.must("alloc x 40MiB")?;
    heavy.spin_for_good()?;
    beside.kill()?;
    daemon.until("the light user waits", |status| waits(status, "first"))?;
    // The answer comes when the usage and with it the virtual time is on the disk.
    daemon.ctl(&["usage"])?;
    daemon.kill()?;
    first.kill()?;
    daemon.restart()?;

    // The session that was charged is gone: only its user is known to be ahead.
    let _second = start(&world, named, "second", Bytes::mib(40))?;
    let joined = daemon.until("it waits again", |status| waits(status, "second"))?;
    assert!(joined.sessions.iter().all(|session| session.name != "first"));
    let after = daemon.until("the heavy user has had several quanta", |status| {
        held(status, "heavy") >= held(&joined, "heavy") + Nanos::from_secs(2)
    })?;
    // Level with the other, the heavy user would have been asked for the lock after its quantum.
    let heavy = after.sessions.iter().find(|session| session.name == "heavy");
    assert!(heavy.is_some_and(|heavy| matches!(heavy.lock, LockView::Holding { .. })), "{heavy:?}");
    assert_eq!(held(&after, "second"), Nanos::ZERO);
    Ok(())
}

/// Starts a world that other users can reach, with the system's daemon.
pub(crate) fn started(card: Bytes, flags: &[&str]) -> anyhow::Result<(World, Daemon)> {
    let world = World::of(card)?;
    fs::set_permissions(world.folder(), Permissions::from_mode(0o711))?;
    fs::set_permissions(world.card_socket(), Permissions::from_mode(0o777))?;
    let config = world.scheduler_config().context("the card has a configuration")?;
    let usual = fs::read_to_string(&config)?;
    fs::write(&config, format!("{usual}{SELF_SERVICE}"))?;
    let flags = [&["--system", "--metrics", "off"], flags].concat();
    world.with_daemon(&flags)
}

/// Starts a program of a user that always has work for the card, in a session of its own.
fn start(world: &World, uid: u32, name: &str, memory: Bytes) -> anyhow::Result<Training> {
    Training::begin(command_of(world, uid, name, memory + memory)?, world, name, memory, &WORK)
}

/// Command of a user that starts a program in a session of its own with this memory limit. The command ends in
/// the program's name.
pub(crate) fn command_of(world: &World, uid: u32, name: &str, limit: Bytes) -> anyhow::Result<Command> {
    let home = world.folder().join(uid.to_string());
    fs::create_dir_all(&home)?;
    chown(&home, Some(uid), Some(uid))?;
    let mut command = world.workload(&Sharing::limited(name, limit));
    // `gpushare-ctl run` keeps the token of the session there.
    command.env("XDG_RUNTIME_DIR", home).uid(uid).gid(uid);
    Ok(command)
}

fn waits(status: &Status, name: &str) -> bool {
    let mut named = status.sessions.iter().filter(|session| session.name == name);
    named.any(|session| matches!(session.lock, LockView::Waiting { .. }))
}

/// Wall time for which a session's gate has been open in serialized mode.
fn held(status: &Status, name: &str) -> Nanos {
    let session = status.sessions.iter().find(|session| session.name == name);
    session.map_or(Nanos::ZERO, |session| session.held_ns)
}

/// Returns the number of the [`NAMED`] user; none, and says why, where no programs of several users can run.
pub(crate) fn users() -> anyhow::Result<Option<u32>> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can start programs under several user ids");
        return Ok(None);
    }
    let passwd = fs::read_to_string("/etc/passwd")?;
    let row = passwd.lines().find_map(|line| line.strip_prefix(NAMED)?.strip_prefix(":x:"));
    let uid = row.and_then(|row| row.split(':').next()?.parse().ok());
    Ok(Some(uid.with_context(|| format!("there is no user `{NAMED}`"))?))
}
