//! Start of the daemon's task: takes the machine's cards and resumes the last daemon's sessions.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use gpushare_core::{Event, log};
use gpushare_proto::{ClientId, SessionId};
use gpushare_sys::clock;
use tokio::sync::mpsc;
use tracing::info;

use crate::clients::leave;
use crate::config::Settings;
use crate::connections::ConnectionLimit;
use crate::engine::{Engine, Machine};
use crate::freeze::tried::untried_driver;
use crate::input::{Input, Watched};
use crate::memory::room;
use crate::record::Reel;
use crate::registry::{Book, CardLead, ClientEntry, Origin, SessionEntry, UserLead};
use crate::sessions::Clocks;

impl Engine {
    /// Takes the machine's cards, and resumes the sessions and clients in the last daemon's `book`.
    ///
    /// If the book is not `complete`, clients may reconnect that it does not name. Records events of the
    /// decision machine on the `reel`. Must be called inside a tokio runtime. Fails if another daemon has one
    /// of the cards, or if the recording fails.
    pub(crate) fn resume(
        settings: Settings,
        book: Book,
        complete: bool,
        (inputs, limit): (mpsc::Sender<Input>, ConnectionLimit),
        reel: Option<Reel>,
    ) -> anyhow::Result<Self> {
        let known: BTreeSet<SessionId> = book.sessions.iter().map(|entry| entry.session).collect();
        let clients: Vec<ClientId> = book.clients.iter().map(|entry| entry.client).collect();
        let (mut living, mut dead) = (Vec::new(), Vec::new());
        for entry in book.clients {
            if known.contains(&entry.session) {
                match entry.process.open() {
                    Some(pidfd) => living.push((entry, pidfd)),
                    None => dead.push(entry),
                }
            }
        }
        let started = clock::monotonic();
        let header = log::Header {
            format: log::FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            generation: clock::boot().0,
            expected: living.iter().map(|(entry, _)| entry.client).collect(),
            incomplete: !complete,
            started,
            unix_seconds: Clocks::now().unix / 1_000_000_000,
            config: settings.core.clone(),
        };
        let machine = Machine::start(header, reel)?;
        let ids = (book.next_session, book.next_client);
        let mut engine = Self::new(settings, limit, inputs, machine, started, ids);
        // Whether the file can be written shows at once. Each entry may change or go.
        engine.persistence.write_in_any_case();
        known.iter().for_each(|&session| engine.persistence.session_changed(session));
        clients.into_iter().for_each(|client| engine.persistence.client_changed(client));
        engine.take_cards()?;
        if engine.cards.iter().next().is_some() && untried_driver().is_none() {
            room::ask(&mut engine);
        }
        engine.users.restore(book.users);
        for entry in book.sessions {
            restore_session(&mut engine, entry);
        }
        for (entry, pidfd) in living {
            await_client(&mut engine, entry, pidfd);
        }
        restore_leads(&mut engine);
        for entry in dead {
            engine.sessions.join(entry.session);
            leave::add_dead_of_last_daemon(&mut engine, entry);
        }
        for session in known {
            leave::end_session_if_over(&mut engine, session);
        }
        if !engine.awaited.is_empty() {
            info!(
                "waiting for {} processes of the last daemon before anything is granted on their cards",
                engine.awaited.len()
            );
        }
        Ok(engine)
    }
}

fn restore_session(engine: &mut Engine, mut entry: SessionEntry) {
    let session = entry.session;
    let joined = std::mem::take(&mut entry.joined);
    let registrar = match entry.origin {
        Origin::Registered { by, .. } => by.open(),
        Origin::Implicit(_) | Origin::Created { .. } => None,
    };
    engine.sessions.restore(entry, registrar.is_some(), Clocks::now());
    if let Some(pidfd) = registrar {
        engine.watch(pidfd.into(), Watched::Registrar(session)).until_death();
    }
    for process in joined {
        if let Some(pidfd) = process.process.open() {
            let watch = engine.watch(pidfd.into(), Watched::Joined(process.process));
            engine.joined.enter(process, session, watch);
        }
    }
    engine.send_terms(session);
    engine.send_standing(session);
}

/// Waits for a living client of the last daemon to reconnect.
///
/// Books the client's memory in the decision machine, on each of its cards that the daemon can take now.
fn await_client(engine: &mut Engine, entry: ClientEntry, pidfd: OwnedFd) {
    let client = entry.client;
    engine.watch(pidfd.into(), Watched::Awaited(client)).until_death();
    engine.sessions.join(entry.session);
    for of in &entry.cards {
        if let Ok(gpu) = engine.add_card(&of.card) {
            engine.feed(Event::ExpectedUses { client, gpu, bytes: of.used });
        }
    }
    if entry.frozen {
        engine.feed(Event::FrozenBefore { client });
    }
    engine.awaited.insert(entry);
}

/// Reports each user's and each session's virtual time on the cards that are known by now to the decision machine.
fn restore_leads(engine: &mut Engine) {
    let leads = engine.sessions.iter().flat_map(|(session, state)| {
        let cards = &engine.cards;
        let known = move |CardLead { card, lead_ns }: &CardLead| {
            Some(Event::Lead { session, gpu: cards.by_uuid(*card)?, lead_ns: *lead_ns })
        };
        state.leads.iter().filter_map(known)
    });
    let users = engine.users.leads().filter_map(|(user, lead)| {
        let UserLead { card, class: priority, lead_ns } = *lead;
        Some(Event::UserLead { user, priority, gpu: engine.cards.by_uuid(card)?, lead_ns })
    });
    let leads: Vec<Event> = users.chain(leads).collect();
    engine.feed_all(leads);
}
