//! The decision machine, with the recorder of its events and the queue of its effects.

use std::collections::VecDeque;
use std::ops::Deref;

use gpushare_core::log::Header;
use gpushare_core::{Core, Effect, Event};
use gpushare_sys::clock;

use crate::record::{RecordError, Recorder, Reel};

/// The decision machine, the recorder of its events, and the effects that are not performed yet.
///
/// Reads use [`Core`] directly. Events enter only by [`Machine::decide`], so each event is recorded.
#[derive(Debug)]
pub(crate) struct Machine {
    core: Core,
    recorder: Recorder,
    effects: VecDeque<Effect>,
}

impl Machine {
    pub(crate) fn start(header: Header, reel: Option<Reel>) -> Result<Self, RecordError> {
        let core = header.machine();
        Ok(Self { core, recorder: Recorder::start(reel, header)?, effects: VecDeque::new() })
    }

    /// Passes an event to the decision machine. Its effects are queued behind those of earlier events.
    pub(crate) fn decide(&mut self, event: Event) {
        let now = clock::monotonic();
        self.recorder.begin(now, event);
        self.core.handle(now, event);
        let before = self.effects.len();
        self.effects.extend(std::iter::from_fn(|| self.core.poll_effect()));
        self.recorder.finish(self.effects.range(before..));
    }

    pub(crate) fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }
}

impl Deref for Machine {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}
