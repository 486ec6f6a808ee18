//! Invariant of turns (`docs/design/turns.md`, "Length of a turn"), checked after every event: no session is asked for
//! its lock before it has held it for its least quantum.
//!
//! ```text
//!   least quantum = largest over the cards of the session of (fixed quantum, else quantum_min)
//! ```
//!
//! If settings change, the smallest value since the grant counts. Where turns begin on cards whose sessions all had
//! the lock, the time counts from there. A late drop that is undone and tried again asks once. The checker keeps its
//! own clocks. These sessions may be asked sooner:
//!
//! 1. one that may not run now, or whose compute limit is used up;
//! 2. one that does not fit beside others with the lock, since memory grew, the capacity fell, or turns began;
//! 3. one that announces another card, where others may wait;
//! 4. one that an early turn interrupts, on cards without a fixed quantum;
//! 5. one with a backfilled turn, which lasts until a gang can begin;
//! 6. one that says without proof that it held the lock of the last daemon, and gets no turn.

use std::collections::BTreeMap;

use gpushare_proto::{Epoch, GateState, GpuId, Nanos, SessionId};

use super::{Broken, hold};
use crate::config::SHORTEST_QUANTUM;
use crate::events::{Effect, Event};
use crate::machine::Core;
use crate::memory::sums::Total;
use crate::session::Session;
use crate::session::lock::Grant;
use crate::values::gpu_set::GpuSet;

/// Checker of the times at which sessions are asked for their locks.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    held: BTreeMap<SessionId, Held>,
    /// Cards on which all sessions take turns.
    in_turns: GpuSet,
}

/// Lock that a session has.
#[derive(Clone, Copy, Debug)]
struct Held {
    epoch: Epoch,
    /// Whether the session was asked for the lock.
    is_asked: bool,
    /// Point in time from which the session holds the lock, or from which its cards take turns if that is later.
    since: Nanos,
    takes_turns: bool,
    /// Smallest least quantum since then.
    least: Nanos,
}

impl Turns {
    /// Checks the sessions that the decision machine asked for their locks when it handled `event`.
    pub(super) fn after(&mut self, core: &Core, event: Event, effects: &[Effect]) -> Result<(), Broken> {
        let before = std::mem::replace(self, Self { in_turns: core.view.in_turns, ..Self::default() });
        for (id, session) in core.view.sessions.iter() {
            let Some(grant) = session.lock.grant() else { continue };
            let held = before.held(core, id, session, grant);
            let was_asked = before.held.get(&id).is_some_and(|was| was.epoch == held.epoch && was.is_asked);
            if held.is_asked && !was_asked {
                before.is_due(core, (id, session, grant), held, event, effects)?;
            }
            self.held.insert(id, held);
        }
        Ok(())
    }

    /// Lock of a session that has it now.
    fn held(&self, core: &Core, id: SessionId, session: &Session, grant: &Grant) -> Held {
        let (takes_turns, is_asked) = (core.view.takes_turns(id), session.lock.dropping().is_some());
        let (epoch, least) = (grant.epoch, least_quantum(core, id));
        let now = Held { epoch, is_asked, since: core.view.now, takes_turns, least };
        // A session that comes to a card with turns has had its part of the time.
        let begun = core.view.in_turns.without(self.in_turns);
        let turns_begin = |held: &Held| !held.takes_turns && core.view.turn_cards(id).is_within(begun);
        let goes_on = |held: &Held| held.is_asked && !is_asked;
        let begins = |held: &Held| takes_turns && (turns_begin(held) || goes_on(held));
        match self.held.get(&id).filter(|held| held.epoch == epoch && !begins(held)) {
            Some(&held) => Held { since: held.since, least: held.least.min(least), ..now },
            None => now,
        }
    }

    /// Checks that a session is asked for its lock when its least quantum is over, or for a reason.
    fn is_due(
        &self,
        core: &Core,
        (id, session, grant): (SessionId, &Session, &Grant),
        Held { since, least, .. }: Held,
        event: Event,
        effects: &[Effect],
    ) -> Result<(), Broken> {
        let is_over = core.view.now >= since + least;
        let announces =
            || matches!(event, Event::Attached { client, .. } if session.clients.contains(client));
        let is_backfilled = || grant.clock.is_limited();
        let due = is_over
            || !session.may_run()
            || session.is_throttled()
            || self.is_surplus(core, id)
            || announces()
            || is_backfilled()
            || is_interrupted(core, id, grant)
            || !was_opened(session, effects) && !self.held.contains_key(&id);
        let rule = "nobody is asked for its lock before its least quantum is over";
        hold(rule, due, || {
            format!(
                "{id} was asked at {:?}, and holds it since {since:?}, for at least {least}: {:?}",
                core.view.now, session.lock
            )
        })
    }

    /// Whether a session does not fit beside others that had the lock when it was asked for its own.
    fn is_surplus(&self, core: &Core, id: SessionId) -> bool {
        let had_lock = |other: SessionId, session: &Session| {
            let begins = |grant: &Grant| grant.at == core.view.now && !grant.is_turn;
            let held = self.held.get(&other).is_some_and(|held| !held.is_asked);
            held || session.lock.grant().is_some_and(begins)
        };
        core.view.turn_cards(id).into_iter().any(|gpu: GpuId| {
            let Some(card) = core.view.cards.get(gpu) else { return false };
            let sessions = core.view.sessions.iter().filter(|(other, session)| {
                *other == id || (had_lock(*other, session) && core.view.turn_cards(*other).contains(gpu))
            });
            let (mut holders, mut needed) = (0, Total::default());
            for (_, session) in sessions {
                holders += 1;
                session.books(gpu).for_each(|(_, book)| needed += book.movable().into());
            }
            holders > 1 && (!card.moves_memory() || needed > card.capacity().into())
        })
    }
}

/// Least quantum of a session: the longest over its cards.
fn least_quantum(core: &Core, id: SessionId) -> Nanos {
    let least = core.view.config.quantum_min;
    let cards = core.view.cards.among(core.view.cards_of(id));
    let quanta = cards.map(|(_, card)| card.knobs.quantum.unwrap_or(least).max(SHORTEST_QUANTUM));
    quanta.max().unwrap_or_default()
}

/// Whether a turn was ended for the early turn of another session on a card whose quantum is not fixed.
fn is_interrupted(core: &Core, id: SessionId, grant: &Grant) -> bool {
    let cards = core.view.turn_cards(id);
    let is_early = |(other, session): (SessionId, &Session)| {
        let shared = core.view.turn_cards(other).and(cards);
        let begins = || session.lock.grant().is_some_and(|grant| grant.is_early);
        let mut shared = core.view.cards.among(shared).peekable();
        shared.peek().is_some()
            && shared.all(|(_, card)| !card.has_fixed_quantum())
            && (session.urgent || begins())
    };
    grant.clock.is_interrupted() && core.view.sessions.iter().any(|other| other.0 != id && is_early(other))
}

/// Whether a gate of a session was opened.
fn was_opened(session: &Session, effects: &[Effect]) -> bool {
    effects.iter().any(|effect| {
        matches!(effect, Effect::Gate { client, word, .. }
            if session.clients.contains(*client) && word.state() != GateState::Closed)
    })
}
