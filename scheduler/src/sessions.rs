//! The sessions: who may join which, and when one is over.
//!
//! A registered session lives as long as the process that registered it or any of its clients; an implicit
//! one as long as its clients. Clients of the last daemon that may still return count.

use std::collections::BTreeMap;

use gpushare_proto::{Bytes, GpuUuid, SessionId, Token};

use crate::identity::{ImplicitKey, ProcessId};
use crate::registry::{Origin, SessionEntry};

/// One session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) limit: Option<Bytes>,
    pub(crate) oversubscribe: bool,
    /// The card it was placed on.
    pub(crate) card: Option<GpuUuid>,
    pub(crate) origin: Origin,
    /// Whether the process that registered it lives; never true for an implicit one.
    pub(crate) bound: bool,
    /// Clients connected or still expected back.
    pub(crate) clients: usize,
}

impl Session {
    pub(crate) fn is_implicit(&self) -> bool {
        matches!(self.origin, Origin::Implicit(_))
    }

    /// Whose it is.
    pub(crate) fn uid(&self) -> u32 {
        match &self.origin {
            Origin::Registered { uid, .. } => *uid,
            Origin::Implicit(key) => key.uid,
        }
    }

    fn is_over(&self) -> bool {
        self.clients == 0 && !self.bound
    }
}

/// All sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    all: BTreeMap<SessionId, Session>,
    next: u64,
}

impl Sessions {
    pub(crate) fn new(next: u64) -> Self {
        Self {
            all: BTreeMap::new(),
            next,
        }
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn get(&self, session: SessionId) -> Option<&Session> {
        self.all.get(&session)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.all.iter().map(|(&id, session)| (id, session))
    }

    /// A session's name, for people.
    pub(crate) fn name(&self, session: SessionId) -> String {
        self.get(session)
            .map_or_else(|| session.to_string(), |session| session.name.clone())
    }

    pub(crate) fn by_token(&self, token: &Token) -> Option<SessionId> {
        self.find(
            |session| matches!(&session.origin, Origin::Registered { token: ours, .. } if ours == token),
        )
    }

    pub(crate) fn by_key(&self, key: &ImplicitKey) -> Option<SessionId> {
        self.find(|session| matches!(&session.origin, Origin::Implicit(ours) if ours == key))
    }

    pub(crate) fn by_registrar(&self, process: ProcessId) -> Option<SessionId> {
        self.find(|session| matches!(&session.origin, Origin::Registered { by, .. } if *by == process))
    }

    /// How many sessions a user registered.
    pub(crate) fn registered_by(&self, user: u32) -> usize {
        self.all
            .values()
            .filter(|session| matches!(session.origin, Origin::Registered { uid, .. } if uid == user))
            .count()
    }

    /// A new session under a new number. `name` makes it from the number.
    pub(crate) fn add(
        &mut self,
        name: impl FnOnce(SessionId) -> String,
        make: impl FnOnce(String) -> Session,
    ) -> SessionId {
        let id = SessionId(self.next);
        self.next += 1;
        self.all.insert(id, make(name(id)));
        id
    }

    /// A session of the last daemon under its old number.
    pub(crate) fn restore(&mut self, entry: SessionEntry, bound: bool) {
        self.all.insert(
            entry.session,
            Session {
                name: entry.name,
                limit: entry.limit,
                oversubscribe: entry.oversubscribe,
                card: entry.card,
                origin: entry.origin,
                bound,
                clients: 0,
            },
        );
    }

    pub(crate) fn join(&mut self, session: SessionId) {
        if let Some(session) = self.all.get_mut(&session) {
            session.clients += 1;
        }
    }

    pub(crate) fn leave(&mut self, session: SessionId) {
        if let Some(session) = self.all.get_mut(&session) {
            session.clients = session.clients.saturating_sub(1);
        }
    }

    /// The process that registered it is dead.
    pub(crate) fn unbind(&mut self, session: SessionId) {
        if let Some(session) = self.all.get_mut(&session) {
            session.bound = false;
        }
    }

    /// Takes the session out if nothing keeps it.
    pub(crate) fn take_if_over(&mut self, session: SessionId) -> Option<Session> {
        if self.get(session)?.is_over() {
            self.all.remove(&session)
        } else {
            None
        }
    }

    /// What the next daemon must know.
    pub(crate) fn entries(&self) -> Vec<SessionEntry> {
        self.iter()
            .map(|(id, session)| SessionEntry {
                session: id,
                name: session.name.clone(),
                limit: session.limit,
                oversubscribe: session.oversubscribe,
                card: session.card,
                origin: session.origin.clone(),
            })
            .collect()
    }

    fn find(&self, is: impl Fn(&Session) -> bool) -> Option<SessionId> {
        self.iter().find(|(_, session)| is(session)).map(|(id, _)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Token = Token([9; 32]);
    const REGISTRAR: ProcessId = ProcessId { pid: 5, start: 50 };

    fn with_one() -> (Sessions, SessionId) {
        let mut sessions = Sessions::new(4);
        let session = sessions.add(
            |id| format!("session-{}", id.0),
            |name| Session {
                name,
                limit: None,
                oversubscribe: false,
                card: None,
                origin: Origin::Registered {
                    token: TOKEN,
                    uid: 7,
                    by: REGISTRAR,
                },
                bound: true,
                clients: 0,
            },
        );
        (sessions, session)
    }

    #[test]
    fn a_registered_session_is_found_by_token_and_registrar() {
        let (sessions, session) = with_one();
        assert_eq!(session, SessionId(4));
        assert_eq!(sessions.name(session), "session-4");
        assert_eq!(sessions.by_token(&TOKEN), Some(session));
        assert_eq!(sessions.by_token(&Token([8; 32])), None);
        assert_eq!(sessions.by_registrar(REGISTRAR), Some(session));
        assert_eq!((sessions.registered_by(7), sessions.registered_by(8)), (1, 0));
    }

    #[test]
    fn a_session_lives_as_long_as_its_registrar_or_a_client() {
        let (mut sessions, session) = with_one();
        assert!(sessions.take_if_over(session).is_none());
        sessions.join(session);
        sessions.unbind(session);
        assert!(sessions.take_if_over(session).is_none());
        sessions.leave(session);
        assert!(sessions.take_if_over(session).is_some());
        assert!(sessions.is_empty());
    }

    #[test]
    fn a_session_keeps_its_number_over_a_restart() {
        let (mut old, session) = with_one();
        old.join(session);
        let mut new = Sessions::new(old.next());
        for entry in old.entries() {
            new.restore(entry, false);
        }
        assert_eq!(new.by_token(&TOKEN), Some(session));
        assert_eq!(new.entries(), old.entries());
        assert_eq!(new.next(), 5);
        assert!(new.take_if_over(session).is_some());
    }
}
