//! Forecast for a program that is not started yet (`gpushare-ctl run --dry-run`).
//!
//! The forecast tells a copy of the decision machine that the program starts, and discards the copy after the
//! answer. So the forecast follows the same rules as the decisions, and changes nothing.

use std::collections::BTreeMap;

use gpushare_proto::admin::Mode;
use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos, Percent, SessionId};

use crate::card::Card;
use crate::events::Event;
use crate::machine::Core;
use crate::session::Session;
use crate::session::gate::FIRST_WORD;
use crate::session::share::{Branch, Class, Member, UserId};
use crate::view::View;

/// Number that stands for the forecast's process; no real process has it.
const NEWCOMER: ClientId = ClientId(u64::MAX);

/// Session to which the program would belong.
#[derive(Clone, Copy, Debug)]
pub struct DryRunSession {
    /// Identifier of the session, or a number that no session has if the session is new.
    pub session: SessionId,
    /// Memory quota of the session on the card of the forecast.
    pub limit: Option<Bytes>,
    /// Compute limit of the session on the card of the forecast.
    pub compute: Option<Percent>,
    /// Weight of the session: its part of the time beside other sessions.
    pub weight: u32,
    /// Priority class of the session: high, normal or low.
    pub priority: Priority,
    /// User of the session and the user's weight; `None` if the session counts by itself.
    pub user: Option<(UserId, u32)>,
    /// Whether the session may use more memory than the card's capacity.
    pub oversubscribe: bool,
}

/// Expected outcome of starting the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Largest sum of bytes that sessions may have on the card at once. The room for another CUDA context is
    /// subtracted if the session has none there.
    pub capacity: Bytes,
    /// Sum of the other sessions' quotas in bytes. A session without a quota counts with the bytes that it
    /// uses.
    pub promised: Bytes,
    /// Number of bytes that the other sessions use on the card.
    pub used: Bytes,
    /// Whether the session's whole quota fits on the card beside the other sessions.
    pub fits: bool,
    /// Mode of the card before the program starts.
    pub mode: Mode,
    /// Mode of the card once the program runs.
    pub then: Mode,
    /// Sessions whose turns would come before the program's, with the length of each turn.
    pub ahead: Vec<(SessionId, Nanos)>,
    /// Length of the turn that the program's session would get.
    pub quantum: Nanos,
    /// Expected duration of a switch to the program's session.
    pub switch: Nanos,
    /// Longest wait for a turn (computed as in turns/order.rs); `None` if time alone does not end the wait.
    pub bound: Option<Nanos>,
}

impl View {
    /// Longest wait according to the bound in turns/order.rs, for the sessions that take turns on a card now.
    fn bound(&self, gpu: GpuId, card: &Card, id: SessionId) -> Nanos {
        let turn = |id: SessionId| {
            let brought = self.expected_move(id);
            let switch = card.switch_time(brought, &self.config);
            (self.longest_turn(id, brought), switch)
        };
        let (quantum, switch) = turn(id);
        let members = card.index.members.iter().copied();
        let members = members.filter(|&member| self.turn_cards(member).contains(gpu));
        let parts = self.parts(&members.collect::<Vec<_>>());
        let own = parts
            .iter()
            .find(|(member, _)| *member == id)
            .map_or(1, |&(_, part)| part.max(1));
        let others = parts.iter().filter(|(other, _)| *other != id);
        let each = others.map(|&(other, part)| {
            let (turn, change) = turn(other);
            let catches_up = u128::from((quantum + switch).0).saturating_mul(part) / own;
            let catches_up = Nanos(u64::try_from(catches_up).unwrap_or(u64::MAX));
            catches_up + turn + Nanos(turn.0 / 2) + change
        });
        let budget = match card.has_fixed_quantum() {
            true => Nanos::ZERO,
            false => self.config.budget_max,
        };
        each.sum::<Nanos>() + budget
    }
}

impl View {
    /// Parts of the time that some sessions are due beside each other if they always have work, in one unit.
    fn parts(&self, ids: &[SessionId]) -> Vec<(SessionId, u128)> {
        // Weights of the members of each class, and of the sessions of each user.
        let mut classes: BTreeMap<Class, BTreeMap<Member, u128>> = BTreeMap::new();
        let mut users: BTreeMap<Branch, u128> = BTreeMap::new();
        let known = ids.iter().filter_map(|&id| Some((id, self.sessions.get(id)?)));
        let place = |id, session: &Session| match session.user {
            Some((user, share)) => (Member::User(user), u128::from(share.weight())),
            None => (Member::Session(id), u128::from(session.share.weight())),
        };
        for (id, session) in known.clone() {
            let (member, weight) = place(id, session);
            classes.entry(session.share.class).or_default().insert(member, weight);
            *users.entry(session.branch()).or_default() += u128::from(session.share.weight());
        }
        let part = |(id, session): (SessionId, &Session)| {
            let (_, weight) = place(id, session);
            let all = classes.get(&session.share.class).map_or(1, |members| members.values().sum());
            let (own, siblings) = match session.user {
                Some(_) => (u128::from(session.share.weight()), users.get(&session.branch()).copied()),
                None => (1, None),
            };
            (id, session.share.factor() * weight * own / (all * siblings.unwrap_or(1)))
        };
        known.map(part).collect()
    }
}

impl Core {
    /// Returns the expected outcome if one more process of a session used the session's whole quota on a
    /// card.
    #[must_use]
    pub fn foresee(&self, now: Nanos, gpu: GpuId, prospect: DryRunSession) -> Option<Forecast> {
        let mode = self.view.cards.get(gpu)?.mode.mode();
        let id = prospect.session;
        let mut then = self.clone();
        then.begin_prospect(now, gpu, prospect);
        let card = then.view.cards.get(gpu)?;
        let others = || card.index.members.iter().filter(|&&other| other != id);
        let sums = |other: &SessionId| {
            then.view.sessions.get(*other).map(|other| other.sums(gpu)).unwrap_or_default()
        };
        let used = |other: &SessionId| sums(other).used.get();
        let promised = |other: &SessionId| {
            let limit = then.view.sessions.get(*other).map(|other| other.quota.on(gpu));
            limit.filter(|limit| *limit != Bytes::MAX).unwrap_or_else(|| used(other))
        };
        let in_turns = card.takes_turns();
        let waiting = then.waiting(now, id);
        let ahead = waiting.iter().flat_map(|waiting| {
            // Holders come first as well; the rest of their turn is less than a whole one.
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
            quantum: then.view.quantum(id, then.view.expected_move(id)),
            switch: then.view.switch_time(id),
            bound: match in_turns {
                _ if endless => None,
                true => Some(then.view.bound(gpu, card, id)),
                false => Some(Nanos::ZERO),
            },
        })
    }

    /// Tells the decision machine that a program starts, uses its whole quota and has work.
    fn begin_prospect(&mut self, now: Nanos, gpu: GpuId, prospect: DryRunSession) {
        let DryRunSession { session, limit, compute, weight, priority, user, oversubscribe } = prospect;
        let client = NEWCOMER;
        let had = self.view.sessions.get(session).map(|known| known.sums(gpu).used.get());
        let opened = Event::SessionOpened { session, limit, oversubscribe };
        let share = Event::Share { session, weight, priority };
        let owner = user.map(|(user, weight)| Event::Owner { session, user, weight });
        let new = had.is_none().then_some([Some(opened), owner, Some(share)]);
        let used = limit.unwrap_or_default() - had.unwrap_or_default();
        let uses = [
            Event::Compute { session, gpu, limit: compute },
            Event::ClientJoined { client, session, holding: None },
            Event::Attached { client, gpu, used },
            Event::Contexts { client, gpu, live: 1 },
            Event::Wait { client, word: FIRST_WORD },
        ];
        for event in new.into_iter().flatten().flatten().chain(uses) {
            self.handle(now, event);
            while let Some(effect) = self.poll_effect() {
                // There are no pages here, so nothing comes back.
                if let crate::Effect::Recall { client, gpu, .. } = effect {
                    self.handle(now, Event::Recalled { client, gpu, bytes: Bytes::ZERO });
                }
            }
        }
    }
}
