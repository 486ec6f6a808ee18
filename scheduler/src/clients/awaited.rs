//! Clients of the last daemon that may reconnect, and processes that may be clients without an entry on disk.
//!
//! A new client is written to the registry some 20 ms and one fsync later, because an fsync for each client
//! would delay all. A daemon killed in that time leaves a client without an entry. Its library reconnects,
//! usually within a second, and the kernel reports that its process is older than the new daemon. That does
//! not prove that it was a client. So its claims cost only itself: the bytes that it claims count within its
//! session's quota, and its claimed work in flight must end before other sessions run on that card.

use std::collections::{BTreeMap, BTreeSet};

use gpushare_core::WaitsFor;
use gpushare_proto::{Bytes, ClientId, GpuUuid, SessionId};
use gpushare_sys::process;

use crate::identity::{PeerProcess, ProcessId};
use crate::registry::ClientEntry;
use crate::sessions::Sessions;

/// Largest number of awaited processes named in one message.
const NAMED: usize = 5;

/// Clients of the last daemon whose processes are alive and have not reconnected.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    all: BTreeMap<ClientId, ClientEntry>,
    processes: BTreeSet<(ProcessId, ClientId)>,
    sessions: BTreeSet<(SessionId, ClientId)>,
}

/// Smallest number of a client.
const FIRST: ClientId = ClientId(0);

impl Awaited {
    pub(crate) fn insert(&mut self, entry: ClientEntry) {
        self.processes.insert((entry.process, entry.client));
        self.sessions.insert((entry.session, entry.client));
        self.all.insert(entry.client, entry);
    }

    pub(crate) fn remove(&mut self, client: ClientId) -> Option<ClientEntry> {
        let entry = self.all.remove(&client)?;
        self.processes.remove(&(entry.process, client));
        self.sessions.remove(&(entry.session, client));
        Some(entry)
    }

    /// Removes an awaited client if `peer` is its process, and returns its entry.
    pub(crate) fn take(&mut self, client: ClientId, peer: &PeerProcess) -> Option<ClientEntry> {
        let is_same = peer.id == Some(self.get(client)?.process);
        is_same.then(|| self.remove(client)).flatten()
    }

    /// Removes all awaited clients of a process.
    pub(crate) fn take_all(&mut self, peer: &PeerProcess) -> Vec<ClientEntry> {
        let process = peer.id.into_iter();
        let clients: Vec<ClientId> = process.flat_map(|process| self.clients_of(process)).collect();
        clients.into_iter().filter_map(|client| self.remove(client)).collect()
    }

    fn clients_of(&self, process: ProcessId) -> impl Iterator<Item = ClientId> {
        let from = self.processes.range((process, FIRST)..);
        from.take_while(move |(of, _)| *of == process).map(|&(_, client)| client)
    }

    pub(crate) fn get(&self, client: ClientId) -> Option<&ClientEntry> {
        self.all.get(&client)
    }

    /// Returns the awaited clients that used a card, each with its bytes there.
    pub(crate) fn on(&self, card: GpuUuid) -> impl Iterator<Item = (ClientId, Bytes)> {
        let used = move |entry: &ClientEntry| {
            let on = entry.cards.iter().find(|of| of.card.uuid == card)?;
            Some((entry.client, on.used))
        };
        self.all.values().filter_map(used)
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn has_any_of(&self, session: SessionId) -> bool {
        self.sessions
            .range((session, FIRST)..)
            .next()
            .is_some_and(|(of, _)| *of == session)
    }

    pub(crate) fn session_of(&self, process: ProcessId) -> Option<SessionId> {
        let client = self.clients_of(process).next()?;
        self.get(client).map(|entry| entry.session)
    }

    /// Names the awaited processes among `clients`, if the session waits for their return.
    pub(crate) fn in_words(
        &self,
        waits_for: &WaitsFor,
        clients: &[ClientId],
        sessions: &Sessions,
    ) -> Option<String> {
        let WaitsFor::Return(_) = waits_for else {
            return None;
        };
        let entries = clients.iter().filter_map(|client| self.get(*client)).take(NAMED);
        let named: Vec<String> = entries
            .map(|entry| {
                let pid = entry.process.pid;
                format!("pid {pid} of {}{}", sessions.name(entry.session), stopped(pid))
            })
            .collect();
        let more = match clients.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        (!named.is_empty()).then(|| format!("{}{more}", named.join(", ")))
    }
}

/// Returns a remark for a process that is stopped (as by SIGSTOP), else an empty text.
pub(crate) fn stopped(pid: u32) -> &'static str {
    if process::is_stopped(pid) { " (it is stopped)" } else { "" }
}
