//! Child process with a time limit, which probes the driver.
//!
//! If the child crashes or hangs, the gathered facts are kept, and the driver call in which it ended is
//! known.

use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use gpushare_probe::{Progress, Question};
use serde::de::DeserializeOwned;

use crate::table::harmless;

/// Interval at which the doctor checks whether a child process has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Longest wait for the end of a killed child process. A child that hangs in the kernel takes longer.
const DYING: Duration = Duration::from_secs(2);
/// Maximum number of bytes that are kept of a child process's stderr.
const SAID: u64 = 4096;

/// Way in which a child process that probes the driver ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Finished,
    /// The child process ended before it had gathered all facts.
    Crashed {
        /// Driver call in which the child process was when it ended or was stopped.
        at: String,
        /// Signal or exit code of the child process, in words.
        how: String,
    },
    /// The child process exceeded the time limit and was killed.
    Hung {
        /// Driver call in which the child process was when it ended or was stopped.
        at: String,
        after: Duration,
        unkillable: bool,
    },
    Unstarted(String),
}

/// Facts from a child process that probes the driver, and the way in which the child ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked<F> {
    pub(crate) facts: F,
    pub(crate) end: End,
    /// Text that the child process or its loader wrote to stderr.
    pub(crate) said: String,
}

/// Runs a probe for `question` in a child process, with `preload` loaded, and waits at most `limit`.
pub(crate) fn ask<F: Default + DeserializeOwned + Send + 'static>(
    question: Question,
    preload: Option<&Path>,
    limit: Duration,
) -> Asked<F> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["doctor-probe", question.name()]);
    // Only the driver is asked, without libraries that others preload.
    match preload {
        Some(library) => command.env("LD_PRELOAD", library),
        None => command.env_remove("LD_PRELOAD"),
    };
    watch(&mut command, limit)
}

fn watch<F: Default + DeserializeOwned + Send + 'static>(command: &mut Command, limit: Duration) -> Asked<F> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(cause) => {
            let end = End::Unstarted(cause.to_string());
            return Asked { facts: F::default(), end, said: String::new() };
        }
    };
    let start = Instant::now();
    let stderr = child.stderr.take();
    let stdout = child.stdout.take();
    // Threads, because a grandchild may keep the pipes open; they are not waited for after the child's end.
    let (lines, progress) = mpsc::channel::<Progress<F>>();
    thread::spawn(move || {
        let lines_of = stdout.map(|pipe| BufReader::new(pipe).lines().map_while(Result::ok));
        for line in lines_of.into_iter().flatten() {
            // NVIDIA's libraries may print to standard output too.
            if let Ok(progress) = serde_json::from_str(&line)
                && lines.send(progress).is_err()
            {
                return;
            }
        }
    });
    let said = read(stderr, SAID);

    let ended = wait(&mut child, limit);
    let unkillable = ended.is_none() && {
        // The child may have ended just now.
        let _ = child.kill();
        wait(&mut child, DYING).is_none()
    };
    // A grandchild may hold the pipes open; the child's own output is in them already.
    let grace = Duration::from_secs(3);
    let mut last = Progress::default();
    while let Ok(progress) = progress.recv_timeout(grace) {
        last = progress;
    }
    let at = last.next.clone().unwrap_or_else(|| "its end".to_owned());
    Asked {
        facts: last.facts,
        end: match ended {
            None => End::Hung { at, after: start.elapsed(), unkillable },
            Some(status) if last.next.is_none() && status.success() => End::Finished,
            Some(status) => End::Crashed { at, how: how(status) },
        },
        said: harmless(said.recv_timeout(grace).unwrap_or_default().trim()),
    }
}

/// Reads at most `most` bytes of a pipe in a new thread, which sends the text to the returned receiver.
pub(super) fn read(pipe: Option<impl Read + Send + 'static>, most: u64) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(pipe) = pipe {
            // After a read error the bytes before it are used.
            let _ = pipe.take(most).read_to_end(&mut text);
        }
        sender.send(String::from_utf8_lossy(&text).into_owned())
    });
    receiver
}

/// Waits for the end of a child process; returns the exit status, or `None` after `limit`.
pub(super) fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            // A status that cannot be read counts as ended.
            Err(_) => return None,
            Ok(None) if start.elapsed() >= limit => return None,
            Ok(None) => thread::sleep(LOOK_EVERY),
        }
    }
}

fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(6), _) => "SIGABRT".to_owned(),
        (Some(7), _) => "SIGBUS".to_owned(),
        (Some(8), _) => "SIGFPE".to_owned(),
        (Some(4), _) => "SIGILL".to_owned(),
        (Some(9), _) => "SIGKILL".to_owned(),
        (Some(11), _) => "SIGSEGV".to_owned(),
        (Some(signal), _) => format!("signal {signal}"),
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => "an unknown end".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use gpushare_probe::CudaFacts;

    use super::*;

    fn shell(script: &str, limit: Duration) -> Asked<CudaFacts> {
        watch(Command::new("/bin/sh").args(["-c", script]), limit)
    }

    const AT_INIT: &str = r#"{"next":"cuInit","facts":{"library":null,"missing":[],"version":13000,"init":null,"count":null,"cards":[]}}"#;
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_was_known_before_a_crash_is_kept_and_the_call_is_named() {
        let asked = shell(&format!("echo '{AT_INIT}'; echo oh >&2; kill -SEGV $$"), LONG);
        assert_eq!(asked.facts.version, Some(13000));
        let end = End::Crashed { at: "cuInit".into(), how: "SIGSEGV".into() };
        assert_eq!((asked.end, &*asked.said), (end, "oh"));
    }

    #[test]
    fn an_early_exit_is_a_crash_too() {
        let end = shell(&format!("echo '{AT_INIT}'; exit 0"), LONG).end;
        assert_eq!(end, End::Crashed { at: "cuInit".into(), how: "exit code 0".into() });
    }

    #[test]
    fn a_hang_is_killed_and_named() {
        let asked = shell(&format!("echo '{AT_INIT}'; exec sleep 1000"), Duration::from_millis(500));
        let End::Hung { unkillable, .. } = asked.end else { panic!("{asked:?}") };
        assert!(!unkillable);
    }

    #[test]
    fn what_a_library_prints_among_the_lines_is_passed_over() {
        let finished = AT_INIT.replace("\"cuInit\"", "null");
        let asked = shell(&format!("echo hello; echo '{finished}'; echo bye"), LONG);
        assert_eq!((asked.facts.version, asked.end), (Some(13000), End::Finished));
    }

    #[test]
    fn a_grandchild_that_keeps_the_pipes_does_not_hold_us_up() {
        let finished = AT_INIT.replace("\"cuInit\"", "null");
        let asked = shell(&format!("echo '{finished}'; sleep 20 & exit 0"), LONG);
        assert_eq!(asked.end, End::Finished);
    }
}
