//! Clients of the last daemon that may reconnect, and processes that may be clients without an entry on disk.
//!
//! A new client is written to the registry some 20 ms and one fsync later, because an fsync for each client
//! would delay all. A daemon killed in that time leaves a client without an entry. Its library reconnects,
//! usually within a second, and the kernel reports that its process is older than the new daemon. That does
//! not prove that it was a client. So its claims cost only itself: the bytes that it claims count within its
//! session's quota, and its claimed work in flight must end before other sessions run on that card.

use std::collections::BTreeMap;

use gpushare_core::WaitsFor;
use gpushare_proto::{ClientId, SessionId};
use gpushare_sys::process;

use crate::identity::{PeerProcess, ProcessId};
use crate::registry::ClientEntry;
use crate::sessions::Sessions;

/// Largest number of awaited processes named in one message.
const NAMED: usize = 5;

/// Clients of the last daemon whose processes are alive and have not reconnected.
#[derive(Debug, Default)]
pub(crate) struct Awaited(BTreeMap<ClientId, ClientEntry>);

impl Awaited {
    pub(crate) fn insert(&mut self, entry: ClientEntry) {
        self.0.insert(entry.client, entry);
    }

    pub(crate) fn remove(&mut self, client: ClientId) -> Option<ClientEntry> {
        self.0.remove(&client)
    }

    /// Removes an awaited client if `peer` is its process. Returns the client's session.
    pub(crate) fn take(&mut self, client: ClientId, peer: &PeerProcess) -> Option<SessionId> {
        let is_same = peer.id == Some(self.get(client)?.process);
        is_same.then(|| self.remove(client))?.map(|entry| entry.session)
    }

    pub(crate) fn take_all(&mut self, peer: &PeerProcess) -> Vec<ClientEntry> {
        let all = std::mem::take(&mut self.0).into_iter();
        let (same, others) = all.partition(|(_, entry)| peer.id == Some(entry.process));
        self.0 = others;
        BTreeMap::into_values(same).collect()
    }

    pub(crate) fn get(&self, client: ClientId) -> Option<&ClientEntry> {
        self.0.get(&client)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &ClientEntry> {
        self.0.values()
    }

    pub(crate) fn has_any_of(&self, session: SessionId) -> bool {
        self.entries().any(|entry| entry.session == session)
    }

    pub(crate) fn session_of(&self, process: ProcessId) -> Option<SessionId> {
        let entry = self.entries().find(|entry| entry.process == process);
        entry.map(|entry| entry.session)
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
