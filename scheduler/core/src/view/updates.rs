//! Updates for processes beside their gates: flags, memory figures and places in the queue, each sent when it
//! changes.
//!
//! In a long queue every grant changes all places, and would need a thousand messages. So a process in a long
//! queue is told its place at most once a second, and only few processes at a time. On a card with many
//! sessions one allocation may change the figures of all others. Those sessions are told in rounds: at most
//! [`TOLD_AT_ONCE`] of them every [`STEP`].

use gpushare_proto::page::{
    FLAG_CONTENDED, FLAG_FROZEN, FLAG_HOST_FULL, FLAG_LIMITED, FLAG_OVERLAPPING, FLAG_WANTED, flag_overflows,
};
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos, SessionId};

use smallvec::SmallVec;

use crate::card::{Card, Told};
use crate::events::{Effect, Place};
use crate::machine::Core;
use crate::machine::agenda::Timer;
use crate::session::Session;
use crate::session::client::{Client, Figures};
use crate::session::share::Class;
use crate::values::gpu_set::GpuSet;
use crate::view::View;
use crate::view::figures::present_ceiling;

/// Largest number of sessions in a queue, or on a card, that are told every change at once.
pub(crate) const FEW: usize = 16;
/// Shortest time between two updates of its place that a process in a long queue is sent.
const PAUSE: Nanos = Nanos::from_secs(1);
/// Number of sessions in a long queue that are sent their places in one step.
const AT_ONCE: usize = 8;
const STEP: Nanos = Nanos::from_millis(10);
/// Number of sessions on a card that are told their memory figures in one step.
const TOLD_AT_ONCE: usize = 64;

/// Memory figures that changed since the process was told, by card.
type Changed = SmallVec<[(GpuId, Figures); 1]>;

/// Number of bytes that a session uses and the largest number that it may use, by card.
type Facts = SmallVec<[(GpuId, Bytes, Bytes); 1]>;

/// Changes that a process was not told yet.
#[derive(Debug)]
struct Update {
    client: ClientId,
    flags: Option<u32>,
    target: Option<Nanos>,
    figures: Changed,
    queued: Option<Option<Place>>,
}

impl Update {
    fn is_none(&self) -> bool {
        self.flags.is_none() && self.target.is_none() && self.figures.is_empty() && self.queued.is_none()
    }
}

impl View {
    /// Point in time at which a session may be sent its place, if it was sent none since the queue
    /// `moved_up`.
    fn place_is_old(&self, id: SessionId, moved_up: Nanos) -> Option<Nanos> {
        let session = self.sessions.get(id)?;
        // A session that is dropping may have threads at its gate, but has no place.
        session.lock.ticket()?;
        let waiting = session.attached().map(|(_, process)| process);
        let told = waiting.filter(|process| process.gate.waiting()).map(|process| &process.told);
        let old = told.filter_map(|told| match told.queued {
            None => Some(Nanos::ZERO),
            Some(_) => (told.queued_at <= moved_up).then(|| told.queued_at + PAUSE),
        });
        old.min()
    }

    /// Change of the place that a process was last told: `Some(None)` if it waits no longer. `place` caches
    /// the session's place.
    fn queued(
        &self,
        id: SessionId,
        process: &Client,
        hears: bool,
        place: &mut Option<Place>,
    ) -> Option<Option<Place>> {
        let told = &process.told;
        if !process.gate.waiting() {
            return told.queued.is_some().then_some(None);
        }
        if !hears {
            return None;
        }
        if place.is_none() {
            *place = self.place(id);
        }
        (told.queued != *place).then(|| place.clone())
    }

    /// Whether a session waits in a long queue. A session that is kept out of all queues is told at once.
    fn is_in_a_crowd(&self, session: &Session) -> bool {
        let queues = session.cards.iter().filter(|(_, on)| on.listed.queued.is_some());
        let mut cards = queues.filter_map(|(gpu, _)| self.cards.get(gpu));
        cards.any(|card| card.index.waiting() > FEW)
    }

    /// `wanted` says whether the session is to give the lock back when it is idle, and `overlaps` whether that
    /// costs little.
    fn flags(
        &self,
        (client, process): (ClientId, &Client),
        session: &Session,
        wanted: bool,
        overlaps: bool,
    ) -> u32 {
        let contended = process.books.keys().any(|gpu| {
            let live = session.sums(gpu).live > 0;
            let card = self.cards.get(gpu);
            card.is_some_and(|card| card.index.has_other_users(live))
        });
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let limited = flag(session.is_limited(), FLAG_LIMITED);
        let overflows =
            |gpu: &GpuId| self.cards.get(*gpu).is_some_and(|card| card.residents.overflows(client));
        let overflows = process.books.keys().filter(overflows);
        let overflows = overflows.fold(0, |flags, gpu| flags | flag_overflows(gpu));
        let full = flag(process.remaps && self.host.is_full, FLAG_HOST_FULL);
        flag(contended, FLAG_CONTENDED)
            | flag(wanted, FLAG_WANTED)
            | flag(overlaps, FLAG_OVERLAPPING)
            | limited
            | full
            | flag(session.may_be_cold && process.frost.is_cold(), FLAG_FROZEN)
            | overflows
    }

    /// Target for the length of a process's work in flight, the shortest of its cards, if it differs from what
    /// the process was last told.
    fn new_drain_target(&self, session: &Session, process: &Client) -> Option<Nanos> {
        let cards = process.books.keys().filter_map(|gpu| self.cards.get(gpu));
        let target = cards.map(|card| card.drain_target(session.share.class)).min();
        target.filter(|&target| target != process.told.target)
    }

    /// Memory figures that differ from those that the process was last told. `facts` caches the session's use
    /// and ceiling by card.
    fn new_figures(&self, session: &Session, process: &Client, facts: &mut Facts) -> Changed {
        let mut new = Changed::new();
        for (gpu, book) in process.books.iter() {
            let Some(card) = self.cards.get(gpu) else {
                continue;
            };
            let known = facts.iter().find(|(known, ..)| *known == gpu).copied();
            let (_, used, ceiling) = known.unwrap_or_else(|| {
                let fact = (gpu, session.sums(gpu).used.get(), present_ceiling(session, gpu, card));
                facts.push(fact);
                fact
            });
            let figures = Figures { limit: session.quota.on(gpu), siblings: used - book.used(), ceiling };
            if process.told.figures.get(gpu) != Some(&figures) {
                new.push((gpu, figures));
            }
        }
        new
    }
}

impl Core {
    /// Adds to the agenda the sessions whose processes must be told of a change on a card.
    pub(crate) fn touch_members_of_changed_cards(&mut self) {
        for gpu in self.agenda.cards() {
            let Some(card) = self.view.cards.get_mut(gpu) else {
                continue;
            };
            let told = card.state_to_tell();
            let before = std::mem::replace(&mut card.told, told);
            let few = card.index.members.len() <= FEW;
            let all = (told.users, told.targets) != (before.users, before.targets);
            if all || (told.ceilings != before.ceilings && few) {
                self.touch_members(gpu);
            } else if told.ceilings != before.ceilings {
                card.figures.changed = true;
                if card.alarms.figures.is_none() {
                    let at = Some(self.view.now + STEP);
                    self.agenda.set_timer(Timer::Figures(gpu), &mut card.alarms.figures, at);
                }
            }
            if told.line != before.line {
                self.line_changed(gpu);
            }
            if told.overlaps != before.overlaps {
                self.touch_in_turn(gpu);
            }
        }
    }

    /// Adds to the agenda the sessions that have a turn on a card, or whose drain is not complete. How they divide
    /// the time, and whether they prove that they are idle, depends on each other.
    pub(crate) fn touch_in_turn(&mut self, gpu: GpuId) {
        let holders = self.view.cards.get(gpu).map(|card| &card.index.holders);
        let in_turn = holders.into_iter().flatten().copied();
        let in_turn = in_turn.filter(|&id| self.view.turn_cards(id).contains(gpu));
        for id in in_turn.collect::<SmallVec<[SessionId; 4]>>() {
            self.touch(id);
        }
    }

    /// Tells the next sessions on a card their memory figures. A change during a round starts another one
    /// afterwards.
    pub(crate) fn tell_figures(&mut self, gpu: GpuId) {
        let Some(card) = self.view.cards.get_mut(gpu) else {
            return;
        };
        let from = card.figures.next.take().unwrap_or_else(|| {
            card.figures.changed = false;
            SessionId(0)
        });
        let mut rest = card.index.members.range(from..).copied();
        let told: Vec<SessionId> = rest.by_ref().take(TOLD_AT_ONCE).collect();
        card.figures.next = rest.next();
        if card.figures.next.is_some() || card.figures.changed {
            let at = Some(self.view.now + STEP);
            self.agenda.set_timer(Timer::Figures(gpu), &mut card.alarms.figures, at);
        }
        told.into_iter().for_each(|id| self.touch_wholly(id));
    }

    /// Tells waiting processes how many processes of the last daemon are missing; many sessions are told in
    /// steps.
    pub(crate) fn tell_who_is_awaited(&mut self) {
        if self.view.sessions.len() <= FEW {
            return self.touch_all();
        }
        let cards: GpuSet = self.view.cards.keys().collect();
        for gpu in cards {
            self.agenda.look_at(gpu);
            self.tell_places_soon(gpu);
        }
    }

    fn line_changed(&mut self, gpu: GpuId) {
        let Some(card) = self.view.cards.get_mut(gpu) else {
            return;
        };
        if card.index.waiting() <= FEW {
            card.moved_up = self.view.now;
            for id in card.groups.in_order(|_| true).collect::<Vec<_>>() {
                // A gang may stand in a long queue on another card, which did not change.
                if let Some(session) = self.view.sessions.get_mut(id) {
                    session.hears_place = true;
                }
                self.touch(id);
            }
        } else {
            self.tell_places_soon(gpu);
        }
    }

    /// Starts to tell the sessions in a card's long queue their places, step by step.
    fn tell_places_soon(&mut self, gpu: GpuId) {
        let Some(card) = self.view.cards.get_mut(gpu) else {
            return;
        };
        card.moved_up = self.view.now;
        if card.alarms.places.is_none() {
            let at = Some(self.view.now + STEP);
            self.agenda.set_timer(Timer::Places(gpu), &mut card.alarms.places, at);
        }
    }

    /// Tells the next few sessions in a long queue their places.
    pub(crate) fn tell_places_again(&mut self, gpu: GpuId) {
        let Some(card) = self.view.cards.get(gpu) else { return };
        // During recovery sessions also wait on cards without turns, which have no queue.
        let waiting: Vec<SessionId> = match self.view.recovery.is_over() {
            true => card.groups.in_order(|_| true).collect(),
            false => card.index.members.iter().copied().collect(),
        };
        let due = |id| Some((self.view.place_is_old(id, card.moved_up)?, id));
        let mut old: Vec<(Nanos, SessionId)> = waiting.into_iter().filter_map(due).collect();
        // The longest untold first; else the front would be told every place and the rest none.
        old.sort_unstable_by_key(|&(due, _)| due);
        let now = old.iter().take(AT_ONCE).take_while(|&&(due, _)| due <= self.view.now);
        let turn = old[..now.count()].to_vec();
        let later = old.get(turn.len()).map(|&(due, _)| due.max(self.view.now + STEP));
        for (_, id) in turn {
            if let Some(session) = self.view.sessions.get_mut(id) {
                session.hears_place = true;
            }
            self.touch(id);
        }
        if let Some(card) = self.view.cards.get_mut(gpu) {
            self.agenda.set_timer(Timer::Places(gpu), &mut card.alarms.places, later);
        }
    }

    /// Sends the pending updates of one session's processes.
    pub(crate) fn update_processes(&mut self, id: SessionId) {
        let Some(session) = self.view.sessions.get(id) else {
            return;
        };
        // A session with a compute limit gains from proving that it is idle.
        let holds = session.lock.grant().is_some();
        let in_the_way = || self.view.stands_in_the_way(session) || self.view.has_drain_beside(session);
        let proves = session.must_prove_idleness(self.view.now);
        let wanted = holds && (session.is_limited() || proves || in_the_way());
        let in_turn = || self.view.cards.among(session.turn_cards(self.view.in_turns));
        let overlaps = wanted && in_turn().all(|(_, card)| card.overlaps());
        let hears = session.hears_place || !self.view.is_in_a_crowd(session);
        let mut updates: SmallVec<[Update; 1]> = SmallVec::new();
        let (mut place, mut facts) = (None, Facts::new());
        for (client, process) in session.attached() {
            let flags = self.view.flags((client, process), session, wanted, overlaps);
            let update = Update {
                client,
                flags: (flags != process.told.flags).then_some(flags),
                target: match session.figures_moved {
                    true => self.view.new_drain_target(session, process),
                    false => None,
                },
                figures: match session.figures_moved {
                    true => self.view.new_figures(session, process, &mut facts),
                    false => Changed::new(),
                },
                queued: self.view.queued(id, process, hears, &mut place),
            };
            if !update.is_none() {
                updates.push(update);
            }
        }
        updates.into_iter().for_each(|update| self.send_update(update));
        if let Some(session) = self.view.sessions.get_mut(id) {
            session.figures_moved = false;
            if std::mem::take(&mut session.hears_place) {
                // Set even if the place is the same: the others in the queue come next.
                let told = session.clients.values_mut().map(|process| &mut process.told);
                told.for_each(|told| told.queued_at = self.view.now);
            }
        }
    }

    fn send_update(&mut self, update: Update) {
        let (client, now) = (update.client, self.view.now);
        let Some(process) = self.client_mut(client) else {
            return;
        };
        let told = &mut process.told;
        told.flags = update.flags.unwrap_or(told.flags);
        told.target = update.target.unwrap_or(told.target);
        told.figures.extend(update.figures.iter().copied());
        if let Some(place) = &update.queued {
            told.queued.clone_from(place);
            told.queued_at = now;
        }
        if let Some(flags) = update.flags {
            self.effects.push_back(Effect::Flags { client, flags });
        }
        if let Some(target) = update.target {
            self.effects.push_back(Effect::DrainTarget { client, target });
        }
        for (gpu, figures) in update.figures {
            self.effects.push_back(Effect::Figures {
                client,
                gpu,
                limit: figures.limit,
                siblings: figures.siblings,
                ceiling: figures.ceiling,
            });
        }
        if let Some(Some(Place { ahead, reason })) = update.queued {
            self.effects.push_back(Effect::Queued { client, ahead, reason });
        }
    }
}

impl Card {
    /// Figures of the card that concern all sessions on it.
    fn state_to_tell(&self) -> Told {
        let limit = self.managed_limit();
        let taken = match limit {
            Bytes::MAX => Bytes::ZERO,
            _ => self.managed(),
        };
        let overlaps = self.overlaps();
        Told {
            users: self.index.users(),
            line: self.index.line(),
            ceilings: [self.before_fixed(), self.fixed(), taken, limit],
            targets: match overlaps {
                true => Class::ALL.map(|class| self.drain_target(class)),
                false => [self.knobs.window_target; 3],
            },
            overlaps,
        }
    }
}
