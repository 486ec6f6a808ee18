//! Table of sessions: finds the session of a token, a process or a name, and decides when a session ends.
//!
//! An administrator's session lasts until it is deleted. A registered session lasts as long as any of its
//! clients, or the process that registered it. An implicit session lasts as long as its clients. Clients of
//! the last daemon that may reconnect count too.

mod index;
mod session;
pub(crate) mod terms;
pub(crate) mod users;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::SystemTime;

use gpushare_core::Standing;
use gpushare_proto::lookup::{self, LookupError, MAX_SESSION_NAME};
use gpushare_proto::session::Binding;
use gpushare_proto::{GpuUuid, Nanos, SessionId, Token};
use gpushare_sys::clock;

use self::index::Index;
pub(crate) use self::session::{End, Session};
use crate::identity::{ImplicitKey, PeerProcess, ProcessId, User};
use crate::registry::{Origin, SessionEntry};
use crate::secret::TokenHash;

/// Time since boot and wall clock time of one instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    pub(crate) boot: Nanos,
    pub(crate) unix: u64,
}

impl Clocks {
    /// Returns both times of the present.
    pub(crate) fn now() -> Self {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { boot: clock::boot(), unix: u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX) }
    }

    /// Returns the end of a session with this time to live from now on.
    pub(crate) fn end_after(self, ttl: Nanos) -> End {
        End { boot: self.boot + ttl, unix: self.unix.saturating_add(ttl.0) }
    }

    /// Returns the end that the registry has in wall clock time.
    fn end_at(self, unix: u64) -> End {
        End { boot: self.boot + Nanos(unix.saturating_sub(self.unix)), unix }
    }
}

#[derive(Debug)]
pub(crate) struct Sessions {
    all: BTreeMap<SessionId, Session>,
    index: Index,
    /// Number for the next new session.
    pub(crate) next: u64,
}

impl Sessions {
    /// Creates an empty table whose first session gets the number `next`.
    pub(crate) fn new(next: u64) -> Self {
        Self { all: BTreeMap::new(), index: Index::default(), next }
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

    /// Returns the numbers of the sessions from `first` on.
    pub(crate) fn ids_from(&self, first: SessionId) -> impl Iterator<Item = SessionId> {
        self.all.range(first..).map(|(&id, _)| id)
    }

    /// Returns the name of a session, or its number if the session is over.
    pub(crate) fn name(&self, session: SessionId) -> String {
        let found = self.get(session);
        found.map_or_else(|| session.to_string(), |found| found.name.clone())
    }

    /// Returns the session that a token opens. Accepts a revoked token only if `revoked` is true.
    pub(crate) fn by_token(&self, token: &Token, revoked: bool) -> Option<SessionId> {
        let hash = TokenHash::of(token);
        let session = self.index.by_token(&hash)?;
        let found = self.get(session)?;
        let opens = found.token().is_some_and(|ours| ours.matches(&hash));
        (opens && (revoked || !found.revoked)).then_some(session)
    }

    /// Returns the session to which the control group, the pod or the user of a process is bound, if any.
    ///
    /// A container chooses the user ids of its processes. So bindings to users count only for processes
    /// `beside` the daemon: outside of containers, or in the daemon's own one.
    pub(crate) fn bound(&self, peer: &PeerProcess, beside: bool) -> Option<SessionId> {
        let users = peer.users();
        let pod = self.index.has_pods().then(|| peer.pod()).flatten();
        self.by_binding(if beside { &users } else { &[] }, pod.as_deref(), &peer.groups)
    }

    /// Returns the session bound to the innermost of the control groups, else the session bound to the pod,
    /// else the session bound to the first of the users.
    fn by_binding(&self, users: &[u32], pod: Option<&str>, paths: &[String]) -> Option<SessionId> {
        let groups = paths.iter().filter_map(|path| self.index.by_group(path));
        let group = groups.max_by_key(|&(length, _)| length);
        let user = || users.iter().find_map(|&uid| self.index.by_user(uid));
        let of_pod = || self.index.by_pod(pod?);
        group.map(|(_, id)| id).or_else(of_pod).or_else(user)
    }

    /// Returns the session that has a number or name.
    pub(crate) fn named(&self, which: &str) -> Result<SessionId, String> {
        self.one_of(
            |_| true,
            which,
            || format!("there is no session {which}; `gpushare-ctl session list` shows them"),
        )
    }

    /// Returns the session of a user that has a number or name. Other users' sessions are not found.
    pub(crate) fn named_of(&self, user: &User, which: &str) -> Result<SessionId, String> {
        self.one_of(
            |session| session.user().as_ref() == Some(user),
            which,
            || format!("{user} has no session {which} here; an administrator may name any session"),
        )
    }

    fn one_of(
        &self,
        is_meant: impl Fn(&Session) -> bool,
        which: &str,
        none: impl FnOnce() -> String,
    ) -> Result<SessionId, String> {
        let all = self.iter().filter(|(_, session)| is_meant(session));
        let all = all.map(|(id, session)| (id, session.name.as_str(), session.is_kept()));
        lookup::find(which, all).map_err(|not_one| match not_one {
            LookupError::NotFound => none(),
            LookupError::Ambiguous(found) => {
                let ids: Vec<String> = found.iter().map(ToString::to_string).collect();
                format!("several sessions are named {which}: {}; name one by its number", ids.join(", "))
            }
        })
    }

    /// Frees a name for an administrator's new session by renaming programs' sessions that have it. Returns
    /// the renamed sessions with their new names.
    pub(crate) fn displace(&mut self, name: &str) -> Vec<(SessionId, String)> {
        let is_programs = |id: &SessionId| self.get(*id).is_some_and(|session| !session.is_kept());
        let renamed: Vec<SessionId> = self.index.named(name).filter(is_programs).collect();
        let displaced = renamed.into_iter().map(|id| {
            let other = self.beside(name, id);
            self.change(id, |session| session.name.clone_from(&other));
            (id, other)
        });
        displaced.collect()
    }

    /// Returns the requested name for a program's session, or another one if an administrator's session has
    /// it.
    fn free(&self, wished: String, id: SessionId) -> String {
        if self.is_kept_name(&wished) { self.beside(&wished, id) } else { wished }
    }

    /// Returns whether an administrator's session has a name.
    pub(crate) fn is_kept_name(&self, name: &str) -> bool {
        self.index.named(name).any(|id| self.get(id).is_some_and(Session::is_kept))
    }

    /// Returns a name that begins like `name` and that no administrator's session has.
    fn beside(&self, name: &str, id: SessionId) -> String {
        let mut suffix = String::new();
        loop {
            suffix.push_str(&format!("-{}", id.0));
            let kept: String = name.chars().take(MAX_SESSION_NAME.saturating_sub(suffix.len())).collect();
            let other = kept + &suffix;
            if !self.is_kept_name(&other) {
                return other;
            }
        }
    }

    /// Returns a session for changes that the index does not have: its name, token, origin and end stay.
    pub(crate) fn get_mut(&mut self, session: SessionId) -> Option<&mut Session> {
        self.all.get_mut(&session)
    }

    /// Changes a session in any way, and keeps the index up to date.
    pub(crate) fn change<T>(&mut self, id: SessionId, change: impl FnOnce(&mut Session) -> T) -> Option<T> {
        let session = self.all.get_mut(&id)?;
        self.index.remove(id, session);
        let changed = change(session);
        self.index.add(id, session);
        Some(changed)
    }

    pub(crate) fn remove(&mut self, session: SessionId) -> Option<Session> {
        let removed = self.all.remove(&session)?;
        self.index.remove(session, &removed);
        Some(removed)
    }

    /// Returns the time since boot at which the next session expires.
    pub(crate) fn next_end(&self) -> Option<Nanos> {
        self.index.next_end()
    }

    /// Returns the sessions that have expired and were not reported as over. `boot` is the present time
    /// since boot.
    pub(crate) fn expired(&self, boot: Nanos) -> Vec<SessionId> {
        self.index.ended(boot).collect()
    }

    /// Notes the permission to run (standing) that the decision machine is told. Returns the one told before.
    pub(crate) fn told_standing(&mut self, id: SessionId, standing: Standing) -> Option<Standing> {
        let session = self.all.get_mut(&id)?;
        let before = std::mem::replace(&mut session.sent_standing, standing);
        self.index.note_end(id, session);
        Some(before)
    }

    pub(crate) fn by_key(&self, key: &ImplicitKey) -> Option<SessionId> {
        self.index.by_key(key)
    }

    pub(crate) fn by_registrar(&self, process: ProcessId) -> Option<SessionId> {
        self.index.by_registrar(process)
    }

    /// Returns the present sessions that a user registered.
    pub(crate) fn registered_by(&self, user: &User) -> impl Iterator<Item = &Session> {
        let own = self.of_user(user).filter_map(|id| self.get(id));
        own.filter(|session| matches!(session.origin, Origin::Registered { .. }))
    }

    /// Returns the present sessions that belong to a user.
    pub(crate) fn of_user(&self, user: &User) -> impl Iterator<Item = SessionId> {
        self.index.of_user(user)
    }

    /// Returns the users with sessions, and the number of sessions of each.
    pub(crate) fn users(&self) -> impl Iterator<Item = (&User, usize)> {
        self.index.users()
    }

    /// Returns the number of sessions that are assigned to a card.
    pub(crate) fn placed_on(&self, card: GpuUuid) -> usize {
        self.index.placed_on(card)
    }

    /// Returns the session that has a binding to a control group or a user.
    pub(crate) fn with_binding(&self, binding: &Binding) -> Option<&Session> {
        let id = match binding {
            Binding::Token => None,
            Binding::Uid(uid) => self.index.by_user(*uid),
            Binding::Pod(uid) => self.index.by_pod(uid),
            Binding::Cgroup(path) => {
                let path = path.trim_end_matches('/');
                self.index
                    .by_group(path)
                    .filter(|(length, _)| *length == path.len())
                    .map(|(_, id)| id)
            }
        };
        self.get(id?)
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
        self.insert(id, session);
        id
    }

    pub(crate) fn restore(&mut self, entry: SessionEntry, bound: bool, clocks: Clocks) {
        self.insert(
            entry.session,
            Session {
                bound,
                paused: entry.paused,
                revoked: entry.revoked,
                expires: entry.expires_unix.map(|end| clocks.end_at(end)),
                before: entry.totals,
                leads: entry.leads,
                ceiling: entry.ceiling,
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
        if self.get(session)?.is_over() { self.remove(session) } else { None }
    }

    fn insert(&mut self, id: SessionId, session: Session) {
        self.index.add(id, &session);
        self.all.insert(id, session);
    }

    /// Returns the registry entry of a session, without the processes that joined it.
    pub(crate) fn entry(&self, id: SessionId) -> Option<SessionEntry> {
        let session = self.get(id)?;
        Some(SessionEntry {
            session: id,
            name: session.name.clone(),
            terms: session.terms.clone(),
            oversubscribe: session.oversubscribe,
            card: session.card,
            origin: session.origin.clone(),
            paused: session.paused,
            revoked: session.revoked,
            expires_unix: session.expires.map(|end| end.unix),
            totals: session.before.plus(session.used),
            leads: session.leads.clone(),
            ceiling: session.ceiling.clone(),
            joined: Vec::new(),
        })
    }
}
