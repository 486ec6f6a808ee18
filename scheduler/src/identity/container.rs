//! Finds the container of a process by the path of its control group.
//!
//! ```text
//!   /system.slice/docker-1f2e.scope/init           container /system.slice/docker-1f2e.scope
//!   /kubepods/burstable/pod1/2                     container /kubepods/burstable/pod1/2
//!   /../9c3b/init                                  container /../9c3b, seen by a daemon in another container
//!   /user.slice/user-1000.slice/session-3.scope    no container
//!   /user.slice/user-1000.slice/…/libpod-9.scope   a container that user 1000 made
//! ```
//!
//! A container itself names the control groups inside its own group. So these names are cut off. Otherwise
//! one container could appear as many. For the same reason a group in a user's own slice is no container,
//! whatever its name: it belongs to that user.

use super::pod::pod_of;

/// Names of control groups in which each child group is a container or holds containers.
const FOLDERS: [&str; 4] = ["docker", "lxc", "garden", "libpod_parent"];
/// Parts of names that mark the control group of a container.
const MARKS: [&str; 6] = ["docker-", "libpod-", "crio-", "cri-containerd", "lxc.", "nspawn"];
/// Suffix of control groups that only hold other groups.
const SLICE: &str = ".slice";
/// Prefix of control groups in which Kubernetes keeps its pods.
const PODS: &str = "kubepods";
/// Suffix of control groups of services, which make their inner groups themselves.
const SERVICE: &str = ".service";
/// Slice in which systemd keeps a slice for each user.
const USERS: &str = "user.slice";
/// Prefix of the slice of one user, in which that user names the groups.
const USER: &str = "user-";

/// Returns the control group of the container to which `group` belongs.
pub(super) fn container(group: &str) -> Option<&str> {
    if let Some(pod) = pod_of(group) {
        return Some(pod.container);
    }
    match (beside(group), owner(group)) {
        (None, Some(_)) => None,
        (None, None) => named(group),
        // The user chooses the names that follow.
        (Some(_), Some((_, slice))) => Some(slice),
        // A slice is no container.
        (Some(slice), None) if slice.ends_with(SLICE) => named(group).or(Some(slice)),
        // The container may choose the names that follow.
        (container, None) => container,
    }
}

/// Returns the user who made the container to which one of `groups` belongs.
pub(super) fn made_by<'a>(groups: impl IntoIterator<Item = &'a str>) -> Option<u32> {
    groups.into_iter().find_map(|group| {
        let (user, _) = owner(group)?;
        named(group).is_some().then_some(user)
    })
}

/// Returns the user in whose own slice a control group is, with the path of that slice. The user names the
/// groups below.
fn owner(group: &str) -> Option<(u32, &str)> {
    let mut names = parts(group).skip(1).skip_while(|(name, _)| *name == "..");
    names.next().filter(|(name, _)| *name == USERS)?;
    let (slice, end) = names.next()?;
    let user = slice.strip_prefix(USER)?.strip_suffix(SLICE)?.parse().ok()?;
    Some((user, &group[..end]))
}

/// Returns the outermost control group that does not hold this daemon. The daemon must see the path relative
/// to its own group.
///
/// A daemon in a container sees `/..` in place of the names above its own group.
fn beside(group: &str) -> Option<&str> {
    let mut parts = parts(group).skip(1).peekable();
    parts.next_if(|(part, _)| *part == "..")?;
    let beside = parts.find(|(part, _)| *part != "..");
    Some(&group[..beside.map_or(group.len(), |(_, end)| end)])
}

/// Returns the path up to the first part that has the name of a container.
fn named(group: &str) -> Option<&str> {
    let mut parts = parts(group).peekable();
    while let Some((part, end)) = parts.next() {
        let up_to = |end: usize| Some(&group[..end]);
        if MARKS.iter().any(|mark| part.contains(mark)) {
            return up_to(end);
        }
        if FOLDERS.contains(&part) {
            return up_to(parts.peek().map_or(end, |&(_, end)| end));
        }
        if part.starts_with(PODS) {
            // A group inside a pod is a container. A path that ends above the pods counts as a whole.
            let pod = Some((part, end)).filter(is_pod).or_else(|| parts.find(is_pod));
            let inside = parts.next().or(pod);
            return up_to(inside.map_or(group.len(), |(_, end)| end));
        }
    }
    None
}

/// Returns the pod to which a container's control group belongs, or that group if it is in no pod.
pub(super) fn pod(container: &str) -> &str {
    if let Some(pod) = pod_of(container) {
        return pod.path;
    }
    let mut parts = parts(container).skip_while(|(part, _)| !part.starts_with(PODS));
    parts.find(is_pod).map_or(container, |(_, end)| &container[..end])
}

/// Whether a part of a path is the name of a pod.
fn is_pod(&(part, _): &(&str, usize)) -> bool {
    part.starts_with("pod") || part.contains("-pod")
}

/// Returns the service that made a container's control group, or that group if its path names no service. The
/// kubelet has pods made, whatever service makes them.
pub(super) fn maker(container: &str) -> &str {
    if pod_of(container).is_some() {
        return container;
    }
    let service = parts(container).find(|(part, _)| part.ends_with(SERVICE));
    service.map_or(container, |(_, end)| &container[..end])
}

/// Returns the parts of a path, each with the offset of its end.
pub(super) fn parts(path: &str) -> impl Iterator<Item = (&str, usize)> {
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
            "/user.slice/user-1000.slice/user@1000.service/app.slice/docker-x.scope",
            "/init.scope",
            "/system.slice/docker.service",
        ] {
            assert_eq!(container(path), None, "{path}");
        }
    }

    #[test]
    fn a_container_in_a_users_slice_is_made_by_that_user() {
        let by = |group| made_by([group]);
        assert_eq!(by("/user.slice/user-1000.slice/user@1000.service/app.slice/docker-x.scope"), Some(1000));
        assert_eq!(by("/user.slice/user-1000.slice/libpod-9.scope"), Some(1000));
        assert_eq!(by("/user.slice/user-1000.slice/session-3.scope"), None, "sudo works there");
        assert_eq!(by("/docker/x/user.slice/user-0.slice/docker-y.scope"), None);
        assert_eq!(made_by(["/", "/user.slice/user-7.slice/docker/x"]), Some(7));
    }

    #[test]
    fn groups_inside_a_container_are_that_container() {
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

    #[test]
    fn a_daemon_in_a_container_sees_the_others_by_relative_paths() {
        for (outside, is) in [
            ("/../9c3b", "/../9c3b"),
            ("/../9c3b/docker/x", "/../9c3b"),
            ("/../9c3b/init/x", "/../9c3b"),
            ("/../../podb/2/init", "/../../podb"),
            ("/../../../user.slice/user-0.slice/session-1.scope", "/../../../user.slice/user-0.slice"),
            (
                "/../../../user.slice/user-7.slice/user@7.service/docker/x",
                "/../../../user.slice/user-7.slice",
            ),
            ("/../../../user.slice/x", "/../../../user.slice"),
            ("/../..", "/../.."),
            ("/../../docker-2.scope/init", "/../../docker-2.scope"),
            ("/../../kubepods-podb.slice/crio-2.scope/x-pod/y", "/../../kubepods-podb.slice/crio-2.scope"),
            (
                "/../../../kubepods-burstable.slice/kubepods-burstable-podb.slice/2/x",
                "/../../../kubepods-burstable.slice/kubepods-burstable-podb.slice/2",
            ),
        ] {
            assert_eq!(container(outside), Some(is));
        }
    }
}
