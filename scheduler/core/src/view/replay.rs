//! Replay of a recording: its events are given to a decision machine that starts as the recorded one did.

use gpushare_proto::Nanos;

use crate::events::Effect;
use crate::machine::Core;
use crate::view::invariants::{Broken, Invariants};
use crate::view::log::{Fingerprint, Handled, Header};

/// Decision machine that handles the events of a recording.
#[derive(Clone, Debug)]
pub struct Replay {
    core: Core,
    invariants: Invariants,
    /// Point in time, on the recorded clock, of the last event.
    now: Nanos,
}

/// Outcome of replaying one event.
#[derive(Clone, Debug)]
pub struct Step {
    /// Effects that the replayed event gave.
    pub effects: Vec<Effect>,
    /// Whether the daemon recorded other effects for the event.
    pub diverged: bool,
    /// First invariant that does not hold after the event.
    pub broken: Option<Broken>,
}

impl Replay {
    /// Creates a decision machine that starts as the recorded one did.
    #[must_use]
    pub fn new(header: &Header) -> Self {
        Self { core: header.machine(), invariants: Invariants::default(), now: header.started }
    }

    /// Handles one recorded event and compares its effects with the recorded ones.
    pub fn step(&mut self, handled: &Handled) -> Step {
        let back = (handled.now < self.now).then(|| Broken {
            rule: "time does not run backwards",
            found: format!("{} ns after {} ns", handled.now.0, self.now.0),
        });
        self.now = handled.now;
        self.core.handle(handled.now, handled.event);
        let effects: Vec<Effect> = std::iter::from_fn(|| self.core.poll_effect()).collect();
        Step {
            diverged: handled.effects.is_some_and(|recorded| recorded != Fingerprint::of(&effects)),
            broken: back.or_else(|| self.invariants.after(&self.core, handled.event, &effects).err()),
            effects,
        }
    }
}
