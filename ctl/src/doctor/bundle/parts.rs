//! Files of the archive for a bug report, with a reason for each missing file.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gpushare_proto::names::SYSTEM_CONFIG;
use serde_json::Value;

use super::super::checks::xid_lines;
use super::super::child;
use super::super::facts::Facts;
use super::super::model::Report;
use super::super::text;
use super::redact::Redactor;
use crate::cli::DoctorArgs;

/// Maximum number of bytes that the archive takes from the end of a log.
const LOG_END: u64 = 1 << 20;
/// Maximum number of bytes that the archive takes from a program's output or a file.
const MOST: u64 = 4 << 20;
/// Prefixes of the environment variables that the archive shows, since they matter for sharing.
const VARIABLES: [&str; 8] = [
    "GPUSHARE_",
    "CUDA_",
    "NVIDIA_",
    "NCCL_",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "XDG_RUNTIME_DIR",
    "SLURM_JOB",
];

/// Text of a file in the archive, or the reason why the file is missing.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) name: &'static str,
    pub(super) text: Result<String, String>,
}

impl Part {
    pub(super) fn new(name: &'static str, text: Result<String, String>) -> Self {
        Self { name, text }
    }
}

pub(super) fn collect(
    facts: &Facts,
    report: &Report,
    args: &DoctorArgs,
    redactor: &mut Redactor,
) -> Vec<Part> {
    let mut document = |value: serde_json::Result<Value>| {
        let mut value = value.map_err(|error| error.to_string())?;
        redactor.json(&mut value);
        serde_json::to_string_pretty(&value).map_err(|error| error.to_string())
    };
    let mut parts = vec![Part::new("report.json", document(serde_json::to_value(report)))];
    let status = facts
        .status()
        .ok_or_else(|| "no daemon reports its status to this user".to_owned());
    parts.push(Part::new("status.json", status.and_then(|status| document(serde_json::to_value(status)))));
    let plain = [
        ("report.txt", Ok(text::render(report, false))),
        ("versions.txt", Ok(versions(facts))),
        ("environment.txt", Ok(environment(facts))),
        ("system.txt", Ok(system(facts))),
        ("config.toml", config(facts, args)),
        ("scheduler.log", log(facts)),
        ("xid.txt", xids(facts)),
        (
            "nvidia-smi.txt",
            output(Command::new("nvidia-smi").arg("-q"), Duration::from_nanos(args.timeout.0)),
        ),
    ];
    let redacted = plain.into_iter().map(|(name, text)| {
        Part::new(name, text.map(|text| redactor.text(&text)).map_err(|why| redactor.text(&why)))
    });
    parts.extend(redacted);
    parts
}

fn versions(facts: &Facts) -> String {
    let mut text = format!("gpushare-ctl {}\n", env!("CARGO_PKG_VERSION"));
    for status in facts.daemons.iter().filter_map(|daemon| daemon.admin.as_ref().ok()) {
        text += &format!("gpushare-scheduler {}\n", status.daemon.version);
    }
    if let Ok(library) = &facts.library {
        let size = library.metadata().map_or(0, |found| found.len());
        text += &format!("{} {size} bytes\n", library.display());
    }
    text += &format!("driver {:?}\nnvml {:?}\n", facts.cuda, facts.nvml);
    text
}

fn environment(facts: &Facts) -> String {
    let told = facts.env.iter().filter(|(name, _)| {
        let name = name.to_string_lossy();
        VARIABLES.iter().any(|prefix| name.starts_with(prefix))
    });
    told.map(|(name, value)| format!("{}={}\n", name.to_string_lossy(), value.to_string_lossy()))
        .collect()
}

fn system(facts: &Facts) -> String {
    let kernel = rustix::system::uname();
    let mut text = format!(
        "{} {} {} {}\n",
        kernel.sysname().to_string_lossy(),
        kernel.release().to_string_lossy(),
        kernel.version().to_string_lossy(),
        kernel.machine().to_string_lossy()
    );
    for path in [
        "/etc/os-release",
        "/proc/driver/nvidia/version",
        "/proc/driver/nvidia/params",
        "/proc/meminfo",
        "/proc/self/limits",
        "/proc/self/cgroup",
        "/proc/self/status",
    ] {
        if let Ok(found) = facts.root.read(path) {
            text += &format!("\n== {path}\n{found}");
        }
    }
    text
}

/// Reads the configuration file that `--config` names, else that of the system's daemon.
fn config(facts: &Facts, args: &DoctorArgs) -> Result<String, String> {
    let path = match &args.config {
        Some(path) => path.clone(),
        None => facts.root.at(SYSTEM_CONFIG),
    };
    read_end(&path, MOST).map_err(|cause| format!("{}: {cause}; --config names another", path.display()))
}

/// Reads the end of the log of the first daemon that has one.
fn log(facts: &Facts) -> Result<String, String> {
    let logs = facts.daemons.iter().map(|daemon| daemon.dir.log());
    logs.into_iter().find_map(|path| read_end(&path, LOG_END).ok()).ok_or_else(|| {
        "no log in a daemon's folder; the log of a service is in the system's journal (`journalctl`)"
            .to_owned()
    })
}

fn xids(facts: &Facts) -> Result<String, String> {
    let lines = xid_lines(facts).map_err(|cause| format!("the kernel's log is not readable ({cause})"))?;
    match lines.is_empty() {
        true => Err("no Xid since boot".to_owned()),
        false => Ok(lines.iter().map(|line| format!("{line}\n")).collect()),
    }
}

/// Returns the last whole lines of a file.
fn read_end(path: &Path, most: u64) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let skipped = length.saturating_sub(most);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    // Half a line could contain half a secret, which the redactor would not recognise.
    Ok(match (skipped, text.split_once('\n')) {
        (1.., Some((_, whole))) => whole.to_owned(),
        (1.., None) => String::new(),
        (0, _) => text,
    })
}

/// Runs a program of NVIDIA with a time limit and returns the output. The program hangs if the driver does.
fn output(command: &mut Command, limit: Duration) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut program = command
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|cause| format!("{name} cannot be started ({cause})"))?;
    let start = Instant::now();
    let text = child::read(program.stdout.take(), MOST).recv_timeout(limit);
    child::wait(&mut program, limit.saturating_sub(start.elapsed()));
    // The program may have ended already. One that hangs in the kernel is left behind.
    let _ = program.kill();
    let _ = program.try_wait();
    text.map_err(|_| format!("{name} does not end within {limit:?}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_end_of_a_file_begins_with_a_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "one\ntwo\nthree\n").unwrap();
        assert_eq!(read_end(&path, 100).unwrap(), "one\ntwo\nthree\n");
        assert_eq!(read_end(&path, 8).unwrap(), "three\n");
        assert_eq!(read_end(&path, 3).unwrap(), "");
    }

    #[test]
    fn a_program_that_hangs_or_is_not_there_is_left_out() {
        let missing = output(&mut Command::new("/no/such/program"), Duration::from_secs(1));
        assert!(missing.unwrap_err().contains("cannot be started"));
        let hanging = output(Command::new("sleep").arg("1000"), Duration::from_millis(200));
        assert!(hanging.unwrap_err().contains("does not end within"));
        let good = output(Command::new("echo").arg("hello"), Duration::from_secs(60));
        assert_eq!(good.unwrap(), "hello\n");
    }
}
