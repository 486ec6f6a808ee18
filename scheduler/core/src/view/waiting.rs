//! What lies before a waiting session's turn, for whoever asks: nothing is decided by it.
//!
//! The estimate is that of the slow case: the holder runs until its time is over, and all who are ahead use their turns to the end, one
//! after the other. Sessions that fit together, or go idle early, make it shorter.

use std::collections::BTreeSet;

use gpushare_proto::{Nanos, SessionId};

use crate::events::WaitsFor;
use crate::machine::Core;
use crate::session::lock::Lock;

/// For what a session waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// For whom or what.
    pub reason: WaitsFor,
    /// Who holds the lock on its cards, and what is left of their time.
    pub holders: Vec<(SessionId, Nanos)>,
    /// Whose turn comes first, in order, and how long each is expected to be.
    pub ahead: Vec<(SessionId, Nanos)>,
    /// What a change of turns is expected to take.
    pub handoff: Nanos,
}

impl Waiting {
    /// How long until its turn; none where time alone changes nothing.
    #[must_use]
    pub fn about(&self) -> Option<Nanos> {
        match self.reason {
            WaitsFor::Turn | WaitsFor::Holders(_) => {
                let rest = self.holders.iter().map(|&(_, rest)| rest).max();
                let turns = self.ahead.iter().map(|&(_, turn)| turn + self.handoff);
                Some(rest.unwrap_or_default() + self.handoff + turns.sum())
            }
            WaitsFor::Stuck { .. } | WaitsFor::Return(_) | WaitsFor::Pardon(_) | WaitsFor::Limit(_) => None,
        }
    }
}

impl Core {
    /// What lies before a session's turn, if it waits for one.
    #[must_use]
    pub fn waiting(&self, now: Nanos, id: SessionId) -> Option<Waiting> {
        let now = self.now.max(now);
        let reason = self.place(id)?.reason;
        let cards = self.turn_cards(id);
        let here = || self.cards.among(cards).map(|(_, card)| card);
        let holders: BTreeSet<SessionId> = here().flat_map(|card| &card.census.holders).copied().collect();
        let rest = |holder: SessionId| match &self.sessions.get(holder)?.lock {
            Lock::Holding(grant) => Some((holder, grant.clock.end() - now)),
            Lock::Dropping(..) => Some((holder, Nanos::ZERO)),
            Lock::Idle | Lock::Waiting(_) => None,
        };
        let line = self.in_line(cards).take_while(|&other| other != id);
        let line = line.filter(|&other| self.is_admissible(other));
        let turn = |other| (other, self.quantum(other, self.expected_move(other)));
        Some(Waiting {
            reason,
            holders: holders.into_iter().filter_map(rest).collect(),
            ahead: line.map(turn).collect(),
            handoff: self.switch_cost(id),
        })
    }
}
