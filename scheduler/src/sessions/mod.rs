//! Table of sessions: finds the session of a token, a process or a name, and decides when a session ends.
//!
//! An administrator's session lasts until it is deleted. A registered session lasts as long as any of its
//! clients, or the process that registered it. An implicit session lasts as long as its clients. Clients of
//! the last daemon that may reconnect count too.

mod session;
pub(crate) mod terms;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use gpushare_core::Standing;
use gpushare_proto::lookup::{self, LookupError, MAX_SESSION_NAME};
use gpushare_proto::session::Binding;
use gpushare_proto::{Nanos, SessionId, Token};
use gpushare_sys::process;

pub(crate) use self::session::Session;
use crate::identity::{ImplicitKey, PeerProcess, ProcessId};
use crate::registry::{Origin, SessionEntry};
use crate::secret::TokenHash;

/// Monotonic time and wall clock time of one instant. Ends of sessions are stored in wall clock time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    pub(crate) monotonic: Nanos,
    pub(crate) unix: u64,
}

impl Clocks {
    fn monotonic(self, unix: u64) -> Nanos {
        self.monotonic + Nanos(unix.saturating_sub(self.unix))
    }

    fn unix(self, monotonic: Nanos) -> u64 {
        self.unix.saturating_add((monotonic - self.monotonic).0)
    }
}

#[derive(Debug)]
pub(crate) struct Sessions {
    all: BTreeMap<SessionId, Session>,
    /// Number for the next new session.
    pub(crate) next: u64,
}

impl Sessions {
    /// Creates an empty table whose first session gets the number `next`.
    pub(crate) fn new(next: u64) -> Self {
        Self { all: BTreeMap::new(), next }
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

    /// Returns the name of a session, or its number if the session is over.
    pub(crate) fn name(&self, session: SessionId) -> String {
        let found = self.get(session);
        found.map_or_else(|| session.to_string(), |found| found.name.clone())
    }

    /// Returns the session that a token opens. Accepts a revoked token only if `revoked` is true.
    pub(crate) fn by_token(&self, token: &Token, revoked: bool) -> Option<SessionId> {
        let hash = TokenHash::of(token);
        let session = self.find(|session| session.token().is_some_and(|ours| ours.matches(&hash)))?;
        self.get(session)
            .is_some_and(|found| revoked || !found.revoked)
            .then_some(session)
    }

    /// Returns the session to which the control group or the user of a process is bound, if any.
    pub(crate) fn bound(&self, peer: &PeerProcess) -> Option<SessionId> {
        self.by_binding([peer.uid, peer.user], || process::cgroups(peer.pid))
    }

    /// Returns the session bound to the innermost of the control groups, else the session bound to the first
    /// of the users.
    fn by_binding(&self, users: [u32; 2], cgroups: impl FnOnce() -> Vec<String>) -> Option<SessionId> {
        let bindings = || {
            self.iter().filter_map(|(id, session)| match &session.origin {
                Origin::Created { binding, .. } => Some((id, binding)),
                _ => None,
            })
        };
        let any_group = bindings().any(|(_, binding)| matches!(binding, Binding::Cgroup(_)));
        let paths = any_group.then(cgroups).unwrap_or_default();
        let around = |group: &str| {
            let mut behind = paths.iter().filter_map(|path| path.strip_prefix(group));
            behind.any(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let group = bindings()
            .filter_map(|(id, binding)| match binding {
                Binding::Cgroup(group) if around(group.trim_end_matches('/')) => Some((group.len(), id)),
                _ => None,
            })
            .max_by_key(|&(length, _)| length);
        let of_user = |uid| bindings().find(|(_, binding)| **binding == Binding::Uid(uid));
        let user = || users.into_iter().find_map(of_user);
        group.map(|(_, id)| id).or_else(|| user().map(|(id, _)| id))
    }

    pub(crate) fn named(&self, which: &str) -> Result<SessionId, String> {
        let all = self.iter().map(|(id, session)| (id, session.name.as_str(), session.is_kept()));
        lookup::find(which, all).map_err(|not_one| match not_one {
            LookupError::NotFound => {
                format!("there is no session {which}; `gpushare-ctl session list` shows them")
            }
            LookupError::Ambiguous(found) => {
                let ids: Vec<String> = found.iter().map(ToString::to_string).collect();
                format!("several sessions are named {which}: {}; name one by its number", ids.join(", "))
            }
        })
    }

    /// Frees a name for an administrator's new session by renaming programs' sessions that have it. Returns
    /// the renamed sessions with their new names.
    pub(crate) fn displace(&mut self, name: &str) -> Vec<(SessionId, String)> {
        let renamed = self.iter().filter(|(_, session)| session.name == name && !session.is_kept());
        let renamed: Vec<SessionId> = renamed.map(|(id, _)| id).collect();
        let displaced = renamed.into_iter().map(|id| {
            let other = self.beside(name, id);
            if let Some(session) = self.all.get_mut(&id) {
                session.name.clone_from(&other);
            }
            (id, other)
        });
        displaced.collect()
    }

    /// Returns the requested name for a program's session, or another one if an administrator's session has
    /// it.
    fn free(&self, wished: String, id: SessionId) -> String {
        let is_kept = |session: &Session| session.is_kept() && session.name == wished;
        if self.all.values().any(is_kept) { self.beside(&wished, id) } else { wished }
    }

    /// Returns a name that begins like `name` and that no administrator's session has.
    fn beside(&self, name: &str, id: SessionId) -> String {
        let mut suffix = String::new();
        loop {
            suffix.push_str(&format!("-{}", id.0));
            let kept: String = name.chars().take(MAX_SESSION_NAME.saturating_sub(suffix.len())).collect();
            let other = kept + &suffix;
            if !self.all.values().any(|session| session.is_kept() && session.name == other) {
                return other;
            }
        }
    }

    pub(crate) fn get_mut(&mut self, session: SessionId) -> Option<&mut Session> {
        self.all.get_mut(&session)
    }

    pub(crate) fn remove(&mut self, session: SessionId) -> Option<Session> {
        self.all.remove(&session)
    }

    /// Returns the point in monotonic time at which the next session expires.
    pub(crate) fn next_end(&self, now: Nanos) -> Option<Nanos> {
        let ends = self.all.values().filter(|session| session.sent_standing != Standing::Over);
        ends.filter_map(|session| session.expires).map(|end| end.max(now)).min()
    }

    pub(crate) fn by_key(&self, key: &ImplicitKey) -> Option<SessionId> {
        self.find(|session| matches!(&session.origin, Origin::Implicit(ours) if ours == key))
    }

    pub(crate) fn by_registrar(&self, process: ProcessId) -> Option<SessionId> {
        self.find(|session| matches!(&session.origin, Origin::Registered { by, .. } if *by == process))
    }

    /// Returns the number of present sessions that a user registered.
    pub(crate) fn registered_by(&self, user: u32) -> usize {
        let is_own =
            |session: &&Session| matches!(session.origin, Origin::Registered { uid, .. } if uid == user);
        self.all.values().filter(is_own).count()
    }

    /// Adds a session with a new number. `name` makes the session's name from the number. A program's session
    /// never gets the name of an administrator's session.
    pub(crate) fn add(
        &mut self,
        name: impl FnOnce(SessionId) -> String,
        make: impl FnOnce(String) -> Session,
    ) -> SessionId {
        let id = SessionId(self.next);
        self.next += 1;
        let mut session = make(name(id));
        if !session.is_kept() {
            session.name = self.free(session.name, id);
        }
        self.all.insert(id, session);
        id
    }

    pub(crate) fn restore(&mut self, entry: SessionEntry, bound: bool, clocks: Clocks) {
        self.all.insert(
            entry.session,
            Session {
                bound,
                paused: entry.paused,
                revoked: entry.revoked,
                expires: entry.expires_unix.map(|end| clocks.monotonic(end)),
                before: entry.totals,
                leads: entry.leads,
                ..Session::new(entry.name, entry.terms, entry.origin, entry.oversubscribe, entry.card)
            },
        );
    }

    pub(crate) fn join(&mut self, session: SessionId) {
        if let Some(session) = self.all.get_mut(&session) {
            session.clients += 1;
        }
    }

    /// Removes a session from the table if nothing keeps it.
    pub(crate) fn take_if_over(&mut self, session: SessionId) -> Option<Session> {
        if self.get(session)?.is_over() { self.all.remove(&session) } else { None }
    }

    pub(crate) fn entries(&self, clocks: Clocks) -> Vec<SessionEntry> {
        self.iter()
            .map(|(id, session)| SessionEntry {
                session: id,
                name: session.name.clone(),
                terms: session.terms.clone(),
                oversubscribe: session.oversubscribe,
                card: session.card,
                origin: session.origin.clone(),
                paused: session.paused,
                revoked: session.revoked,
                expires_unix: session.expires.map(|end| clocks.unix(end)),
                totals: session.before.plus(session.used),
                leads: session.leads.clone(),
                joined: Vec::new(),
            })
            .collect()
    }

    fn find(&self, is: impl Fn(&Session) -> bool) -> Option<SessionId> {
        self.iter().find(|(_, session)| is(session)).map(|(id, _)| id)
    }
}
