//! `doctor`: on staged machines with staged drivers, daemons of all kinds, and an archive without secrets.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gpushare_proto::Token;
use gpushare_proto::names::RuntimeDir;
use gpushare_tests::process::write_executable;
use serde_json::Value;
use tempfile::TempDir;

use crate::ctl::{ctl, fails};
use crate::fake::Fake;
use crate::status::{daemon, two_that_take_turns};

/// A driver of one card. `INIT` is what `cuInit` does, `CONCURRENT` an attribute of the card.
const CUDA: &str = r#"
#include <string.h>
#include <unistd.h>
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuInit(unsigned flags) { INIT }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) { strcpy(name, "Staged Card"); return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { memset(uuid, 0xab, 16); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 8ul << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 89 ? CONCURRENT : 1; return 0; }
"#;

const NVML: &str = r#"
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { strcpy(text, "580.65.06"); return 0; }
int nvmlSystemGetConfComputeState(unsigned *state) { state[0] = state[1] = state[2] = 0; return 0; }
int nvmlDeviceGetCount_v2(int *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)1; return 0; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned length) { strcpy(text, "GPU-abababab-abab-abab-abab-abababababab"); return 0; }
int nvmlDeviceGetComputeMode(void *device, int *mode) { *mode = 0; return 0; }
int nvmlDeviceGetPersistenceMode(void *device, int *mode) { *mode = 1; return 0; }
int nvmlDeviceGetVirtualizationMode(void *device, int *mode) { *mode = 0; return 0; }
int nvmlDeviceGetMigMode(void *device, int *now, int *pending) { *now = *pending = 0; return 0; }
"#;

/// A machine below a folder: `root` is its `/`, `lib` has its driver, `run` is where its daemon would be.
struct Machine {
    folder: TempDir,
}

impl Machine {
    /// With a driver of one card and all its devices.
    fn new() -> Self {
        let machine = Self::without_driver();
        machine.driver("return 0;", 1);
        machine.put(
            "root/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06\n",
        );
        for device in ["nvidiactl", "nvidia0", "nvidia-uvm"] {
            symlink("/dev/null", machine.path("root/dev").join(device)).unwrap();
        }
        machine
    }

    fn without_driver() -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap() };
        for folder in ["root/dev", "root/proc", "lib", "locks"] {
            fs::create_dir_all(machine.path(folder)).unwrap();
        }
        for link in ["lib", "lib64", "usr"] {
            symlink(Path::new("/").join(link), machine.path("root").join(link)).unwrap();
        }
        symlink("/", machine.path("root/dev/shm")).unwrap();
        let memory = "MemTotal: 65536000 kB\nMemAvailable: 32768000 kB\n";
        machine.put("root/proc/meminfo", memory);
        let version = format!("const char gpushare_version[] = \"{}\";", env!("CARGO_PKG_VERSION"));
        machine.compile("libgpushare.so", &version);
        machine
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn put_executable(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        write_executable(&path, text).unwrap();
    }

    fn driver(&self, init: &str, concurrent: u32) {
        self.compile(
            "libcuda.so.1",
            &CUDA.replace("INIT", init).replace("CONCURRENT", &concurrent.to_string()),
        );
        self.compile("libnvidia-ml.so.1", NVML);
    }

    /// Compiles a library into `lib`.
    fn compile(&self, name: &str, source: &str) {
        self.put("source.c", source);
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-w", "-o"]).arg(self.path("lib").join(name));
        assert!(cc.arg(self.path("source.c")).status().unwrap().success());
    }

    /// The doctor in the daemon's folder `run`. A slow machine is no finding here.
    fn doctor_at(&self, run: &Path, arguments: &[&str]) -> Command {
        let mut command = ctl(run, &["doctor", "--root"]);
        command.arg(self.path("root")).args(arguments);
        if !arguments.contains(&"--timeout") {
            command.args(["--timeout", "10min"]);
        }
        for name in ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"] {
            command.env_remove(name);
        }
        command
            .env("LD_LIBRARY_PATH", self.path("lib"))
            .env("GPUSHARE_LOCK_DIR", self.path("locks"))
            .env("GPUSHARE_LIBRARY", self.path("lib/libgpushare.so"))
            .env("GPUSHARE_SCHEDULER", "/bin/sh");
        command
    }

    fn doctor(&self, arguments: &[&str]) -> Command {
        self.doctor_at(&self.path("run"), arguments)
    }
}

/// The document of a run that ends with `code`, and its findings by check.
fn report(command: &mut Command, code: i32) -> (Value, BTreeMap<String, Vec<Value>>) {
    let output = command.arg("--json").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(code), "{text}");
    let document: Value = serde_json::from_str(&text).unwrap();
    let mut findings = BTreeMap::<String, Vec<Value>>::new();
    for finding in document["findings"].as_array().unwrap() {
        let check = finding["check"].as_str().unwrap().to_owned();
        findings.entry(check).or_default().push(finding.clone());
    }
    (document, findings)
}

/// The findings that are no good, in the order of the report.
fn faults(document: &Value) -> Vec<&str> {
    let findings = document["findings"].as_array().unwrap().iter();
    let bad = findings.filter(|finding| finding["severity"] == "warning" || finding["severity"] == "error");
    bad.map(|finding| finding["check"].as_str().unwrap()).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[test]
fn a_machine_on_which_all_is_well_is_fine() {
    let (document, findings) = report(&mut Machine::new().doctor(&["--program", "sh"]), 0);
    assert_eq!(faults(&document), [""; 0], "{document:#}");
    assert_eq!((text(&document["worst"]), &document["exit"]), ("ok", &Value::from(0)));
    assert_eq!(findings["driver.version"][0]["finding"], "driver 580.65.06 supports CUDA 13.0");
    assert_eq!(
        findings["cards.seen"][0]["finding"],
        "Staged Card, 8GiB, GPU-abababab-abab-abab-abab-abababababab"
    );
    assert_eq!(findings["cards.backend"][0]["backend"]["backend"], "remap");
    assert_eq!(findings["preload.loads"][0]["finding"], "the loader loads it");
    for check in
        ["cards.mig", "cards.vgpu", "cards.compute-mode", "cards.persistence", "platform.confidential"]
    {
        assert_eq!(findings[check][0]["severity"], "ok", "{check}");
    }
    let counts = &document["counts"];
    let total: u64 = ["ok", "warning", "error", "skipped"]
        .iter()
        .filter_map(|key| counts[*key].as_u64())
        .sum();
    assert_eq!(total, document["findings"].as_array().unwrap().len() as u64);
}

#[test]
fn a_card_that_cannot_page_is_a_warning_and_says_which_backend_is_left() {
    let machine = Machine::new();
    machine.driver("return 0;", 0);
    let (document, findings) = report(&mut machine.doctor(&[]), 1);
    assert_eq!(faults(&document), ["cards.managed", "cards.backend"]);
    assert_eq!(findings["cards.backend"][0]["backend"]["backend"], "native");
}

#[test]
fn a_driver_that_crashes_is_a_finding_and_everything_else_is_looked_at() {
    let machine = Machine::new();
    machine.driver("*(volatile int *)0 = 0; return 0;", 1);
    let (document, findings) = report(&mut machine.doctor(&[]), 2);
    assert_eq!(findings["driver.init"][0]["finding"], "libcuda.so.1 crashes its process in cuInit (SIGSEGV)");
    assert_eq!(faults(&document), ["driver.init"]);
    assert_eq!(findings["driver.version"][0]["finding"], "driver 580.65.06 supports CUDA 13.0");
    assert_eq!(findings["host.memory"][0]["severity"], "ok");
}

#[test]
fn a_driver_that_hangs_is_a_finding_after_the_time_limit() {
    let machine = Machine::new();
    machine.driver("for (;;) pause(); return 0;", 1);
    let (_, findings) = report(&mut machine.doctor(&["--timeout", "20s"]), 2);
    let finding = text(&findings["driver.init"][0]["finding"]);
    assert!(finding.starts_with("libcuda.so.1 hangs in cuInit: no answer within "), "{finding}");
}

#[test]
fn without_a_driver_that_is_the_error_and_the_rest_runs() {
    let machine = Machine::without_driver();
    // Also on a machine that has one: a file that is no library is in front of it.
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        machine.put(&format!("lib/{name}"), "");
    }
    let (document, findings) = report(&mut machine.doctor(&[]), 2);
    assert_eq!(faults(&document), ["driver.kernel", "driver.library"]);
    assert!(text(&findings["driver.library"][0]["finding"]).starts_with("no NVIDIA driver: "));
    assert_eq!(findings["driver.uvm"][0]["severity"], "skipped");
    assert_eq!(findings["cards.managed"][0]["severity"], "skipped");
    assert_eq!(findings["preload.library"][0]["severity"], "ok");
}

#[test]
fn a_daemon_that_answers_is_asked_for_its_version_and_its_stuck_sessions() {
    let machine = Machine::new();
    let good = daemon(two_that_take_turns());
    let (document, findings) = report(&mut machine.doctor_at(good.dir(), &[]), 0);
    assert_eq!(faults(&document), [""; 0], "{document:#}");
    assert_eq!(findings["daemon.admin"][0]["finding"], "answers: gpushare 0.1.0, 2 sessions on 1 cards");
    // A test's own `/proc` may be of the PID namespace around it.
    let own = fs::read_link("/proc/self").unwrap();
    let told = own == Path::new(&std::process::id().to_string());
    let expected = if told { "ok" } else { "skipped" };
    assert_eq!(findings["caller.pid-namespace"][0]["severity"], expected);

    let mut old = two_that_take_turns();
    old.daemon.version = "0.0.9".into();
    old.daemon.recovering = 2;
    let old = daemon(old);
    let (document, _) = report(&mut machine.doctor_at(old.dir(), &[]), 1);
    assert_eq!(faults(&document), ["daemon.build", "daemon.recovering"]);
}

#[test]
fn a_library_that_the_loader_does_not_take_is_an_error() {
    let machine = Machine::new();
    let library = machine.path("lib/libgpushare.so");
    machine.compile("libmissing.so", "int gone(void) { return 0; }");
    let version = env!("CARGO_PKG_VERSION");
    machine.put(
        "source.c",
        &format!(
            "int gone(void); int f(void) {{ return gone(); }} const char gpushare_version[] = \"{version}\";"
        ),
    );
    let mut cc = Command::new("cc");
    cc.current_dir(machine.path("lib"));
    cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(machine.path("source.c"));
    assert!(cc.arg("./libmissing.so").status().unwrap().success());
    fs::remove_file(machine.path("lib/libmissing.so")).unwrap();
    let (document, findings) = report(&mut machine.doctor(&[]), 2);
    assert_eq!(faults(&document), ["preload.loads"]);
    let finding = text(&findings["preload.loads"][0]["finding"]);
    assert!(finding.contains("libmissing.so"), "{finding}");
}

#[test]
fn people_read_groups_with_hints_and_no_colours_in_a_pipe() {
    let machine = Machine::new();
    fs::remove_file(machine.path("root/dev/nvidia-uvm")).unwrap();
    let output = machine.doctor(&[]).output().unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(page.contains("\nDriver\n  ok       driver.kernel "), "{page}");
    assert!(page.contains("→ run `sudo nvidia-modprobe -u -c 0`"), "{page}");
    assert!(page.contains("\n1 error, 0 warnings, "), "{page}");
    assert!(!page.contains('\u{1b}'), "{page}");
}

#[test]
fn the_process_that_asks_the_driver_is_not_for_people() {
    let sentence = fails(&mut ctl("/nonexistent".as_ref(), &["doctor-probe", "everything"]), 2);
    assert_eq!(sentence, "this command is internal to `gpushare-ctl doctor`; use that");
}

/// The files of an archive, by name.
fn unpacked(archive: &Path) -> BTreeMap<String, String> {
    let file = fs::File::open(archive).unwrap();
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut files = BTreeMap::new();
    for entry in tar.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        let path = entry.path().unwrap().display().to_string();
        files.insert(path.strip_prefix("gpushare-doctor/").unwrap().to_owned(), text);
    }
    files
}

/// A machine full of secrets, its doctor with `--bundle`, and what the archive holds.
fn bundled(machine: &Machine, daemon: &Fake, config: &str) -> (Output, BTreeMap<String, String>) {
    machine.put("config.toml", config);
    let archive = machine.path("report.tar.gz");
    let mut doctor = machine.doctor_at(daemon.dir(), &[]);
    doctor
        .arg("--bundle")
        .arg(&archive)
        .arg("--config")
        .arg(machine.path("config.toml"));
    let path = std::env::join_paths([machine.path("bin"), "/usr/bin".into(), "/bin".into()]).unwrap();
    doctor
        .env("PATH", path)
        .env("HOME", "/data/people/xaver")
        .env("USER", "xaver")
        .env("LOGNAME", "xaver")
        .env("HOSTNAME", "node7")
        .env("CUDA_API_TOKEN", "hunter2secret")
        .env("NVIDIA_SOMETHING", "/home/yolanda/x")
        .env("UNRELATED", "not-to-be-sent");
    let output = doctor.output().unwrap();
    assert_eq!(archive.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    (output, unpacked(&archive))
}

#[test]
fn an_archive_has_what_a_report_needs_and_none_of_the_secrets() {
    let machine = Machine::new();
    let uuid = "12345678-9abc-def0-1234-56789abcdef0";
    let secret = Token([0xc3; 32]).to_hex();
    let mut status = two_that_take_turns();
    status.sessions[0].name = "xaver-train".into();
    status.gpus[0].uuid = format!("GPU-{uuid}").parse().unwrap();
    let daemon = daemon(status);
    let log = format!(
        "INFO listening on 192.0.2.7:9402 as node7.lab.example.org\nWARN GPU-{uuid} is sick, says xaver@example.org\n\
         ERROR a bad token {secret} from 2001:db8::5\n"
    );
    fs::write(RuntimeDir::new(daemon.dir()).log(), log).unwrap();
    machine.put(
        "root/etc/passwd",
        "root:x:0:0::/root:/bin/sh\nzenobia:x:1001:1001::/srv/homes/zenobia:/bin/sh\n",
    );
    machine.put("root/etc/hosts", "127.0.0.1 localhost\n192.0.2.7 node7.lab.example.org node7\n");
    machine.put("root/etc/os-release", "PRETTY_NAME=\"Staged Linux\"\n");
    machine.put("root/dev/kmsg", "4,1,2,-;NVRM: Xid (PCI:0000:01:00): 79, name=train of zenobia\n");
    let smi = format!(
        "#!/bin/sh\necho 'GPU UUID : GPU-{uuid}'; echo 'Serial Number : 1650123456789'; echo /srv/homes/zenobia/app\n"
    );
    machine.put_executable("bin/nvidia-smi", &smi);
    let config = format!(
        "metrics = \"192.0.2.7:9402\"\nfuture_secret = \"swordfish\"\n[gpus.GPU-{uuid}]\ncapacity = \"4GiB\"\n"
    );

    let (output, files) = bundled(&machine, &daemon, &config);
    let said = String::from_utf8(output.stderr).unwrap();
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "config.toml",
            "environment.txt",
            "nvidia-smi.txt",
            "report.json",
            "report.txt",
            "scheduler.log",
            "status.json",
            "system.txt",
            "versions.txt",
            "xid.txt"
        ]
    );
    for planted in [
        uuid,
        &uuid.replace('-', ""),
        &secret,
        "xaver",
        "yolanda",
        "zenobia",
        "/data/people",
        "/srv/homes",
        "node7",
        "example.org",
        "192.0.2.7",
        "2001:db8",
        "hunter2secret",
        "swordfish",
        "1650123456789",
        "not-to-be-sent",
        "abababab",
    ] {
        for (name, text) in &files {
            assert!(
                !text.to_lowercase().contains(&planted.to_lowercase()),
                "{planted} is in {name}:\n{text}"
            );
        }
    }

    // What is left still tells the story, and a card is the same card everywhere.
    let card = {
        let status: Value = serde_json::from_str(&files["status.json"]).unwrap();
        let name = text(&status["sessions"][0]["name"]);
        assert!(name.starts_with("[user-") && name.ends_with("]-train"), "{name}");
        text(&status["gpus"][0]["uuid"]).to_owned()
    };
    assert!(card.starts_with("GPU-[uuid-"), "{card}");
    assert!(files["scheduler.log"].contains(&format!("WARN {card} is sick")), "{}", files["scheduler.log"]);
    assert!(files["nvidia-smi.txt"].contains(&format!("GPU UUID : {card}")));
    assert!(
        files["config.toml"].contains(&format!("[gpus.{card}]\ncapacity = \"4GiB\"")),
        "{}",
        files["config.toml"]
    );
    assert!(files["xid.txt"].starts_with("NVRM: Xid (PCI:0000:01:00): 79, name=train of [user-"));
    assert!(files["system.txt"].contains("Staged Linux"));
    assert!(files["versions.txt"].starts_with("gpushare-ctl 0.1.0\ngpushare-scheduler 0.1.0\n"));
    assert!(said.contains("in   scheduler.log"), "{said}");
    assert!(said.contains("× uuid"), "{said}");
    assert_eq!(output.status.code(), Some(1), "the Xid is a warning");
}

#[test]
fn an_archive_says_what_it_lacks_and_goes_over_no_file() {
    let machine = Machine::new();
    let archive = machine.path("report.tar.gz");
    let run = || {
        let mut doctor = machine.doctor(&[]);
        doctor.arg("--bundle").arg(&archive).env("PATH", machine.path("bin"));
        doctor.output().unwrap()
    };
    let first = run();
    let said = String::from_utf8(first.stderr).unwrap();
    assert_eq!(first.status.code(), Some(0), "{said}");
    for missing in ["status.json", "config.toml", "scheduler.log", "nvidia-smi.txt"] {
        assert!(said.contains(&format!("  out  {missing}")), "{said}");
    }
    let second = run();
    assert_eq!(second.status.code(), Some(2));
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.ends_with("exists already; choose another name for --bundle\n"), "{said}");
}
