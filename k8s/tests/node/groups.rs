//! Control groups of pods, as the kubelet makes them with systemd's driver and a `--cgroup-root` of its own.

use std::fs;
use std::path::{Path, PathBuf};

/// Places of the hierarchy of control groups, version 2.
const HIERARCHIES: [&str; 2] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];

/// Control groups of one test's pods. Dropping it removes them; their processes must have ended.
#[derive(Debug)]
pub(crate) struct PodGroups {
    /// Group that holds the pods.
    folder: PathBuf,
    /// Name of the kubelet's root.
    root: String,
}

impl PodGroups {
    /// Makes the group that holds the pods. None where this machine does not allow it, which is said.
    pub(crate) fn new(test: &str) -> Option<Self> {
        let root = format!("{test}{}", std::process::id());
        let name = format!("{root}.slice");
        let made = HIERARCHIES.iter().map(Path::new).find_map(|hierarchy| {
            let is_version_2 = hierarchy.join("cgroup.controllers").exists();
            let group = hierarchy.join(&name);
            (is_version_2 && fs::create_dir(&group).is_ok()).then_some(group)
        });
        if made.is_none() {
            eprintln!("skipped: this machine does not allow control groups");
        }
        made.map(|folder| Self { folder, root })
    }

    /// Makes the group of a pod's container, and returns the file that takes its processes.
    pub(crate) fn container(&self, uid: &str) -> anyhow::Result<PathBuf> {
        let (root, uid) = (&self.root, uid.replace('-', "_"));
        let pod = format!("{root}-kubepods.slice/{root}-kubepods-pod{uid}.slice");
        self.group(&format!("{pod}/cri-containerd-1.scope"))
    }

    /// Makes a group as a service makes it that names the groups below its own, and returns the file that takes
    /// its processes. Its name is that of a pod's container.
    pub(crate) fn pretender(&self, uid: &str) -> anyhow::Result<PathBuf> {
        self.group(&format!("train.service/kubepods/pod{uid}/1"))
    }

    /// Makes a group beside the pods, and returns the file that takes its processes.
    pub(crate) fn outside(&self) -> anyhow::Result<PathBuf> {
        self.group("other.slice")
    }

    /// Returns the path of the group that holds the pods, as the kernel names it.
    pub(crate) fn path(&self) -> String {
        format!("/{}.slice", self.root)
    }

    fn group(&self, path: &str) -> anyhow::Result<PathBuf> {
        let group = self.folder.join(path);
        fs::create_dir_all(&group)?;
        Ok(group.join("cgroup.procs"))
    }
}

impl Drop for PodGroups {
    fn drop(&mut self) {
        // The innermost groups go first.
        for depth in (0..=4).rev() {
            for group in groups_at(&self.folder, depth) {
                let _ = fs::remove_dir(group);
            }
        }
    }
}

fn groups_at(folder: &Path, depth: usize) -> Vec<PathBuf> {
    if depth == 0 {
        return vec![folder.to_owned()];
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
    folders.flat_map(|path| groups_at(&path, depth - 1)).collect()
}
