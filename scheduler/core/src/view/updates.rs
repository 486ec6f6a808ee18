//! What processes are told besides their gates, each thing only when it changes: flags, figures about memory, and
//! what they wait for.
//!
//! In a long queue every grant changes the place of everybody, and a thousand messages would go out with each. There a process
//! hears of its place when few others do, and of another one after a second: it needs the place for one line on stderr, and
//! whoever is granted waits for all that goes out. On a card with many sessions what one allocates may change
//! what all others may have; they hear of that together, a hundred times a second at most.

use gpushare_proto::page::{FLAG_CONTENDED, FLAG_LIMITED, FLAG_WANTED};
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos, SessionId};

use smallvec::SmallVec;

use crate::card::{Card, Told};
use crate::events::Effect;
use crate::machine::Core;
use crate::machine::agenda::Timer;
use crate::places::Place;
use crate::session::Session;
use crate::session::client::{Client, Figures};
use crate::values::gpu_set::GpuSet;
use crate::view::figures::backed;

/// So many sessions may wait without its being a long queue, and be on a card without being many.
pub(crate) const FEW: usize = 16;
/// How long a process in a long queue is not told of another place.
const PAUSE: Nanos = Nanos::from_secs(1);
/// So many are told of another place at once in a long queue, and the next of them after a step.
const AT_ONCE: usize = 8;
const STEP: Nanos = Nanos::from_millis(10);

/// The figures of cards that changed.
type Changed = SmallVec<[(GpuId, Figures); 1]>;

/// Of a session, by card: what it uses, and the most that it may.
type Facts = SmallVec<[(GpuId, Bytes, Bytes); 1]>;

/// What is new to a process.
#[derive(Debug)]
struct News {
    client: ClientId,
    flags: Option<u32>,
    figures: Changed,
    queued: Option<Option<Place>>,
}

impl News {
    fn is_none(&self) -> bool {
        self.flags.is_none() && self.figures.is_empty() && self.queued.is_none()
    }
}

impl Core {
    /// Puts those on the agenda to whom a change on a card is news.
    pub(crate) fn spread_the_news(&mut self) {
        for gpu in self.agenda.cards() {
            let Some(card) = self.cards.get_mut(gpu) else {
                continue;
            };
            let told = card.news();
            let before = std::mem::replace(&mut card.told, told);
            let few = card.census.members.len() <= FEW;
            if told.users != before.users || (told.ceilings != before.ceilings && few) {
                self.touch_members(gpu);
            } else if told.ceilings != before.ceilings && card.alarms.figures.is_none() {
                let at = Some(self.now + STEP);
                self.agenda.set_timer(Timer::Figures(gpu), &mut card.alarms.figures, at);
            }
            if told.line != before.line {
                self.line_changed(gpu);
            }
        }
    }

    /// Those who wait for the clients of the last daemon hear how many are missing: where they are many, as of their places.
    pub(crate) fn tell_who_is_awaited(&mut self) {
        if self.sessions.len() <= FEW {
            return self.touch_all();
        }
        let cards: GpuSet = self.cards.keys().collect();
        for gpu in cards {
            self.agenda.look_at(gpu);
            self.tell_places_soon(gpu);
        }
    }

    fn line_changed(&mut self, gpu: GpuId) {
        let Some(card) = self.cards.get_mut(gpu) else {
            return;
        };
        if card.census.queue.len() <= FEW {
            card.moved_up = self.now;
            for (_, id) in card.census.queue.clone() {
                // Also a gang that stands in a long queue elsewhere, which need not change.
                if let Some(session) = self.sessions.get_mut(id) {
                    session.hears_place = true;
                }
                self.touch(id);
            }
        } else {
            self.tell_places_soon(gpu);
        }
    }

    /// What those wait for who wait on a card is another from now on, and they are many.
    fn tell_places_soon(&mut self, gpu: GpuId) {
        let Some(card) = self.cards.get_mut(gpu) else {
            return;
        };
        card.moved_up = self.now;
        if card.alarms.places.is_none() {
            let at = Some(self.now + STEP);
            self.agenda.set_timer(Timer::Places(gpu), &mut card.alarms.places, at);
        }
    }

    /// The next few in a long queue hear of their places.
    pub(crate) fn tell_places_again(&mut self, gpu: GpuId) {
        let Some(card) = self.cards.get(gpu) else { return };
        let census = &card.census;
        // Whom the return of others holds up is in no queue where nobody takes turns.
        let waiting: Vec<SessionId> = match self.recovery.is_over() {
            true => census.queue.iter().map(|&(_, id)| id).collect(),
            false => census.members.iter().copied().collect(),
        };
        let due = |id| Some((self.place_is_old(id, card.moved_up)?, id));
        let mut old: Vec<(Nanos, SessionId)> = waiting.into_iter().filter_map(due).collect();
        // Whoever waits for longest, or those in front would hear of each of their places and those behind of none.
        old.sort_unstable_by_key(|&(due, _)| due);
        let now = old.iter().take(AT_ONCE).take_while(|&&(due, _)| due <= self.now);
        let turn = old[..now.count()].to_vec();
        let later = old.get(turn.len()).map(|&(due, _)| due.max(self.now + STEP));
        for (_, id) in turn {
            if let Some(session) = self.sessions.get_mut(id) {
                session.hears_place = true;
            }
            self.touch(id);
        }
        if let Some(card) = self.cards.get_mut(gpu) {
            self.agenda.set_timer(Timer::Places(gpu), &mut card.alarms.places, later);
        }
    }

    /// When a session may hear of its place, if it has not since the line `moved_up`.
    fn place_is_old(&self, id: SessionId, moved_up: Nanos) -> Option<Nanos> {
        let session = self.sessions.get(id)?;
        // Also who must let go may have threads at its gate; it has no place.
        session.lock.ticket()?;
        let waiting = session.attached().map(|(_, process)| process);
        let told = waiting.filter(|process| process.gate.waiting()).map(|process| &process.told);
        let old = told.filter_map(|told| match told.queued {
            None => Some(Nanos::ZERO),
            Some(_) => (told.queued_at <= moved_up).then(|| told.queued_at + PAUSE),
        });
        old.min()
    }

    /// Tells a session's processes what is new to them.
    pub(crate) fn tell(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        // Whoever has a compute limit is glad to prove that it is idle.
        let wanted =
            session.lock.grant().is_some() && (self.stands_in_the_way(session) || session.is_limited());
        let hears = session.hears_place || !self.is_in_a_crowd(session);
        let mut news: SmallVec<[News; 1]> = SmallVec::new();
        let (mut place, mut facts) = (None, Facts::new());
        for (client, process) in session.attached() {
            let flags = self.flags(process, session, wanted);
            let new = News {
                client,
                flags: (flags != process.told.flags).then_some(flags),
                figures: match session.figures_moved {
                    true => self.new_figures(session, process, &mut facts),
                    false => Changed::new(),
                },
                queued: self.queued(id, process, hears, &mut place),
            };
            if !new.is_none() {
                news.push(new);
            }
        }
        news.into_iter().for_each(|news| self.tell_news(news));
        if let Some(session) = self.sessions.get_mut(id) {
            session.figures_moved = false;
            if std::mem::take(&mut session.hears_place) {
                // Also where it stands as it did: it had its turn to hear, and others have theirs.
                let told = session.clients.values_mut().map(|process| &mut process.told);
                told.for_each(|told| told.queued_at = self.now);
            }
        }
    }

    fn tell_news(&mut self, news: News) {
        let (client, now) = (news.client, self.now);
        let Some(process) = self.client_mut(client) else {
            return;
        };
        let told = &mut process.told;
        told.flags = news.flags.unwrap_or(told.flags);
        told.figures.extend(news.figures.iter().copied());
        if let Some(place) = &news.queued {
            told.queued.clone_from(place);
            told.queued_at = now;
        }
        if let Some(flags) = news.flags {
            self.effects.push_back(Effect::Flags { client, flags });
        }
        for (gpu, figures) in news.figures {
            self.effects.push_back(Effect::Figures {
                client,
                gpu,
                limit: figures.limit,
                siblings: figures.siblings,
                ceiling: figures.ceiling,
            });
        }
        if let Some(Some(Place { ahead, reason })) = news.queued {
            self.effects.push_back(Effect::Queued { client, ahead, reason });
        }
    }

    /// The place that a process is to be told, or none where it waits no more. `place` is its session's, once it is known.
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

    /// Whether it stands in a long queue. Who is kept out of all queues hears at once why.
    fn is_in_a_crowd(&self, session: &Session) -> bool {
        let queues = session.cards.iter().filter(|(_, on)| on.listed.queued.is_some());
        let mut cards = queues.filter_map(|(gpu, _)| self.cards.get(gpu));
        cards.any(|card| card.census.queue.len() > FEW)
    }

    fn flags(&self, process: &Client, session: &Session, wanted: bool) -> u32 {
        let contended = process.books.keys().any(|gpu| {
            let live = session.sums(gpu).live > 0;
            let card = self.cards.get(gpu);
            card.is_some_and(|card| card.census.has_other_users(live))
        });
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let limited = flag(session.is_limited(), FLAG_LIMITED);
        flag(contended, FLAG_CONTENDED) | flag(wanted, FLAG_WANTED) | limited
    }

    /// The figures that differ from those that the process was told. `facts` are its session's, by card: use and ceiling.
    fn new_figures(&self, session: &Session, process: &Client, facts: &mut Facts) -> Changed {
        let mut new = Changed::new();
        for (gpu, book) in process.books.iter() {
            let Some(card) = self.cards.get(gpu) else {
                continue;
            };
            let known = facts.iter().find(|(known, ..)| *known == gpu).copied();
            let (_, used, ceiling) = known.unwrap_or_else(|| {
                let fact = (gpu, session.sums(gpu).used.get(), backed(session, gpu, card));
                facts.push(fact);
                fact
            });
            let figures = Figures { limit: session.limit(gpu), siblings: used - book.used(), ceiling };
            if process.told.figures.get(gpu) != Some(&figures) {
                new.push((gpu, figures));
            }
        }
        new
    }
}

impl Card {
    /// What everybody here should know.
    fn news(&self) -> Told {
        let limit = self.managed_limit();
        let taken = match limit {
            Bytes::MAX => Bytes::ZERO,
            _ => self.needed(),
        };
        Told {
            users: self.census.users(),
            line: self.census.line(),
            ceilings: [self.before_fixed(), self.fixed(), taken, limit],
        }
    }
}
