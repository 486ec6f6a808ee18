//! Checks of the calling process: user, container, PID namespace, token, visible cards.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use gpushare_proto::Token;
use gpushare_proto::names::{SYSTEM_RUNTIME_DIR, TOKEN_FILE};

use super::super::facts::Facts;
use super::super::model::Outcome;

/// Parts of a control group's path that identify container engines.
const ENGINES: [&str; 6] = ["docker", "kubepods", "libpod", "containerd", "crio", "lxc"];

pub(super) fn user(facts: &Facts) -> Vec<Outcome> {
    let real = rustix::process::getuid().as_raw();
    if real != facts.uid {
        return vec![Outcome::warning(
            format!(
                "user {real} acts as user {}: programs are judged by the latter, and files by both",
                facts.uid
            ),
            "run it as one user, with `sudo -u` if necessary",
        )];
    }
    let map = facts.root.read("/proc/self/uid_map").unwrap_or_default();
    vec![match outside(&map, facts.uid) {
        Some(outside) if outside != facts.uid => Outcome::ok(format!(
            "user {}, which is user {outside} outside of this user namespace; daemons there see that id",
            facts.uid
        )),
        _ => Outcome::ok(format!("user {}", facts.uid)),
    }]
}

/// Returns the id of user `uid` outside the user namespace; `map` has lines `inside outside count`.
fn outside(map: &str, uid: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let numbers: Vec<u32> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [here, there, count] = numbers[..] else {
            return None;
        };
        let within = uid.checked_sub(here).filter(|&place| place < count)?;
        there.checked_add(within)
    })
}

/// Returns the sign by which `doctor` knows that it runs in a container; none outside of one.
fn container_sign(facts: &Facts) -> Option<String> {
    for marker in ["/.dockerenv", "/run/.containerenv"] {
        if facts.root.has(marker) {
            return Some(marker.to_owned());
        }
    }
    let group = facts.root.read("/proc/self/cgroup").unwrap_or_default();
    let engine = ENGINES.iter().find(|engine| group.contains(**engine))?;
    Some(format!("a control group of {engine}"))
}

/// Returns whether a folder is a mount point, as of a folder from outside the container, and not read-only.
fn is_mounted_writable(facts: &Facts, folder: &Path) -> bool {
    let mounts = facts.root.read("/proc/self/mountinfo").unwrap_or_default();
    // The fifth field is the mount point, the sixth its options. A later mount hides an earlier one.
    let options = mounts.lines().rev().find_map(|mount| {
        let mut fields = mount.split(' ').skip(4);
        fields.next().filter(|&point| Path::new(point) == folder)?;
        fields.next()
    });
    options.is_some_and(|options| options.split(',').any(|option| option == "rw"))
}

pub(super) fn container(facts: &Facts) -> Vec<Outcome> {
    let Some(sign) = container_sign(facts) else {
        return vec![Outcome::ok("not a container")];
    };
    vec![match facts.answering() {
        Some((daemon, _)) if is_mounted_writable(facts, &daemon.dir.tenant_dir()) => Outcome::warning(
            format!(
                "a container ({sign}) with write access to {}: its root can listen there itself and read the tokens \
                 of all others",
                daemon.dir.tenant_dir().display()
            ),
            "mount the folder read-only (`:ro`, in Kubernetes `readOnly: true`): programs connect all the same",
        ),
        Some((daemon, _)) => Outcome::ok(format!(
            "a container ({sign}), and the daemon in {} answers",
            daemon.dir.root().display()
        )),
        None => Outcome::warning(
            format!(
                "a container ({sign}) without a daemon: a daemon that is started here does not see other containers"
            ),
            format!(
                "mount the machine's daemon into it: `-v {SYSTEM_RUNTIME_DIR}/tenant:{SYSTEM_RUNTIME_DIR}/tenant:ro` (the folder, not the socket; read-only, else its root can take the daemon's place)"
            ),
        ),
    }]
}

pub(super) fn pid_namespace(facts: &Facts) -> Vec<Outcome> {
    let Some((_, peer)) = facts.answering() else {
        return vec![Outcome::skipped("no daemon answers")];
    };
    if peer.pid == 0 {
        return vec![Outcome::ok(
            "the daemon is outside this PID namespace: it sees other pids for these processes",
        )];
    }
    if !Facts::proc_is_ours() {
        return vec![Outcome::skipped(
            "/proc shows another PID namespace than this one; mount it again to check this",
        )];
    }
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid"));
    vec![match (namespace("self"), namespace(&peer.pid.to_string())) {
        (Ok(ours), Ok(theirs)) if ours == theirs => {
            Outcome::ok("the daemon sees this process by the pid that it has here")
        }
        (Ok(_), Ok(_)) => Outcome::error(
            "the daemon is in a PID namespace below this one: it cannot see this process by a pid",
            "run the daemon on the host, or its container with `--pid=host`",
        ),
        (_, Err(cause)) | (Err(cause), _) => {
            Outcome::skipped(format!("the daemon's PID namespace cannot be read ({cause}); run as root"))
        }
    }]
}

pub(super) fn token(facts: &Facts) -> Vec<Outcome> {
    let Some(path) = facts.var(TOKEN_FILE).map(Path::new) else {
        return vec![Outcome::ok(format!("{TOKEN_FILE} is not set; `gpushare-ctl run` sets it"))];
    };
    vec![judge_token(facts, path).of(path.display().to_string())]
}

fn judge_token(facts: &Facts, path: &Path) -> Outcome {
    let again = "start the program by `gpushare-ctl run`, which makes a new one";
    let found = match path.symlink_metadata() {
        Ok(found) => found,
        Err(cause) => return Outcome::error(format!("is not readable ({cause})"), again),
    };
    let mode = found.mode() & 0o7777;
    if !found.is_file() {
        return Outcome::error("is no file", again);
    }
    if found.uid() != facts.uid && facts.uid != 0 {
        return Outcome::error(format!("belongs to user {}", found.uid()), again);
    }
    if mode & 0o077 != 0 {
        return Outcome::error(
            format!("is open to others (mode {mode:o}): every reader can join your session"),
            format!("run `chmod 600 {}`", path.display()),
        );
    }
    match fs::read_to_string(path) {
        Ok(text) if Token::from_hex(&text).is_some() => Outcome::ok(format!("a token, mode {mode:o}")),
        Ok(_) => Outcome::error("does not contain a token", again),
        Err(cause) => Outcome::error(format!("is not readable ({cause})"), again),
    }
}

pub(super) fn visible(facts: &Facts) -> Vec<Outcome> {
    let judge = |name: &str, hides: fn(&str) -> bool| {
        let value = facts
            .env
            .get(name.as_ref() as &std::ffi::OsStr)
            .map(|value| value.to_string_lossy());
        let outcome = match value {
            None => Outcome::ok("is not set"),
            Some(value) if hides(&value) => Outcome::warning(
                format!("is `{value}`, which hides all cards"),
                format!("unset {name}, or name cards in it"),
            ),
            Some(value) => Outcome::ok(format!("is `{value}`")),
        };
        outcome.of(name)
    };
    vec![
        judge("CUDA_VISIBLE_DEVICES", |value| value.is_empty() || value.starts_with("-1")),
        judge("NVIDIA_VISIBLE_DEVICES", |value| value == "void" || value == "none"),
    ]
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use gpushare_proto::names::RuntimeDir;
    use gpushare_sys::peer::Peer;

    use super::super::super::facts::DaemonFacts;
    use super::super::super::model::Severity::{Error, Ok, Skipped, Warning};
    use super::*;
    use gpushare_connection::ClientError;

    fn answering(facts: &mut Facts, pid: u32) {
        facts.daemons = vec![DaemonFacts {
            dir: RuntimeDir::new("/run/x"),
            tenant: Result::Ok(Peer { pid, uid: 0, gid: 0 }),
            admin: Err(ClientError::Absent("/run/x/admin.sock".into())),
            freezing: None,
            kept_warm: Vec::new(),
        }];
    }

    #[test]
    fn a_user_has_another_number_outside_of_its_namespace() {
        assert_eq!(outside("         0          0 4294967295\n", 7), Some(7));
        assert_eq!(outside("0 100000 65536\n", 7), Some(100_007));
        assert_eq!(outside("0 100000 65536\n", 65_536), None);
        assert_eq!(outside("nonsense", 0), None);
        let root = tempfile::tempdir().unwrap();
        let facts = Facts::bare(root.path());
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        fs::write(root.path().join("proc/self/uid_map"), format!("{} 4242 1\n", facts.uid)).unwrap();
        let [outcome] = &user(&facts)[..] else { panic!() };
        assert!(outcome.severity == Ok && outcome.finding.contains("user 4242 outside"), "{outcome:?}");
    }

    #[test]
    fn a_container_needs_the_machines_daemon() {
        let root = tempfile::tempdir().unwrap();
        let mut facts = Facts::bare(root.path());
        assert_eq!(container(&facts)[0].severity, Ok);
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        fs::write(root.path().join("proc/self/cgroup"), "0::/kubepods/pod1/x\n").unwrap();
        assert_eq!(container(&facts)[0].severity, Warning);
        fs::write(root.path().join(".dockerenv"), "").unwrap();
        assert!(container(&facts)[0].finding.contains("/.dockerenv"));
        answering(&mut facts, 0);
        assert_eq!(container(&facts)[0].severity, Ok);
    }

    #[test]
    fn a_container_must_not_write_where_the_daemon_listens() {
        let root = tempfile::tempdir().unwrap();
        let mut facts = Facts::bare(root.path());
        answering(&mut facts, 0);
        fs::write(root.path().join(".dockerenv"), "").unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        let judge = |mounts: &str| {
            fs::write(root.path().join("proc/self/mountinfo"), mounts).unwrap();
            container(&facts)[0].severity
        };
        let mount = |point: &str, option: &str| {
            format!(
                "97 60 0:25 /gpushare/tenant {point} {option},nosuid,relatime master:5 - tmpfs tmpfs rw\n"
            )
        };
        assert_eq!(judge(&mount("/run/x/tenant", "rw")), Warning);
        assert_eq!(judge(&mount("/run/x/tenant", "ro")), Ok);
        assert_eq!(judge(&mount("/run", "rw")), Ok, "the daemon is in the container too");
        assert_eq!(judge(&(mount("/run/x/tenant", "rw") + &mount("/run/x/tenant", "ro"))), Ok);
    }

    #[test]
    fn the_daemon_must_see_us() {
        let mut facts = Facts::bare("/".as_ref());
        assert_eq!(pid_namespace(&facts)[0].severity, Skipped);
        answering(&mut facts, 0);
        assert!(pid_namespace(&facts)[0].finding.contains("outside this PID namespace"));
        answering(&mut facts, std::process::id());
        let expected = if Facts::proc_is_ours() { Ok } else { Skipped };
        assert_eq!(pid_namespace(&facts)[0].severity, expected);
        answering(&mut facts, u32::MAX);
        assert_eq!(pid_namespace(&facts)[0].severity, Skipped);
    }

    #[test]
    fn a_token_must_be_a_secret() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("token");
        let mut facts = Facts::bare(root.path());
        assert_eq!(token(&facts)[0].severity, Ok);
        facts.set(TOKEN_FILE, path.clone());
        assert_eq!(token(&facts)[0].severity, Error);
        fs::write(&path, "ab".repeat(32)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let [outcome] = &token(&facts)[..] else { panic!() };
        let finding = "is open to others (mode 644): every reader can join your session";
        assert_eq!(outcome.finding, finding);
        assert_eq!(
            (outcome.severity, outcome.hint.clone()),
            (Error, Some(format!("run `chmod 600 {}`", path.display())))
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let [outcome] = &token(&facts)[..] else { panic!() };
        assert_eq!((outcome.severity, &*outcome.finding), (Ok, "a token, mode 600"));
        fs::write(&path, "something else").unwrap();
        assert_eq!(token(&facts)[0].finding, "does not contain a token");
    }

    #[test]
    fn hidden_cards_are_told() {
        let mut facts = Facts::bare("/".as_ref());
        assert!(visible(&facts).iter().all(|outcome| outcome.severity == Ok));
        for value in ["", "-1"] {
            facts.set("CUDA_VISIBLE_DEVICES", value);
            assert_eq!(visible(&facts)[0].severity, Warning);
        }
        facts.set("CUDA_VISIBLE_DEVICES", "0,1");
        facts.set("NVIDIA_VISIBLE_DEVICES", "void");
        assert_eq!(visible(&facts)[0].severity, Ok);
        assert_eq!(visible(&facts)[1].severity, Warning);
    }
}
