//! Trials: before the first freeze on a card, a process of the daemon's own is frozen and thawed there.
//!
//! A driver of a version that was tried may still fail on this machine. So the first process that it freezes and brings
//! back is none of a user. The outcome counts for the life of the daemon, unless the card had no memory for the trial
//! or the trial broke off. Then the next freeze is preceded by another one.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use gpushare_checkpoint::{Limits, TrialError, try_freeze};
use gpushare_core::FreezeEnd;
use gpushare_proto::audit::Outcome;
use gpushare_proto::{GpuId, GpuUuid};

use crate::operation::Operation;

/// Program of the helpers and of the trials: this daemon's, whatever file lies at its path by now.
pub(super) const HELPER: &str = "/proc/self/exe";
/// Longest move of the process's memory, of which it has little. The calls of the process to be frozen wait meanwhile.
const MOVING: Duration = Duration::from_secs(30);

/// Outcomes of the trials on each card.
#[derive(Debug, Default)]
pub(crate) struct Trials(BTreeMap<GpuId, Result<(), String>>);

impl Trials {
    /// Notes the outcome of a trial. A failed one is final.
    pub(crate) fn note(&mut self, gpu: GpuId, outcome: &Result<(), TrialError>) {
        let record = Operation::done("gpu.trial").on(gpu).always();
        match outcome {
            Ok(()) => {
                record.info(format_args!(
                    "the trial of a freeze on {gpu} succeeded: a process of this daemon came back as it was"
                ));
                self.0.entry(gpu).or_insert(Ok(()));
            }
            Err(TrialError::Failed(reason)) => {
                record.failed(Outcome::Failed, "trial").warn(format_args!(
                    "the trial of a freeze on {gpu} failed, so nothing is frozen there: {reason}"
                ));
                self.0.insert(gpu, Err(reason.clone()));
            }
            Err(error) => record.failed(Outcome::Failed, "busy").warn(format_args!(
                "the trial of a freeze on {gpu} is repeated before the next freeze: {error}"
            )),
        }
    }

    /// Returns the cards on which the trial failed, with the reasons.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (GpuId, &str)> {
        self.0
            .iter()
            .filter_map(|(&gpu, outcome)| Some((gpu, outcome.as_ref().err()?.as_str())))
    }

    /// Whether a trial on a card has succeeded.
    pub(super) fn has_succeeded(&self, gpu: GpuId) -> bool {
        matches!(self.0.get(&gpu), Some(Ok(())))
    }
}

/// Makes a trial on each of these cards, and blocks meanwhile. Tells each outcome, and returns the end of the freeze
/// that was to follow, if it must not.
pub(super) fn failure(
    untried: &[(GpuId, GpuUuid)],
    tell: impl Fn(GpuId, Result<(), TrialError>),
) -> Option<FreezeEnd> {
    let limits = Limits { moving: MOVING, ..Limits::default() };
    untried.iter().find_map(|&(gpu, uuid)| {
        let outcome = try_freeze(Path::new(HELPER), &uuid.to_string(), &limits);
        let end = end(gpu, &outcome);
        tell(gpu, outcome);
        end
    })
}

/// Returns the end of a freeze after the trial on a card; none if it may begin.
fn end(gpu: GpuId, outcome: &Result<(), TrialError>) -> Option<FreezeEnd> {
    match outcome {
        Ok(()) => None,
        Err(TrialError::NoRoom(_) | TrialError::BrokeOff(_)) => Some(FreezeEnd::Busy),
        Err(TrialError::Failed(_)) => Some(FreezeEnd::TrialFailed { gpu }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: GpuId = GpuId(0);
    const OTHER: GpuId = GpuId(1);

    #[test]
    fn a_trial_without_room_and_one_that_breaks_off_are_repeated() {
        let mut trials = Trials::default();
        for error in [TrialError::NoRoom("full".to_owned()), TrialError::BrokeOff("killed".to_owned())] {
            let outcome = Err(error);
            trials.note(GPU, &outcome);
            assert_eq!(end(GPU, &outcome), Some(FreezeEnd::Busy));
        }
        assert!(!trials.has_succeeded(GPU) && trials.failures().next().is_none());
    }

    #[test]
    fn each_card_has_an_outcome_of_its_own() {
        let mut trials = Trials::default();
        trials.note(GPU, &Ok(()));
        let failed = Err(TrialError::Failed("wrong words".to_owned()));
        trials.note(OTHER, &failed);
        assert!(trials.has_succeeded(GPU) && !trials.has_succeeded(OTHER));
        assert_eq!(trials.failures().collect::<Vec<_>>(), [(OTHER, "wrong words")]);
        assert_eq!(end(GPU, &Ok(())), None);
        assert_eq!(end(OTHER, &failed), Some(FreezeEnd::TrialFailed { gpu: OTHER }));
    }
}
