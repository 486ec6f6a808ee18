//! Doing again what a daemon did: the events of a recording, given to a machine that starts as that one did.

use gpushare_proto::Nanos;

use crate::events::Effect;
use crate::machine::Core;
use crate::view::invariants::{Broken, Invariants};
use crate::view::log::{Fingerprint, Handled, Header};

/// A machine that is told what another was.
#[derive(Clone, Debug)]
pub struct Replay {
    core: Core,
    invariants: Invariants,
    /// The time of the last event.
    now: Nanos,
}

/// What came of one event.
#[derive(Clone, Debug)]
pub struct Step {
    /// What the machine wants done.
    pub effects: Vec<Effect>,
    /// Whether the daemon did something else.
    pub diverged: bool,
    /// The first rule that does not hold now.
    pub broken: Option<Broken>,
}

impl Replay {
    /// Starts as the recorded machine started.
    #[must_use]
    pub fn new(header: &Header) -> Self {
        Self { core: header.machine(), invariants: Invariants::default(), now: header.started }
    }

    /// Tells the machine one thing.
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
