//! Questions to NVML about the cards that are open, and the thaws that wait for their answers.

use std::collections::BTreeSet;

use gpushare_proto::{ClientId, GpuId, Nanos};

use crate::nvml::Reader;

/// Longest time without an answer after which the books alone decide.
const PATIENCE: Nanos = Nanos::from_secs(5);

/// Questions to NVML about the cards.
#[derive(Debug, Default)]
pub(crate) struct RoomQuestions {
    pub(super) reader: Option<Reader>,
    /// Whether there is no NVML, or it does not answer.
    pub(super) is_off: bool,
    /// Time of the open question.
    pub(super) asked: Option<Nanos>,
    /// Processes to thaw that the open question is about.
    pub(super) thaws: Vec<ClientId>,
    /// Processes to thaw that came since.
    pub(super) later: Vec<ClientId>,
    /// Cards that are not in persistence mode.
    pub(crate) without_persistence: BTreeSet<GpuId>,
}

impl RoomQuestions {
    /// Returns the point in monotonic time at which the open question has no answer.
    pub(crate) fn due(&self) -> Option<Nanos> {
        let is_waiting = !self.thaws.is_empty() || !self.later.is_empty();
        self.asked.filter(|_| is_waiting).map(|asked| asked + PATIENCE)
    }

    /// Removes and returns all processes to thaw.
    pub(super) fn take(&mut self) -> Vec<ClientId> {
        let mut all = std::mem::take(&mut self.thaws);
        all.append(&mut self.later);
        all
    }
}
