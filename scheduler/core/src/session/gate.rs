//! Gate of one process, as the scheduler knows it.
//!
//! The gate word lies in the memory that the process and the daemon share. There the process may change the
//! state but not the change number. The gate in this module is the part on which the scheduler relies.
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
//! A message counts only if it names the current change number. Other messages are about an earlier word.

use gpushare_proto::{GateState, GateWord};

/// Gate word of a shared page that was never written.
pub const FIRST_WORD: GateWord = GateWord::new(0, GateState::Closed);

/// State of a gate, and the message of the process for which the scheduler waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// The gate is closed and no work is in flight.
    Shut,
    /// The process closed the gate and proved that no work is in flight. Its session still holds the lock.
    Idle,
    /// The scheduler closed the gate, and the process waits for its work in flight.
    Closing,
    /// The lock was granted; the process brings its memory in and then opens the gate.
    Moving,
    /// The gate is open: threads may submit work.
    Open,
}

/// Meaning of a process's report that no work is in flight ([`crate::Event::Released`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// The process finished the drain that the scheduler asked for.
    Drained,
    /// The process went idle without being asked.
    WentIdle,
}

/// Gate of one process, and whether a thread sleeps there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate {
    word: GateWord,
    passage: Passage,
    waiting: bool,
    /// Whether the gate was open when the scheduler last closed it.
    was_open: bool,
    /// Whether the process expects the end of its drain within two milliseconds.
    nearly_drained: bool,
}

impl Gate {
    pub(crate) const fn new() -> Self {
        Self {
            word: FIRST_WORD,
            passage: Passage::Shut,
            waiting: false,
            was_open: false,
            nearly_drained: false,
        }
    }

    pub(crate) const fn passage(&self) -> Passage {
        self.passage
    }

    /// Whether threads may pass the gate now or as soon as the memory is in.
    pub(crate) const fn passes(&self) -> bool {
        matches!(self.passage, Passage::Moving | Passage::Open)
    }

    /// Whether the process is bringing its memory onto the card.
    pub(crate) const fn is_moving(&self) -> bool {
        matches!(self.passage, Passage::Moving)
    }

    /// Whether the process is to let go and may be at work until then.
    pub(crate) const fn ends_work(&self) -> bool {
        matches!(self.passage, Passage::Closing) && self.was_open
    }

    /// Whether the process has no work in flight.
    pub(crate) const fn let_go(&self) -> bool {
        matches!(self.passage, Passage::Shut | Passage::Idle)
    }

    /// Whether the process has no work in flight, or will soon have none.
    pub(crate) const fn lets_go_soon(&self) -> bool {
        self.let_go() || self.nearly_drained
    }

    /// Whether a thread sleeps at the closed gate.
    pub(crate) const fn waiting(&self) -> bool {
        self.waiting && !self.passes()
    }

    /// Returns the state of the gate word, as `status` shows it.
    pub(crate) const fn state(&self) -> GateState {
        self.word.state()
    }

    /// Opens the gate, by way of [`Passage::Moving`] if memory has to come in first.
    pub(crate) fn open(&mut self, moving: bool) -> GateWord {
        let (state, passage) = match moving {
            true => (GateState::Moving, Passage::Moving),
            false => (GateState::Open, Passage::Open),
        };
        self.change(state, passage)
    }

    /// Closes the gate and asks for a drain.
    pub(crate) fn close(&mut self) -> GateWord {
        self.was_open = self.passage == Passage::Open;
        self.change(GateState::Closed, Passage::Closing)
    }

    /// Notes that the session gave the lock back. From now on the gate of an idle process is closed like any
    /// other.
    pub(crate) fn shut(&mut self) {
        self.passage = Passage::Shut;
    }

    /// Notes that a thread sleeps at the gate.
    ///
    /// While the gate is believed open, the message counts only if the thread saw the gate *closed* under the
    /// same change number. Then the process went idle, and its report of that is still on the way.
    pub(crate) fn wait(&mut self, word: GateWord) {
        if self.is_current(word) && (!self.passes() || word.state() == GateState::Closed) {
            self.waiting = true;
        }
    }

    /// Notes that the process's memory is in, and returns whether that report was expected.
    pub(crate) fn entered(&mut self, word: GateWord) -> bool {
        let expected = self.is_current(word) && self.passage == Passage::Moving;
        if expected {
            self.word = self.word.with(GateState::Open);
            self.passage = Passage::Open;
        }
        expected
    }

    /// Notes the process's report, under `word`, that no work is in flight. `None` if that is not the current
    /// gate word.
    pub(crate) fn released(&mut self, word: GateWord) -> Option<Release> {
        if !self.is_current(word) {
            return None;
        }
        match self.passage {
            Passage::Closing => {
                self.passage = Passage::Shut;
                Some(Release::Drained)
            }
            Passage::Moving | Passage::Open => {
                self.word = self.word.with(GateState::Closed);
                self.passage = Passage::Idle;
                Some(Release::WentIdle)
            }
            Passage::Shut | Passage::Idle => None,
        }
    }

    /// Notes the process's report, under `word`, that its drain ends soon.
    pub(crate) fn nearly_drained(&mut self, word: GateWord) {
        self.nearly_drained |= self.is_current(word) && self.passage == Passage::Closing;
    }

    /// Moves the gate to a new shared page. Returns the gate word to write there, unless the gate stays
    /// closed.
    pub(crate) fn move_to_new_page(&mut self, waiting: bool) -> Option<GateWord> {
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
        (self.waiting, self.nearly_drained) = (false, false);
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
        assert_eq!(gate.released(closed), Some(Release::Drained));
        assert_eq!(gate.released(closed), None, "a repetition means nothing");
    }

    #[test]
    fn a_client_that_goes_idle_closes_under_our_change_number() {
        let mut gate = Gate::new();
        let open = gate.open(false);
        assert_eq!(gate.released(open), Some(Release::WentIdle));
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
        assert_eq!(gate.released(open), Some(Release::WentIdle));
        assert!(gate.waiting());
    }

    #[test]
    fn a_new_page_keeps_an_open_gate_open_and_asks_for_the_drain_again() {
        let mut gate = Gate::new();
        assert_eq!(gate.move_to_new_page(true), None);
        assert!(gate.waiting());
        gate.open(false);
        gate.close();
        gate.open(false);
        assert_eq!(gate.move_to_new_page(true), Some(FIRST_WORD.next(GateState::Open)));
        assert!(!gate.waiting(), "it passes");
        let before = gate.close();
        let after = gate.move_to_new_page(false).unwrap();
        assert_eq!(after, FIRST_WORD.next(GateState::Closed));
        assert_ne!(after, before);
        assert_eq!(gate.released(after), Some(Release::Drained));
    }

    #[test]
    fn a_thread_that_sleeps_while_memory_moves_is_forgotten_when_it_is_in() {
        let mut gate = Gate::new();
        let moving = gate.open(true);
        gate.wait(moving);
        assert!(gate.entered(moving));
        assert_eq!(gate.state(), GateState::Open);
        assert_eq!(gate.released(moving), Some(Release::WentIdle));
        assert!(!gate.waiting());
    }
}
