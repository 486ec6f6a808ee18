//! What processes are told besides their gates, each thing only when it changes: flags, figures about memory, and
//! what they wait for.
//!
//! In a long queue every grant changes the place of everybody, and a thousand messages would go out with each. There a process
//! that was told its place hears of another one after a second, when few others do: it needs the place for one line on
//! stderr, and whoever is granted waits for all that goes out.

use std::collections::BTreeMap;

use gpushare_proto::page::{FLAG_CONTENDED, FLAG_WANTED};
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos, SessionId};

use crate::core::Core;
use crate::demand::Demand;
use crate::event::Effect;
use crate::places::{Place, Places};
use crate::session::Session;
use crate::session::client::{Client, Figures};

/// So many sessions may wait without its being a long queue.
const SHORT: usize = 16;
/// How long a process in a long queue is not told of another place.
const PAUSE: Nanos = Nanos::from_secs(1);
/// So many are told of another place at once in a long queue, and the next of them after a step.
const AT_ONCE: usize = 8;
const STEP: Nanos = Nanos::from_millis(10);

/// The first session with a live context, per card, and whether there are others.
type Users = BTreeMap<GpuId, (SessionId, bool)>;

/// What is new to a process.
#[derive(Debug)]
struct News {
    client: ClientId,
    flags: Option<u32>,
    figures: Vec<(GpuId, Figures)>,
    queued: Option<Option<Place>>,
}

impl News {
    fn is_none(&self) -> bool {
        self.flags.is_none() && self.figures.is_empty() && self.queued.is_none()
    }
}

impl Core {
    /// Tells every process what is new to it.
    pub(crate) fn tell(&mut self, demand: &Demand) {
        let places = self.places(demand);
        let users = self.users();
        let mut news = Vec::new();
        let mut facts = Vec::new();
        let mut turn = AT_ONCE;
        self.tell_again = None;
        for (&id, session) in &self.sessions {
            let wanted =
                session.lock.grant().is_some() && demand.of_session(id).any(|(gpu, _)| self.is_wanted(gpu));
            facts.clear();
            for (client, process) in session.attached() {
                let flags = flags(id, process, wanted, &users);
                let (queued, again) = self.queued(id, process, &places, &mut turn);
                self.tell_again = self.tell_again.into_iter().chain(again).min();
                let new = News {
                    client,
                    flags: (flags != process.told.flags).then_some(flags),
                    figures: self.new_figures(session, process, demand, &mut facts),
                    queued,
                };
                if !new.is_none() {
                    news.push(new);
                }
            }
        }
        news.into_iter().for_each(|news| self.tell_news(news));
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
            self.effects.push_back(Effect::Queued {
                client,
                ahead,
                reason,
            });
        }
    }

    /// The place that a process is to be told, or none where it waits no more; and else when it may be told, if it must wait
    /// for that. `turn` counts down who is told of another place.
    fn queued(
        &self,
        id: SessionId,
        process: &Client,
        places: &Places,
        turn: &mut usize,
    ) -> (Option<Option<Place>>, Option<Nanos>) {
        let told = &process.told;
        if !process.gate.waiting() {
            return (told.queued.is_some().then_some(None), None);
        }
        if places.is(id, told.queued.as_ref()) {
            return (None, None);
        }
        if told.queued.is_some() && places.len() > SHORT {
            let due = told.queued_at + PAUSE;
            if *turn == 0 || self.now < due {
                return (None, Some(due.max(self.now + STEP)));
            }
            *turn -= 1;
        }
        (Some(places.get(id)), None)
    }

    fn users(&self) -> Users {
        let mut users = Users::new();
        for (&id, session) in &self.sessions {
            for (_, process) in session.attached() {
                let live = process.books.iter().filter(|(_, book)| book.contexts > 0);
                for (&gpu, _) in live {
                    let (first, others) = users.entry(gpu).or_insert((id, false));
                    *others |= *first != id;
                }
            }
        }
        users
    }

    /// The figures that differ from those that the process was told. `facts` are its session's, by card: use and ceiling.
    fn new_figures(
        &self,
        session: &Session,
        process: &Client,
        demand: &Demand,
        facts: &mut Vec<(GpuId, Bytes, Bytes)>,
    ) -> Vec<(GpuId, Figures)> {
        let mut new = Vec::new();
        for (&gpu, book) in &process.books {
            let Some(card) = self.cards.get(&gpu) else {
                continue;
            };
            let known = facts.iter().find(|(known, ..)| *known == gpu).copied();
            let (_, used, ceiling) = known.unwrap_or_else(|| {
                let fact = (gpu, session.used(gpu), self.backed(session, gpu, card, demand));
                facts.push(fact);
                fact
            });
            let figures = Figures {
                limit: session.limit(gpu),
                siblings: used - book.used(),
                ceiling,
            };
            if process.told.figures.get(&gpu) != Some(&figures) {
                new.push((gpu, figures));
            }
        }
        new
    }
}

fn flags(id: SessionId, process: &Client, wanted: bool, users: &Users) -> u32 {
    let others = |gpu: &GpuId| {
        users
            .get(gpu)
            .is_some_and(|(first, others)| *others || *first != id)
    };
    let contended = process.books.keys().any(others);
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    flag(contended, FLAG_CONTENDED) | flag(wanted, FLAG_WANTED)
}
