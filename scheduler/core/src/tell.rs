//! What processes are told besides their gates, each thing only when it changes: flags, figures about memory, and
//! what they wait for.

use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::page::{FLAG_CONTENDED, FLAG_WANTED};
use gpushare_proto::{GpuId, SessionId};

use crate::core::Core;
use crate::demand::Demand;
use crate::event::Effect;
use crate::places::{Place, Places};
use crate::session::Session;
use crate::session::client::{Book, Client, Figures, Told};

/// The sessions with a live context, per card.
type Users = BTreeMap<GpuId, BTreeSet<SessionId>>;

impl Core {
    /// Tells every process what is new to it.
    pub(crate) fn tell(&mut self, demand: &Demand) {
        let places = self.places(demand);
        let users = self.users();
        let mut news = Vec::new();
        for (&id, session) in &self.sessions {
            let wanted =
                session.lock.grant().is_some() && demand.of_session(id).any(|(gpu, _)| self.is_wanted(gpu));
            for (client, process) in session.attached() {
                let told = Told {
                    flags: flags(id, process, wanted, &users),
                    figures: self.figures(session, process, demand),
                    queued: queued(id, process, &places),
                };
                if told != process.told {
                    news.push((client, told));
                }
            }
        }
        for (client, told) in news {
            let Some(process) = self.client_mut(client) else {
                continue;
            };
            let before = std::mem::replace(&mut process.told, told.clone());
            if told.flags != before.flags {
                let flags = told.flags;
                self.effects.push_back(Effect::Flags { client, flags });
            }
            for (gpu, figures) in told.figures {
                if before.figures.get(&gpu) != Some(&figures) {
                    self.effects.push_back(Effect::Figures {
                        client,
                        gpu,
                        limit: figures.limit,
                        siblings: figures.siblings,
                        ceiling: figures.ceiling,
                    });
                }
            }
            if let Some(Place { ahead, reason }) =
                told.queued.filter(|place| before.queued.as_ref() != Some(place))
            {
                self.effects.push_back(Effect::Queued {
                    client,
                    ahead,
                    reason,
                });
            }
        }
    }

    fn users(&self) -> Users {
        let mut users = Users::new();
        for (&id, session) in &self.sessions {
            for (_, process) in session.attached() {
                let live = process.books.iter().filter(|(_, book)| book.contexts > 0);
                for (&gpu, _) in live {
                    users.entry(gpu).or_default().insert(id);
                }
            }
        }
        users
    }

    fn figures(&self, session: &Session, process: &Client, demand: &Demand) -> BTreeMap<GpuId, Figures> {
        let figures = |(&gpu, book): (&GpuId, &Book)| {
            let card = self.cards.get(&gpu)?;
            let figures = Figures {
                limit: session.limit(gpu),
                siblings: session.used(gpu) - book.used(),
                ceiling: self.backed(session, gpu, card, demand),
            };
            Some((gpu, figures))
        };
        process.books.iter().filter_map(figures).collect()
    }
}

fn flags(id: SessionId, process: &Client, wanted: bool, users: &Users) -> u32 {
    let others = |gpu: &GpuId| {
        users
            .get(gpu)
            .is_some_and(|users| users.iter().any(|user| *user != id))
    };
    let contended = process.books.keys().any(others);
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    flag(contended, FLAG_CONTENDED) | flag(wanted, FLAG_WANTED)
}

fn queued(id: SessionId, process: &Client, places: &Places) -> Option<Place> {
    places.get(&id).filter(|_| process.gate.waiting()).cloned()
}
