//! The decision machine with its recording and its queue of effects.

use std::collections::VecDeque;
use std::ops::Deref;

use gpushare_core::log::Header;
use gpushare_core::{Core, Effect, Event};
use gpushare_sys::clock;

use crate::record::{RecordError, Recorder, Reel};

/// The core, the recorder of its events, and the effects that are not performed yet.
///
/// Reads go to [`Core`] itself. Events only enter by [`Machine::decide`], so each of them is recorded.
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

    /// Gives the core an event. Its effects queue behind those of earlier events.
    pub(crate) fn decide(&mut self, event: Event) {
        let now = clock::monotonic();
        self.recorder.begin(now, event);
        self.core.handle(now, event);
        let wanted: Vec<Effect> = std::iter::from_fn(|| self.core.poll_effect()).collect();
        self.recorder.finish(&wanted);
        self.effects.extend(wanted);
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
