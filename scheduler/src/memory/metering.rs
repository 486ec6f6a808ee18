//! Questions to NVML about the memory of all processes: when they are due, and which one is open.
//!
//! ```text
//!   a card is attached, a context comes or goes ─▶ in SOON ─┐
//!                                                           ▼                                Overhead, if changed
//!   while there are clients ─▶ every PAUSE ─▶ note fixed bytes, ask ~~▶ answer ─▶ used − fixed ─▶ core
//! ```
//!
//! Only one question is open at a time, however long its answer takes. So each answer belongs to its
//! question.

use std::collections::BTreeMap;
use std::io;

use gpushare_proto::{Bytes, ClientId, GpuId, Nanos};
use gpushare_sys::clock;
use tokio::sync::mpsc;

use crate::input::Input;
use crate::nvml::{self, Reader};

/// Time that a context has to come into being before it is measured.
const SOON: Nanos = Nanos::from_secs(1);
/// Interval between two measurements of all processes.
const PAUSE: Nanos = Nanos::from_secs(5);
/// Time without an answer after which the old figures count no more.
const STALE: Nanos = Nanos::from_secs(30);

/// Booked bytes that cannot move, by process and card.
pub(crate) type FixedBytes = BTreeMap<(ClientId, GpuId), Bytes>;

/// Schedule of the questions to NVML.
#[derive(Debug, Default)]
pub(crate) struct Metering {
    next: Option<Nanos>,
    reader: Option<Reader>,
    open: Option<Question>,
    /// Number of questions asked so far.
    pub(crate) questions: u64,
    /// Whether there is no NVML to ask.
    pub(crate) off: bool,
}

#[derive(Debug)]
struct Question {
    at: Nanos,
    /// Fixed bytes at the time of the question; none if it is only about dead processes.
    fixed: Option<FixedBytes>,
    /// Whether the old figures were dropped.
    stale: bool,
}

pub(crate) enum Step {
    /// Ask NVML, about all processes or only about the dead ones.
    Ask { all: bool },
    /// Drop the old figures, as the open question stays without an answer.
    Drop(Option<FixedBytes>),
}

impl Metering {
    /// Ends the periodic measurement: no client is left.
    pub(crate) fn rest(&mut self) {
        self.next = None;
    }

    pub(crate) fn turn_off(&mut self) {
        *self = Self { off: true, questions: self.questions, ..Self::default() };
    }

    /// Brings the next measurement forward: a context comes or goes.
    pub(crate) fn measure_soon(&mut self) {
        let soon = clock::monotonic() + SOON;
        if !self.off {
            self.next = Some(self.next.map_or(soon, |next| next.min(soon)));
        }
    }

    /// Returns the time of the next step. `orphans` is the time of the next question about a dead process.
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

    /// Asks NVML. Returns false if no answer will ever come, and an error if the thread cannot start now.
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
                Reader::start("meter", nvml::usages, deliver)?
            }
        };
        let answers = self.reader.insert(reader).ask();
        if answers {
            self.questions += 1;
            self.open = Some(Question { at: now, fixed, stale: false });
        }
        Ok(answers)
    }

    /// Closes the open question, which is answered. Returns the fixed bytes at its time.
    pub(crate) fn answered(&mut self) -> Option<Option<FixedBytes>> {
        self.open.take().map(|open| open.fixed)
    }
}
