//! Way out of the process's managed memory, after it has let go and while another process comes in.
//!
//! ```text
//!   closed, released, and a goal in the page ─▶ batch ─▶ look at word, goal and daemon ─▶ batch ─▶ …
//!                                                               │ changed
//!                                                               ▼
//!                                                           abandoned
//! ```
//!
//! The daemon gives a goal while another process comes in and the card lacks room for it, and lifts it afterwards.
//! The driver would evict the same bytes. So nothing waits for this move, and it may end at any moment.

use gpushare_proto::page::Page;
use gpushare_proto::{Bytes, GateState, GateWord};

use super::moves::{Moves, Way};
use crate::driver::types::CUdevice;
use crate::driver::{Driver, contexts::Contexts};
use crate::memory::Memory;

/// Way out under one closed gate word, once it has begun.
#[derive(Debug, Default)]
pub(crate) struct WayOut(Option<(usize, GateWord, Moves)>);

impl WayOut {
    /// Asks for the next batch of what may not stay on a card, if the gate `word` of the page is closed. `goal` is the
    /// most bytes that may. Returns whether memory moves.
    pub(super) fn advance(
        &mut self,
        (page, word): (&Page, GateWord),
        parts: (&Driver, &Contexts, &Memory),
        goal: impl Fn(CUdevice) -> Bytes,
    ) -> bool {
        if word.state() != GateState::Closed {
            self.abandon();
            return false;
        }
        let (driver, contexts, memory) = parts;
        let has_goal = || contexts.devices().into_iter().any(|device| goal(device) < Bytes::MAX);
        let place = std::ptr::from_ref(page).addr();
        self.0 = self.0.take().filter(|(of, under, _)| (*of, *under) == (place, word));
        if self.0.is_none() && has_goal() {
            self.0 = Some((place, word, Moves::new(Way::Out, driver, contexts, memory)));
        }
        self.0.as_mut().is_some_and(|(.., moves)| !moves.advance(parts, goal))
    }

    /// Asks for nothing more. What was asked for arrives.
    pub(super) fn abandon(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::moves::tests::{are_under_way, asked, process};
    use super::*;
    use crate::driver::types::DEVICE_CPU;

    const CLOSED: GateWord = GateWord::new(4, GateState::Closed);

    #[test]
    fn memory_leaves_under_a_closed_word_with_a_goal_and_not_once_the_gate_is_to_open() {
        let (driver, contexts, memory) = process();
        let parts = (&driver, &contexts, &memory);
        let (page, mut out) = (Page::new(GateState::Closed), WayOut::default());
        for state in [GateState::Open, GateState::Moving, GateState::Idle] {
            assert!(!out.advance((&page, CLOSED.with(state)), parts, |_| Bytes::ZERO));
        }
        assert!(!out.advance((&page, CLOSED), parts, |_| Bytes::MAX));
        assert_eq!(asked(DEVICE_CPU), 0, "no goal, or no closed gate");

        assert!(out.advance((&page, CLOSED), parts, |_| Bytes::ZERO));
        assert_eq!(asked(DEVICE_CPU), 128, "a batch of each card");
        are_under_way(true);
        assert!(out.advance((&page, CLOSED), parts, |_| Bytes::ZERO));
        are_under_way(false);
        assert!(!out.advance((&page, CLOSED.next(GateState::Moving)), parts, |_| Bytes::ZERO));
        assert_eq!(asked(DEVICE_CPU), 128, "abandoned between two batches");
    }

    #[test]
    fn a_goal_that_is_lifted_ends_the_move_and_a_lower_one_goes_on_where_it_ended() {
        let (driver, contexts, memory) = process();
        let parts = (&driver, &contexts, &memory);
        let (page, mut out) = (Page::new(GateState::Closed), WayOut::default());
        assert!(out.advance((&page, CLOSED), parts, |_| Bytes::ZERO));
        assert!(!out.advance((&page, CLOSED), parts, |_| Bytes::MAX));
        assert_eq!(asked(DEVICE_CPU), 128);
        while out.advance((&page, CLOSED), parts, |_| Bytes::ZERO) {}
        assert_eq!(asked(DEVICE_CPU), 1400, "each byte once");
        assert!(!out.advance((&page, CLOSED), parts, |_| Bytes::ZERO), "all has left");
    }
}
