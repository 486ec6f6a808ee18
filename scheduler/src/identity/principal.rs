//! The principal of a process: its user together with its container, if it is in one.
//!
//! Limits count by principal. Root in a container without a user namespace has user id 0, like the system's
//! daemon, and can become any other user. So all users of a container are one principal. Only in the daemon's
//! own container is each user one. The kernel may not say which container a process is in (another PID
//! namespace, or the process has died). All such processes of a user are one principal.
//!
//! A user namespace that root made is a container too, whatever its control group is called: its root can
//! become each of its users.
//!
//! Containers that are made in a user's own slice are that user, who may make them at will. All containers
//! that one service makes are one principal.

use std::fmt;
use std::sync::LazyLock;

use gpushare_sys::process;
use serde::{Deserialize, Serialize};

use super::container::{container, made_by, maker, pod};

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Location {
    Outside,
    /// Path of the control group of the container, or of the service that made it; else the name of the
    /// container's user namespace.
    Container(String),
    Unknown,
}

/// User outside of containers or beside the daemon, or a container with all its users. All processes of a
/// principal count together.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Principal {
    /// User id; 0 for a container other than the daemon's, with all its users.
    uid: u32,
    at: Location,
}

/// Location of the daemon itself.
static OWN: LazyLock<Location> = LazyLock::new(|| {
    let groups = process::cgroups(std::process::id());
    Location::of(groups.iter().map(String::as_str))
});

impl Location {
    /// Returns the location of a process by the paths of its control groups.
    fn of<'a>(groups: impl IntoIterator<Item = &'a str>) -> Self {
        let mut groups = groups.into_iter().peekable();
        let is_known = groups.peek().is_some();
        match groups.find_map(container) {
            Some(container) => Self::Container(maker(container).to_owned()),
            None if is_known => Self::Outside,
            None => Self::Unknown,
        }
    }
}

impl Principal {
    #[cfg(test)]
    pub(crate) fn of(uid: u32, pid: u32, is_alive: impl FnOnce() -> bool) -> Self {
        Self::in_groups(uid, groups(pid, is_alive).iter().map(String::as_str))
    }

    /// Returns the principal of the daemon itself.
    pub(crate) fn own() -> Self {
        let groups = process::cgroups(std::process::id());
        let maker = made_by(groups.iter().map(String::as_str));
        Self::at(maker.unwrap_or(rustix::process::geteuid().as_raw()), OWN.clone(), &OWN)
    }

    /// Returns the principal of a user's process by the paths of its control groups, and by the name of its
    /// user namespace if root made that.
    pub(super) fn new<'a>(
        uid: u32,
        groups: impl IntoIterator<Item = &'a str>,
        namespace: Option<&str>,
    ) -> Self {
        let at = match (Location::of(groups), namespace) {
            (container @ Location::Container(_), _) => container,
            (_, Some(namespace)) => Location::Container(namespace.to_owned()),
            (at, None) => at,
        };
        Self::at(uid, at, &OWN)
    }

    /// Returns the principal of a user's process by the paths of its control groups.
    #[cfg(test)]
    pub(crate) fn in_groups<'a>(uid: u32, groups: impl IntoIterator<Item = &'a str>) -> Self {
        Self::new(uid, groups, None)
    }

    /// Returns the principal that a daemon at `own` sees in a user's process in control group `group`.
    #[cfg(test)]
    pub(crate) fn seen_from(own: Option<&str>, uid: u32, group: Option<&str>) -> Self {
        Self::at(uid, Location::of(group), &Location::of(own))
    }

    fn at(uid: u32, at: Location, own: &Location) -> Self {
        let is_elsewhere = matches!(at, Location::Container(_)) && at != *own;
        Self { uid: if is_elsewhere { 0 } else { uid }, at }
    }

    /// Returns the user that the processes of the principal belong to, if none of them is in a control group
    /// that counts as a user. [`super::PeerProcess::owner`] looks at both.
    pub(super) fn user(&self) -> User {
        match &self.at {
            Location::Outside => User::Uid(self.uid),
            Location::Container(group) => User::Container(pod(group).to_owned()),
            Location::Unknown => User::Unlocated(self.uid),
        }
    }

    /// Returns whether the kernel reported the container of the process.
    pub(crate) fn is_located(&self) -> bool {
        self.at != Location::Unknown
    }

    /// Returns whether the process is in the same container as `other`, or both are outside of containers.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        self.is_located() && self.at == other.at
    }
}

/// Returns the paths of the control groups of a process.
///
/// Calls `is_alive` after reading them. If the process is dead by then, its pid may belong to another
/// process, and the groups are not known.
pub(super) fn groups(pid: u32, is_alive: impl FnOnce() -> bool) -> Vec<String> {
    let groups = process::cgroups(pid);
    if is_alive() { groups } else { Vec::new() }
}

/// User among whom time and self-service are divided: a uid outside containers, or a pod or container with
/// everyone in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum User {
    Uid(u32),
    /// Path of the control group of a pod, or of a container outside of pods; else `userns:` and the number
    /// of the container's user namespace.
    Container(String),
    /// User id of processes whose container the kernel did not report.
    Unlocated(u32),
}

impl User {
    /// Returns the user whose sessions have an implicit key.
    pub(crate) fn of_scope(uid: u32, container: Option<&str>) -> Self {
        match container {
            Some(group) => Self::Container(pod(maker(group)).to_owned()),
            None => Self::Uid(uid),
        }
    }

    /// Returns the user as an administrator names it; in words for one that cannot be named.
    pub(crate) fn given(&self) -> String {
        match self {
            Self::Uid(uid) => uid.to_string(),
            Self::Container(group) => group.clone(),
            Self::Unlocated(_) => self.to_string(),
        }
    }

    /// Returns the user that an administrator names: by user id, or by the control group of a container.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name.starts_with('/') || name.starts_with("userns:") {
            true => Some(Self::Container(pod(name.trim_end_matches('/')).to_owned())),
            false => Some(Self::Uid(name.parse().ok()?)),
        }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uid(uid) => write!(f, "user {uid}"),
            Self::Container(group) => write!(f, "container {group}"),
            Self::Unlocated(uid) => write!(f, "user {uid} in an unknown container"),
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            Location::Outside => write!(f, "user {}", self.uid),
            Location::Container(group) if self.at == *OWN => {
                write!(f, "user {} in container {group}", self.uid)
            }
            Location::Container(group) => write!(f, "container {group}"),
            Location::Unknown => write!(f, "user {} in an unknown container", self.uid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_inside_a_container_are_the_same_principal() {
        let root_in = |group: &str| Principal::in_groups(0, Some(group));
        let docker = "/system.slice/docker-1f2e.scope";
        assert_eq!(root_in(docker), root_in(&format!("{docker}/init")));
        assert_ne!(root_in(docker), root_in("/docker/other"));
        assert_eq!(root_in(docker).to_string(), format!("container {docker}"));
        let beside = root_in("/../9c3b/init/x");
        assert_eq!(beside.to_string(), "container /../9c3b");
        let old_hierarchies = ["/system.slice/containerd.service", "/docker/1f2e", "/docker/1f2e"];
        assert_eq!(Principal::in_groups(0, old_hierarchies), root_in("/docker/1f2e"));
    }

    #[test]
    fn all_containers_of_one_service_are_one_principal() {
        let service = "/machine.slice/systemd-nspawn@box.service";
        let called = |name: &str| Principal::in_groups(0, Some(format!("{service}/{name}/x").as_str()));
        assert_eq!(called("libpod-1.scope"), called("docker/2"));
        assert_eq!(called("init").to_string(), format!("container {service}"));
    }

    #[test]
    fn containers_in_a_users_slice_are_that_user() {
        let manager = "/user.slice/user-1000.slice/user@1000.service";
        let called = |name: &str| Principal::in_groups(1000, Some(format!("{manager}/{name}/x").as_str()));
        for name in ["app.slice", "libpod-1.scope", "docker/2", "app.slice/docker-x.scope"] {
            assert_eq!(called(name), Principal::in_groups(1000, Some("/")));
            assert_eq!(called(name).user(), User::Uid(1000));
        }
    }

    #[test]
    fn a_user_namespace_that_root_made_is_a_container() {
        let system = "/system.slice/payload.service";
        let inside = |uid| Principal::new(uid, Some(system), Some("userns:4026532610"));
        assert_eq!(inside(300_000), inside(301_000));
        assert_eq!(inside(301_000).user(), User::named("userns:4026532610").unwrap());
        assert_ne!(inside(300_000), Principal::in_groups(300_000, Some(system)));
        let docker = Some("/docker/1f2e");
        assert_eq!(Principal::new(0, docker, Some("userns:1")), Principal::in_groups(0, docker));
    }

    #[test]
    fn root_of_a_container_gains_nothing_by_becoming_other_users() {
        let docker = "/system.slice/docker-1f2e.scope";
        assert_eq!(Principal::in_groups(0, Some(docker)), Principal::in_groups(20_001, Some(docker)));
        let beside = |uid| Principal::seen_from(Some(docker), uid, Some(docker));
        assert_ne!(beside(0), beside(1000), "in the daemon's own container");
    }

    #[test]
    fn a_user_is_a_uid_outside_containers_and_a_pod_or_container_inside() {
        let user = |uid, group: &str| Principal::in_groups(uid, Some(group)).user();
        assert_eq!(user(1000, "/user.slice/user-1000.slice/session-3.scope"), User::Uid(1000));
        let docker = "/system.slice/docker-1f2e.scope";
        assert_eq!(user(0, docker), User::Container(docker.to_owned()));
        assert_eq!(user(1000, docker), user(0, docker), "whatever the user id inside");
        let pod = "/kubepods/burstable/pod1";
        assert_eq!(user(0, &format!("{pod}/2")), User::Container(pod.to_owned()));
        assert_eq!(user(0, &format!("{pod}/2")), user(0, &format!("{pod}/3")));
        assert_eq!(User::named("1000"), Some(User::Uid(1000)));
        assert_eq!(User::named(&format!("{pod}/")), Some(User::Container(pod.to_owned())));
        assert_eq!(User::named("ana"), None);
        assert_eq!(Principal::in_groups(7, None).user(), User::Unlocated(7));
    }

    #[test]
    fn control_groups_of_a_dead_process_are_not_believed() {
        let pid = std::process::id();
        assert_eq!(Principal::of(7, pid, || true), Principal { uid: 7, ..Principal::own() });
        assert_eq!(Principal::of(7, pid, || false), Principal::in_groups(7, None));
        assert_eq!(Principal::of(7, 0, || true), Principal::in_groups(7, None));
    }
}
