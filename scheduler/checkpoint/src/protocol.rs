//! Lines between the daemon and its helper: one step, one answer, each a line of JSON.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Step that the helper takes about its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    /// Ask for the state of the process.
    State,
    /// Hold the process's calls back, once those under way have ended. Gives up after so many milliseconds.
    Lock(u32),
    /// Move all that the process has on the cards into its host memory.
    Checkpoint,
    /// Move that back.
    Restore,
    /// Let the process's calls go on.
    Unlock,
}

/// State of a process with regard to checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Its calls run.
    Running,
    /// Its calls wait.
    Locked,
    /// Its calls wait, and all that it has is in host memory.
    Checkpointed,
    /// A restore failed. The driver serves the process no more.
    Failed,
}

/// Answer of the helper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The helper takes steps. The driver supports this version of CUDA, such as 13000.
    Ready { cuda: i32 },
    /// The helper cannot take any step, for this reason.
    Unready(String),
    /// The step is done.
    Done,
    /// State of the process.
    State(State),
    /// The driver refused the step.
    Refused(Refusal),
    /// The process has ended, or is no whole process any more.
    Gone,
}

/// `CUDA_ERROR_OPERATING_SYSTEM`, as which the driver reports a process that it may not look into.
const OPERATING_SYSTEM: u32 = 304;

/// Refusal of the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Name of the driver's function.
    pub call: String,
    /// Result code (`CUresult`).
    pub code: u32,
    /// Name of the code, such as `CUDA_ERROR_NOT_SUPPORTED`.
    pub name: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} answered {} ({})", self.call, self.name, self.code)?;
        match self.code {
            OPERATING_SYSTEM => {
                f.write_str(", as if the daemon lacked CAP_SYS_PTRACE, with which it sees the process")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_answers_are_short_lines() {
        assert_eq!(serde_json::to_string(&Step::Lock(500)).unwrap(), r#"{"lock":500}"#);
        assert_eq!(serde_json::to_string(&Step::State).unwrap(), r#""state""#);
        let state = Answer::State(State::Checkpointed);
        assert_eq!(serde_json::to_string(&state).unwrap(), r#"{"state":"checkpointed"}"#);
        let name = "CUDA_ERROR_NOT_SUPPORTED".to_owned();
        let refusal = Refusal { call: "cuX".to_owned(), code: 801, name };
        assert_eq!(refusal.to_string(), "cuX answered CUDA_ERROR_NOT_SUPPORTED (801)");
        let answer = Answer::Refused(refusal);
        let line = serde_json::to_string(&answer).unwrap();
        assert_eq!(serde_json::from_str::<Answer>(&line).unwrap(), answer);
    }
}
