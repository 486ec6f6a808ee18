//! Harness of the decision machine in virtual time, for tests, fuzzing, replays and the simulator.
//!
//! ```text
//!   caller: who wants what, and how long it takes
//!     │ event                                 ▲ effects
//!     ▼                                       │
//!   Core::handle(now) ─▶ effects ─▶ gate words in the pages of the processes
//! ```
//!
//! [`Harness::step`] also checks the invariants, and leaves recalls to the caller. [`Harness::poll_effect`]
//! checks nothing, and answers recalls.

use gpushare_proto::{Bytes, ClientId, GateState, GateWord, Nanos};

use crate::events::{Effect, Event};
use crate::machine::Core;
use crate::session::gate::FIRST_WORD;
use crate::values::id_map::IdMap;
use crate::view::invariants::{Broken, Invariants};

/// Decision machine, its time, and the gate words of the processes.
#[derive(Clone, Debug)]
pub struct Harness {
    /// Decision machine.
    pub core: Core,
    /// Time of the next event.
    pub now: Nanos,
    gates: IdMap<ClientId, GateWord>,
    invariants: Invariants,
}

impl Harness {
    /// Creates a harness of a decision machine that starts at the time `now`.
    #[must_use]
    pub fn new(core: Core, now: Nanos) -> Self {
        Self { core, now, gates: IdMap::default(), invariants: Invariants::default() }
    }

    /// Handles an event and leaves its effects in the decision machine.
    pub fn tell(&mut self, event: Event) {
        self.core.handle(self.now, event);
    }

    /// Handles an event. Returns all effects, and whether the invariants hold.
    pub fn step(&mut self, event: Event) -> (Vec<Effect>, Result<(), Broken>) {
        self.tell(event);
        let effects: Vec<Effect> = std::iter::from_fn(|| self.core.poll_effect()).collect();
        effects.iter().for_each(|effect| self.store(effect));
        let rules = self.invariants.after(&self.core, event, &effects);
        (effects, rules)
    }

    /// Returns the next effect. A recall is answered: at most `unused` bytes come back from each page.
    pub fn poll_effect(&mut self, unused: Bytes) -> Option<Effect> {
        let effect = self.core.poll_effect()?;
        self.store(&effect);
        if let Effect::Recall { client, gpu, bytes } = effect {
            self.tell(Event::Recalled { client, gpu, bytes: bytes.min(unused) });
        }
        Some(effect)
    }

    fn store(&mut self, effect: &Effect) {
        if let Effect::Gate { client, word, .. } = *effect {
            self.gates.insert(client, word);
        }
    }

    /// Returns the gate word of a process.
    #[must_use]
    pub fn gate(&self, client: ClientId) -> GateWord {
        self.gates.get(client).copied().unwrap_or(FIRST_WORD)
    }

    /// Changes the state of a gate as its process does, and returns the gate word before.
    pub fn set_gate(&mut self, client: ClientId, state: GateState) -> GateWord {
        let word = self.gate(client);
        self.gates.insert(client, word.with(state));
        word
    }

    /// Gives a process a new page.
    pub fn new_page(&mut self, client: ClientId) {
        self.gates.remove(client);
    }
}
