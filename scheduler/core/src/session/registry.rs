//! All sessions, and the session to which each process belongs.

use gpushare_proto::{ClientId, GpuId, SessionId};

use super::Session;
use super::client::Client;
use crate::memory::book::Book;
use crate::values::id_map::IdMap;

/// Sessions by number, with an index of the processes in them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions {
    all: IdMap<SessionId, Session>,
    /// Session of each process, which always lists the same processes as the sessions' `clients`.
    homes: IdMap<ClientId, SessionId>,
}

impl Sessions {
    pub(crate) fn get(&self, id: SessionId) -> Option<&Session> {
        self.all.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.all.get_mut(id)
    }

    pub(crate) fn get_or_insert_with(
        &mut self,
        id: SessionId,
        new: impl FnOnce() -> Session,
    ) -> &mut Session {
        self.all.get_or_insert_with(id, new)
    }

    pub(crate) fn remove(&mut self, id: SessionId) -> Option<Session> {
        self.all.remove(id)
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn ids(&self) -> Vec<SessionId> {
        self.all.ids()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.all.iter()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Session> {
        self.all.values()
    }

    /// Session to which a process belongs.
    pub(crate) fn of(&self, client: ClientId) -> Option<SessionId> {
        self.homes.get(client).copied()
    }

    /// All processes with their sessions, by ascending number of the process.
    pub(crate) fn clients(&self) -> impl Iterator<Item = (ClientId, SessionId)> {
        self.homes.iter().map(|(client, &session)| (client, session))
    }

    pub(crate) fn client(&self, client: ClientId) -> Option<&Client> {
        self.all.get(self.of(client)?)?.clients.get(client)
    }

    pub(crate) fn client_mut(&mut self, client: ClientId) -> Option<&mut Client> {
        self.all.get_mut(self.of(client)?)?.clients.get_mut(client)
    }

    /// Memory book of a process on a card that the process announced.
    pub(crate) fn book(&self, client: ClientId, gpu: GpuId) -> Option<&Book> {
        self.client(client)?.books.get(gpu)
    }

    pub(crate) fn join(&mut self, session: SessionId, client: ClientId, process: Client) {
        if let Some(home) = self.all.get_mut(session) {
            home.clients.insert(client, process);
            self.homes.insert(client, session);
        }
    }

    /// Takes a process out of its session.
    pub(crate) fn leave(&mut self, client: ClientId) -> Option<(SessionId, Client)> {
        let session = self.homes.remove(client)?;
        let process = self.all.get_mut(session)?.clients.remove(client)?;
        Some((session, process))
    }
}
