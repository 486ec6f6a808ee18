//! Daemon's end of a helper: starts it, takes steps with deadlines, and kills it when one passes.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use gpushare_sys::process;

use crate::ending;
use crate::helper::SUBCOMMAND;
use crate::lines::{Lines, NoLine};
use crate::protocol::{Answer, Step};
use crate::target::Target;

/// Longest wait for the end of an earlier helper of the same process.
const ENDING: Duration = Duration::from_secs(5);
/// Interval at which a helper that has not answered yet is looked at. The user of the process may stop it by a
/// signal, and other processes of the card wait for it.
const LOOK: Duration = Duration::from_secs(1);

/// Error of a helper. Which steps it has taken is unknown afterwards.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// The helper could not be started.
    #[error("the helper for checkpoints cannot be started: {0}")]
    Start(#[source] io::Error),
    /// The helper gave no answer in time and was killed.
    #[error("the driver did not answer within {0:?}")]
    Late(Duration),
    /// The helper was stopped by a signal, and killed then.
    #[error("the helper for checkpoints was stopped by a signal")]
    Stopped,
    /// An earlier helper of the same process has not ended, although it was killed. No step was taken.
    #[error("an earlier helper for checkpoints was killed and does not end; the driver holds it")]
    Stuck,
    /// The helper ended, or said what makes no sense.
    #[error("the helper for checkpoints ended in the middle of a step")]
    Ended,
}

/// Running helper for one process. It ends when the value is dropped.
#[derive(Debug)]
pub(crate) struct Helper {
    target: Target,
    child: Option<Child>,
    steps: Option<ChildStdin>,
    answers: Lines,
}

impl Helper {
    /// Starts a helper and waits for its first answer. The last helper of the same process has ended before.
    pub(crate) fn start(
        program: &Path,
        target: Target,
        deadline: Duration,
    ) -> Result<(Self, Answer), HelperError> {
        if !ending::wait_for(target, ENDING) {
            return Err(HelperError::Stuck);
        }
        let mut command = Command::new(program);
        command.arg0("gpushare-checkpoint").arg(SUBCOMMAND);
        command.args([target.pid.to_string(), target.start.to_string()]);
        // The helper is no program that shares a card.
        command.env_remove("LD_PRELOAD");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(HelperError::Start)?;
        let (Some(steps), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            ending::end(target, child);
            return Err(HelperError::Ended);
        };
        let (child, steps, answers) = (Some(child), Some(steps), Lines::of(answers));
        let mut helper = Self { target, child, steps, answers };
        let first = helper.answer(deadline)?;
        Ok((helper, first))
    }

    /// Takes a step and waits for its answer.
    pub(crate) fn take(&mut self, step: Step, deadline: Duration) -> Result<Answer, HelperError> {
        let steps = self.steps.as_mut().ok_or(HelperError::Ended)?;
        let mut line = serde_json::to_string(&step).map_err(|_| HelperError::Ended)?;
        line.push('\n');
        steps.write_all(line.as_bytes()).map_err(|_| HelperError::Ended)?;
        self.answer(deadline)
    }

    fn answer(&mut self, deadline: Duration) -> Result<Answer, HelperError> {
        let end = Instant::now() + deadline;
        let mut was_stopped = false;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.answers.next(left.min(LOOK)) {
                Ok(line) => return serde_json::from_slice(&line).map_err(|_| self.end()),
                Err(NoLine::Ended) => return Err(self.end()),
                Err(NoLine::Late) if left <= LOOK => {
                    self.end();
                    return Err(HelperError::Late(deadline));
                }
                Err(NoLine::Late) => {
                    // It is stopped for a moment when the daemon is, in a terminal.
                    let is_stopped = self.child.as_ref().is_some_and(|child| process::is_stopped(child.id()));
                    if is_stopped && was_stopped {
                        self.end();
                        return Err(HelperError::Stopped);
                    }
                    was_stopped = is_stopped;
                }
            }
        }
    }

    /// Kills the helper.
    fn end(&mut self) -> HelperError {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
        }
        HelperError::Ended
    }
}

impl Drop for Helper {
    /// Closes the helper's input, which ends it. The next helper of the same process waits for that, and the driver may
    /// delay it.
    fn drop(&mut self) {
        self.steps = None;
        if let Some(child) = self.child.take() {
            ending::end(self.target, child);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_helper_that_is_stopped_is_given_up_long_before_its_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("helper");
        // A child writes it: programs that other tests start may have what this process has open for writing, and the
        // kernel executes no such file.
        let write = "printf '#!/bin/sh\nkill -STOP $$\necho late\n' >\"$0\" && chmod 700 \"$0\"";
        assert!(Command::new("sh").args(["-c", write]).arg(&program).status().unwrap().success());
        let target = Target { pid: std::process::id(), start: 1 };
        let started = Helper::start(&program, target, Duration::from_secs(3600));
        assert!(matches!(started, Err(HelperError::Stopped)), "{started:?}");
        assert!(ending::wait_for(target, Duration::from_secs(60)), "it was killed");
    }
}
