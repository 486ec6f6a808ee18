//! Limits of the host's memory: of the control groups that this process is in, and of the machine.

use std::fs;
use std::path::Path;

use gpushare_proto::Bytes;

/// Places of a hierarchy: prefix of its line in `/proc/self/cgroup`, folder, and names of limit, use, and pages
/// of files in `memory.stat`.
const HIERARCHIES: [(&str, &str, &str, &str, [&str; 2]); 2] = [
    ("0::", "sys/fs/cgroup", "memory.max", "memory.current", ["active_file", "inactive_file"]),
    (
        "memory:",
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ["total_active_file", "total_inactive_file"],
    ),
];

/// Memory of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// All its bytes.
    pub total: Bytes,
    /// Bytes that new programs can have, by the kernel's estimate.
    pub available: Bytes,
}

impl Machine {
    /// Part of the machine's memory that stays free, as `1 / PART`. Several programs may take memory at once.
    const PART: u64 = 64;
    /// Most bytes that stay free.
    const MOST: Bytes = Bytes::gib(4);

    /// Returns the bytes that stay free for others.
    pub fn reserve(self) -> Bytes {
        Bytes(self.total.0 / Self::PART).min(Self::MOST)
    }

    /// Returns the bytes that programs may take.
    pub fn room(self) -> Bytes {
        self.available - self.reserve()
    }
}

/// Returns the memory of the machine, of `/proc/meminfo`; `None` if that cannot be read.
pub fn machine() -> Option<Machine> {
    machine_below(Path::new("/"))
}

/// Returns the memory of the machine by the files below `root`.
pub fn machine_below(root: &Path) -> Option<Machine> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let field = |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(Bytes(kib.saturating_mul(1024)))
    };
    Some(Machine { total: field("MemTotal:")?, available: field("MemAvailable:")? })
}

/// Returns the bytes that the control groups of this process may still take; `None` if no limit is known. The
/// kernel gives pages of files up for others, so these count as free.
pub fn room() -> Option<Bytes> {
    room_below(Path::new("/"))
}

fn room_below(root: &Path) -> Option<Bytes> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let rooms = HIERARCHIES.iter().filter_map(|&(prefix, folder, limit, used, files)| {
        // `number:controllers:path`; version 2 has the number 0 and no controllers.
        let group = groups.lines().find_map(|line| {
            let path = line.split_once(prefix).map(|(_, path)| path);
            path.filter(|_| prefix != "0::" || line.starts_with(prefix))
        })?;
        let own = root.join(folder).join(group.trim_start_matches('/'));
        let folders = own.ancestors().take_while(|path| path.starts_with(root.join(folder)));
        let number = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let pages = |path: &Path| {
            let stat = fs::read_to_string(path.join("memory.stat")).unwrap_or_default();
            let rows = stat.lines().filter_map(|line| line.split_once(' '));
            let of_files = rows.filter(|(name, _)| files.contains(name));
            of_files.filter_map(|(_, bytes)| bytes.parse::<u64>().ok()).sum::<u64>()
        };
        let room = |path: &Path| {
            let limit = number(&path.join(limit))?;
            let taken = number(&path.join(used))?.saturating_sub(pages(path));
            Some(limit.saturating_sub(taken))
        };
        folders.filter_map(room).min()
    });
    rooms.min().map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_group_around_the_process_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(room_below(root.path()), None);
        write("proc/self/cgroup", "0::/a/b\n");
        write("sys/fs/cgroup/a/b/memory.max", "max\n");
        write("sys/fs/cgroup/a/b/memory.current", "10\n");
        assert_eq!(room_below(root.path()), None);
        write("sys/fs/cgroup/a/memory.max", "100\n");
        write("sys/fs/cgroup/a/memory.current", "30\n");
        assert_eq!(room_below(root.path()), Some(Bytes(70)));
        write("sys/fs/cgroup/a/memory.stat", "anon 5\nactive_file 3\ninactive_file 10\nshmem 4\n");
        assert_eq!(room_below(root.path()), Some(Bytes(83)), "pages of files are given up");
        // A container that sees its own group as the root, and the path of the machine.
        write("sys/fs/cgroup/memory.max", "50\n");
        write("sys/fs/cgroup/memory.current", "60\n");
        assert_eq!(room_below(root.path()), Some(Bytes::ZERO));
    }

    #[test]
    fn the_machine_says_what_it_has() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(machine_below(root.path()), None);
        fs::create_dir(root.path().join("proc")).unwrap();
        let text = "MemTotal:        8 kB\nMemFree:         1 kB\nMemAvailable:    2 kB\n";
        fs::write(root.path().join("proc/meminfo"), text).unwrap();
        let machine = Machine { total: Bytes(8192), available: Bytes(2048) };
        assert_eq!(machine_below(root.path()), Some(machine));
        assert_eq!(machine.room(), Bytes(2048 - 128));
        let large = Machine { total: Bytes::gib(2048), available: Bytes::gib(3) };
        assert_eq!((large.reserve(), large.room()), (Bytes::gib(4), Bytes::ZERO));
    }

    #[test]
    fn the_limit_of_the_first_version_counts_too() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/fs/cgroup/memory/a");
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        fs::write(root.path().join("proc/self/cgroup"), "4:memory:/a\n0::/\n").unwrap();
        fs::write(folder.join("memory.limit_in_bytes"), "9\n").unwrap();
        fs::write(folder.join("memory.usage_in_bytes"), "2\n").unwrap();
        assert_eq!(room_below(root.path()), Some(Bytes(7)));
    }
}
