//! The gate of one client, as the machine knows it. The word itself lies in the client's page, where the
//! client may change the state under our change number; this is what we may rely on.
//!
//! ```text
//!            open                 Entered
//!   Shut ──────────▶ Moving ───────────────▶ Open
//!    ▲  ╲──────────────────────────────────▶ │ │
//!    │                 open                  │ │ Released{this change}: the client closed it itself
//!    │  the session let go                   │ ▼
//!    ├────────────────────────────────────── │ Idle
//!    │ Released{this change}                 │
//!    └─────────────────────────── Closing ◀──┘ close
//! ```
//!
//! A message counts only if it names the current change number: what was sent before our last change is
//! about a gate that is no more.

use gpushare_proto::{GateState, GateWord};

/// The word in a page that was never written.
pub const FIRST_WORD: GateWord = GateWord::new(0, GateState::Closed);

/// Who may pass, and what we wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// Closed, nothing in flight.
    Shut,
    /// Closed by the client itself, which proved that nothing is in flight; its session still holds the lock.
    Idle,
    /// Closed by us; the client drains.
    Closing,
    /// Granted; the client brings its memory in and opens.
    Moving,
    /// Open.
    Open,
}

/// What a `Released` meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LetGo {
    /// The drain that we asked for is done.
    Drained,
    /// The client went idle on its own.
    WentIdle,
}

/// One client's gate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate {
    word: GateWord,
    passage: Passage,
    waiting: bool,
}

impl Gate {
    pub(crate) const fn new() -> Self {
        Self { word: FIRST_WORD, passage: Passage::Shut, waiting: false }
    }

    pub(crate) const fn passage(&self) -> Passage {
        self.passage
    }

    /// Whether threads may pass now or as soon as the memory is in.
    pub(crate) const fn passes(&self) -> bool {
        matches!(self.passage, Passage::Moving | Passage::Open)
    }

    /// Whether memory is being brought in.
    pub(crate) const fn is_moving(&self) -> bool {
        matches!(self.passage, Passage::Moving)
    }

    /// Whether the client has nothing in flight.
    pub(crate) const fn let_go(&self) -> bool {
        matches!(self.passage, Passage::Shut | Passage::Idle)
    }

    /// Whether a thread sleeps at the closed gate.
    pub(crate) const fn waiting(&self) -> bool {
        self.waiting && !self.passes()
    }

    /// The state as people see it.
    pub(crate) const fn state(&self) -> GateState {
        self.word.state()
    }

    /// Opens, by way of [`Passage::Moving`] if memory has to come in first.
    pub(crate) fn open(&mut self, moving: bool) -> GateWord {
        let (state, passage) = match moving {
            true => (GateState::Moving, Passage::Moving),
            false => (GateState::Open, Passage::Open),
        };
        self.change(state, passage)
    }

    /// Closes and asks for a drain.
    pub(crate) fn close(&mut self) -> GateWord {
        self.change(GateState::Closed, Passage::Closing)
    }

    /// The session gave the lock back: an idle client's gate is now closed like any other.
    pub(crate) fn shut(&mut self) {
        self.passage = Passage::Shut;
    }

    /// A thread says that it sleeps. Where we believe the gate open, only a thread that saw it *closed* under the same
    /// change counts: its word overtook the `Released` of a client that went idle.
    pub(crate) fn wait(&mut self, word: GateWord) {
        if self.is_current(word) && (!self.passes() || word.state() == GateState::Closed) {
            self.waiting = true;
        }
    }

    /// The memory is in. Whether that was expected.
    pub(crate) fn entered(&mut self, word: GateWord) -> bool {
        let expected = self.is_current(word) && self.passage == Passage::Moving;
        if expected {
            self.word = self.word.with(GateState::Open);
            self.passage = Passage::Open;
        }
        expected
    }

    /// The client let go under `word`, if that is the current one.
    pub(crate) fn released(&mut self, word: GateWord) -> Option<LetGo> {
        if !self.is_current(word) {
            return None;
        }
        match self.passage {
            Passage::Closing => {
                self.passage = Passage::Shut;
                Some(LetGo::Drained)
            }
            Passage::Moving | Passage::Open => {
                self.word = self.word.with(GateState::Closed);
                self.passage = Passage::Idle;
                Some(LetGo::WentIdle)
            }
            Passage::Shut | Passage::Idle => None,
        }
    }

    /// The client has another page, on which no word was written yet: the one that means there what the last one meant, if
    /// that is not the first.
    pub(crate) fn begin_anew(&mut self, waiting: bool) -> Option<GateWord> {
        let passage = self.passage;
        *self = Self::new();
        let word = match passage {
            Passage::Shut | Passage::Idle => None,
            Passage::Closing => Some(self.close()),
            Passage::Moving => Some(self.open(true)),
            Passage::Open => Some(self.open(false)),
        };
        self.waiting = waiting && !self.passes();
        word
    }

    fn is_current(&self, word: GateWord) -> bool {
        word.change() == self.word.change()
    }

    fn change(&mut self, state: GateState, passage: Passage) -> GateWord {
        self.word = self.word.next(state);
        self.passage = passage;
        self.waiting = false;
        self.word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_counts_only_under_the_word_that_asked_for_it() {
        let mut gate = Gate::new();
        let open = gate.open(false);
        let closed = gate.close();
        assert_eq!(gate.released(open), None);
        assert_eq!(gate.released(closed), Some(LetGo::Drained));
        assert_eq!(gate.released(closed), None, "a repetition means nothing");
    }

    #[test]
    fn a_client_that_goes_idle_closes_under_our_change_number() {
        let mut gate = Gate::new();
        let open = gate.open(false);
        assert_eq!(gate.released(open), Some(LetGo::WentIdle));
        gate.wait(open.with(GateState::Closed));
        assert!(gate.waiting());
        assert_eq!(gate.open(false), open.next(GateState::Open));
        assert!(!gate.waiting());
    }

    #[test]
    fn a_wait_that_overtakes_its_released_is_remembered() {
        let mut gate = Gate::new();
        let open = gate.open(false);
        gate.wait(open.with(GateState::Closed));
        assert!(!gate.waiting(), "as far as we know it is open");
        assert_eq!(gate.released(open), Some(LetGo::WentIdle));
        assert!(gate.waiting());
    }

    #[test]
    fn on_another_page_an_open_gate_is_open_and_a_drain_is_asked_for_again() {
        let mut gate = Gate::new();
        assert_eq!(gate.begin_anew(true), None);
        assert!(gate.waiting());
        gate.open(false);
        gate.close();
        gate.open(false);
        assert_eq!(gate.begin_anew(true), Some(FIRST_WORD.next(GateState::Open)));
        assert!(!gate.waiting(), "it passes");
        let before = gate.close();
        let after = gate.begin_anew(false).unwrap();
        assert_eq!(after, FIRST_WORD.next(GateState::Closed));
        assert_ne!(after, before);
        assert_eq!(gate.released(after), Some(LetGo::Drained));
    }

    #[test]
    fn a_thread_that_sleeps_while_memory_moves_waits_for_nobody_else() {
        let mut gate = Gate::new();
        let moving = gate.open(true);
        gate.wait(moving);
        assert!(gate.entered(moving));
        assert_eq!(gate.state(), GateState::Open);
        assert_eq!(gate.released(moving), Some(LetGo::WentIdle));
        assert!(!gate.waiting());
    }
}
