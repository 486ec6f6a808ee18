//! What a program would get that is not started yet: the machine itself says so, as a copy that is told of the program and then
//! thrown away. So the answer follows from the same rules as everything else, and nothing is changed by the question.

use gpushare_proto::admin::Mode;
use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos, Percent, SessionId};

use crate::card::Card;
use crate::events::Event;
use crate::machine::Core;
use crate::session::gate::FIRST_WORD;

/// Nobody's number.
const NEWCOMER: ClientId = ClientId(u64::MAX);

/// The session that a program would belong to.
#[derive(Clone, Copy, Debug)]
pub struct DryRunSession {
    /// Its number, or one that no session has.
    pub session: SessionId,
    /// Its quota on the card in question.
    pub limit: Option<Bytes>,
    /// Its compute limit there.
    pub compute: Option<Percent>,
    /// Its part of the time.
    pub weight: u32,
    /// Its class.
    pub priority: Priority,
    /// Whether it may be larger than the card.
    pub oversubscribe: bool,
}

/// What it would get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// What may be resident together, with one context more if it has none there.
    pub capacity: Bytes,
    /// What the others may have by their quotas, or have where they have none.
    pub promised: Bytes,
    /// What the others have.
    pub used: Bytes,
    /// Whether it fits beside them, if it uses its whole quota.
    pub fits: bool,
    /// How the card is shared.
    pub mode: Mode,
    /// How it would be.
    pub then: Mode,
    /// Whose turns would come first, and how long each is.
    pub ahead: Vec<(SessionId, Nanos)>,
    /// Its own turn.
    pub quantum: Nanos,
    /// What a change of turns to it would take.
    pub switch: Nanos,
    /// The longest wait for a turn (turns.rs); none where time alone does not end it.
    pub bound: Option<Nanos>,
}

impl Core {
    /// What a session would get on a card if one more process of it used the whole of its quota there.
    #[must_use]
    pub fn foresee(&self, now: Nanos, gpu: GpuId, prospect: DryRunSession) -> Option<Forecast> {
        let mode = self.cards.get(gpu)?.mode.mode();
        let id = prospect.session;
        let mut then = self.clone();
        then.start(now, gpu, prospect);
        let card = then.cards.get(gpu)?;
        let others = || card.census.members.iter().filter(|&&other| other != id);
        let sums =
            |other: &SessionId| then.sessions.get(*other).map(|other| other.sums(gpu)).unwrap_or_default();
        let used = |other: &SessionId| sums(other).used.get();
        let promised = |other: &SessionId| {
            let limit = then.sessions.get(*other).map(|other| other.limit(gpu));
            limit.filter(|limit| *limit != Bytes::MAX).unwrap_or_else(|| used(other))
        };
        let in_turns = card.takes_turns();
        let waiting = then.waiting(now, id);
        let ahead = waiting.iter().flat_map(|waiting| {
            // Who holds now comes first as well; what is left of its turn is less than a whole one.
            let holders = waiting.holders.iter().filter(|&&(holder, _)| holder != id);
            holders.chain(&waiting.ahead).copied()
        });
        let endless = waiting.as_ref().is_some_and(|waiting| waiting.about().is_none());
        Some(Forecast {
            capacity: card.capacity(),
            promised: others().map(promised).sum(),
            used: others().map(used).sum(),
            fits: card.needed() <= card.capacity(),
            mode,
            then: card.mode.mode(),
            ahead: ahead.collect(),
            quantum: then.quantum(id, then.expected_move(id)),
            switch: card.switch_cost(then.expected_move(id), &then.config),
            bound: match in_turns {
                _ if endless => None,
                true => Some(then.bound(gpu, card, id)),
                false => Some(Nanos::ZERO),
            },
        })
    }

    /// Tells the machine of a program that uses all it may and has work.
    fn start(&mut self, now: Nanos, gpu: GpuId, prospect: DryRunSession) {
        let DryRunSession { session, limit, compute, weight, priority, oversubscribe } = prospect;
        let client = NEWCOMER;
        let had = self.sessions.get(session).map(|known| known.sums(gpu).used.get());
        let opened = Event::SessionOpened { session, limit, oversubscribe };
        let share = Event::Share { session, weight, priority };
        let new = had.is_none().then_some([opened, share]);
        let used = limit.unwrap_or_default() - had.unwrap_or_default();
        let uses = [
            Event::Compute { session, gpu, limit: compute },
            Event::ClientJoined { client, session, holding: None },
            Event::Attached { client, gpu, used },
            Event::Contexts { client, gpu, live: 1 },
            Event::Wait { client, word: FIRST_WORD },
        ];
        for event in new.into_iter().flatten().chain(uses) {
            self.handle(now, event);
            while let Some(effect) = self.poll_effect() {
                // No page has anything to give back here.
                if let crate::Effect::Recall { client, gpu, .. } = effect {
                    self.handle(now, Event::Recalled { client, gpu, bytes: Bytes::ZERO });
                }
            }
        }
    }

    /// The bound on the wait that turns.rs states, for all who take turns on a card now.
    fn bound(&self, gpu: GpuId, card: &Card, id: SessionId) -> Nanos {
        let share = |id: SessionId| self.sessions.get(id).map(|session| session.share).unwrap_or_default();
        let turn = |id: SessionId| {
            let brought = self.expected_move(id);
            let switch = card.switch_cost(brought, &self.config);
            (self.quantum(id, brought), switch)
        };
        let (own, (quantum, switch)) = (share(id), turn(id));
        let members = card.census.members.iter().copied();
        let others: Vec<SessionId> = members
            .filter(|&other| other != id && self.turn_cards(other).contains(gpu))
            .collect();
        let each = others.iter().map(|&other| {
            let (theirs, (turn, change)) = (share(other), turn(other));
            own.catching_up(theirs, quantum + switch) + turn + Nanos(turn.0 / 2) + change
        });
        let budget = match card.has_fixed_quantum() {
            true => Nanos::ZERO,
            false => self.config.budget_max,
        };
        let passed_over = others.iter().any(|&other| share(other).class < own.class);
        let owed = match passed_over {
            true => part_of(quantum + switch, self.config.trickle),
            false => Nanos::ZERO,
        };
        each.sum::<Nanos>() + budget + owed
    }
}

/// The time of which `span` is this share.
fn part_of(span: Nanos, share: Percent) -> Nanos {
    let whole = u128::from(span.0) * 10_000 / u128::from(share.0.max(1));
    Nanos(u64::try_from(whole).unwrap_or(u64::MAX))
}
