//! Trial of a freeze: the daemon freezes and thaws a process of its own on a card.
//!
//! ```text
//!   daemon                         process of the trial               helper
//!   try_freeze(card) ── starts ──▶ memory with a pattern
//!                    ◀── ready ───
//!                    ─── freeze, thaw ──────────────────────────────▶ as of any other process
//!                    ─── check ──▶ reads the memory back, ends
//! ```
//!
//! The process always ends by itself, and is left alone if it does not, since it is unknown what the kill of a
//! restored process does. Before the freeze it may be killed.

mod memory;
mod process;

pub use process::{TRIAL, run_trial};

use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use gpushare_sys::process::start_time;

use crate::driver::OUT_OF_MEMORY;
use crate::ending;
use crate::lines::{Lines, NoLine};
use crate::operation::{FreezeError, Limits, ThawError, freeze, thaw};
use crate::target::Target;
use process::{NO_ROOM, READY};

/// Largest number of attempts to thaw the process. One breaks off if somebody kills its helper.
const THAWS: u32 = 3;
/// Pause between two looks whether the process has ended.
const LOOK: Duration = Duration::from_millis(10);
/// Largest number of bytes that are read of what the process says about its end.
const WORDS: u64 = 64 << 10;

/// Reason why a trial did not succeed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrialError {
    /// The card had no memory for the process. A later trial may succeed.
    #[error("the card has no memory for it now: {0}")]
    NoRoom(String),
    /// The trial broke off, and says nothing about the driver. A later one may succeed.
    #[error("it broke off: {0}")]
    BrokeOff(String),
    /// The driver does not freeze the process and bring it back as it was.
    #[error("{0}")]
    Failed(String),
}

impl TrialError {
    fn failed(error: &impl ToString) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Freezes and thaws a process on a card, with its memory. The process and the helpers are `program` started again.
/// The card is named as `CUDA_VISIBLE_DEVICES` names cards. Blocks for as long as it takes.
///
/// # Errors
/// Says whether the driver has failed, or a later trial may succeed.
pub fn try_freeze(program: &Path, card: &str, limits: &Limits) -> Result<(), TrialError> {
    let mut subject = Subject::start(program, card)?;
    subject.becomes_ready(limits)?;
    match freeze(program, subject.target, limits) {
        Ok(()) => {
            subject.come_back(program, limits)?;
            subject.check(limits)
        }
        Err(FreezeError::Unknown(reason)) => {
            subject.come_back(program, limits)?;
            subject.dismiss();
            Err(TrialError::BrokeOff(reason))
        }
        Err(error @ FreezeError::Busy(_)) => Err(TrialError::BrokeOff(error.to_string())),
        Err(error @ FreezeError::Gone) => subject.has_ended(&error, limits),
        Err(error) => Err(TrialError::failed(&error)),
    }
}

/// Process of a trial.
#[derive(Debug)]
struct Subject {
    target: Target,
    /// The child process with its input, which tells it that the daemon lives.
    child: Option<Child>,
    /// Whether the process may have been restored, so that it must not be killed.
    restored: bool,
}

impl Subject {
    /// Starts the process. It is no program that shares a card.
    fn start(program: &Path, card: &str) -> Result<Self, TrialError> {
        let mut command = Command::new(program);
        command.arg0("gpushare-trial").arg(TRIAL);
        let ours = env::vars_os().map(|(name, _)| name);
        for name in ours.filter(|name| name.as_encoded_bytes().starts_with(b"GPUSHARE_")) {
            command.env_remove(name);
        }
        command.env_remove("LD_PRELOAD").env("CUDA_VISIBLE_DEVICES", card);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let broke_off =
            |cause: &dyn ToString| TrialError::BrokeOff(format!("no process: {}", cause.to_string()));
        let child = command.spawn().map_err(|cause| broke_off(&cause))?;
        let pid = child.id();
        let mut subject = Self { target: Target { pid, start: 0 }, child: Some(child), restored: false };
        subject.target.start = start_time(pid).ok_or_else(|| broke_off(&"it has ended"))?;
        Ok(subject)
    }

    /// Waits until the process has its memory.
    fn becomes_ready(&mut self, limits: &Limits) -> Result<(), TrialError> {
        let output = self.child.as_mut().and_then(|child| child.stdout.take());
        let said = output.map_or(Err(NoLine::Ended), |output| Lines::of(output).next(limits.start));
        match said {
            Ok(line) if line == READY => Ok(()),
            Err(NoLine::Late) => {
                Err(TrialError::Failed(format!("the driver gave no context within {:?}", limits.start)))
            }
            Ok(_) | Err(NoLine::Ended) => {
                let unready = TrialError::Failed("its process did not say that it is ready".to_owned());
                self.ends(limits.step).and(Err(unready))
            }
        }
    }

    /// Thaws the process.
    fn come_back(&mut self, program: &Path, limits: &Limits) -> Result<(), TrialError> {
        self.restored = true;
        let mut thawed = thaw(program, self.target, limits);
        for _ in 1..THAWS {
            if matches!(thawed, Err(ThawError::Unknown(_))) {
                thawed = thaw(program, self.target, limits);
            }
        }
        let Err(error) = thawed else { return Ok(()) };
        if matches!(error, ThawError::Gone) {
            return self.has_ended(&error, limits);
        }
        match &error {
            ThawError::NoRoom(_) => {
                self.dismiss();
                Err(TrialError::NoRoom(error.to_string()))
            }
            ThawError::Lost(refusal) => {
                self.dismiss();
                match refusal.as_ref().is_some_and(|refusal| refusal.code == OUT_OF_MEMORY) {
                    true => Err(TrialError::NoRoom(error.to_string())),
                    false => Err(TrialError::failed(&error)),
                }
            }
            _ => Err(TrialError::failed(&error)),
        }
    }

    /// Returns why the process has ended too early.
    fn has_ended(&mut self, error: &impl ToString, limits: &Limits) -> Result<(), TrialError> {
        self.ends(limits.step).and(Err(TrialError::failed(error)))
    }

    /// Lets the process compare its memory, and waits for its end.
    fn check(&mut self, limits: &Limits) -> Result<(), TrialError> {
        let input = self.child.as_mut().and_then(|child| child.stdin.as_mut());
        // If it has ended, its end says why.
        let _ = input.map(|input| input.write_all(b"check\n"));
        self.ends(limits.step)
    }

    /// Lets the process end, which nobody needs any more.
    fn dismiss(&mut self) {
        if let Some(child) = &mut self.child {
            child.stdin = None;
        }
    }

    /// Waits for the end of the process, and returns what it says about its memory.
    fn ends(&mut self, patience: Duration) -> Result<(), TrialError> {
        let until = Instant::now() + patience;
        let mut ended = None;
        while let Some(child) = &mut self.child {
            ended = child.try_wait().ok().flatten();
            if ended.is_some() || Instant::now() >= until {
                break;
            }
            thread::sleep(LOOK);
        }
        let Some(status) = ended else {
            let pid = self.target.pid;
            let left = if self.restored { "; it is left alone" } else { "" };
            return Err(TrialError::Failed(format!(
                "its process {pid} did not end within {patience:?}{left}"
            )));
        };
        let mut said = Vec::new();
        if let Some(errors) = self.child.take().and_then(|child| child.stderr) {
            let _ = errors.take(WORDS).read_to_end(&mut said);
        }
        verdict(status, &String::from_utf8_lossy(&said))
    }
}

impl Drop for Subject {
    /// Hands the process over to a thread that waits for its end, and kills it if it may be killed.
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            if !self.restored {
                let _ = child.kill();
            }
            ending::end(self.target, child);
        }
    }
}

/// Returns the outcome of a trial by the end of its process and what it wrote to standard error.
fn verdict(status: ExitStatus, said: &str) -> Result<(), TrialError> {
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty());
    let reason = last.map_or_else(|| format!("its process ended with {status}"), str::to_owned);
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) if code == i32::from(NO_ROOM) => Err(TrialError::NoRoom(reason)),
        (_, Some(libc::SIGKILL)) => Err(TrialError::BrokeOff("its process was killed".to_owned())),
        (_, Some(_)) => Err(TrialError::Failed(format!("its process ended with {status}"))),
        _ => Err(TrialError::Failed(reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_process_is_the_outcome() {
        let exited = |code: i32| ExitStatus::from_raw(code << 8);
        let failed = |reason: &str| Err(TrialError::Failed(reason.to_owned()));
        assert_eq!(verdict(exited(0), "a warning of the driver\n"), Ok(()));
        assert_eq!(verdict(exited(1), "a warning\n7 words\n\n"), failed("7 words"));
        assert_eq!(verdict(exited(1), ""), failed("its process ended with exit status: 1"));
        assert_eq!(verdict(exited(3), "cuX\n"), Err(TrialError::NoRoom("cuX".to_owned())));
        let crashed = verdict(ExitStatus::from_raw(libc::SIGSEGV), "cuX\n");
        assert!(
            matches!(&crashed, Err(TrialError::Failed(reason)) if reason.contains("SIGSEGV")),
            "{crashed:?}"
        );
        let killed = verdict(ExitStatus::from_raw(libc::SIGKILL), "");
        assert!(matches!(killed, Err(TrialError::BrokeOff(_))), "{killed:?}");
    }

    #[test]
    fn a_program_that_cannot_run_shows_nothing_about_the_driver() {
        let error = try_freeze(Path::new("/nonexistent"), "0", &Limits::default()).unwrap_err();
        assert!(matches!(error, TrialError::BrokeOff(_)), "{error}");
    }

    #[test]
    fn a_process_that_was_killed_amid_a_trial_shows_nothing_about_the_driver() {
        let mut child = Command::new("sleep").arg("1000").stderr(Stdio::piped()).spawn().unwrap();
        let target = Target { pid: child.id(), start: start_time(child.id()).unwrap() };
        child.kill().unwrap();
        let mut subject = Subject { target, child: Some(child), restored: true };
        let outcome = subject.has_ended(&FreezeError::Gone, &Limits::default());
        assert_eq!(outcome, Err(TrialError::BrokeOff("its process was killed".to_owned())));
    }

    #[test]
    fn a_process_that_ends_before_it_is_ready_says_why() {
        let error = try_freeze(Path::new("/bin/false"), "0", &Limits::default()).unwrap_err();
        assert_eq!(error, TrialError::Failed("its process ended with exit status: 1".to_owned()));
        let error = try_freeze(Path::new("/bin/true"), "0", &Limits::default()).unwrap_err();
        assert_eq!(error, TrialError::Failed("its process did not say that it is ready".to_owned()));
    }
}
