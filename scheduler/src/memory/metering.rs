//! Schedule of the questions to NVML about the memory of all processes.
//!
//! ```text
//!   a card is attached, a context comes or goes ─▶ in SOON ─┐
//!                                                           ▼                                Overhead, if changed
//!   while there are clients ─▶ every PAUSE ─▶ note fixed bytes, ask ~~▶ answer ─▶ used − fixed ─▶ core
//! ```
//!
//! Only one question is open at a time, however long NVML takes. So each answer belongs to its question.

use std::collections::BTreeMap;
use std::io;

use gpushare_proto::{Bytes, ClientId, GpuId, Nanos};
use gpushare_sys::clock;
use tokio::sync::mpsc;

use crate::input::Input;
use crate::nvml::{self, Reader};

/// Delay between the creation of a context and its measurement, so that the context is complete.
const SOON: Nanos = Nanos::from_secs(1);
/// Interval between two measurements of all processes.
const PAUSE: Nanos = Nanos::from_secs(5);
/// Longest duration without an answer of NVML during which the old figures still count.
const STALE: Nanos = Nanos::from_secs(30);

/// Booked bytes that cannot leave the card, by process and card.
pub(crate) type FixedBytes = BTreeMap<(ClientId, GpuId), Bytes>;

/// Schedule of the questions to NVML.
#[derive(Debug, Default)]
pub(crate) struct Metering {
    next: Option<Nanos>,
    reader: Option<Reader>,
    open: Option<Question>,
    /// Number of questions asked to NVML so far.
    pub(crate) questions: u64,
    /// Whether no NVML exists to ask.
    pub(crate) off: bool,
}

#[derive(Debug)]
struct Question {
    at: Nanos,
    /// Fixed bytes when the question was asked; none if the question is only about dead processes.
    fixed: Option<FixedBytes>,
    /// Whether the old figures were discarded, because NVML did not answer.
    stale: bool,
}

pub(crate) enum Step {
    /// Asks NVML about all processes, or only about the dead ones.
    Ask { all: bool },
    /// Discards the old figures, because the open question has no answer.
    Drop(Option<FixedBytes>),
}

impl Metering {
    /// Ends the periodic measurement, because no client is left.
    pub(crate) fn rest(&mut self) {
        self.next = None;
    }

    pub(crate) fn turn_off(&mut self) {
        *self = Self { off: true, questions: self.questions, ..Self::default() };
    }

    /// Schedules the next measurement earlier, because a context was created or destroyed.
    pub(crate) fn measure_soon(&mut self) {
        let soon = clock::monotonic() + SOON;
        if !self.off {
            self.next = Some(self.next.map_or(soon, |next| next.min(soon)));
        }
    }

    /// Returns the point in monotonic time of the next step. `orphans` is that of the next orphan question.
    pub(crate) fn due(&self, orphans: Option<Nanos>) -> Option<Nanos> {
        match &self.open {
            Some(open) => (!open.stale).then(|| open.at + STALE),
            None => self.next.into_iter().chain(orphans).min(),
        }
    }

    pub(crate) fn next_step(&mut self, now: Nanos, orphans: Option<Nanos>) -> Option<Step> {
        if self.due(orphans).is_none_or(|due| due > now) {
            return None;
        }
        if let Some(open) = &mut self.open {
            open.stale = true;
            return Some(Step::Drop(open.fixed.take()));
        }
        let all = self.next.is_some_and(|next| next <= now);
        if all {
            self.next = Some(now + PAUSE);
        }
        Some(Step::Ask { all })
    }

    /// Sends a question to NVML. Returns false if no answer can ever come; fails if the thread cannot start.
    pub(crate) fn ask(
        &mut self,
        now: Nanos,
        fixed: Option<FixedBytes>,
        inputs: &mpsc::Sender<Input>,
    ) -> io::Result<bool> {
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => {
                let inputs = inputs.clone();
                let deliver = move |usages| inputs.blocking_send(Input::Measured(usages)).is_ok();
                Reader::start("meter", |nvml, ()| nvml::usages(nvml), deliver)?
            }
        };
        let answers = self.reader.insert(reader).ask(());
        if answers {
            self.questions += 1;
            self.open = Some(Question { at: now, fixed, stale: false });
        }
        Ok(answers)
    }

    /// Closes the open question after its answer. Returns the fixed bytes at the time of the question.
    pub(crate) fn answered(&mut self) -> Option<Option<FixedBytes>> {
        self.open.take().map(|open| open.fixed)
    }
}
