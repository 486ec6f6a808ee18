//! Control groups of pods, as the kubelet makes them.

use std::fs;
use std::path::{Path, PathBuf};

/// Places of the hierarchy of control groups, version 2.
const HIERARCHIES: [&str; 2] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];

/// Control groups of one test's pods. Dropping it removes them; their processes must have ended.
#[derive(Debug)]
pub(crate) struct PodGroups(PathBuf);

impl PodGroups {
    /// Makes the group that holds the pods. None where this machine does not allow it, which is said.
    pub(crate) fn new(test: &str) -> Option<Self> {
        let name = format!("kubepods-{test}-{}", std::process::id());
        let made = HIERARCHIES.iter().map(Path::new).find_map(|hierarchy| {
            let is_version_2 = hierarchy.join("cgroup.controllers").exists();
            let group = hierarchy.join(&name);
            (is_version_2 && fs::create_dir(&group).is_ok()).then_some(group)
        });
        if made.is_none() {
            eprintln!("skipped: this machine does not allow control groups");
        }
        made.map(Self)
    }

    /// Makes the group of a pod's container, and returns the file that takes its processes.
    pub(crate) fn container(&self, uid: &str) -> anyhow::Result<PathBuf> {
        let group = self.0.join(format!("pod{uid}/main"));
        fs::create_dir_all(&group)?;
        Ok(group.join("cgroup.procs"))
    }
}

impl Drop for PodGroups {
    fn drop(&mut self) {
        // The innermost groups go first.
        for depth in [2, 1, 0] {
            for group in groups_at(&self.0, depth) {
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
