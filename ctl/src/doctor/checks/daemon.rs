//! Checks of the daemon: program, folder, sockets, version, sessions and locks.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use gpushare_proto::admin::{LockView, SessionView};
use gpushare_proto::names::{self, LOCK_DIR, SCHEDULER, SYSTEM_LOCK_DIR};
use gpushare_proto::tenant::FailureCode;
use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::super::facts::{DaemonFacts, Facts};
use super::super::model::Outcome;
use crate::table::list;
use gpushare_connection::ClientError;

pub(super) fn program(facts: &Facts) -> Vec<Outcome> {
    vec![match &facts.scheduler {
        Ok(path) => Outcome::ok(format!("{}", path.display())),
        Err(_) if facts.answering().is_some() => {
            Outcome::ok("gpushare-scheduler is not beside gpushare-ctl; a daemon answers already")
        }
        Err(_) => Outcome::error(
            "no daemon answers, and there is no gpushare-scheduler that `gpushare-ctl run` could start",
            format!("install gpushare-scheduler beside gpushare-ctl, or set {SCHEDULER} to its path"),
        ),
    }]
}

fn each(facts: &Facts, judge: impl Fn(&DaemonFacts) -> Outcome) -> Vec<Outcome> {
    facts
        .daemons
        .iter()
        .map(|daemon| judge(daemon).of(daemon.dir.root().display().to_string()))
        .collect()
}

pub(super) fn folder(facts: &Facts) -> Vec<Outcome> {
    each(facts, |daemon| {
        let path = daemon.dir.root();
        let shown = path.display();
        let found = match path.symlink_metadata() {
            Ok(found) => found,
            Err(cause) if cause.kind() == ErrorKind::NotFound => {
                return Outcome::ok("missing: no daemon has run here");
            }
            Err(cause) => {
                return Outcome::warning(
                    format!("cannot be read ({cause})"),
                    "run the doctor as the folder's owner, or name another one with --runtime-dir",
                );
            }
        };
        let (owner, mode) = (found.uid(), found.mode() & 0o7777);
        if !found.is_dir() {
            return Outcome::error(
                "is not a folder",
                format!("remove {shown}, or name another one with --runtime-dir"),
            );
        }
        if owner != facts.uid && owner != 0 {
            return Outcome::error(
                format!("belongs to user {owner}, who could read your messages to the daemon"),
                "remove it, or name another one with --runtime-dir",
            );
        }
        if mode & 0o022 != 0 {
            return Outcome::error(
                format!("is writable by others (mode {mode:o}): the daemon and `run` refuse it"),
                format!("run `chmod go-w {shown}` once you know why"),
            );
        }
        Outcome::ok(format!("user {owner}'s, mode {mode:o}"))
    })
}

pub(super) fn tenant(facts: &Facts) -> Vec<Outcome> {
    let mut outcomes = each(facts, |daemon| {
        let socket = daemon.dir.tenant_socket();
        match &daemon.tenant {
            Ok(peer) => Outcome::ok(format!(
                "a daemon answers{} in this build's protocol",
                if peer.pid == 0 { String::new() } else { format!(" (pid {})", peer.pid) }
            )),
            Err(error) => refused(error, &socket),
        }
    });
    if facts.answering().is_none()
        && facts.daemons.iter().all(DaemonFacts::is_absent)
        && let Some(needed) = names::requirement(|name| facts.var(name).map(OsStr::to_owned))
    {
        outcomes.push(Outcome::error(
            format!("no daemon answers, and {needed} is set: programs that start here are refused their first CUDA context"),
            "start one: `sudo gpushare-scheduler --system`, or `gpushare-scheduler --user`; or `gpushare-ctl run` does",
        ));
    }
    outcomes
}

pub(super) fn admin(facts: &Facts) -> Vec<Outcome> {
    each(facts, |daemon| match &daemon.admin {
        Ok(status) => Outcome::ok(format!(
            "answers: gpushare {}, {} sessions on {} cards",
            status.daemon.version,
            status.sessions.len(),
            status.gpus.len()
        )),
        Err(ClientError::Denied(_)) => {
            Outcome::skipped("this user may not connect; run as its owner or as root")
        }
        Err(ClientError::Refused(failure)) if failure.code == FailureCode::Permission => {
            Outcome::skipped(failure.message.clone())
        }
        // A container has only the tenant socket.
        Err(ClientError::Absent(_)) if daemon.tenant.is_ok() && !daemon.dir.admin_socket().exists() => {
            Outcome::skipped("not mounted here: only the tenant's folder is")
        }
        Err(error) => refused(error, &daemon.dir.admin_socket()),
    })
}

/// Returns the check result for a daemon's socket that did not answer.
fn refused(error: &ClientError, socket: &Path) -> Outcome {
    if let ClientError::Absent(_) = error {
        return match socket.symlink_metadata().is_ok() {
            true => Outcome::warning(
                format!("{} is stale: its daemon died, and no other was started", socket.display()),
                "start one (`gpushare-ctl run` does): it replaces the socket; its log says why the last one died",
            ),
            false => Outcome::ok("no daemon here"),
        };
    }
    Outcome::failure(error, "see the daemon's log")
}

pub(super) fn build(facts: &Facts) -> Vec<Outcome> {
    let own = env!("CARGO_PKG_VERSION");
    facts
        .daemons
        .iter()
        .filter(|daemon| daemon.tenant.is_ok() || daemon.admin.is_ok())
        .map(|daemon| {
            let theirs = daemon.admin.as_ref().ok().map(|status| status.daemon.version.clone());
            let pid = daemon.tenant.as_ref().map_or(0, |peer| peer.pid);
            // The kernel appends this to the link of a program whose file was removed.
            let replaced = Facts::proc_is_ours()
                && std::fs::read_link(format!("/proc/{pid}/exe"))
                    .is_ok_and(|path| path.to_string_lossy().ends_with(" (deleted)"));
            match theirs {
                Some(theirs) if theirs != own => Outcome::warning(
                    format!("the daemon is gpushare {theirs}, and this is {own}"),
                    "install one version on both sides and restart the daemon: running programs continue",
                ),
                _ if replaced => Outcome::warning(
                    "the daemon's program was replaced since it started",
                    "restart it: running programs continue, and waiting programs keep waiting",
                ),
                Some(_) => Outcome::ok(format!("both are gpushare {own}")),
                None => Outcome::skipped("only the admin socket reports the version"),
            }
            .of(daemon.dir.root().display().to_string())
        })
        .collect()
}

pub(super) fn recovering(facts: &Facts) -> Vec<Outcome> {
    let Some(status) = facts.status() else {
        return Vec::new();
    };
    vec![match status.daemon.recovering {
        0 => Outcome::ok("turns are granted"),
        count => Outcome::warning(
            format!(
                "grants on their cards wait for {count} processes of the last daemon that have neither reconnected nor ended"
            ),
            "`gpushare-ctl status` again in a second; else they are stopped or stuck: the daemon's log and who waits for them name their \
             pids, and stuck_policy decides after stuck_after",
        ),
    }]
}

/// Returns one check result per session with a problem, or `fine` without any. Empty without a status.
fn of_sessions(facts: &Facts, fine: &str, judge: impl Fn(&SessionView) -> Option<Outcome>) -> Vec<Outcome> {
    let Some(status) = facts.status() else {
        return Vec::new();
    };
    let problems = status.sessions.iter();
    let problems: Vec<Outcome> = problems
        .filter_map(|session| Some(judge(session)?.of(session.name.clone())))
        .collect();
    if problems.is_empty() { vec![Outcome::ok(fine)] } else { problems }
}

pub(super) fn stuck(facts: &Facts) -> Vec<Outcome> {
    of_sessions(facts, "every session gives the card back when it is asked to", |session| {
        match &session.lock {
            LockView::Dropping { stuck: true, reason, .. } => Some(Outcome::warning(
                format!("does not give the card back: {reason}"),
                "`gpushare-ctl session show` lists its processes; end the one that hangs, or set stuck_policy",
            )),
            _ => None,
        }
    })
}

pub(super) fn unknown(facts: &Facts) -> Vec<Outcome> {
    of_sessions(facts, "all driver functions of the processes are known", |session| {
        let functions = session.clients.iter().flat_map(|client| &client.unknown_functions);
        let functions: BTreeSet<&String> = functions.collect();
        (!functions.is_empty()).then(|| {
            Outcome::warning(
                format!("uses driver functions that gpushare does not know: {}", list(functions)),
                "install a newer gpushare; a call of one of them bypasses quota and gate",
            )
        })
    })
}

pub(super) fn locks(facts: &Facts) -> Vec<Outcome> {
    let named = facts.var(LOCK_DIR).map(PathBuf::from);
    let folder = named.unwrap_or_else(|| facts.root.at(SYSTEM_LOCK_DIR));
    let shown = folder.display().to_string();
    let folder_outcome = match folder.metadata() {
        // A container that has only the tenant's folder.
        Err(_) if facts.answering().is_some() => {
            Outcome::skipped("missing; the daemon that answers has its lock files elsewhere")
        }
        Err(cause) => Outcome::error(
            format!("the folder is missing ({cause}): no daemon can take a card"),
            format!("make it (`sudo mkdir -m 1777 {shown}`), or start the daemon with --lock-dir"),
        ),
        Ok(found) if !found.is_dir() => Outcome::error(
            "is not a folder",
            "start the daemon with --lock-dir and a folder that it may write to",
        ),
        Ok(found) => {
            let mode = found.mode() & 0o7777;
            match accessat(CWD, &folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
                Ok(()) => Outcome::ok(format!("mode {mode:o}")),
                // A daemon that answers has the locks.
                Err(_) if facts.answering().is_some() => {
                    Outcome::ok(format!("mode {mode:o}; the daemon holds the locks of its cards"))
                }
                Err(_) => Outcome::error(
                    format!(
                        "not writable for this user (mode {mode:o}): a daemon of this user could not take a card"
                    ),
                    "set GPUSHARE_LOCK_DIR to a folder that all daemons of this machine can write to",
                ),
            }
        }
    };
    let mut outcomes = vec![folder_outcome.of(shown)];
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut holders: Vec<(String, String, bool)> = entries
        .filter_map(|entry| {
            let card = entry.file_name().to_str()?.strip_prefix("gpushare-")?.to_owned();
            let pid = std::fs::read_to_string(entry.path());
            // Only root can open the lock file of a daemon of root.
            let hidden = pid.as_ref().is_err_and(|cause| cause.kind() == ErrorKind::PermissionDenied);
            Some((card, pid.unwrap_or_default().trim().to_owned(), hidden))
        })
        .collect();
    holders.sort();
    for (card, pid, hidden) in holders {
        let known = facts
            .answering()
            .is_some_and(|(_, peer)| peer.pid.to_string() == pid || peer.pid == 0);
        let lives =
            Facts::proc_is_ours() && pid.parse::<u32>().is_ok_and(|pid| !gpushare_sys::process::is_dead(pid));
        outcomes.push(
            match (known, lives) {
                (true, _) => Outcome::ok("the daemon holds it"),
                _ if hidden => Outcome::ok("the lock file of a daemon of root, which only root can read"),
                (false, true) => Outcome::warning(
                    format!("another daemon holds it (pid {pid}), which does not answer here"),
                    "name its folder with --runtime-dir, or stop it: a card has one daemon",
                ),
                (false, false) => Outcome::ok("left by a daemon that died; the next daemon takes it over"),
            }
            .of(card),
        );
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixListener;

    use gpushare_proto::names::{COMPUTE_LIMIT, REQUIRED, RuntimeDir, TOKEN_FILE};
    use gpushare_proto::tenant::Failure;
    use gpushare_sys::peer::Peer;

    use super::super::super::model::Severity::{Error, Ok, Skipped, Warning};
    use super::*;

    fn facts(root: &Path) -> Facts {
        let mut facts = Facts::bare(root);
        let dir = RuntimeDir::new(root.join("run"));
        facts.daemons.push(DaemonFacts {
            tenant: Err(ClientError::Absent(dir.tenant_socket())),
            admin: Err(ClientError::Absent(dir.admin_socket())),
            freezing: None,
            kept_warm: Vec::new(),
            dir,
        });
        facts
    }

    #[test]
    fn without_a_daemon_there_must_be_one_to_start() {
        let root = tempfile::tempdir().unwrap();
        let mut facts = facts(root.path());
        assert_eq!(program(&facts)[0].severity, Error);
        assert_eq!(tenant(&facts)[0].severity, Ok);
        facts.scheduler = Result::Ok("/usr/bin/gpushare-scheduler".into());
        assert_eq!(program(&facts)[0].severity, Ok);
    }

    #[test]
    fn a_daemon_that_is_required_and_not_there_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        for (name, value) in [(REQUIRED, "1"), (TOKEN_FILE, "/x"), (COMPUTE_LIMIT, "20%")] {
            let mut facts = facts(root.path());
            facts.set(name, value);
            let outcomes = tenant(&facts);
            assert_eq!(outcomes.len(), 2);
            assert!(outcomes[1].severity == Error && outcomes[1].finding.contains(name), "{outcomes:?}");
        }
    }

    #[test]
    fn a_stale_socket_is_told_from_none() {
        let root = tempfile::tempdir().unwrap();
        let facts = facts(root.path());
        let dir = &facts.daemons[0].dir;
        fs::create_dir_all(dir.tenant_dir()).unwrap();
        drop(UnixListener::bind(dir.tenant_socket()).unwrap());
        let [outcome] = &tenant(&facts)[..] else { panic!() };
        assert!(outcome.severity == Warning && outcome.finding.contains("is stale"), "{outcome:?}");
    }

    #[test]
    fn a_socket_that_is_closed_to_this_user_is_an_error_for_tenants_only() {
        let root = tempfile::tempdir().unwrap();
        let mut facts = facts(root.path());
        facts.daemons[0].tenant = Err(ClientError::Denied("/run/x".into()));
        facts.daemons[0].admin = Err(ClientError::Denied("/run/y".into()));
        assert_eq!(tenant(&facts)[0].severity, Error);
        assert_eq!(admin(&facts)[0].severity, Skipped);
        facts.daemons[0].admin = Err(ClientError::Refused(Failure {
            code: FailureCode::Permission,
            message: "user 7 may not".into(),
        }));
        assert_eq!(admin(&facts)[0].severity, Skipped);
    }

    #[test]
    fn what_the_status_tells_is_judged() {
        use gpushare_proto::admin::{ClientView, DaemonView, SessionState, Status};
        use gpushare_proto::{ClientId, GateState, Nanos, SessionId};
        let root = tempfile::tempdir().unwrap();
        let mut facts = facts(root.path());
        assert!(stuck(&facts).is_empty() && recovering(&facts).is_empty() && build(&facts).is_empty());
        let lock = LockView::Dropping { tries: 3, stuck: true, reason: "work in flight".into() };
        let mut status = Status {
            daemon: DaemonView {
                version: env!("CARGO_PKG_VERSION").into(),
                pid: 1,
                uptime_ns: Nanos(1),
                recovering: 0,
            },
            gpus: Vec::new(),
            sessions: vec![SessionView {
                session: SessionId(1),
                name: "train".into(),
                implicit: false,
                memory_limit_bytes: None,
                state: SessionState::default(),
                gpus: Vec::new(),
                clients: vec![ClientView {
                    client: ClientId(1),
                    pid: 7,
                    gate: GateState::Open,
                    waiting: false,
                    evictable: false,
                    unknown_functions: vec!["cuConjure".into(), "cuConjure".into(), "cuAscend (14.0)".into()],
                }],
                lock,
                waited_ns: Nanos(0),
                held_ns: Nanos(0),
                refusals: 0,
            }],
        };
        facts.daemons[0].admin = Result::Ok(Box::new(status.clone()));
        assert_eq!(build(&facts)[0].severity, Ok);
        assert_eq!(recovering(&facts)[0].severity, Ok);
        let [outcome] = &stuck(&facts)[..] else { panic!() };
        assert_eq!(
            (outcome.severity, outcome.subject.as_deref(), &*outcome.finding),
            (Warning, Some("train"), "does not give the card back: work in flight")
        );
        let [outcome] = &unknown(&facts)[..] else { panic!() };
        assert_eq!(
            (outcome.severity, &*outcome.finding),
            (Warning, "uses driver functions that gpushare does not know: cuAscend (14.0), cuConjure")
        );
        status.daemon.recovering = 1;
        status.daemon.version = "0.0.1".into();
        status.sessions.clear();
        facts.daemons[0].admin = Result::Ok(Box::new(status));
        assert_eq!(stuck(&facts)[0].severity, Ok);
        assert_eq!(unknown(&facts)[0].severity, Ok);
        assert_eq!(recovering(&facts)[0].severity, Warning);
        assert_eq!(build(&facts)[0].severity, Warning);
    }

    #[test]
    fn another_protocol_is_an_error_with_its_remedy() {
        let root = tempfile::tempdir().unwrap();
        let mut facts = facts(root.path());
        facts.daemons[0].tenant = Err(ClientError::Protocol(7));
        facts.daemons[0].admin = Err(ClientError::Protocol(7));
        for check in [tenant, admin] {
            let [outcome] = &check(&facts)[..] else { panic!() };
            assert_eq!(outcome.severity, Error);
            assert!(outcome.finding.ends_with("the other side 7"), "{outcome:?}");
            assert!(outcome.hint.as_ref().unwrap().starts_with("install the same gpushare version"));
        }
    }

    #[test]
    fn a_folder_that_others_could_write_to_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let facts = facts(root.path());
        assert_eq!(folder(&facts)[0].finding, "missing: no daemon has run here");
        let path = facts.daemons[0].dir.root();
        fs::create_dir(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(folder(&facts)[0].severity, Ok);
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(folder(&facts)[0].finding.contains("(mode 777)"));
        fs::remove_dir(path).unwrap();
        fs::write(path, "").unwrap();
        assert_eq!(folder(&facts)[0].finding, "is not a folder");
    }

    #[test]
    fn the_folder_of_the_locks_must_be_writable_and_names_the_holders() {
        let root = tempfile::tempdir().unwrap();
        let mut facts = facts(root.path());
        assert_eq!(locks(&facts)[0].severity, Error);
        let folder = root.path().join("locks");
        fs::create_dir(&folder).unwrap();
        facts.set(LOCK_DIR, folder.clone());
        assert_eq!(locks(&facts)[0].severity, Ok);
        fs::write(folder.join("gpushare-GPU-1"), format!("{}\n", std::process::id())).unwrap();
        let expected = if Facts::proc_is_ours() { Warning } else { Ok };
        assert_eq!(locks(&facts)[1].severity, expected);
        facts.daemons[0].tenant = Result::Ok(Peer { pid: std::process::id(), uid: 0, gid: 0 });
        assert_eq!(locks(&facts)[1].finding, "the daemon holds it");
        facts.set(LOCK_DIR, root.path().join("nowhere"));
        assert_eq!(locks(&facts)[0].severity, Skipped);
        facts.set(LOCK_DIR, folder.clone());
        fs::write(folder.join("gpushare-GPU-2"), "4194304\n").unwrap();
        assert_eq!(locks(&facts)[2].severity, Ok);
    }
}
