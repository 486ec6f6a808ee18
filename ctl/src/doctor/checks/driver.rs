//! Checks of the driver: kernel module, libraries and devices.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use gpushare_probe::{LIBCUDA, LIBNVML, Loaded};
use rustix::fs::{Access, AtFlags, CWD, OFlags, accessat};

use super::super::child::{Asked, End};
use super::super::facts::Facts;
use super::super::model::Outcome;
use super::super::versions::driver_exports;
use crate::table::count;

const KERNEL_VERSION: &str = "/proc/driver/nvidia/version";
const NO_DRIVER: &str =
    "install NVIDIA's driver; in a container start it with the cards (`docker run --gpus all`, or CDI)";
/// Oldest CUDA version of which gpushare knows all driver functions; 12000 is 12.0.
const OLDEST: i32 = 12_000;
/// `CUDA_ERROR_STUB_LIBRARY`.
const STUB: i32 = 34;
/// Maximum number of unknown driver functions that a check result names.
const NAMED: usize = 8;
/// Maximum number of bytes read from the kernel's log.
const LOG: u64 = 16 << 20;

pub(super) fn kernel(facts: &Facts) -> Vec<Outcome> {
    vec![match module_version(facts) {
        Some(version) => Outcome::ok(format!("the kernel module is version {version}")),
        None if facts.root.has(KERNEL_VERSION) => Outcome::ok("the kernel module is loaded"),
        // WSL has no module, and a driver that answers needs no visible one.
        None if facts.cuda.facts.init == Some(0) => {
            Outcome::skipped("no kernel module is visible, but the driver answers")
        }
        None => Outcome::error(
            format!("no NVIDIA driver: its kernel module is not loaded (no {KERNEL_VERSION})"),
            "install NVIDIA's driver, or run `sudo modprobe nvidia` if it is installed; `dmesg` says why it does not load",
        ),
    }]
}

/// Returns the module's version from the line `NVRM version: NVIDIA UNIX … Kernel Module  580.65.06  …`.
pub(super) fn module_version(facts: &Facts) -> Option<String> {
    let text = facts.root.read(KERNEL_VERSION).ok()?;
    let line = text.lines().find(|line| line.starts_with("NVRM version"))?;
    let is_version =
        |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    line.split_whitespace().find(is_version).map(str::to_owned)
}

pub(super) fn library(facts: &Facts) -> Vec<Outcome> {
    vec![match &facts.cuda.facts.library {
        Some(Loaded::From(path)) if path.contains("/stubs/") => Outcome::error(
            format!("{LIBCUDA} is the toolkit's stub {path}, not a driver"),
            "remove the stubs folder from LD_LIBRARY_PATH and /etc/ld.so.conf.d",
        ),
        Some(Loaded::From(path)) => Outcome::ok(format!("{LIBCUDA} is {path}")),
        Some(Loaded::Not(reason)) => {
            Outcome::error(format!("no NVIDIA driver: {LIBCUDA} does not load ({reason})"), NO_DRIVER)
        }
        None => died(&facts.cuda, LIBCUDA),
    }]
}

pub(super) fn init(facts: &Facts) -> Vec<Outcome> {
    let cuda = &facts.cuda.facts;
    vec![match (&cuda.library, cuda.init) {
        (Some(Loaded::Not(_)), _) => Outcome::skipped("there is no driver to ask"),
        (_, Some(0)) => match (&facts.cuda.end, cuda.count) {
            (End::Finished, Some(0)) => Outcome::error(
                "cuInit succeeds, but the driver shows no card",
                "see caller.visible and driver.nodes; `nvidia-smi -L` lists the cards",
            ),
            (End::Finished, Some(count)) => {
                Outcome::ok(format!("cuInit succeeds, and the driver shows {}", cards(count)))
            }
            (End::Finished, None) => Outcome::error(
                "cuInit succeeds, but the driver does not report the number of cards",
                "reinstall NVIDIA's driver",
            ),
            _ => died(&facts.cuda, LIBCUDA),
        },
        (_, Some(code)) => {
            Outcome::error(format!("cuInit fails with {}", cuda_error(code).0), cuda_error(code).1)
        }
        (_, None) if cuda.missing.is_empty() => died(&facts.cuda, LIBCUDA),
        (_, None) => Outcome::error(
            format!("{LIBCUDA} has no {}: it is not a driver", cuda.missing.join(", ")),
            "reinstall NVIDIA's driver, and check LD_LIBRARY_PATH for another libcuda.so.1",
        ),
    }]
}

fn cards(number: i32) -> String {
    count(usize::try_from(number).unwrap_or(0), "card")
}

/// Returns the check result for a library that crashed a child process or made it hang.
fn died<F>(asked: &Asked<F>, library: &str) -> Outcome {
    match &asked.end {
        End::Crashed { at, how } => Outcome::error(
            format!("{library} crashes its process in {at} ({how})"),
            "programs will crash there too: reinstall NVIDIA's driver of the kernel module's version; `dmesg` may say more",
        ),
        End::Hung { at, after, unkillable } => {
            let kernel = if *unkillable {
                ", and its process cannot be killed: it hangs in the kernel"
            } else {
                ""
            };
            Outcome::error(
                format!("{library} hangs in {at}: no answer within {after:.0?}{kernel}"),
                "look for Xid lines in `dmesg`, end the programs that use the card, or restart the machine; a slow machine may need a longer --timeout",
            )
        }
        End::Unstarted(cause) => Outcome::error(
            format!("{library} was not asked: no process can be started ({cause})"),
            "check the limit on processes (`ulimit -u`) and the free memory",
        ),
        End::Finished => Outcome::error(format!("{library} gave no answer"), "reinstall NVIDIA's driver"),
    }
}

/// Returns the meaning of an error code of `cuInit`, and advice.
fn cuda_error(code: i32) -> (String, &'static str) {
    let (name, hint) = match code {
        2 => ("CUDA_ERROR_OUT_OF_MEMORY", "free some memory of the host"),
        3 => ("CUDA_ERROR_NOT_INITIALIZED", "load the kernel module: `sudo nvidia-modprobe -u -c 0`"),
        STUB => ("CUDA_ERROR_STUB_LIBRARY", "remove the toolkit's stubs folder from LD_LIBRARY_PATH"),
        46 => (
            "CUDA_ERROR_DEVICE_UNAVAILABLE",
            "a card is in exclusive mode or lost; see cards.compute-mode and driver.nvml",
        ),
        100 => {
            ("CUDA_ERROR_NO_DEVICE", "see caller.visible and driver.nodes; `nvidia-smi -L` lists the cards")
        }
        101 => ("CUDA_ERROR_INVALID_DEVICE", "CUDA_VISIBLE_DEVICES names a missing card; see caller.visible"),
        304 => ("CUDA_ERROR_OPERATING_SYSTEM", "a system call failed: see driver.nodes and `dmesg`"),
        802 => (
            "CUDA_ERROR_SYSTEM_NOT_READY",
            "on machines with NVSwitch start its manager: `sudo systemctl start nvidia-fabricmanager`",
        ),
        803 => (
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            "kernel module and libraries have different versions: restart the machine, or reload the module, after an upgrade",
        ),
        804 => (
            "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
            "remove the folder of the compatibility package (cuda-compat) from LD_LIBRARY_PATH, or upgrade the driver",
        ),
        805..=807 => ("an error of MPS", "restart or stop MPS; see platform.mps"),
        999 => (
            "CUDA_ERROR_UNKNOWN",
            "often /dev/nvidia-uvm is missing or the card fell off the bus: see driver.uvm and `dmesg`",
        ),
        _ => ("CUresult", "look up the number in NVIDIA's CUresult, and look at `dmesg`"),
    };
    (format!("{name} ({code})"), hint)
}

pub(super) fn version(facts: &Facts) -> Vec<Outcome> {
    let Some(speaks) = facts.cuda.facts.version else {
        return vec![Outcome::skipped("no driver reports its version")];
    };
    let cuda = format!("{}.{}", speaks / 1000, speaks % 1000 / 10);
    if speaks < OLDEST {
        return vec![Outcome::error(
            format!("the driver supports CUDA {cuda}, but gpushare needs 12.0"),
            "install driver 525 or newer",
        )];
    }
    let (module, libraries) = (module_version(facts), facts.nvml.facts.driver.clone());
    vec![match (module, libraries) {
        (Some(module), Some(libraries)) if module != libraries => Outcome::error(
            format!("the kernel module is version {module} and the libraries are {libraries}"),
            "restart the machine, or reload the module, after an upgrade; in a container check the source of its libraries",
        ),
        (_, Some(libraries)) => Outcome::ok(format!("driver {libraries} supports CUDA {cuda}")),
        _ => Outcome::ok(format!("the driver supports CUDA {cuda}")),
    }]
}

pub(super) fn symbols(facts: &Facts) -> Vec<Outcome> {
    let Some(Loaded::From(path)) = &facts.cuda.facts.library else {
        return vec![Outcome::skipped("there is no driver to check")];
    };
    let exports = match driver_exports(Path::new(path)) {
        Ok(exports) => exports,
        Err(cause) => return vec![Outcome::skipped(format!("{path} cannot be read ({cause})"))],
    };
    let unknown: Vec<&str> = exports
        .iter()
        .map(String::as_str)
        .filter(|export| gpushare_symbols::disposition(export).is_none())
        .collect();
    vec![match &unknown[..] {
        [] => Outcome::ok(format!("all {} functions of the driver are known", exports.len())),
        some => Outcome::warning(
            format!(
                "{} of {} functions of the driver are unknown: {}{}",
                some.len(),
                exports.len(),
                some[..some.len().min(NAMED)].join(", "),
                if some.len() > NAMED { ", …" } else { "" }
            ),
            "install a newer gpushare; a call of one of them bypasses quota and gate",
        ),
    }]
}

pub(super) fn nvml(facts: &Facts) -> Vec<Outcome> {
    let nvml = &facts.nvml.facts;
    let first = match (&nvml.library, nvml.init) {
        (Some(Loaded::Not(_)), _) if !facts.has_driver() => {
            return vec![Outcome::skipped("there is no driver to ask")];
        }
        (Some(Loaded::Not(reason)), _) => Outcome::warning(
            format!("{LIBNVML} does not load ({reason}): the daemon knows cards only by their first process"),
            "install the driver's utilities; in a container add `utility` to NVIDIA_DRIVER_CAPABILITIES",
        ),
        (_, Some(0)) if facts.nvml.end == End::Finished => {
            Outcome::ok(format!("NVML answers and knows {}", cards(nvml.count.unwrap_or(0))))
        }
        (_, Some(0) | None) => died(&facts.nvml, LIBNVML),
        (_, Some(18)) => Outcome::error(
            "NVML and the kernel module have different versions (NVML_ERROR_LIB_RM_VERSION_MISMATCH)",
            "restart the machine, or reload the module, after an upgrade",
        ),
        (_, Some(code)) => Outcome::warning(
            format!("nvmlInit fails with {code}: the daemon knows cards only by their first process"),
            "run `nvidia-smi`: it fails with the same error and explains it",
        ),
    };
    let mut outcomes = vec![first];
    for (index, card) in nvml.cards.iter().enumerate() {
        if let Some(code) = card.lost {
            outcomes.push(
                Outcome::error(
                    format!(
                        "NVML returns {code} for it{}",
                        if code == 15 { ": it fell off the bus" } else { "" }
                    ),
                    "look for Xid lines in `dmesg`; a lost card needs a reset or a restart of the machine",
                )
                .of(format!("nvml{index}")),
            );
        }
    }
    outcomes
}

pub(super) fn uvm(facts: &Facts) -> Vec<Outcome> {
    vec![node(
        facts,
        "/dev/nvidia-uvm",
        "run `sudo nvidia-modprobe -u -c 0`; in a container start it with the cards (`--gpus all`, or CDI)",
    )]
}

pub(super) fn nodes(facts: &Facts) -> Vec<Outcome> {
    let cards = facts.root.list("/dev").into_iter().filter(|name| {
        let number = name.strip_prefix("nvidia").unwrap_or("");
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    let mut paths = vec!["/dev/nvidiactl".to_owned()];
    paths.extend(cards.map(|name| format!("/dev/{name}")));
    if paths.len() == 1 {
        paths.push("/dev/nvidia0".to_owned());
    }
    let hint = "run `sudo nvidia-modprobe -c 0`, or any CUDA program as root; in a container start it with the cards";
    paths.iter().map(|path| node(facts, path, hint)).collect()
}

/// Checks a device file that this user must be able to open.
fn node(facts: &Facts, path: &str, hint: &str) -> Outcome {
    let file = facts.root.at(path);
    let outcome = match file.metadata() {
        Err(_) if !facts.has_driver() => Outcome::skipped("there is no driver"),
        // WSL reaches the card through another device.
        Err(_) if facts.root.has("/dev/dxg") => Outcome::skipped("not used here: this is WSL"),
        Err(cause) => Outcome::error(format!("is missing ({cause})"), hint),
        Ok(found) if !found.file_type().is_char_device() => {
            Outcome::error("is not a device", format!("remove it and {hint}"))
        }
        Ok(found) => {
            let mode = found.permissions().mode() & 0o777;
            match accessat(CWD, &file, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS) {
                Ok(()) => Outcome::ok(format!("exists and is open to this user (mode {mode:03o})")),
                Err(_) => Outcome::error(
                    format!("is closed to this user (mode {mode:03o})"),
                    "join the group that owns it (`ls -l /dev/nvidia*`), or have NVreg_DeviceFileMode=0666 set",
                ),
            }
        }
    };
    outcome.of(path)
}

pub(super) fn xid(facts: &Facts) -> Vec<Outcome> {
    vec![match xid_lines(facts) {
        Err(cause) => Outcome::skipped(format!("the kernel's log is not readable ({cause}); run as root")),
        Ok(lines) if lines.is_empty() => Outcome::ok("no Xid since boot"),
        Ok(lines) => Outcome::warning(
            format!(
                "{} Xid since boot, the last: {}",
                lines.len(),
                lines.last().map_or("", |line| line.as_str())
            ),
            "look up the number in NVIDIA's list of Xid errors; programs that used the card then have failed",
        ),
    }]
}

/// Returns the lines of the kernel's log about faults of cards (Xid).
pub(in crate::doctor) fn xid_lines(facts: &Facts) -> std::io::Result<Vec<String>> {
    let mut log: File = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(facts.root.at("/dev/kmsg"))?;
    let mut text = Vec::new();
    let mut record = vec![0; 16 << 10];
    while (text.len() as u64) < LOG {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(length) => text.extend(&record[..length]),
            // The kernel has overwritten records during the read.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::PIPE.raw_os_error()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    let text = String::from_utf8_lossy(&text);
    // A record is `priority,number,microseconds,flags;message`.
    let message = |line: &str| line.split_once(';').map_or(line, |(_, message)| message).to_owned();
    Ok(text.lines().filter(|line| line.contains("NVRM: Xid")).map(message).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use super::super::super::facts::staged::compile;
    use super::super::super::model::Severity::{self, Error, Ok, Skipped, Warning};
    use super::*;

    fn staged() -> (tempfile::TempDir, Facts) {
        let root = tempfile::tempdir().unwrap();
        for folder in ["dev", "proc/driver/nvidia"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        let mut facts = Facts::bare(root.path());
        facts.cuda.facts.library = Some(Loaded::From("/usr/lib/libcuda.so.1".into()));
        (root, facts)
    }

    fn severities(outcomes: &[Outcome]) -> Vec<Severity> {
        outcomes.iter().map(|outcome| outcome.severity).collect()
    }

    #[test]
    fn no_driver_is_an_error_and_what_needs_one_is_skipped() {
        let (_root, mut facts) = staged();
        facts.cuda.facts.library = Some(Loaded::Not("cannot open shared object file".into()));
        facts.nvml.facts.library = facts.cuda.facts.library.clone();
        let found = library(&facts);
        assert!(found[0].finding.starts_with("no NVIDIA driver: "), "{found:?}");
        assert_eq!(severities(&found), [Error]);
        for check in [init, version, nvml, uvm] {
            assert_eq!(severities(&check(&facts)), [Skipped]);
        }
    }

    #[test]
    fn a_missing_uvm_device_is_an_error_and_a_device_is_none() {
        let (root, facts) = staged();
        let [outcome] = &uvm(&facts)[..] else { panic!() };
        assert_eq!(outcome.severity, Error);
        assert!(outcome.hint.as_ref().unwrap().contains("nvidia-modprobe -u"));
        fs::write(root.path().join("dev/nvidia-uvm"), "").unwrap();
        assert_eq!(uvm(&facts)[0].finding, "is not a device");
        fs::remove_file(root.path().join("dev/nvidia-uvm")).unwrap();
        symlink("/dev/null", root.path().join("dev/nvidia-uvm")).unwrap();
        assert_eq!(severities(&uvm(&facts)), [Ok]);
    }

    #[test]
    fn each_card_has_a_device() {
        let (root, facts) = staged();
        for name in ["nvidiactl", "nvidia0", "nvidia10", "nvidia-caps"] {
            symlink("/dev/null", root.path().join("dev").join(name)).unwrap();
        }
        let subjects: Vec<_> = nodes(&facts).into_iter().filter_map(|outcome| outcome.subject).collect();
        assert_eq!(subjects, ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia10"]);
    }

    #[test]
    fn what_cu_init_answers_decides() {
        let (_root, mut facts) = staged();
        facts.cuda.facts.init = Some(803);
        let [outcome] = &init(&facts)[..] else { panic!() };
        assert_eq!(outcome.finding, "cuInit fails with CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)");
        assert!(outcome.hint.as_ref().unwrap().contains("restart the machine"));
        facts.cuda.facts.init = Some(0);
        facts.cuda.facts.count = Some(0);
        assert_eq!(severities(&init(&facts)), [Error]);
        facts.cuda.facts.count = Some(2);
        assert_eq!(init(&facts)[0].finding, "cuInit succeeds, and the driver shows 2 cards");
    }

    #[test]
    fn a_crash_and_a_hang_are_named_by_their_call() {
        let (_root, mut facts) = staged();
        facts.cuda.end = End::Crashed { at: "cuInit".into(), how: "SIGSEGV".into() };
        assert_eq!(init(&facts)[0].finding, "libcuda.so.1 crashes its process in cuInit (SIGSEGV)");
        facts.cuda.end = End::Hung { at: "cuInit".into(), after: Duration::from_secs(30), unkillable: true };
        assert_eq!(
            init(&facts)[0].finding,
            "libcuda.so.1 hangs in cuInit: no answer within 30s, and its process cannot be killed: it hangs in the kernel"
        );
        facts.nvml.facts.library = Some(Loaded::From("/usr/lib/libnvidia-ml.so.1".into()));
        facts.nvml.end = facts.cuda.end.clone();
        assert_eq!(severities(&nvml(&facts)), [Error]);
    }

    #[test]
    fn two_versions_of_one_driver_do_not_work() {
        let (root, mut facts) = staged();
        let line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n";
        fs::write(root.path().join("proc/driver/nvidia/version"), line).unwrap();
        assert_eq!(kernel(&facts)[0].finding, "the kernel module is version 580.65.06");
        facts.cuda.facts.version = Some(13000);
        facts.nvml.facts.driver = Some("580.65.06".into());
        assert_eq!(version(&facts)[0].finding, "driver 580.65.06 supports CUDA 13.0");
        facts.nvml.facts.driver = Some("575.57.08".into());
        assert_eq!(severities(&version(&facts)), [Error]);
        facts.cuda.facts.version = Some(11080);
        assert!(version(&facts)[0].finding.contains("supports CUDA 11.8"));
    }

    #[test]
    fn functions_of_the_driver_that_nobody_knows_are_named() {
        let (root, mut facts) = staged();
        let path = root.path().join("libcuda.so.1");
        let build = |source: &str| compile(&path, source, &["-shared", "-fPIC"]);
        facts.cuda.facts.library = Some(Loaded::From(path.display().to_string()));
        assert_eq!(severities(&symbols(&facts)), [Skipped]);
        build("int cuInit(unsigned f) { return 0; } void helper(void) {}");
        assert_eq!(symbols(&facts)[0].finding, "all 1 functions of the driver are known");
        build("int cuInit(unsigned f) { return 0; } int cuMemAllocFromTheMoon(void) { return 0; }");
        let found = symbols(&facts);
        assert_eq!(severities(&found), [Warning]);
        assert_eq!(found[0].finding, "1 of 2 functions of the driver are unknown: cuMemAllocFromTheMoon");
    }

    #[test]
    fn a_lost_card_is_an_error_beside_the_others() {
        let (_root, mut facts) = staged();
        facts.nvml.facts = gpushare_probe::NvmlFacts {
            library: Some(Loaded::From("/usr/lib/libnvidia-ml.so.1".into())),
            init: Some(0),
            count: Some(2),
            cards: vec![gpushare_probe::NvmlCard::default(); 2],
            ..Default::default()
        };
        facts.nvml.facts.cards[1].lost = Some(15);
        let found = nvml(&facts);
        assert_eq!(severities(&found), [Ok, Error]);
        assert_eq!(found[1].subject.as_deref(), Some("nvml1"));
    }

    #[test]
    fn faults_in_the_kernels_log_are_counted() {
        let (root, facts) = staged();
        assert_eq!(severities(&xid(&facts)), [Skipped]);
        let log = "6,1,2,-;usb 1-1: new device\n4,2,3,-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n";
        fs::write(root.path().join("dev/kmsg"), log).unwrap();
        let found = xid(&facts);
        assert_eq!(severities(&found), [Warning]);
        assert_eq!(
            found[0].finding,
            "1 Xid since boot, the last: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
        );
    }
}
