//! Restarts of the daemon of a world: its processes live on without it, and return to the next one.
//!
//! ```text
//!   restart ──▶ sessions, leads and expected processes, as the daemon reads them from its files
//!                     │ each process is away: its gate and its memory stay as they are
//!                     ▼
//!   rejoins ──▶ the process on a new page, with what it has        vanishes ──▶ it is dead
//! ```

use super::*;
use crate::session::frost::Frost;

/// One daemon of a world: how it began, what it was told, and what it asked for.
#[derive(Clone)]
pub(in crate::tests) struct Generation {
    pub(in crate::tests) start: Core,
    pub(in crate::tests) history: Vec<(Nanos, Event)>,
    pub(in crate::tests) effects: Vec<Effect>,
}

/// Process that the present daemon has not heard of yet.
#[derive(Clone)]
pub(super) struct Away {
    process: Process,
    session: SessionId,
    /// Gate word on the page of the last daemon.
    word: GateWord,
    since: Nanos,
    epoch: Epoch,
    /// Contexts of the process on its cards.
    contexts: Vec<(GpuId, u32)>,
    frost: Frost,
    /// Whether the registry names the process.
    is_known: bool,
}

impl World {
    /// Replaces the daemon by the next one. If the registry lacks the `youngest` process, it does not name it.
    pub(in crate::tests) fn restart(&mut self, lacks_youngest: bool) {
        let (terms, leads) = (self.terms(), self.leads());
        let youngest = self.clients().last().copied().filter(|_| lacks_youngest);
        let here = std::mem::take(&mut self.processes);
        for (client, process) in here {
            self.goes_away(client, process, youngest != Some(client));
        }
        let known = self.away.iter().filter(|(_, away)| away.is_known).map(|(&client, _)| client);
        let missing = self.core.view.recovery.away_from(GpuSet::default());
        let expected: BTreeSet<ClientId> = known.chain(missing).collect();
        let generation = Self::GENERATION + self.past.len() as u64 + 1;
        let mut core = Core::new(self.config.clone(), generation, expected, self.now);
        if lacks_youngest {
            core = core.expecting_others();
        }
        let start = std::mem::replace(&mut self.start, core.clone());
        self.harness = Harness::new(core, self.harness.now);
        let (history, effects) = (std::mem::take(&mut self.history), std::mem::take(&mut self.seen));
        self.past.push(Generation { start, history, effects });
        self.agenda.clear();
        terms.into_iter().for_each(|event| self.send(event));
        let records: Vec<Event> = self.away.iter().flat_map(|(&client, away)| away.records(client)).collect();
        records.into_iter().chain(leads).for_each(|event| self.send(event));
    }

    fn goes_away(&mut self, client: ClientId, process: Process, is_known: bool) {
        let Some(session) = self.core.view.session_of(client) else { return };
        let Some(known) = self.core.view.sessions.client(client) else { return };
        let contexts = known.books.iter().map(|(gpu, book)| (gpu, book.contexts)).collect();
        let (word, since, epoch, frost) = (self.gate(client), self.now, self.core.last_epoch, known.frost);
        self.away
            .insert(client, Away { process, session, word, since, epoch, contexts, frost, is_known });
    }

    /// Returns the records that the next daemon reads: of cards, settings, sessions, and processes that never returned to
    /// this one.
    fn terms(&self) -> Vec<Event> {
        let view = &self.core.view;
        let is_kept = |event: &Event| match *event {
            Event::GpuFound { .. } | Event::Set(_) | Event::HostBudget { .. } | Event::Persistence { .. } => {
                true
            }
            Event::ExpectedUses { client, .. } | Event::FrozenBefore { client } => {
                view.recovery.is_awaited(client)
            }
            Event::SessionOpened { session, .. }
            | Event::Quota { session, .. }
            | Event::Standing { session, .. }
            | Event::Share { session, .. }
            | Event::Owner { session, .. }
            | Event::Compute { session, .. }
            | Event::Freeze { session, .. }
            | Event::FreezeAfter { session, .. } => view.sessions.get(session).is_some(),
            _ => false,
        };
        self.history.iter().map(|&(_, event)| event).filter(is_kept).collect()
    }

    /// Virtual times of users and sessions that the daemon records.
    fn leads(&self) -> Vec<Event> {
        let (core, now) = (&self.core, self.now);
        let owners = self.history.iter().filter_map(|(_, event)| match event {
            Event::Owner { user, .. } => Some(*user),
            _ => None,
        });
        let users = owners.collect::<BTreeSet<_>>().into_iter().flat_map(|user| {
            let leads = core.user_leads(now, user).into_iter();
            leads.map(move |(priority, gpu, lead_ns)| Event::UserLead { user, priority, gpu, lead_ns })
        });
        let sessions = core.view.sessions.iter().flat_map(|(session, _)| {
            let leads = core.leads(now, session).into_iter();
            leads.map(move |(gpu, lead_ns)| Event::Lead { session, gpu, lead_ns })
        });
        users.chain(sessions).collect()
    }

    /// Processes that have not returned to the present daemon.
    pub(in crate::tests) fn away(&self) -> Vec<ClientId> {
        self.away.keys().copied().collect()
    }

    pub(in crate::tests) fn is_away(&self, client: ClientId) -> bool {
        self.away.contains_key(&client)
    }

    /// Lets a process that is away return on a new page, with what it has.
    pub(in crate::tests) fn rejoins(&mut self, client: ClientId) {
        let Some(Away { mut process, session, word, since, epoch, contexts, frost, .. }) =
            self.away.remove(&client)
        else {
            return;
        };
        let is_drained = word.state() == GateState::Closed && self.now >= since + process.habits.drain;
        process.in_flight &= !(is_drained && process.habits.answers);
        process.flags = 0;
        // A session that may lease nothing now is not believed to have scattered chunks, so none of them stay.
        for memory in process.memory.values_mut() {
            (memory.free, memory.scattered) = (Bytes::ZERO, Bytes::ZERO);
        }
        process.swaps.iter_mut().flatten().for_each(|(_, swap)| swap.goal = None);
        let (holding, busy) = (process.in_flight.then_some(epoch), process.habits.busy);
        let remaps = process.swaps.is_some();
        self.new_page(client);
        self.processes.insert(client, process);
        self.send(Event::ClientJoined { client, session, holding });
        if frost.is_spared() {
            self.send(Event::FrozenBefore { client });
        }
        if remaps {
            self.send(Event::Remaps { client });
        }
        for &(gpu, live) in &contexts {
            let used = self.used(client, gpu);
            self.send(Event::Attached { client, gpu, used });
            self.send(Event::Contexts { client, gpu, live });
        }
        if busy {
            self.arrives(client);
        }
        for (gpu, _) in contexts {
            let bytes = self.fixed(client, gpu);
            if let Some(memory) = self.memory(client, gpu) {
                memory.told = bytes;
            }
            self.send(Event::Fixed { client, gpu, bytes });
            self.frees(client, gpu);
            self.reports(client, gpu);
        }
        if frost.obstacle().is_none() {
            self.send(Event::Freezable { client, obstacle: None });
        }
        if frost.bars() {
            self.send(Event::FoundFrozen { client });
        }
    }

    /// Lets a process die that is away.
    pub(in crate::tests) fn vanishes(&mut self, client: ClientId) {
        if self.away.remove(&client).is_some() {
            self.send(Event::ExpectedGone { client });
        }
    }

    /// Bytes of processes with work in flight on a card that the daemon awaits there.
    pub(super) fn working_away(&self, gpu: GpuId) -> Bytes {
        let known = self.away.values().filter(|away| away.is_known && away.process.in_flight);
        known.map(|away| away.process.on(gpu).used).sum()
    }

    /// All daemons so far, the present one last.
    pub(in crate::tests) fn generations(&self) -> impl Iterator<Item = Generation> {
        let (start, history, effects) = (self.start.clone(), self.history.clone(), self.seen.clone());
        self.past.iter().cloned().chain([Generation { start, history, effects }])
    }
}

impl Away {
    /// Returns the registry's records of the process.
    fn records(&self, client: ClientId) -> Vec<Event> {
        let cards = self.contexts.iter();
        let uses =
            cards.map(|&(gpu, _)| Event::ExpectedUses { client, gpu, bytes: self.process.on(gpu).used });
        let frozen = self.frost.is_spared().then_some(Event::FrozenBefore { client });
        let events = uses.chain(frozen);
        events.filter(|_| self.is_known).collect()
    }
}
