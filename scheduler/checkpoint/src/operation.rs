//! Freezing and thawing of a process, as sequences of a helper's steps.
//!
//! A thaw leads from any state to a running process, so it also repairs an operation that broke off. A process
//! is lost in two cases only: the driver says that its restore failed, or refuses the restore.
//!
//! A step of a helper that has ended may still be under way in the driver, also one of the last daemon's helper. So
//! the state may be about to change. The driver takes one step of a process at a time. So a process counts as running
//! only after another step was refused for that reason, and its state is asked for again after each refusal.

use std::path::Path;
use std::time::Duration;

use crate::driver::{NOT_READY, OUT_OF_MEMORY};
use crate::handle::{Helper, HelperError};
use crate::protocol::{Answer, Refusal, State, Step};
use crate::target::Target;

/// Longest times of the parts of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Start of the helper, with the driver's initialisation.
    pub start: Duration,
    /// Wait for calls and work that are under way when the process is locked.
    pub lock: Duration,
    /// Move of all memory to the host, or back.
    pub moving: Duration,
    /// Any other step.
    pub step: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(30),
            lock: Duration::from_secs(2),
            moving: Duration::from_secs(120),
            step: Duration::from_secs(10),
        }
    }
}

/// Largest number of questions for the state in one thaw. Each but the last follows a step.
const ROUNDS: u32 = 6;

/// Reason why a process was not frozen.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// The process has ended.
    #[error("the process has ended")]
    Gone,
    /// The helper cannot work here. The process was not touched.
    #[error("{0}")]
    Unready(String),
    /// Calls or work were under way for too long. The process runs.
    #[error("calls or work of the process were under way for all of {0:?}")]
    Busy(Duration),
    /// The driver refused. The process runs.
    #[error("{0}")]
    Refused(Refusal),
    /// The operation broke off. The process has to be thawed.
    #[error("{0}")]
    Unknown(String),
}

/// Reason why a process was not thawed.
#[derive(Debug, thiserror::Error)]
pub enum ThawError {
    /// The process has ended.
    #[error("the process has ended")]
    Gone,
    /// The driver found no memory for the process, which is still in its checkpoint.
    #[error("a card has no memory for the process: {0}")]
    NoRoom(Refusal),
    /// The process is in its checkpoint, and was not to be restored.
    #[error("the process is in its checkpoint")]
    Away,
    /// The driver has given the process up, or refused its restore.
    #[error("the process is lost to the driver: {}", loss(.0.as_ref()))]
    Lost(Option<Refusal>),
    /// The operation broke off, or the helper cannot work here. A later attempt may succeed.
    #[error("{0}")]
    Unknown(String),
}

impl From<HelperError> for FreezeError {
    fn from(error: HelperError) -> Self {
        match error {
            HelperError::Start(_) | HelperError::Stuck => Self::Unready(error.to_string()),
            _ => Self::Unknown(error.to_string()),
        }
    }
}

impl From<HelperError> for ThawError {
    fn from(error: HelperError) -> Self {
        Self::Unknown(error.to_string())
    }
}

/// Freezes a running process with a helper, which is `program` started again. Blocks for as long as it takes.
///
/// # Errors
/// Says whether the process runs, has ended, or has to be thawed.
pub fn freeze(program: &Path, target: Target, limits: &Limits) -> Result<(), FreezeError> {
    let (mut helper, first) = Helper::start(program, target, limits.start)?;
    match first {
        Answer::Ready { .. } => {}
        Answer::Gone => return Err(FreezeError::Gone),
        Answer::Unready(reason) => return Err(FreezeError::Unready(reason)),
        other => return Err(FreezeError::Unknown(strange(&other))),
    }
    let patience = u32::try_from(limits.lock.as_millis()).unwrap_or(u32::MAX);
    match helper.take(Step::Lock(patience), limits.lock + limits.step)? {
        Answer::Done => {}
        Answer::Refused(refusal) if refusal.code == NOT_READY => return Err(FreezeError::Busy(limits.lock)),
        Answer::Refused(refusal) => return Err(FreezeError::Refused(refusal)),
        Answer::Gone => return Err(FreezeError::Gone),
        other => return Err(FreezeError::Unknown(strange(&other))),
    }
    match helper.take(Step::Checkpoint, limits.moving)? {
        Answer::Done => Ok(()),
        Answer::Gone => Err(FreezeError::Gone),
        Answer::Refused(refusal) => match helper.take(Step::Unlock, limits.step)? {
            Answer::Done => Err(FreezeError::Refused(refusal)),
            Answer::Gone => Err(FreezeError::Gone),
            other => Err(FreezeError::Unknown(strange(&other))),
        },
        other => Err(FreezeError::Unknown(strange(&other))),
    }
}

/// Brings a process from any state to the running one, with a helper. Blocks for as long as it takes.
///
/// # Errors
/// Says whether the process has ended, is lost, or has to be thawed again.
pub fn thaw(program: &Path, target: Target, limits: &Limits) -> Result<(), ThawError> {
    bring_back(program, target, limits, true)
}

/// Lets a process run that is not in its checkpoint, as [`thaw`] does. No memory of a card is needed for that.
///
/// # Errors
/// As [`thaw`], and [`ThawError::Away`] if the process is in its checkpoint.
pub fn thaw_in_place(program: &Path, target: Target, limits: &Limits) -> Result<(), ThawError> {
    bring_back(program, target, limits, false)
}

fn bring_back(program: &Path, target: Target, limits: &Limits, may_restore: bool) -> Result<(), ThawError> {
    let (mut helper, first) = Helper::start(program, target, limits.start)?;
    match first {
        Answer::Ready { .. } => {}
        Answer::Gone => return Err(ThawError::Gone),
        Answer::Unready(reason) => return Err(ThawError::Unknown(reason)),
        other => return Err(ThawError::Unknown(strange(&other))),
    }
    let mut refused: Option<(Step, Refusal)> = None;
    for _ in 0..ROUNDS {
        let state = match helper.take(Step::State, limits.step)? {
            Answer::State(state) => state,
            Answer::Gone => return Err(ThawError::Gone),
            other => return Err(ThawError::Unknown(strange(&other))),
        };
        let step = match (state, refused.take()) {
            (State::Checkpointed, Some((Step::Restore, refusal))) if refusal.code == OUT_OF_MEMORY => {
                return Err(ThawError::NoRoom(refusal));
            }
            (State::Failed | State::Checkpointed, Some((Step::Restore, refusal))) => {
                return Err(ThawError::Lost(Some(refusal)));
            }
            (State::Failed, _) => return Err(ThawError::Lost(None)),
            (State::Running, Some((Step::Unlock, _))) => return Ok(()),
            (State::Checkpointed, _) if !may_restore => return Err(ThawError::Away),
            (State::Checkpointed, _) => Step::Restore,
            // The answer to a running process is a refusal, after a step that is under way.
            (State::Running | State::Locked, _) => Step::Unlock,
        };
        match helper.take(step, if step == Step::Restore { limits.moving } else { limits.step })? {
            Answer::Done if step == Step::Unlock => return Ok(()),
            Answer::Done => {}
            Answer::Gone => return Err(ThawError::Gone),
            Answer::Refused(refusal) => refused = Some((step, refusal)),
            other => return Err(ThawError::Unknown(strange(&other))),
        }
    }
    Err(ThawError::Unknown(match refused {
        Some((_, refusal)) => refusal.to_string(),
        None => "the state of the process changes all the time".to_owned(),
    }))
}

/// Returns how a process was lost: by this refusal of its restore, or earlier.
fn loss(refusal: Option<&Refusal>) -> String {
    refusal.map_or_else(|| "an earlier restore failed".to_owned(), Refusal::to_string)
}

fn strange(answer: &Answer) -> String {
    match answer {
        Answer::Refused(refusal) => refusal.to_string(),
        other => format!("the helper for checkpoints answered {other:?}"),
    }
}
