//! Going on where the last daemon ended, and writing down where the next one would.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::SystemTime;

use gpushare_core::{Event, log};
use gpushare_proto::SessionId;
use gpushare_sys::{clock, process};
use tokio::sync::mpsc;
use tracing::{info, warn};

use super::Shell;
use super::foreseeing::QUESTIONS;
use super::keeping::Keeping;
use super::measuring::Measuring;
use super::orphans::Orphans;
use super::refusing::Refusals;
use super::telling::Telling;
use super::watch::Watchers;
use crate::cards::{CardError, Cards};
use crate::config::{Owner, Settings};
use crate::connections::ConnectionLimit;
use crate::entrants::Entrants;
use crate::exit::Stop;
use crate::input::{Input, Watched};
use crate::lock::LockError;
use crate::log_limiter::LogLimiter;
use crate::nvml;
use crate::record::{Recorder, Reel};
use crate::registry::{Book, ClientEntry, Origin, SessionEntry};
use crate::sessions::{Clocks, Sessions};

impl Shell {
    /// Takes the machine's cards, and goes on where the last daemon's `book` ends; unless that is `complete`, others may come
    /// back than it knows. What the core is told goes on the `reel`. Must be called inside a runtime.
    ///
    /// # Errors
    /// If another daemon has one of the cards, or nothing can be recorded.
    pub(crate) fn new(
        settings: Settings,
        book: Book,
        complete: bool,
        (inputs, limit): (mpsc::Sender<Input>, ConnectionLimit),
        reel: Option<Reel>,
    ) -> Result<Self, Stop> {
        let known: BTreeSet<SessionId> = book.sessions.iter().map(|entry| entry.session).collect();
        let (mut living, mut dead) = (Vec::new(), Vec::new());
        for entry in book.clients {
            if known.contains(&entry.session) {
                match entry.process.open() {
                    Some(pidfd) => living.push((entry, pidfd)),
                    None => dead.push(entry),
                }
            }
        }
        let header = log::Header {
            format: log::FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            generation: clock::boot().0,
            expected: living.iter().map(|(entry, _)| entry.client).collect(),
            incomplete: !complete,
            started: clock::monotonic(),
            unix_seconds: SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs(),
            config: settings.core.clone(),
        };
        let mut shell = Self {
            started: header.started,
            born: process::start_time(std::process::id()).unwrap_or(0),
            idle_since: Some(header.started),
            watchers: Watchers::default(),
            core: header.machine(),
            recorder: Recorder::start(reel, header)?,
            effects: VecDeque::new(),
            cards: Cards::new(&settings),
            sessions: Sessions::new(book.next_session),
            entrants: Entrants::default(),
            clients: BTreeMap::new(),
            next_client: book.next_client,
            expected: BTreeMap::new(),
            orphans: Orphans::default(),
            connections: BTreeMap::new(),
            postponed: Vec::new(),
            unsent: BTreeMap::new(),
            keeping: Keeping::default(),
            next_poll: None,
            measuring: Measuring::default(),
            refusals: LogLimiter::default(),
            questions: LogLimiter::lines(QUESTIONS),
            telling: Telling::default(),
            refused: Refusals::default(),
            observer: None,
            inputs,
            settings,
            limit,
            reader: None,
        };
        shell.take_cards()?;
        book.sessions.into_iter().for_each(|entry| shell.restore(entry));
        for (entry, pidfd) in living {
            shell.watch(pidfd.into(), Watched::Expected(entry.client)).until_death();
            shell.sessions.join(entry.session);
            shell.expect(entry);
        }
        for entry in dead {
            shell.sessions.join(entry.session);
            shell.left_by_the_dead(entry);
        }
        known.into_iter().for_each(|session| shell.close_if_over(session));
        if !shell.expected.is_empty() {
            info!(
                "waiting for {} processes of the last daemon before anything is granted on their cards",
                shell.expected.len()
            );
        }
        Ok(shell)
    }

    /// A client of the last daemon lives. The core hears what it used, if all its cards are ours: what it is on elsewhere it
    /// may be on here by the time it comes.
    fn expect(&mut self, entry: ClientEntry) {
        let known: Option<Vec<_>> = entry
            .cards
            .iter()
            .map(|of| Some((self.add_card(&of.card).ok()?, of.used)))
            .collect();
        let client = entry.client;
        self.expected.insert(client, entry);
        for (gpu, bytes) in known.into_iter().flatten() {
            self.feed(Event::ExpectedUses { client, gpu, bytes });
        }
    }

    fn restore(&mut self, mut entry: SessionEntry) {
        let session = entry.session;
        let entrants = std::mem::take(&mut entry.entrants);
        let registrar = match entry.origin {
            Origin::Registered { by, .. } => by.open(),
            Origin::Implicit(_) | Origin::Created { .. } => None,
        };
        self.sessions.restore(entry, registrar.is_some(), clocks());
        if let Some(pidfd) = registrar {
            self.watch(pidfd.into(), Watched::Registrar(session)).until_death();
        }
        for entrant in entrants {
            self.enter_again(entrant, session);
        }
        self.tell_terms(session);
        self.tell_standing(session);
    }

    fn take_cards(&mut self) -> Result<(), LockError> {
        let found = nvml::cards();
        for info in &found {
            match self.add_card(info) {
                Ok(_) => {}
                Err(CardError::Lock(error)) => return Err(error),
                Err(error) => warn!("{error}"),
            }
        }
        // On a user's own daemon there may be cards that NVML does not list: simulated ones.
        if !found.is_empty() && self.settings.owner == Owner::System {
            self.cards.close();
        }
        Ok(())
    }
}

/// Both clocks now.
pub(super) fn clocks() -> Clocks {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Clocks {
        monotonic: clock::monotonic(),
        unix: u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX),
    }
}
