//! Budget for host memory, in which remapped memory lives while it is not on a card.
//!
//! ```text
//!   machine:        MemAvailable + held ─────────┐
//!   control group:  limit − used + held − mapped ┼─ each less an eighth ──────┐
//!                                                                            ├─ least ─▶ HostBudget
//!   --host-budget, host_budget ──────────────────────────────────────────────┘
//! ```
//!
//! `held` is what processes have of it already. The part that is `mapped` at their addresses belongs to the driver and
//! is charged to no control group. The control group is the outermost one that the daemon sees, which
//! contains all programs that it serves: that of the container, if there is one. A program's own control group may be
//! tighter. Then its process refuses the eviction and tells the user (`interposer/core/src/remap/card/room.rs`).

use std::fs;
use std::path::Path;

use gpushare_core::Event;
use gpushare_proto::Bytes;
use gpushare_sys::memory_limit::{self, Machine};

use crate::engine::Engine;

/// Part of the free memory that is left for other programs.
const LEFT: u64 = 8;
/// Bytes beside the machine's reserve that a process leaves when it takes memory, and those that it takes at once.
const SPARE: Bytes = Bytes::mib(512);
/// Part of the budget by which it must change before the decision machine is told.
const CHANGE: u64 = 64;

/// Host memory that the daemon sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    machine: Option<Machine>,
    /// Limit and use of the outermost control group.
    group: Option<(Bytes, Bytes)>,
}

/// Host memory in which processes have remapped memory already.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    all: Bytes,
    /// Part of it that is mapped at the addresses of the processes.
    mapped: Bytes,
}

/// Tells the decision machine the budget, if it has changed and any process has remapped memory or is frozen.
pub(crate) fn budget_if_needed(engine: &mut Engine) {
    let has_remapped = engine.clients.iter().any(|(_, client)| client.remaps);
    if has_remapped || engine.machine.cold_sessions().next().is_some() {
        tell_budget(engine);
    }
}

/// Tells the decision machine the budget, if it has changed.
///
/// While the driver freezes or thaws a process, nobody knows how many of its bytes are in host memory. They count as if
/// all were, so the budget does not rise meanwhile.
pub(crate) fn tell_budget(engine: &mut Engine) {
    let held = Held { all: engine.machine.host_bytes(), mapped: engine.machine.mapped_bytes() };
    let budget = budget(&Seen::now(Path::new("/")), held, engine.settings.host_budget);
    let told = engine.host_budget;
    let budget = if engine.machine.moves_by_driver() {
        without_rise(budget, told)
    } else {
        budget
    };
    let change = budget.max(told.unwrap_or_default()) - budget.min(told.unwrap_or_default());
    if told.is_none() || change > Bytes(budget.0 / CHANGE) {
        engine.host_budget = Some(budget);
        engine.feed(Event::HostBudget { bytes: budget });
    }
}

/// Budget that is no larger than the one that the decision machine knows.
fn without_rise(budget: Bytes, told: Option<Bytes>) -> Bytes {
    budget.min(told.unwrap_or(budget))
}

fn budget(seen: &Seen, held: Held, set: Option<Bytes>) -> Bytes {
    let beside = |all: Bytes, reserve: Bytes| all - Bytes(all.0 / LEFT).max(reserve);
    let of_machine = |machine: Machine| beside(machine.available + held.all, machine.reserve() + SPARE);
    let in_machine = seen.machine.map(of_machine);
    let in_group = seen.group.map(|(limit, used)| limit - used + (held.all - held.mapped));
    let in_group = in_group.map(|all| beside(all, Bytes::ZERO));
    let found = in_machine.into_iter().chain(in_group).min();
    found.into_iter().chain(set).min().unwrap_or_default()
}

impl Seen {
    /// Reads what the kernel says, below `root`.
    fn now(root: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).ok();
        let group = |limit: &str, used: &str, stat: &str| {
            let limit = read(limit)?.trim().parse().ok()?;
            let used: u64 = read(used)?.trim().parse().ok()?;
            // Pages of files are given up first.
            let reclaimable = read(stat).and_then(|stat| field(&stat, "inactive_file ")).unwrap_or(0);
            Some((Bytes(limit), Bytes(used.saturating_sub(reclaimable))))
        };
        Self {
            machine: memory_limit::machine_below(root),
            group: group(
                "sys/fs/cgroup/memory.max",
                "sys/fs/cgroup/memory.current",
                "sys/fs/cgroup/memory.stat",
            )
            .or_else(|| {
                group(
                    "sys/fs/cgroup/memory/memory.limit_in_bytes",
                    "sys/fs/cgroup/memory/memory.usage_in_bytes",
                    "sys/fs/cgroup/memory/memory.stat",
                )
            }),
        }
    }
}

/// Returns the number behind a name in a list of figures.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: fn(u64) -> Bytes = Bytes::gib;

    fn machine(available: u64) -> Option<Machine> {
        Some(Machine { total: GIB(64), available: GIB(available) })
    }

    /// The driver has moved 8 of 70 GiB, which all count as held.
    #[test]
    fn bytes_that_the_driver_is_to_move_do_not_raise_the_budget() {
        let told = budget(&Seen { machine: machine(200), group: None }, Held::default(), None);
        let held = Held { all: GIB(70), mapped: Bytes::ZERO };
        let now = budget(&Seen { machine: machine(192), group: None }, held, None);
        assert!(now > told);
        assert_eq!(without_rise(now, Some(told)), told);
        assert_eq!(without_rise(GIB(3), Some(told)), GIB(3), "other programs may take memory meanwhile");
        assert_eq!(without_rise(now, None), now);
    }

    #[test]
    fn the_tightest_source_is_the_budget() {
        let seen = Seen { machine: machine(32), group: Some((GIB(24), GIB(8))) };
        let none = Held::default();
        assert_eq!(budget(&seen, none, None), GIB(14));
        let held = Held { all: GIB(16), mapped: Bytes::ZERO };
        assert_eq!(budget(&seen, held, None), GIB(28), "what processes hold is part of it");
        assert_eq!(budget(&seen, held, Some(GIB(4))), GIB(4));
        let mapped = Held { mapped: GIB(16), ..held };
        assert_eq!(budget(&seen, mapped, None), GIB(14), "the group is not charged for what is mapped");
        let seen = Seen { machine: machine(16), group: None };
        assert_eq!(budget(&seen, none, Some(GIB(40))), GIB(14));
        let narrow = Seen { machine: machine(4), group: None };
        assert_eq!(budget(&narrow, none, None), Bytes::mib(2560), "processes would leave as much themselves");
        let full = Seen { machine: None, group: Some((GIB(1), GIB(2))) };
        assert_eq!(budget(&full, none, None), Bytes::ZERO);
        assert_eq!(budget(&Seen::default(), none, Some(GIB(4))), GIB(4), "nothing is known");
    }

    #[test]
    fn both_versions_of_control_groups_and_the_machine_are_read() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(Seen::now(root.path()), Seen::default());
        write("proc/meminfo", "MemTotal:  9 kB\nMemAvailable:    2048 kB\n");
        write("sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n");
        write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1024\n");
        let machine = Some(Machine { total: Bytes(9 << 10), available: Bytes::mib(2) });
        let group = Some((Bytes(4096), Bytes(1024)));
        assert_eq!(Seen::now(root.path()), Seen { machine, group });
        write("sys/fs/cgroup/memory.max", "max\n");
        write("sys/fs/cgroup/memory.current", "512\n");
        write("sys/fs/cgroup/memory.stat", "anon 7\ninactive_file 100\n");
        assert_eq!(Seen::now(root.path()), Seen { machine, group }, "no limit");
        write("sys/fs/cgroup/memory.max", "2048\n");
        let group = Some((Bytes(2048), Bytes(412)));
        assert_eq!(Seen::now(root.path()), Seen { machine, group });
    }
}
