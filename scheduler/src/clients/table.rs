//! Table of clients: processes that said hello as users of a GPU and are not known to be dead.

use std::collections::{BTreeMap, BTreeSet};

use gpushare_core::snapshot::SessionSnapshot;
use gpushare_proto::tenant::MAX_UNKNOWN;
use gpushare_proto::{Bytes, ClientId, GpuId, SessionId};

use super::away::Away;
use super::page::ClientPage;
use crate::cards::Cards;
use crate::connections::ConnectionId;
use crate::identity::{PeerProcess, ProcessId};
use crate::memory::overhead::Overhead;
use crate::memory::unreported::Unreported;
use crate::operation::plain;
use crate::registry::{CardUse, ClientEntry};

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) session: SessionId,
    /// Connection of the process; none while the client is away (disconnected, with a living process).
    pub(crate) connection: Option<ConnectionId>,
    pub(crate) peer: PeerProcess,
    pub(crate) away: Away,
    /// Whether the last daemon's registry names this client, so that its session's terms are known.
    pub(crate) restored: bool,
    pub(crate) page: ClientPage,
    /// Whether the process's memory is remapped and moves by goals.
    pub(crate) remaps: bool,
    /// Measured memory that the driver itself uses for this process, by card.
    pub(crate) overheads: BTreeMap<GpuId, Overhead>,
    /// Remapped memory that NVML shows and the process does not report, by card.
    pub(crate) unreported: BTreeMap<GpuId, Unreported>,
    /// Driver functions that the process asked for and its gpushare library does not know.
    pub(crate) unknown: UnknownFunctions,
}

impl Client {
    pub(crate) fn new(session: SessionId, peer: &PeerProcess, page: ClientPage, restored: bool) -> Self {
        Self {
            session,
            connection: None,
            peer: peer.clone(),
            away: Away::default(),
            restored,
            page,
            remaps: false,
            overheads: BTreeMap::new(),
            unreported: BTreeMap::new(),
            unknown: UnknownFunctions::default(),
        }
    }

    /// Returns the client's registry entry; none for a process without a pid in the daemon's namespace. `frozen`
    /// says whether the driver has frozen the process once, or began to.
    pub(crate) fn entry(&self, client: ClientId, cards: &Cards, frozen: bool) -> Option<ClientEntry> {
        let page = &self.page;
        let card_use = |gpu| {
            let used = page.leased(gpu)? - page.free(gpu);
            Some(CardUse { card: cards.get(gpu)?.info.clone(), used })
        };
        Some(ClientEntry {
            client,
            session: self.session,
            process: self.peer.id?,
            cards: page.gpus().filter_map(card_use).collect(),
            remaps: self.remaps,
            frozen,
        })
    }
}

/// Table of clients with indexes, so that no search visits all clients.
#[derive(Debug)]
pub(crate) struct Clients {
    all: BTreeMap<ClientId, Client>,
    sessions: BTreeMap<SessionId, BTreeSet<ClientId>>,
    processes: BTreeMap<ProcessId, BTreeSet<ClientId>>,
    /// Clients without a connection.
    away: BTreeSet<ClientId>,
    /// Numbers of clients on each card, by session.
    cards: BTreeMap<GpuId, BTreeMap<SessionId, usize>>,
    /// Number for the next new client.
    pub(crate) next: u64,
}

impl Clients {
    /// Creates an empty table whose first new client gets the number `next`.
    pub(crate) fn new(next: u64) -> Self {
        Self {
            all: BTreeMap::new(),
            sessions: BTreeMap::new(),
            processes: BTreeMap::new(),
            away: BTreeSet::new(),
            cards: BTreeMap::new(),
            next,
        }
    }

    pub(crate) fn new_id(&mut self) -> ClientId {
        self.next += 1;
        ClientId(self.next - 1)
    }

    /// Adds a client that uses no card yet.
    pub(crate) fn insert(&mut self, id: ClientId, client: Client) {
        self.sessions.entry(client.session).or_default().insert(id);
        if let Some(process) = client.peer.id {
            self.processes.entry(process).or_default().insert(id);
        }
        if client.connection.is_none() {
            self.away.insert(id);
        }
        self.all.insert(id, client);
    }

    pub(crate) fn remove(&mut self, id: ClientId) -> Option<Client> {
        let client = self.all.remove(&id)?;
        remove_from(&mut self.sessions, &client.session, id);
        if let Some(process) = client.peer.id {
            remove_from(&mut self.processes, &process, id);
        }
        self.away.remove(&id);
        for gpu in client.page.gpus() {
            if let Some(sessions) = self.cards.get_mut(&gpu)
                && let Some(count) = sessions.get_mut(&client.session)
            {
                *count -= 1;
                if *count == 0 {
                    sessions.remove(&client.session);
                }
            }
        }
        Some(client)
    }

    /// Adds a card to a client's page, with the bytes that the client already uses there.
    pub(crate) fn attach(&mut self, id: ClientId, gpu: GpuId, used: Bytes) {
        let Some(client) = self.all.get_mut(&id) else { return };
        let was_on = client.page.is_on(gpu);
        client.page.attach(gpu, used);
        if !was_on && client.page.is_on(gpu) {
            *self.cards.entry(gpu).or_default().entry(client.session).or_default() += 1;
        }
    }

    /// Notes that a client has no connection any more.
    pub(super) fn disconnect(&mut self, id: ClientId) {
        if let Some(client) = self.all.get_mut(&id) {
            client.connection = None;
            client.away.disconnected();
            self.away.insert(id);
        }
    }

    /// Gives a returned client, which is the same process, its new connection.
    pub(super) fn reconnect(&mut self, id: ClientId, connection: ConnectionId, peer: &PeerProcess) {
        if let Some(client) = self.all.get_mut(&id) {
            client.connection = Some(connection);
            client.peer = peer.clone();
            // Answers that were granted while it was away did not reach it.
            client.away.disconnected();
            self.away.remove(&id);
        }
    }

    pub(crate) fn get(&self, id: ClientId) -> Option<&Client> {
        self.all.get(&id)
    }

    /// Returns a client for changes that the indexes do not have: session, process, connection and cards
    /// stay.
    pub(crate) fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        self.all.get_mut(&id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ClientId, &Client)> {
        self.all.iter().map(|(&id, client)| (id, client))
    }

    pub(crate) fn of(&self, session: SessionId) -> impl Iterator<Item = &Client> {
        self.ids_of(session).filter_map(|id| self.get(id))
    }

    pub(crate) fn ids_of(&self, session: SessionId) -> impl Iterator<Item = ClientId> {
        self.sessions.get(&session).into_iter().flatten().copied()
    }

    pub(crate) fn away(&self) -> impl Iterator<Item = (ClientId, &Client)> {
        self.away.iter().filter_map(|&id| Some((id, self.get(id)?)))
    }

    pub(crate) fn connection(&self, id: ClientId) -> Option<ConnectionId> {
        self.get(id)?.connection
    }

    /// Returns the session of the living process with a pid, if that process is a client.
    pub(crate) fn session_of_pid(&self, pid: u32) -> Option<SessionId> {
        let of_pid = ProcessId { pid, start: 0 }..=ProcessId { pid, start: u64::MAX };
        let (_, ids) = self.processes.range(of_pid).next_back()?;
        self.get(*ids.first()?).map(|client| client.session)
    }

    pub(crate) fn session_of(&self, process: ProcessId) -> Option<SessionId> {
        let id = self.processes.get(&process)?.first()?;
        self.get(*id).map(|client| client.session)
    }

    /// Refuses a message about a card that the client does not use.
    pub(crate) fn check_is_on(&self, id: ClientId, gpu: GpuId) -> Result<(), String> {
        match self.get(id) {
            Some(client) if client.page.is_on(gpu) => Ok(()),
            _ => Err(format!("the process has not said that it uses {gpu}")),
        }
    }

    /// Updates a session's allocated bytes by the present contents of its clients' shared pages.
    pub(crate) fn update_allocated(&self, session: &mut SessionSnapshot) {
        for usage in &mut session.gpus {
            let ids = session.clients.iter().map(|client| client.client);
            let free: Bytes = ids.filter_map(|id| Some(self.get(id)?.page.free(usage.gpu))).sum();
            usage.allocated_bytes = usage.leased_bytes - free;
            usage.peak_bytes = usage.peak_bytes.max(usage.allocated_bytes);
        }
    }

    /// Returns the sessions that have clients on a card.
    pub(crate) fn sessions_on(&self, gpu: GpuId) -> impl Iterator<Item = SessionId> {
        self.cards.get(&gpu).into_iter().flat_map(|sessions| sessions.keys().copied())
    }

    /// Returns the number of sessions that have clients on a card.
    pub(crate) fn count_on(&self, gpu: GpuId) -> usize {
        self.cards.get(&gpu).map_or(0, BTreeMap::len)
    }

    /// Returns whether a session has clients on a card.
    pub(crate) fn is_on(&self, session: SessionId, gpu: GpuId) -> bool {
        self.cards.get(&gpu).is_some_and(|sessions| sessions.contains_key(&session))
    }

    /// Returns the cards on which several sessions have clients.
    pub(crate) fn shared_cards(&self) -> impl Iterator<Item = GpuId> {
        let cards = self.cards.iter();
        cards.filter(|(_, sessions)| sessions.len() > 1).map(|(&gpu, _)| gpu)
    }

    pub(crate) fn share_a_card(&self) -> bool {
        self.shared_cards().next().is_some()
    }
}

fn remove_from<K: Ord>(map: &mut BTreeMap<K, BTreeSet<ClientId>>, key: &K, id: ClientId) {
    if let Some(clients) = map.get_mut(key) {
        clients.remove(&id);
        if clients.is_empty() {
            map.remove(key);
        }
    }
}

/// Names of driver functions unknown to one process's library, made safe for a log.
#[derive(Debug, Default)]
pub(crate) struct UnknownFunctions(BTreeSet<String>);

impl UnknownFunctions {
    /// Adds an unknown function, up to [`MAX_UNKNOWN`]. Returns whether it is the first one of the process.
    pub(crate) fn add(&mut self, name: &str, version: u32) -> bool {
        let name = plain(name);
        let name = match version {
            0 => name,
            _ => format!("{name} ({}.{})", version / 1000, version % 1000 / 10),
        };
        let first = self.0.is_empty();
        if self.0.len() < MAX_UNKNOWN {
            self.0.insert(name);
        }
        first
    }

    pub(crate) fn list(&self) -> Vec<String> {
        self.0.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_functions_are_few_and_safe_in_a_log() {
        let mut unknown = UnknownFunctions::default();
        unknown.add("cuConjure\n", 0);
        unknown.add("cuConjure", 0);
        unknown.add("cuLaunchKernel", 13_060);
        for number in 0..100 {
            unknown.add(&format!("cuX{number}"), 0);
        }
        let list = unknown.list();
        assert_eq!(list.len(), MAX_UNKNOWN);
        assert_eq!(list[..2], ["cuConjure", "cuLaunchKernel (13.6)"]);
    }
}
