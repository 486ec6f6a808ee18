//! Table of the checks, in the order of the report. docs/doctor.md is generated from it.
//!
//! To add a check, add a row and its function. A check reads only the gathered [`Facts`] and files below their root.

mod caller;
mod cards;
mod daemon;
mod driver;
mod freeze;
mod host;
mod libc;
mod limits;
mod platform;
mod preload;

use serde::Serialize;

pub(super) use self::driver::xid_lines;
use super::facts::Facts;
use super::model::Outcome;

#[cfg_attr(not(test), expect(dead_code, reason = "two of the columns are for docs/doctor.md alone"))]
pub(crate) struct Check {
    /// Name of the check in reports and the JSON document, `group.name`; it never changes.
    pub(super) id: &'static str,
    pub(super) group: Group,
    /// Words for docs/doctor.md that say what the check looks at.
    pub(super) looks_at: &'static str,
    /// Words for docs/doctor.md that say when the check warns or fails.
    pub(super) bad_if: &'static str,
    /// Function that runs the check; returns no result if the machine has nothing to check.
    pub(super) look: fn(&Facts) -> Vec<Outcome>,
}

macro_rules! groups {
    ($($group:ident $title:literal,)*) => {
        /// Group of checks under one heading.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "lowercase")]
        pub(crate) enum Group {
            $($group),*
        }

        impl Group {
            pub(super) const ALL: &[Self] = &[$(Self::$group),*];

            pub(super) const fn title(self) -> &'static str {
                match self {
                    $(Self::$group => $title),*
                }
            }
        }
    };
}

groups! {
    Driver "Driver",
    Cards "Cards",
    Platform "Other users of the cards",
    Libc "C library",
    Preload "Preloaded library",
    Daemon "Daemon",
    Caller "Calling process",
    Host "Host",
}

macro_rules! checks {
    ($($group:ident { $($id:literal $look:path: $looks_at:literal, $bad_if:literal;)* })*) => {
        pub(crate) const CHECKS: &[Check] = &[$($(
            Check { id: $id, group: Group::$group, looks_at: $looks_at, bad_if: $bad_if, look: $look },
        )*)*];
    };
}

checks! {
    Driver {
        "driver.kernel" driver::kernel: "the kernel module (`/proc/driver/nvidia/version`)",
            "error: not loaded";
        "driver.library" driver::library: "whether `libcuda.so.1` loads, and from which file",
            "error: no NVIDIA driver, or a stub";
        "driver.init" driver::init: "result of `cuInit`, in a separate process with a time limit",
            "error: any failure, a crash, a hang, no card";
        "driver.version" driver::version:
            "CUDA version of the driver, and whether kernel module and libraries have the same version",
            "error: older than 12.0, or different versions";
        "driver.symbols" driver::symbols:
            "functions that the driver exports and gpushare does not know (docs/symbols.md)",
            "warning: there are any";
        "driver.freeze" freeze::driver: "functions of the driver that freeze a process (`cuCheckpointProcessLock`, …)",
            "never: a hint only";
        "driver.nvml" driver::nvml: "whether `libnvidia-ml.so.1` loads and answers for each card",
            "error: a crash, a hang or a lost card; warning: missing or failing";
        "driver.uvm" driver::uvm: "`/dev/nvidia-uvm`: exists, is a device, is open to this user",
            "error: missing or closed while there is a driver";
        "driver.nodes" driver::nodes: "`/dev/nvidiactl` and `/dev/nvidia0`, `1`, …",
            "error: missing or closed while there is a driver";
        "driver.xid" driver::xid: "faults of the cards (`Xid`) in the kernel's log since boot",
            "warning: there are any";
    }
    Cards {
        "cards.seen" cards::seen: "cards that the driver shows, with their memory",
            "warning: the driver shows fewer than NVML, and no variable hides them";
        "cards.managed" cards::managed:
            "concurrent managed access: memory may exceed the card and pages move by faults",
            "warning: not supported";
        "cards.vmm" cards::vmm: "mapping memory by handle", "warning: not supported";
        "cards.registration" cards::registration: "registering host memory, for copies at the speed of the bus", "never";
        "cards.fd" cards::posix_fd: "passing handles as file descriptors", "never";
        "cards.rdma" cards::rdma: "GPUDirect RDMA, also of handles", "never";
        "cards.host-numa" cards::host_numa: "handles of the host's memory (`HOST_NUMA`)", "never";
        "cards.backend" cards::backend: "the memory backend of programs that choose none, and why", "warning: only `native`";
        "cards.mig" cards::mig: "whether a card is divided into MIG instances",
            "warning: a change takes effect at the next reset";
        "cards.vgpu" cards::vgpu: "whether a card is a vGPU, passed through, or a host of vGPUs",
            "warning: vGPU or host of vGPUs";
        "cards.compute-mode" cards::compute_mode: "whether more than one process may use a card",
            "error: exclusive or prohibited";
        "cards.persistence" cards::persistence: "persistence mode, without which no session is frozen", "never: a hint only";
    }
    Platform {
        "platform.confidential" platform::confidential: "confidential computing", "warning: on";
        "platform.mps" platform::mps: "NVIDIA's MPS: its control daemon and pipe folder", "warning: it runs";
        "platform.wsl" platform::wsl: "Windows' subsystem for Linux (`/dev/dxg`, `/proc/version`)",
            "warning: present";
    }
    Libc {
        "libc.version" libc::version:
            "the newest glibc symbol version that `libgpushare.so` needs, and the one of this system",
            "error: this system's version is older";
        "libc.musl" libc::musl: "whether this system's C library is musl", "error: musl without glibc";
    }
    Preload {
        "preload.library" preload::library: "whether `libgpushare.so` is found and built for this machine",
            "error: missing, or for another machine";
        "preload.build" preload::build: "whether the library has the version of this `gpushare-ctl`",
            "warning: another version";
        "preload.loads" preload::loads: "whether the loader loads the library, in a separate process",
            "error: it fails";
        "preload.environment" preload::environment: "the caller's `LD_PRELOAD`",
            "error: gpushare twice; warning: another copy, or missing files";
        "preload.system" preload::system: "`/etc/ld.so.preload`",
            "error: names a missing `libgpushare.so`; warning: names another one than `run` preloads";
        "preload.secure-exec" preload::secure_exec: "whether the loader ignores preloads in this process",
            "error: it does";
        "preload.program" preload::program:
            "the program of `--program`: found, dynamic, of this C library, without set-uid bits",
            "error: a preload cannot reach it";
    }
    Daemon {
        "daemon.program" daemon::program: "whether `gpushare-scheduler` is installed",
            "error: missing and no daemon answers; warning: missing";
        "daemon.folder" daemon::folder: "the runtime folder: owner and permissions",
            "error: owned by another user, or writable by others";
        "daemon.tenant" daemon::tenant:
            "whether a daemon answers on `tenant/scheduler.sock`, and its protocol",
            "error: no answer, closed, another protocol, or no daemon although one is required; warning: a stale socket";
        "daemon.admin" daemon::admin: "whether the daemon answers on `admin.sock`",
            "error: as `daemon.tenant`; skipped: this user lacks the permission";
        "daemon.build" daemon::build:
            "whether the daemon has this version, and its program file is still the installed one",
            "warning: either differs";
        "daemon.recovering" daemon::recovering:
            "whether the daemon grants turns, or waits for processes of the last daemon", "warning: it waits";
        "daemon.stuck" daemon::stuck: "sessions that do not give the card back", "warning: there are any";
        "daemon.unknown" daemon::unknown: "driver functions of processes that gpushare does not know",
            "warning: there are any";
        "daemon.freeze" freeze::daemon: "what keeps the daemon from freezing sessions (docs/design/freeze.md)",
            "warning: anything does, although idle sessions are to be frozen (`freeze_after`)";
        "daemon.freeze-sessions" freeze::sessions:
            "what keeps sessions with processes from being frozen: managed memory, IPC, a debugger (the first 8)",
            "never: a hint only";
        "daemon.locks" daemon::locks: "the folder of the cards' lock files, and the holders of the locks",
            "error: missing or not writable";
    }
    Caller {
        "caller.user" caller::user: "the user id, inside and outside of a user namespace",
            "warning: the effective user is not the real one";
        "caller.container" caller::container:
            "whether this is a container (`/.dockerenv`, `/run/.containerenv`, control group)",
            "warning: a container without the daemon's folder, or with write access to it";
        "caller.pid-namespace" caller::pid_namespace: "whether the daemon sees the pid of this process",
            "error: the pid is not visible";
        "caller.token" caller::token:
            "the token file: exists, belongs to this user, has mode 0600, contains a token",
            "error: any of these fails";
        "caller.limits" limits::limits: "`GPUSHARE_MEMORY_LIMIT` and `GPUSHARE_COMPUTE_LIMIT`",
            "error: not a limit, or only on missing cards; warning: on some missing cards";
        "caller.visible" caller::visible: "`CUDA_VISIBLE_DEVICES` and `NVIDIA_VISIBLE_DEVICES`",
            "warning: they hide all cards";
    }
    Host {
        "host.memory" host::memory: "available memory of the machine and of this control group",
            "warning: less than 2 GiB";
        "host.shm" host::shm: "the size of `/dev/shm`", "warning: 64 MiB or less, or missing";
        "host.memlock" host::memlock: "limit on locked memory (`ulimit -l`)",
            "warning: limited on a machine with RDMA devices";
        "host.clock" host::clock: "the clock's source and time",
            "warning: a slow source, or a time in the past";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_is_named_after_its_group_and_once() {
        for check in CHECKS {
            let group = serde_json::to_value(check.group).unwrap();
            let group = group.as_str().unwrap();
            assert!(check.id.starts_with(&format!("{group}.")), "{}", check.id);
            assert_eq!(CHECKS.iter().filter(|other| other.id == check.id).count(), 1);
        }
    }

    #[test]
    fn a_machine_without_anything_is_judged_whole_and_every_fault_says_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let facts = Facts::bare(root.path());
        for check in CHECKS {
            for outcome in (check.look)(&facts) {
                assert!(
                    outcome.severity <= super::super::model::Severity::Ok || outcome.hint.is_some(),
                    "{}: {outcome:?}",
                    check.id
                );
            }
        }
    }

    fn tables() -> String {
        let mut page = String::new();
        for &group in Group::ALL {
            page += &format!("\n## {}\n\n| check | looks at | bad if |\n|---|---|---|\n", group.title());
            for Check { id, looks_at, bad_if, .. } in CHECKS.iter().filter(|check| check.group == group) {
                page += &format!("| `{id}` | {looks_at} | {bad_if} |\n");
            }
        }
        page
    }

    #[test]
    fn the_page_has_the_tables_of_the_checks() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/doctor.md");
        let page = std::fs::read_to_string(path).unwrap();
        let first = format!("\n## {}\n", Group::ALL[0].title());
        let (introduction, _) = page.split_once(&first).unwrap();
        let whole = introduction.to_owned() + &tables();
        if std::env::var_os("GPUSHARE_REGENERATE").is_some() {
            std::fs::write(path, whole).unwrap();
        } else {
            assert!(
                page == whole,
                "docs/doctor.md differs from the table of checks; run `GPUSHARE_REGENERATE=1 cargo test -p gpushare-ctl \
                 doctor::checks` and commit it"
            );
        }
    }
}
