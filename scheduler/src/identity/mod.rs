//! Identity of a peer, as the kernel reports it, and the implicit session that it belongs to.
//!
//! Processes without a token and without a known parent process share a session per user and container.
//! Outside of containers they share one per user and POSIX session. So a fork gains nothing, and the
//! processes of one job stay together.

mod container;
mod lineage;
mod pod;
mod principal;
mod user_groups;
mod watch;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::{fmt, io};

use gpushare_sys::user_namespace::{self, Namespace};
use gpushare_sys::{peer, process};
use serde::{Deserialize, Serialize};

use container::{container, made_by};
pub(crate) use lineage::{Genealogist, KnownLineage};
pub(crate) use pod::is_pod_uid;
pub(crate) use principal::{Principal, User};
pub(crate) use user_groups::UserGroups;
pub(crate) use watch::{Watch, death};

/// Pid and start time of a process. A pid alone may be reused; both together identify one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pub(crate) pid: u32,
    /// Point in time at which the process started, in clock ticks since boot.
    pub(crate) start: u64,
}

impl ProcessId {
    /// Opens a pidfd of the process if the process is still alive.
    pub(crate) fn open(self) -> Option<OwnedFd> {
        process::open(self.pid, self.start)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct PeerProcess {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    /// User id of the accountable user: of the user who made the process's container or user namespace if
    /// that is not root, else `uid`.
    ///
    /// A user with subordinate ids therefore counts once. Container engines make namespaces as root, so users
    /// in their containers stay distinct.
    pub(crate) user: u32,
    /// Pid and start time of the process; `None` if it has no pid in the daemon's namespace.
    pub(crate) id: Option<ProcessId>,
    pub(crate) pidfd: Arc<OwnedFd>,
    /// User and container whose limit counts this connection.
    pub(crate) principal: Principal,
    /// Paths of the control groups of the process when it connected; empty if they are not known.
    pub(crate) groups: Arc<[String]>,
    pub(crate) lineage: KnownLineage,
    /// Control group that counts as the user of the process, in place of its user id.
    user_group: Option<String>,
    /// Name of the process's user namespace if root made it: `userns:` and the number.
    namespace: Option<String>,
    inside: Option<process::Inside>,
}

impl PeerProcess {
    /// Returns the process at the other end of a socket. `user_groups` are the control groups that count as
    /// users.
    pub(crate) fn known_by(user_groups: &UserGroups, socket: impl std::os::fd::AsFd) -> io::Result<Self> {
        let mut peer = Self::of(socket)?;
        // A container is a user already.
        if let User::Uid(_) = peer.principal.user() {
            peer.user_group = user_groups.of(&peer.groups);
        }
        Ok(peer)
    }

    pub(crate) fn of(socket: impl std::os::fd::AsFd) -> io::Result<Self> {
        let peer::Peer { pid, uid, .. } = peer::credentials(&socket)?;
        // The pidfd comes first: as long as its process is alive, the pid still belongs to it.
        let pidfd = peer::pidfd(&socket, pid)?;
        let id = process::start_time(pid).map(|start| ProcessId { pid, start });
        let is_alive = || !peer::is_dead(&pidfd);
        let namespace = user_namespace::outermost(pid).filter(|_| is_alive());
        let groups = principal::groups(pid, is_alive);
        let of_container = made_by(groups.iter().map(String::as_str));
        let (user, namespace) = match (of_container, namespace) {
            (Some(maker), _) => (maker, None),
            // Root makes them for containers, whose users are many.
            (None, Some(Namespace { maker: 0, number })) => (uid, Some(format!("userns:{number}"))),
            (None, Some(Namespace { maker, .. })) => (maker, None),
            (None, None) => (uid, None),
        };
        Ok(Self {
            pid,
            uid,
            user,
            id,
            principal: Principal::new(user, groups.iter().map(String::as_str), namespace.as_deref()),
            groups: groups.into(),
            user_group: None,
            namespace,
            lineage: KnownLineage::default(),
            inside: process::inside(pid, &pidfd),
            pidfd: Arc::new(pidfd),
        })
    }

    /// Returns whether the process is dead.
    pub(crate) fn is_dead(&self) -> bool {
        peer::is_dead(&self.pidfd)
    }

    /// Returns whether the process is dead, or is ending and runs no more code.
    pub(crate) fn is_ending(&self) -> bool {
        let ending = self.id.is_some_and(|id| process::is_ending(id.pid));
        // Checked second: if the process is alive now, the pid belonged to it above.
        self.is_dead() || ending
    }

    /// Returns whether both values certainly describe one process.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.id.is_some() && self.id == other.id
    }

    /// Returns the pid of the process in a PID namespace that `asker` shares, else in the daemon's namespace.
    pub(crate) fn pid_as_seen_by(&self, asker: &Self) -> u32 {
        match (&self.inside, &asker.inside) {
            (Some(own), Some(theirs)) if own.namespace == theirs.namespace => own.pid,
            _ => self.pid,
        }
    }

    /// Returns the user to whom the sessions of the process belong.
    pub(crate) fn owner(&self) -> User {
        match &self.user_group {
            Some(group) => User::Container(group.clone()),
            None => self.principal.user(),
        }
    }

    /// Returns the process as one in a control group that counts as its user.
    #[cfg(test)]
    pub(crate) fn in_user_group(self, group: String) -> Self {
        Self { user_group: Some(group), ..self }
    }

    /// Returns the users whose bindings take the process, the first before the second. In a container that a
    /// user made, this is that user alone, since root there can become others.
    pub(crate) fn users(&self) -> [u32; 2] {
        let maker = made_by(self.groups.iter().map(String::as_str));
        [maker.unwrap_or(self.uid), self.user]
    }

    /// Returns the UID of the Kubernetes pod that the process is in.
    pub(crate) fn pod(&self) -> Option<String> {
        self.groups.iter().find_map(|group| Some(pod::pod_of(group)?.uid))
    }

    /// Returns the control group of the container that the process is in, else the name of the user namespace
    /// that root made for it; `None` outside of containers.
    fn container(&self) -> Option<&str> {
        let by_group = self.groups.iter().find_map(|group| container(group));
        by_group.or(self.namespace.as_deref())
    }
}

/// Key of an implicit session. Processes without a token and with equal keys share the session.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ImplicitKey {
    pub(crate) uid: u32,
    pub(crate) scope: Scope,
}

/// Container of a process, or outside of containers its POSIX session (a login or a job), in the control
/// group that counts as its user if there is one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scope {
    Container(String),
    PosixSession(u32),
    InUserGroup { group: String, session: u32 },
}

impl ImplicitKey {
    /// Returns the user of the session.
    pub(crate) fn user(&self) -> User {
        match &self.scope {
            Scope::InUserGroup { group, .. } => User::Container(group.clone()),
            Scope::Container(group) => User::of_scope(self.uid, Some(group)),
            Scope::PosixSession(_) => User::of_scope(self.uid, None),
        }
    }
}

impl fmt::Display for ImplicitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.scope {
            Scope::Container(path) => write!(f, "user {}, container {path}", self.uid),
            Scope::PosixSession(session) => write!(f, "user {}, POSIX session {session}", self.uid),
            Scope::InUserGroup { group, session } => {
                write!(f, "user {}, group {group}, POSIX session {session}", self.uid)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_peer_in_the_same_pid_namespace_is_told_the_pid_there() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let own = PeerProcess::of(&ours).unwrap();
        let inside = |namespace: &str, pid| PeerProcess {
            inside: Some(process::Inside { namespace: namespace.into(), pid }),
            ..own.clone()
        };
        let process = inside("pid:[1]", 7);
        assert_eq!(process.pid_as_seen_by(&inside("pid:[1]", 9)), 7);
        assert_eq!(process.pid_as_seen_by(&inside("pid:[2]", 9)), own.pid);
        assert_eq!(process.pid_as_seen_by(&PeerProcess { inside: None, ..own.clone() }), own.pid);
    }

    #[test]
    fn each_job_in_a_group_that_counts_as_a_user_is_a_session_of_that_user() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let group = "/system.slice/jupyter-ana.service";
        let peer = PeerProcess { user_group: Some(group.into()), ..PeerProcess::of(&ours).unwrap() };
        let ana = User::Container(group.into());
        assert_eq!(User::named(group), Some(ana.clone()), "as `set weight --user` names it");
        assert_eq!(peer.owner(), ana);
        let key = |session| ImplicitKey {
            uid: peer.user,
            scope: Scope::InUserGroup { group: group.into(), session },
        };
        assert_eq!([key(7).user(), key(8).user()], [ana.clone(), ana]);
        assert_ne!(key(7), key(8));
    }

    /// Variable with the socket to which the process of another test connects.
    const SOCKET: &str = "GPUSHARE_TEST_SOCKET";

    #[test]
    fn a_process_in_a_user_namespace_is_its_makers_or_in_a_container() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let test = "identity::tests::a_process_that_connects";
        let mut child = Command::new("unshare")
            .args(["--user", "--map-root-user"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored"])
            .env(SOCKET, &path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        listener.set_nonblocking(true).unwrap();
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(_) if child.try_wait().unwrap().is_some() => {
                    eprintln!("skipped: this machine does not allow user namespaces");
                    return;
                }
                Err(_) => std::thread::yield_now(),
            }
        };
        let user = PeerProcess::of(&stream).unwrap().principal.user();
        drop(stream);
        child.wait().unwrap();
        let own = rustix::process::geteuid();
        match own.is_root() {
            true => assert!(matches!(&user, User::Container(name) if name.starts_with("userns:")), "{user}"),
            false => assert_eq!(user, User::Uid(own.as_raw())),
        }
    }

    #[test]
    #[ignore = "started by another test"]
    fn a_process_that_connects() {
        let socket = std::env::var_os(SOCKET).unwrap();
        let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
        io::copy(&mut stream, &mut io::sink()).unwrap();
    }

    #[test]
    fn a_process_is_found_by_pid_and_start_time() {
        let pid = std::process::id();
        let start = process::start_time(pid).unwrap();
        assert!(ProcessId { pid, start }.open().is_some());
        let start = start + 1;
        assert!(ProcessId { pid, start }.open().is_none());
    }
}
