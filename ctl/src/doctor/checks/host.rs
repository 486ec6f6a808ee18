//! Checks of the host: memory for data that leaves the cards, limits, clock.

use std::time::{SystemTime, UNIX_EPOCH};

use gpushare_proto::Bytes;
use rustix::process::{Resource, getrlimit};

use super::super::facts::Facts;
use super::super::model::Outcome;

/// Smallest available host memory without a warning; data that leaves the cards needs host memory.
const LITTLE: Bytes = Bytes::gib(2);
/// Default size of `/dev/shm` in containers.
const SMALL_SHM: Bytes = Bytes::mib(64);
/// Point in time before gpushare existed, in seconds since 1970. A clock that is earlier is wrong.
const TOO_EARLY: u64 = 1_735_689_600;
/// Clock sources that a process reads without a system call.
const FAST_CLOCKS: [&str; 5] = ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen"];

pub(super) fn memory(facts: &Facts) -> Vec<Outcome> {
    let Ok(text) = facts.root.read("/proc/meminfo") else {
        return vec![Outcome::skipped("/proc/meminfo is not readable")];
    };
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim_start_matches(':').split_whitespace().next()?.parse().ok()?;
        Some(Bytes(kib << 10))
    };
    let (Some(total), Some(available)) = (field("MemTotal"), field("MemAvailable")) else {
        return vec![Outcome::skipped("/proc/meminfo has no figure of available memory")];
    };
    let hint = "free some: memory of sessions that do not fit the card goes to the host";
    let of = |available: Bytes, finding: String| match available < LITTLE {
        true => Outcome::warning(finding, hint),
        false => Outcome::ok(finding),
    };
    let mut outcomes = vec![of(available, format!("{available} of {total} are available")).of("machine")];
    if let Some((limit, left)) = control_group(facts) {
        outcomes.push(of(left, format!("{left} of {limit} are left")).of("control group"));
    }
    outcomes
}

/// Returns the memory limit of this process's control group, and the unused part of that limit.
fn control_group(facts: &Facts) -> Option<(Bytes, Bytes)> {
    let number = |path: &str| facts.root.read(path).ok()?.trim().parse::<u64>().ok();
    let limit = number("/sys/fs/cgroup/memory.max")?;
    let used = number("/sys/fs/cgroup/memory.current")?;
    Some((Bytes(limit), Bytes(limit.saturating_sub(used))))
}

pub(super) fn shm(facts: &Facts) -> Vec<Outcome> {
    vec![match rustix::fs::statvfs(facts.root.at("/dev/shm")) {
        Err(cause) => Outcome::warning(
            format!(
                "/dev/shm is missing ({cause}): programs that share memory fail, like PyTorch's DataLoader"
            ),
            "mount it: `mount -t tmpfs tmpfs /dev/shm`",
        ),
        Ok(found) => {
            let (size, free) =
                (Bytes(found.f_blocks * found.f_frsize), Bytes(found.f_bavail * found.f_frsize));
            match size <= SMALL_SHM {
                true => Outcome::warning(
                    format!(
                        "/dev/shm has {size}, {free} free: little for programs that share memory, like PyTorch's DataLoader"
                    ),
                    "start the container with `--shm-size 8g` or `--ipc=host`; gpushare itself needs none",
                ),
                false => Outcome::ok(format!("/dev/shm has {size}, {free} free")),
            }
        }
    }]
}

pub(super) fn memlock(facts: &Facts) -> Vec<Outcome> {
    let rdma = !facts.root.list("/sys/class/infiniband").is_empty();
    vec![match getrlimit(Resource::Memlock).current {
        None => Outcome::ok("any amount of memory may be locked"),
        Some(limit) if rdma => Outcome::warning(
            format!(
                "{} may be locked, and there are RDMA devices, which lock the memory that they send",
                Bytes(limit)
            ),
            "set `ulimit -l unlimited`; in a container `--ulimit memlock=-1`",
        ),
        Some(limit) => {
            Outcome::ok(format!("{} may be locked; pinned memory of CUDA does not count", Bytes(limit)))
        }
    }]
}

pub(super) fn clock(facts: &Facts) -> Vec<Outcome> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    if now < TOO_EARLY {
        return vec![Outcome::warning(
            "the clock is not set: times in logs are wrong",
            "set it (`sudo timedatectl set-ntp true`)",
        )];
    }
    let source = facts
        .root
        .read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .unwrap_or_default();
    let source = source.trim();
    vec![match source {
        "" => Outcome::skipped("the clock's source is not known here"),
        _ if FAST_CLOCKS.contains(&source) => Outcome::ok(format!("it is read from {source}")),
        _ => Outcome::warning(
            format!("the clock is {source}, and each reading takes a system call"),
            "`dmesg` shows why the kernel does not use tsc",
        ),
    }]
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::super::model::Severity::{Ok, Skipped, Warning};
    use super::*;

    fn stage(files: &[(&str, &str)]) -> (tempfile::TempDir, Facts) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let facts = Facts::bare(root.path());
        (root, facts)
    }

    #[test]
    fn little_memory_is_a_warning_also_of_the_control_group() {
        let meminfo = "MemTotal:       65536000 kB\nMemFree: 1 kB\nMemAvailable:   32768000 kB\n";
        let (_root, facts) = stage(&[("proc/meminfo", meminfo)]);
        assert_eq!(memory(&facts).len(), 1);
        assert_eq!(memory(&facts)[0].severity, Ok);
        let (_root, facts) = stage(&[
            ("proc/meminfo", &meminfo.replace("32768000", "1024")),
            ("sys/fs/cgroup/memory.max", "4294967296\n"),
            ("sys/fs/cgroup/memory.current", "4294967295\n"),
        ]);
        let found = memory(&facts);
        assert_eq!([found[0].severity, found[1].severity], [Warning, Warning]);
        let (_root, facts) = stage(&[("proc/meminfo", meminfo), ("sys/fs/cgroup/memory.max", "max\n")]);
        assert_eq!(memory(&facts).len(), 1);
        assert_eq!(memory(&stage(&[]).1)[0].severity, Skipped);
    }

    #[test]
    fn a_missing_shared_memory_is_a_warning() {
        assert_eq!(shm(&stage(&[]).1)[0].severity, Warning);
    }

    #[test]
    fn a_slow_clock_is_a_warning() {
        let path = "sys/devices/system/clocksource/clocksource0/current_clocksource";
        for (source, severity) in [("tsc\n", Ok), ("hpet\n", Warning)] {
            assert_eq!(clock(&stage(&[(path, source)]).1)[0].severity, severity);
        }
        assert_eq!(clock(&stage(&[]).1)[0].severity, Skipped);
    }

    #[test]
    fn rdma_devices_want_memory_to_be_locked() {
        let (_root, facts) = stage(&[("sys/class/infiniband/mlx5_0/node", "")]);
        let limited = getrlimit(Resource::Memlock).current.is_some();
        assert_eq!(memlock(&facts)[0].severity == Warning, limited);
        assert_eq!(memlock(&stage(&[]).1)[0].severity, Ok);
    }
}
