//! Estimate of a session's wait for its turn, for `gpushare-ctl explain`. No decision depends on it.
//!
//! The estimate is the slow case: the holders use their whole time, and all sessions ahead use their whole
//! turns, one after the other. The wait is shorter if sessions fit together or go idle early.

use std::collections::BTreeSet;

use gpushare_proto::{Nanos, SessionId};

use crate::events::{Lack, WaitsFor};
use crate::machine::Core;
use crate::session::lock::Lock;

/// Estimated wait of a session for its turn or for its memory, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Reason why the session waits.
    pub reason: WaitsFor,
    /// Sessions that hold the waiting session's cards, with the rest of their time.
    pub holders: Vec<(SessionId, Nanos)>,
    /// Sessions whose turns come first, in order, with the expected length of each turn.
    pub ahead: Vec<(SessionId, Nanos)>,
    /// Expected duration of a switch from one session to the next, or of the rest of a move.
    pub handoff: Nanos,
}

impl Waiting {
    /// Estimated duration until the session's turn; `None` if time alone does not end the wait.
    #[must_use]
    pub fn about(&self) -> Option<Nanos> {
        match self.reason {
            WaitsFor::Turn | WaitsFor::Holders(_) => {
                let rest = self.holders.iter().map(|&(_, rest)| rest).max();
                let turns = self.ahead.iter().map(|&(_, turn)| turn + self.handoff);
                Some(rest.unwrap_or_default() + self.handoff + turns.sum())
            }
            WaitsFor::Memory { lack: None | Some(Lack::Moves), .. } => Some(self.handoff),
            WaitsFor::Memory { .. } => None,
            WaitsFor::Thaw(_)
            | WaitsFor::Stuck { .. }
            | WaitsFor::Return(_)
            | WaitsFor::Pardon(_)
            | WaitsFor::Limit(_) => None,
        }
    }
}

impl Core {
    /// Returns the estimated wait of a session; `None` if the session does not wait.
    #[must_use]
    pub fn waiting(&self, now: Nanos, id: SessionId) -> Option<Waiting> {
        let now = self.view.now.max(now);
        let place = self.view.place(id).map(|place| place.reason);
        if let Some(reason @ WaitsFor::Thaw(_)) = place {
            let (holders, ahead) = (Vec::new(), Vec::new());
            return Some(Waiting { reason, holders, ahead, handoff: Nanos::ZERO });
        }
        let Some(reason) = place else {
            let (reason, handoff) = self.view.waits_for_memory(id)?;
            return Some(Waiting { reason, holders: Vec::new(), ahead: Vec::new(), handoff });
        };
        let cards = self.view.turn_cards(id);
        let here = || self.view.cards.among(cards).map(|(_, card)| card);
        let holders: BTreeSet<SessionId> = here().flat_map(|card| &card.index.holders).copied().collect();
        let rest = |holder: SessionId| match &self.view.sessions.get(holder)?.lock {
            Lock::Holding(grant) => Some((holder, grant.clock.end() - now)),
            Lock::Dropping(..) => Some((holder, Nanos::ZERO)),
            Lock::Idle | Lock::Waiting(_) => None,
        };
        let counts = |other| other == id || self.view.is_admissible(other);
        let line = self.view.in_line(cards, None, counts).take_while(|&other| other != id);
        let turn = |other| (other, self.view.turn_length(other, self.view.expected_move(other)));
        Some(Waiting {
            reason,
            holders: holders.into_iter().filter_map(rest).collect(),
            ahead: line.map(turn).collect(),
            handoff: self.view.handoff(id),
        })
    }
}
