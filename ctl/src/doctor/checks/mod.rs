//! The checks: a row each, in the order in which they are read, and docs/doctor.md is made of them.
//!
//! A check is added by adding a row and its function; it looks at the gathered [`Facts`] and nowhere else but at files
//! below their root.

mod caller;
mod cards;
mod daemon;
mod driver;
mod host;
mod libc;
mod limits;
mod platform;
mod preload;

use serde::Serialize;

pub(super) use self::driver::xid_lines;
use super::facts::Facts;
use super::model::Outcome;

/// A row.
#[cfg_attr(not(test), expect(dead_code, reason = "two of the columns are for docs/doctor.md alone"))]
pub(crate) struct Check {
    /// `group.name`, in reports and the JSON document; never changes.
    pub(super) id: &'static str,
    pub(super) group: Group,
    /// What it looks at.
    pub(super) looks_at: &'static str,
    /// When it is a warning or an error.
    pub(super) bad_if: &'static str,
    /// Looks. No outcome at all where there is nothing of the kind.
    pub(super) look: fn(&Facts) -> Vec<Outcome>,
}

/// What belongs together on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Group {
    Driver,
    Cards,
    Platform,
    Libc,
    Preload,
    Daemon,
    Caller,
    Host,
}

impl Group {
    pub(super) const ALL: [Self; 8] = [
        Self::Driver,
        Self::Cards,
        Self::Platform,
        Self::Libc,
        Self::Preload,
        Self::Daemon,
        Self::Caller,
        Self::Host,
    ];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Driver => "The driver",
            Self::Cards => "Cards",
            Self::Platform => "What else has its hands on the cards",
            Self::Libc => "The C library",
            Self::Preload => "The preloaded library",
            Self::Daemon => "The daemon",
            Self::Caller => "Who asks, and from where",
            Self::Host => "The host",
        }
    }
}

macro_rules! checks {
    ($($group:ident { $($id:literal $look:path: $looks_at:literal, $bad_if:literal;)* })*) => {
        /// All of them.
        pub(crate) const CHECKS: &[Check] = &[$($(
            Check { id: $id, group: Group::$group, looks_at: $looks_at, bad_if: $bad_if, look: $look },
        )*)*];
    };
}

checks! {
    Driver {
        "driver.kernel" driver::kernel:
            "the kernel module (`/proc/driver/nvidia/version`)",
            "error: not loaded";
        "driver.library" driver::library:
            "whether `libcuda.so.1` loads, and from where",
            "error: no NVIDIA driver, or a stub";
        "driver.init" driver::init:
            "what `cuInit` answers, in a process of its own with a time limit",
            "error: any failure, a crash, a hang, no card";
        "driver.version" driver::version:
            "the CUDA version that the driver speaks, and whether kernel module and libraries are of one version",
            "error: older than 12.0, or two versions";
        "driver.symbols" driver::symbols:
            "functions that the driver exports and gpushare does not know (docs/symbols.md)",
            "warning: there are some";
        "driver.nvml" driver::nvml:
            "whether `libnvidia-ml.so.1` loads and answers for each card",
            "error: a crash, a hang or a lost card; warning: not there or not willing";
        "driver.uvm" driver::uvm:
            "`/dev/nvidia-uvm`: there, a device, open to this user",
            "error: missing or closed while there is a driver";
        "driver.nodes" driver::nodes:
            "`/dev/nvidiactl` and `/dev/nvidia0`, `1`, …",
            "error: missing or closed while there is a driver";
        "driver.xid" driver::xid:
            "faults of the cards (`Xid`) in the kernel's log since boot",
            "warning: there are some";
    }
    Cards {
        "cards.seen" cards::seen:
            "the cards that the driver shows, with their memory",
            "warning: the driver shows fewer than NVML, without being told to";
        "cards.managed" cards::managed:
            "concurrent managed access: memory may exceed the card and pages move by faults",
            "warning: not supported";
        "cards.vmm" cards::vmm:
            "mapping memory by handle",
            "warning: not supported";
        "cards.fd" cards::posix_fd:
            "passing handles as file descriptors",
            "never";
        "cards.rdma" cards::rdma:
            "GPUDirect RDMA, also of handles",
            "never";
        "cards.host-numa" cards::host_numa:
            "handles of the host's memory (`HOST_NUMA`)",
            "never";
        "cards.backend" cards::backend:
            "which backend results from all that, and why",
            "warning: only `native`";
        "cards.mig" cards::mig:
            "whether a card is cut into instances",
            "warning: a change waits for a reset";
        "cards.vgpu" cards::vgpu:
            "whether a card is a vGPU, passed through, or a host of vGPUs",
            "warning: vGPU or host of vGPUs";
        "cards.compute-mode" cards::compute_mode:
            "whether more than one process may use a card",
            "error: exclusive or prohibited";
        "cards.persistence" cards::persistence:
            "persistence mode",
            "never: a hint only";
    }
    Platform {
        "platform.confidential" platform::confidential:
            "confidential computing",
            "warning: on";
        "platform.mps" platform::mps:
            "NVIDIA's MPS: its control daemon and pipe folder",
            "warning: it runs";
        "platform.wsl" platform::wsl:
            "Windows' subsystem for Linux (`/dev/dxg`, `/proc/version`)",
            "warning: it is";
    }
    Libc {
        "libc.version" libc::version:
            "the newest glibc symbol version that `libgpushare.so` needs, and the one that is here",
            "error: the one here is older";
        "libc.musl" libc::musl:
            "whether this system's C library is musl",
            "error: it is, and there is no glibc";
    }
    Preload {
        "preload.library" preload::library:
            "whether `libgpushare.so` is found, and built for this machine",
            "error: not";
        "preload.build" preload::build:
            "whether it is of this build",
            "warning: not";
        "preload.loads" preload::loads:
            "whether the loader takes it, in a process of its own",
            "error: it does not";
        "preload.environment" preload::environment:
            "the caller's `LD_PRELOAD`",
            "error: gpushare twice; warning: another copy, or files that are not there";
        "preload.system" preload::system:
            "`/etc/ld.so.preload`",
            "error: names a `libgpushare.so` that is not there; warning: names another one than `run` would";
        "preload.secure-exec" preload::secure_exec:
            "whether the loader ignores preloads here",
            "error: it does";
        "preload.program" preload::program:
            "the program of `--program`: found, dynamic, of this C library, without set-uid bits",
            "error: a preload cannot reach it";
    }
    Daemon {
        "daemon.program" daemon::program:
            "whether `gpushare-scheduler` is there to be started",
            "error: it is not and no daemon answers; warning: it is not";
        "daemon.folder" daemon::folder:
            "the runtime folder: owner and permissions",
            "error: foreign, or open to others";
        "daemon.tenant" daemon::tenant:
            "whether a daemon answers on `tenant/scheduler.sock`, and its protocol",
            "error: silent, closed, of another protocol, or none where one is required; warning: a stale socket";
        "daemon.admin" daemon::admin:
            "whether it answers on `admin.sock`",
            "error: as above; skipped: this user may not";
        "daemon.build" daemon::build:
            "whether the daemon is of this build and its program still the installed one",
            "warning: not";
        "daemon.recovering" daemon::recovering:
            "whether it gives grants, or waits for processes of the last daemon",
            "warning: it waits";
        "daemon.stuck" daemon::stuck:
            "sessions that do not let go",
            "warning: there are some";
        "daemon.unknown" daemon::unknown:
            "driver functions that processes were handed and gpushare does not know",
            "warning: there are some";
        "daemon.locks" daemon::locks:
            "the folder of the cards' lock files, and who has them",
            "error: not there or not writable";
    }
    Caller {
        "caller.user" caller::user:
            "the user, here and outside of a user namespace",
            "warning: the effective user is not the real one";
        "caller.container" caller::container:
            "whether this is a container (`/.dockerenv`, `/run/.containerenv`, control group)",
            "warning: it is, and no daemon's folder is mounted";
        "caller.pid-namespace" caller::pid_namespace:
            "whether the daemon sees us by a pid",
            "error: it does not";
        "caller.token" caller::token:
            "the token file: there, ours, mode 0600, a token",
            "error: not";
        "caller.limits" limits::limits:
            "`GPUSHARE_MEMORY_LIMIT` and `GPUSHARE_COMPUTE_LIMIT`",
            "error: no limits, or on no card that is there; warning: on some that are not";
        "caller.visible" caller::visible:
            "`CUDA_VISIBLE_DEVICES` and `NVIDIA_VISIBLE_DEVICES`",
            "warning: they hide all cards";
    }
    Host {
        "host.memory" host::memory:
            "memory that is available, to the machine and to this control group",
            "warning: less than 2 GiB";
        "host.shm" host::shm:
            "the size of `/dev/shm`",
            "warning: 64 MiB or less, or not there";
        "host.memlock" host::memlock:
            "how much memory may be locked (`ulimit -l`)",
            "warning: limited where there are RDMA devices";
        "host.clock" host::clock:
            "the clock's source, and whether it is set",
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
}
