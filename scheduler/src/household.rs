//! Whom the daemon counts as one where it limits how many connections somebody may have: a user, in each container by itself.
//!
//! Root in a container without a user namespace is root here, and so is the system's daemon. So the one whose connections are not
//! counted is not a user but a household: the daemon's own user where the daemon itself is, outside of containers or in the same
//! one. The kernel says who is where. Of whom it says nothing (a process of another PID namespace, one that died while it was
//! looked at) nothing is believed: those of a user are counted together.
//!
//! ```text
//!   /system.slice/docker-1f2e.scope/init           the container is /system.slice/docker-1f2e.scope
//!   /kubepods/burstable/pod1/2                     /kubepods/burstable/pod1/2
//!   /../9c3b/init                                  /../9c3b, by a daemon that is in a container itself
//!   /user.slice/user-1000.slice/session-3.scope    none
//! ```
//!
//! Groups inside of a container's are its own to make, so they are cut off: otherwise each would be another container. So are those
//! that a service or a user's own manager makes for containers: all of its containers are one household.

use std::fmt;

use gpushare_sys::process;
use serde::{Deserialize, Serialize};

/// Folders of control groups in which each group is a container, or has such groups.
const FOLDERS: [&str; 4] = ["docker", "lxc", "garden", "libpod_parent"];
/// What the groups of containers have in their names.
const MARKS: [&str; 6] = ["docker-", "libpod-", "crio-", "cri-containerd", "lxc.", "nspawn"];
/// The end of the names of groups that hold other groups only.
const SLICE: &str = ".slice";
/// In whose groups Kubernetes keeps its pods.
const PODS: &str = "kubepods";
/// The end of the names of groups whose inside is left to what runs in them.
const SERVICE: &str = ".service";

/// Where a process is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Whereabouts {
    Outside,
    /// The control group of the container, or of who made it.
    Container(String),
    Unknown,
}

/// A user in one container, or outside of any.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Household {
    uid: u32,
    at: Whereabouts,
}

impl Household {
    /// That of a process of which nobody knows whether its pid is still its own before `is_alive` is asked.
    pub(crate) fn of(uid: u32, pid: u32, is_alive: impl FnOnce() -> bool) -> Self {
        let groups = process::cgroups(pid);
        let believed = is_alive().then_some(&groups);
        Self::at(uid, believed.into_iter().flatten().map(String::as_str))
    }

    /// That of this process.
    pub(crate) fn own() -> Self {
        Self::of(rustix::process::geteuid().as_raw(), std::process::id(), || true)
    }

    /// By the control groups.
    fn at<'a>(uid: u32, groups: impl IntoIterator<Item = &'a str>) -> Self {
        let mut groups = groups.into_iter().peekable();
        let is_known = groups.peek().is_some();
        let at = match groups.find_map(container) {
            Some(container) => Whereabouts::Container(maker(container).to_owned()),
            None if is_known => Whereabouts::Outside,
            None => Whereabouts::Unknown,
        };
        Self { uid, at }
    }
}

/// `user 0 in container /docker/1f2e`.
impl fmt::Display for Household {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            Whereabouts::Outside => write!(f, "user {}", self.uid),
            Whereabouts::Container(group) => write!(f, "user {} in container {group}", self.uid),
            Whereabouts::Unknown => write!(f, "user {} in places unknown", self.uid),
        }
    }
}

/// How much each household may have at a time that costs the daemon descriptors.
#[derive(Clone, Debug)]
pub(crate) struct HouseholdLimit {
    /// The household that is not limited.
    own: Household,
    pub(crate) most: usize,
}

impl HouseholdLimit {
    pub(crate) fn new(most: usize) -> Self {
        Self { own: Household::own(), most }
    }

    /// Whether a household that has so many already may have one more.
    pub(crate) fn allows(&self, household: &Household, has: usize) -> bool {
        let is_own = self.own == *household && self.own.at != Whereabouts::Unknown;
        is_own || has < self.most
    }
}

/// The control group of the container that a group belongs to.
pub(crate) fn container(group: &str) -> Option<&str> {
    match beside(group) {
        None => named(group),
        // No container is a slice.
        Some(slice) if slice.ends_with(SLICE) => named(group).or(Some(slice)),
        // What follows may be the container's own to name.
        container => container,
    }
}

/// A daemon in a container sees no names above its own: of a group outside, all until what lies beside one that it is in itself.
fn beside(group: &str) -> Option<&str> {
    let mut parts = parts(group).skip(1).peekable();
    parts.next_if(|(part, _)| *part == "..")?;
    let beside = parts.find(|(part, _)| *part != "..");
    Some(&group[..beside.map_or(group.len(), |(_, end)| end)])
}

/// The group whose name says that it is a container's.
fn named(group: &str) -> Option<&str> {
    let mut parts = parts(group).peekable();
    while let Some((part, end)) = parts.next() {
        let own = |end: usize| Some(&group[..end]);
        if MARKS.iter().any(|mark| part.contains(mark)) {
            return own(end);
        }
        if FOLDERS.contains(&part) {
            return own(parts.peek().map_or(end, |&(_, end)| end));
        }
        if part.starts_with(PODS) {
            // What a pod has next is a container; what is not in a pod yet counts as a whole.
            let is_pod = |(part, _): &(&str, usize)| part.starts_with("pod") || part.contains("-pod");
            let pod = Some((part, end)).filter(is_pod).or_else(|| parts.find(is_pod));
            let inside = parts.next().or(pod);
            return own(inside.map_or(group.len(), |(_, end)| end));
        }
    }
    None
}

/// Of a container's group, as much as root named: a service that has it inside, else all of it.
fn maker(container: &str) -> &str {
    let service = parts(container).find(|(part, _)| part.ends_with(SERVICE));
    service.map_or(container, |(_, end)| &container[..end])
}

/// The parts of a path, each with where it ends.
fn parts(path: &str) -> impl Iterator<Item = (&str, usize)> {
    path.split('/').scan(0, |start, part| {
        let end = *start + part.len();
        *start = end + 1;
        Some((part, end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCKER: &str = "/system.slice/docker-1f2e.scope";

    #[test]
    fn containers_are_known_by_their_control_group() {
        for path in [
            "/docker/1f2e",
            DOCKER,
            "/kubepods/burstable/pod1/2",
            "/kubepods.slice/kubepods-pod1.slice/cri-containerd-2.scope",
            "/kubepods.slice/kubepods-pod1.slice/2",
            "/kubepods/besteffort",
            "/user.slice/user-1000.slice/libpod-9.scope",
            "/machine.slice/systemd-nspawn@box.service",
            "/lxc.payload.box",
            "/lxc/box",
        ] {
            assert_eq!(container(path), Some(path));
        }
        for path in [
            "/",
            "",
            "/user.slice/user-1000.slice/session-3.scope",
            "/init.scope",
            "/system.slice/docker.service",
        ] {
            assert_eq!(container(path), None, "{path}");
        }
    }

    #[test]
    fn groups_that_a_container_makes_are_no_other_containers() {
        for inside in ["/init", "/a/b/c", "/docker/another", "/kubepods/pod7/8"] {
            for outer in [
                "/docker/1f2e",
                DOCKER,
                "/kubepods/burstable/pod1/2",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/crio-2.scope",
                "/lxc/box",
            ] {
                assert_eq!(container(&format!("{outer}{inside}")), Some(outer));
            }
        }
    }

    /// The system's daemon on the machine itself.
    fn of_the_system() -> HouseholdLimit {
        HouseholdLimit { own: Household::at(0, Some("/system.slice/gpushare-scheduler.service")), most: 9 }
    }

    #[test]
    fn root_in_a_container_is_limited_and_root_of_the_machine_is_not() {
        let limit = of_the_system();
        let root = Household::at(0, Some("/user.slice/user-0.slice/session-1.scope"));
        assert!(limit.allows(&root, 1000));
        let inside = Household::at(0, Some(DOCKER));
        assert!(limit.allows(&inside, 8));
        assert!(!limit.allows(&inside, 9));
        assert_ne!(inside, Household::at(0, Some("/docker/other")));
        assert_eq!(inside, Household::at(0, Some(format!("{DOCKER}/init").as_str())));
        assert_eq!(inside.to_string(), format!("user 0 in container {DOCKER}"));
    }

    #[test]
    fn a_user_who_may_make_control_groups_gets_one_more_place_by_that_and_no_more() {
        let manager = "/user.slice/user-1000.slice/user@1000.service";
        let called = |name: &str| Household::at(1000, Some(format!("{manager}/{name}/x").as_str()));
        assert_eq!(called("libpod-1.scope"), called("docker/2"));
        assert_eq!(called("app.slice"), Household::at(1000, Some("/")));
        let service = "/machine.slice/systemd-nspawn@box.service";
        assert_eq!(Household::at(0, Some(service)).to_string(), format!("user 0 in container {service}"));
    }

    #[test]
    fn a_container_that_only_the_old_hierarchies_name_is_one() {
        let docker = ["/system.slice/containerd.service", "/docker/1f2e", "/docker/1f2e"];
        let inside = Household::at(0, docker);
        assert_eq!(inside, Household::at(0, Some("/docker/1f2e")));
        assert!(!of_the_system().allows(&inside, 9));
    }

    #[test]
    fn to_a_daemon_in_a_container_every_other_container_is_one_though_the_names_on_the_way_are_not_seen() {
        let limit = HouseholdLimit { own: Household::at(0, Some("/")), most: 9 };
        assert!(limit.allows(&Household::at(0, Some("/init")), 1000));
        for (outside, is) in [
            ("/../9c3b", "/../9c3b"),
            ("/../9c3b/docker/x", "/../9c3b"),
            ("/../9c3b/init/x", "/../9c3b"),
            ("/../../podb/2/init", "/../../podb"),
            ("/../../../user.slice/user-0.slice/session-1.scope", "/../../../user.slice"),
            ("/../..", "/../.."),
            ("/../../docker-2.scope/init", "/../../docker-2.scope"),
            ("/../../kubepods-podb.slice/crio-2.scope/x-pod/y", "/../../kubepods-podb.slice/crio-2.scope"),
            (
                "/../../../kubepods-burstable.slice/kubepods-burstable-podb.slice/2/x",
                "/../../../kubepods-burstable.slice/kubepods-burstable-podb.slice/2",
            ),
        ] {
            assert_eq!(container(outside), Some(is));
            assert!(!limit.allows(&Household::at(0, Some(outside)), 9));
        }
    }

    #[test]
    fn who_is_nowhere_is_limited_also_where_the_daemon_does_not_know_where_it_is() {
        let nowhere = Household::at(0, None);
        assert!(!of_the_system().allows(&nowhere, 9));
        let lost = HouseholdLimit { own: nowhere.clone(), most: 9 };
        assert!(!lost.allows(&nowhere, 9));
    }

    #[test]
    fn a_daemon_in_a_container_does_not_limit_its_own_user_there() {
        let limit = HouseholdLimit { own: Household::at(0, Some(DOCKER)), most: 9 };
        assert!(limit.allows(&Household::at(0, Some(DOCKER)), 1000));
        assert!(!limit.allows(&Household::at(0, Some("/docker/other")), 9));
        assert!(!limit.allows(&Household::at(0, Some("/")), 9));
    }

    #[test]
    fn what_was_read_of_a_pid_that_is_anothers_by_now_is_not_believed() {
        let pid = std::process::id();
        assert_eq!(Household::of(7, pid, || true), Household { uid: 7, ..Household::own() });
        assert_eq!(Household::of(7, pid, || false), Household::at(7, None));
        assert_eq!(Household::of(7, 0, || true), Household::at(7, None));
    }
}
