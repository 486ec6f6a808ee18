//! Finds the Kubernetes pod of a process by the path of its control group.
//!
//! ```text
//!   kubelet's driver   control group of a container
//!   cgroupfs           /kubepods/burstable/podUID/CONTAINER
//!   systemd            /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/CONTAINER
//!   systemd, while     /system.slice/containerd.service/kubepods-burstable-podUID.slice:cri-containerd:CONTAINER
//!   the runtime has    /kubepods-burstable-podUID.slice:cri-containerd:CONTAINER
//!   cgroupfs
//! ```
//!
//! Pods of the class Guaranteed lack `burstable`, and others have `besteffort` in its place. kind begins with
//! `kubelet` (`--cgroup-root`), as `/kubelet.slice/kubelet-kubepods.slice/…`.
//!
//! A service or a user to whom systemd delegates a control group names the groups below it at will. So each
//! group above a pod must be one that only root makes:
//!
//! ```text
//!   path seen from the root of the node    from its first name on, one of the forms above
//!   path seen from a pod                   /../../besteffort/podUID/…: the groups above are the daemon's own
//! ```
//!
//! systemd delegates services and scopes and no slices, and the name of a slice contains its place. The root
//! of the node is where its first process is: a daemon that has a control group namespace of its own sees
//! `/../../..` in its place, and a node that is a container itself has a path before it.

use std::sync::LazyLock;

use gpushare_sys::process;

use super::container::parts;

/// Part of the name of the groups that hold all pods.
const PODS: &str = "kubepods";
/// Groups that hold the pods of one class of service; pods of the class Guaranteed are beside them.
const CLASSES: [&str; 2] = ["burstable", "besteffort"];
/// Group that kind's nodes name as `--cgroup-root`.
const KIND: &str = "kubelet";
/// Suffix of control groups of systemd that only hold other groups.
const SLICE: &str = ".slice";
/// Services of container runtimes, which make groups of containers below their own. Root alone names services.
const RUNTIMES: [&str; 7] = [
    "containerd.service",
    "crio.service",
    "k3s.service",
    "k3s-agent.service",
    "rke2-server.service",
    "rke2-agent.service",
    "snap.microk8s.daemon-containerd.service",
];
/// Groups in which systemd and other init programs put the first process.
const INITS: [&str; 2] = ["/init.scope", "/init"];
/// Largest length of a UID.
const LONGEST_UID: usize = 64;

/// Pod of a control group, as parts of the group's path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pod<'a> {
    pub(super) uid: String,
    /// Path of the pod. Groups of containers whose names contain the pod's slice have no such group above them.
    pub(super) path: &'a str,
    /// Path of the container in the pod, or of the pod.
    pub(super) container: &'a str,
}

/// Returns whether a text may be the UID of a pod: hexadecimal digits in groups.
pub(crate) fn is_pod_uid(uid: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte) || byte == b'-';
    (1..=LONGEST_UID).contains(&uid.len()) && uid.bytes().all(is_part)
}

/// Returns the pod to which a control group of this node belongs.
pub(super) fn pod_of(group: &str) -> Option<Pod<'_>> {
    static NODE: LazyLock<Node> = LazyLock::new(|| Node::of(&process::cgroups(1)));
    NODE.pod(group)
}

/// Paths of the root of the node in the hierarchies of control groups, as the daemon sees them.
#[derive(Debug)]
struct Node {
    roots: Vec<String>,
}

impl Node {
    /// Returns the node whose first process is in `groups`.
    fn of(groups: &[String]) -> Self {
        let root = |group: &String| {
            let above = INITS.iter().find_map(|init| group.strip_suffix(init));
            above.unwrap_or(group).trim_end_matches('/').to_owned()
        };
        Self { roots: groups.iter().map(root).collect() }
    }

    fn pod<'a>(&self, group: &'a str) -> Option<Pod<'a>> {
        let (start, above) = self.place(group)?;
        let names: Vec<(&str, usize)> =
            parts(&group[start..]).skip(1).map(|(name, end)| (name, start + end)).collect();
        let is_seen_from_root = above == 0;
        in_slices(group, &names, above)
            .or_else(|| in_scope_name(group, &names, is_seen_from_root))
            .or_else(|| in_folders(group, &names, is_seen_from_root))
    }

    /// Returns where the names of a path begin, and the number of the groups above them: none for a path from
    /// the root of the node. Returns nothing for a group that is neither in the node nor beside the daemon.
    fn place(&self, group: &str) -> Option<(usize, usize)> {
        let from_root = |root: &&String| {
            let names = group.strip_prefix(root.as_str());
            names.is_some_and(|names| names.starts_with('/') && !names.starts_with("/.."))
        };
        // Of two roots the longer one has the more exact word.
        if let Some(root) = self.roots.iter().filter(from_root).max_by_key(|root| root.len()) {
            return Some((root.len(), 0));
        }
        let ups = ups(group);
        let above = self.roots.iter().map(|root| self::ups(root).saturating_sub(ups)).min()?;
        (ups > 0 && above > 0).then_some((ups * UP.len(), above))
    }
}

/// Name by which a path leads to the group above.
const UP: &str = "/..";

/// Returns how many groups a path leads up before it leads down.
fn ups(group: &str) -> usize {
    parts(group).skip(1).take_while(|(name, _)| *name == "..").count()
}

/// Finds a pod of the systemd driver: every name is a slice and continues that of the slice above, and has as
/// many parts as the slice has groups above it.
fn in_slices<'a>(group: &'a str, names: &[(&'a str, usize)], above: usize) -> Option<Pod<'a>> {
    let mut outer: Option<&str> = None;
    for (place, &(name, end)) in names.iter().enumerate() {
        let slice = name.strip_suffix(SLICE)?;
        let continues = |outer: &str| slice.rsplit_once('-').is_some_and(|(begin, _)| begin == outer);
        if slice.split('-').count() != above + place + 1 || !outer.is_none_or(continues) {
            return None;
        }
        if let Some(uid) = uid_of_slice(slice) {
            return Some(Pod { uid, path: &group[..end], container: container(group, names, place) });
        }
        outer = Some(slice);
    }
    None
}

/// Finds a pod in the name that a runtime without systemd's driver gives to a container of the systemd driver:
/// `SLICE:RUNTIME:CONTAINER`, below the runtime's own service or the root.
fn in_scope_name<'a>(group: &'a str, names: &[(&'a str, usize)], is_seen_from_root: bool) -> Option<Pod<'a>> {
    let is_of_runtime = is_seen_from_root
        && names.first().is_some_and(|(name, _)| *name == "system.slice")
        && names.get(1).is_some_and(|(name, _)| RUNTIMES.contains(name));
    let &(name, end) = names.get(if is_of_runtime { 2 } else { 0 })?;
    let (slice, container) = name.split_once(':')?;
    let uid = uid_of_slice(slice.strip_suffix(SLICE)?)?;
    container.split_once(':')?;
    let path = &group[..end - name.len() + slice.len()];
    Some(Pod { uid, path, container: &group[..end] })
}

/// Finds a pod of the cgroupfs driver.
fn in_folders<'a>(group: &'a str, names: &[(&'a str, usize)], is_seen_from_root: bool) -> Option<Pod<'a>> {
    let is = |place: usize, wanted: &str| names.get(place).is_some_and(|(name, _)| *name == wanted);
    let mut place = usize::from(is_seen_from_root && is(0, KIND));
    match is(place, PODS) {
        true => place += 1,
        // Seen from a pod, the path may begin below.
        false if is_seen_from_root => return None,
        false => {}
    }
    place += usize::from(CLASSES.iter().any(|class| is(place, class)));
    let &(name, end) = names.get(place)?;
    let uid = name.strip_prefix("pod").filter(|uid| is_pod_uid(uid))?.to_owned();
    Some(Pod { uid, path: &group[..end], container: container(group, names, place) })
}

/// Returns the path of the container that follows a pod's place among the names, or of the pod.
fn container<'a>(group: &'a str, names: &[(&'a str, usize)], pod: usize) -> &'a str {
    let end = names
        .get(pod + 1)
        .or_else(|| names.get(pod))
        .map_or(group.len(), |&(_, end)| end);
    &group[..end]
}

/// Returns the UID in the name of a pod's slice, which has `_` for `-` there: `kubepods-burstable-podUID`.
fn uid_of_slice(slice: &str) -> Option<String> {
    let (above, pod) = slice.rsplit_once('-')?;
    let uid = pod.strip_prefix("pod")?.replace('_', "-");
    let class = CLASSES.iter().find_map(|class| above.strip_suffix(class)?.strip_suffix('-'));
    let holder = class.unwrap_or(above);
    let is_kubelets = holder
        .strip_suffix(PODS)
        .is_some_and(|root| root.is_empty() || root.ends_with('-'));
    (is_kubelets && is_pod_uid(&uid)).then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "6f1c2a4e-0b9d-4c1f-9a53-2d1d4b7f0c11";
    const STATIC: &str = "8daa50c3a64c9ff60bb9eab7b44b56fd";

    /// Returns the pod of a group for a daemon that sees the node's first process in `first`.
    fn seen(first: &[&str], group: &str) -> Option<(String, String, String)> {
        let first: Vec<String> = first.iter().map(|&group| group.to_owned()).collect();
        let pod = Node::of(&first).pod(group)?;
        Some((pod.uid, pod.path.to_owned(), pod.container.to_owned()))
    }

    /// Replaces `UID`, and `UNIT` by the UID as systemd's driver writes it.
    fn filled(text: &str) -> String {
        text.replace("UID", UID)
            .replace("UNIT", &UID.replace('-', "_"))
            .replace("STATIC", STATIC)
    }

    #[test]
    fn pods_of_every_driver_runtime_and_class_are_known_by_their_groups() {
        for (first, pod, container) in [
            // cgroupfs: containerd, cri-dockerd, k3s; each class of service; versions 1 and 2.
            ("/", "/kubepods/podUID", "/1f2e"),
            ("/init.scope", "/kubepods/burstable/podUID", "/1f2e"),
            ("/init.scope", "/kubepods/besteffort/podUID", "/1f2e"),
            ("/init.scope", "/kubelet/kubepods/besteffort/podUID", "/1f2e"),
            // systemd: containerd, CRI-O, CRI-O with crun, cri-dockerd.
            ("/init.scope", "/kubepods.slice/kubepods-podUNIT.slice", "/cri-containerd-2.scope"),
            (
                "/init.scope",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUNIT.slice",
                "/crio-2.scope",
            ),
            (
                "/init.scope",
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUNIT.slice",
                "/docker-2.scope",
            ),
            // kind, and another `--cgroup-root`.
            (
                "/init.scope",
                "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/\
                 kubelet-kubepods-besteffort-podUNIT.slice",
                "/cri-containerd-2.scope",
            ),
            ("/", "/a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-podUNIT.slice", "/crio-2.scope"),
            // A runtime without systemd's driver: one group is the pod and the container.
            ("/", "/kubepods-burstable-podUNIT.slice", ":cri-containerd:2"),
            ("/", "/system.slice/containerd.service/kubepods-podUNIT.slice", ":cri-containerd:2"),
            (
                "/init.scope",
                "/system.slice/k3s.service/kubelet-kubepods-besteffort-podUNIT.slice",
                ":cri-containerd:2",
            ),
            // A node in a container, whose group the daemon sees: minikube, kind on version 1, k3d.
            ("/docker/9c3b/init.scope", "/docker/9c3b/kubepods/besteffort/podUID", "/1f2e"),
            (
                "/docker/9c3b",
                "/docker/9c3b/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUNIT.slice",
                "/crio-2.scope",
            ),
            ("/k8s/init", "/k8s/kubepods/podUID", "/1f2e"),
            // A daemon in a pod with a control group namespace of its own. Its own pod is Guaranteed,
            ("/../../..", "/../../podUID", "/1f2e"),
            ("/../../../init.scope", "/../../besteffort/podUID", "/1f2e"),
            // Burstable or BestEffort,
            ("/../../../../init.scope", "/../../podUID", "/1f2e"),
            ("/../../../../init.scope", "/../../../podUID", "/1f2e"),
            ("/../../../../init.scope", "/../../../besteffort/podUID", "/1f2e"),
            // or of the systemd driver, in all classes and on kind,
            ("/../../../init.scope", "/../../kubepods-podUNIT.slice", "/cri-containerd-2.scope"),
            ("/../../../../init.scope", "/../../../kubepods-podUNIT.slice", "/crio-2.scope"),
            (
                "/../../../../init.scope",
                "/../../../kubepods-besteffort.slice/kubepods-besteffort-podUNIT.slice",
                "/cri-containerd-2.scope",
            ),
            (
                "/../../../../../init.scope",
                "/../../kubelet-kubepods-burstable-podUNIT.slice",
                "/cri-containerd-2.scope",
            ),
            // or of a runtime without systemd's driver,
            ("/../../../init.scope", "/../kubepods-besteffort-podUNIT.slice", ":cri-containerd:2"),
            // and a container beside the pods.
            (
                "/../../init.scope",
                "/../../kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUNIT.slice",
                "/cri-containerd-2.scope",
            ),
            ("/../../init.scope", "/../../kubepods/besteffort/podUID", "/1f2e"),
        ] {
            let (pod, container) = (filled(pod), filled(container));
            let is = |container: &str| Some((UID.to_owned(), pod.clone(), format!("{pod}{container}")));
            let group = format!("{pod}{container}");
            assert_eq!(seen(&[first], &group), is(&container), "{group} seen from {first}");
            // The container may choose the names that follow.
            for inside in ["/init", "/container", "/kubepods/pod7/8", "/docker/2"] {
                assert_eq!(seen(&[first], &format!("{group}{inside}")), is(&container), "{group}{inside}");
            }
            if container.starts_with('/') {
                assert_eq!(seen(&[first], &pod), is(""), "{pod} seen from {first}");
            }
        }
    }

    #[test]
    fn static_pods_have_the_hash_of_their_file_as_uid() {
        for group in
            ["/kubepods/burstable/podSTATIC/1", "/kubepods.slice/kubepods-podSTATIC.slice/crio-1.scope"]
        {
            assert_eq!(seen(&["/"], &filled(group)).unwrap().0, STATIC);
        }
    }

    #[test]
    fn a_group_that_root_did_not_make_for_a_pod_is_none() {
        let own = "/../../../../init.scope";
        for (first, group) in [
            // A service, a scope or a user with delegated groups.
            ("/init.scope", "/system.slice/train.service/kubepods/podUID/2"),
            ("/init.scope", "/system.slice/train.service/kubepods/besteffort/podUID/2"),
            ("/init.scope", "/system.slice/train.service/kubepods.slice/kubepods-podUNIT.slice/crio-2.scope"),
            ("/init.scope", "/system.slice/train.service/kubepods-podUNIT.slice:cri-containerd:2"),
            ("/init.scope", "/system.slice/containerd.service/a/kubepods-podUNIT.slice:cri-containerd:2"),
            ("/init.scope", "/containerd.service/kubepods-podUNIT.slice:cri-containerd:2"),
            ("/init.scope", "/system.slice/run-1.scope/kubepods/podUID"),
            (
                "/init.scope",
                "/user.slice/user-7.slice/user@7.service/kubepods.slice/kubepods-podUNIT.slice/2",
            ),
            ("/init.scope", "/user.slice/user-7.slice/user@7.service/app.slice/kubepods/podUID/2"),
            ("/init.scope", "/user.slice/user-7.slice/kubepods/podUID/2"),
            ("/", "/user/ana/0/kubepods/podUID/2"),
            ("/", "/lxc/box/kubepods/podUID/2"),
            ("/", "/docker/1f2e/kubepods/podUID/2"),
            ("/", "/slurm/uid_7/kubepods/podUID/2"),
            // The same, seen by a daemon in a pod.
            (own, "/../../../../system.slice/train.service/kubepods/podUID/2"),
            (own, "/../../../../system.slice/train.service/kubepods-podUNIT.slice:cri-containerd:2"),
            (
                own,
                "/../../../../user.slice/user-7.slice/user@7.service/kubepods.slice/kubepods-podUNIT.slice/2",
            ),
            (own, "/../../../../podUID/2"),
            (own, "/../../../../besteffort/podUID/2"),
            (own, "/../../../../kubepods-podUNIT.slice/2"),
            (own, "/../../../../../kubepods/podUID/2"),
            (own, "/../podUID.service/podUID/2"),
            // Slices at another depth than their names say, or below others than they say.
            (own, "/../../kubepods-besteffort.slice/kubepods-besteffort-podUNIT.slice/2"),
            ("/", "/kubepods-podUNIT.slice/2"),
            ("/", "/system.slice/kubepods-podUNIT.slice/2"),
            ("/", "/kubepods.slice/kubepods-burstable-podUNIT.slice/2"),
            ("/", "/a.slice/a-kubepods.slice/b-kubepods-podUNIT.slice/2"),
            // The daemon's own container, whatever it makes inside.
            (own, "/kubepods/podUID/2"),
            (own, "/"),
            // Not on this node, or no pod.
            ("/docker/9c3b/init.scope", "/kubepods/podUID/2"),
            ("/", "/../../podUID/2"),
            ("/", "/kubepods/besteffort"),
            ("/", "/kubepods"),
            ("/", "/kubepods/podman/2"),
            ("/", "/kubepods/pod/2"),
            ("/", "/kubepods.slice/kubepods-pod.slice/2"),
            ("/", "/kubepods-besteffort.slice:cri-containerd:2"),
            ("/", "/kubepods-podUNIT.slice:2"),
            ("/", "/"),
            ("/", ""),
        ] {
            assert_eq!(seen(&[first], &filled(group)), None, "{group} seen from {first}");
        }
        assert_eq!(seen(&[], &filled("/kubepods/podUID/2")), None, "no first process is known");
    }

    #[test]
    fn hierarchies_may_have_different_roots() {
        let first = ["/docker/9c3b/init.scope", "/"];
        for group in ["/docker/9c3b/kubepods/podUID", "/kubepods/podUID"] {
            assert_eq!(seen(&first, &filled(group)).unwrap().0, UID);
        }
    }
}
