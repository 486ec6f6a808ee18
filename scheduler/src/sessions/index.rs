//! Index of the sessions by what processes are found by, and by the ends of sessions. No search visits all
//! sessions.

use std::borrow::Borrow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use gpushare_core::Standing;
use gpushare_proto::session::Binding;
use gpushare_proto::{GpuUuid, Nanos, SessionId};

use super::Session;
use crate::identity::{ImplicitKey, ProcessId, User};
use crate::registry::Origin;
use crate::secret::TokenHash;

#[derive(Debug, Default)]
pub(super) struct Index {
    tokens: BTreeMap<TokenHash, SessionId>,
    keys: BTreeMap<ImplicitKey, SessionId>,
    registrars: BTreeMap<ProcessId, BTreeSet<SessionId>>,
    /// Sessions of the users among whom time is divided.
    owned: BTreeMap<User, BTreeSet<SessionId>>,
    users: BTreeMap<u32, SessionId>,
    groups: BTreeMap<String, SessionId>,
    pods: BTreeMap<String, SessionId>,
    names: BTreeMap<String, BTreeSet<SessionId>>,
    /// Numbers of sessions that are assigned to each card.
    placed: BTreeMap<GpuUuid, usize>,
    /// Ends of sessions that were not reported as over.
    ends: BTreeSet<(Nanos, SessionId)>,
}

impl Index {
    pub(super) fn add(&mut self, id: SessionId, session: &Session) {
        if let Some(token) = session.token() {
            self.tokens.insert(token.clone(), id);
        }
        match &session.origin {
            Origin::Implicit(key) => _ = self.keys.entry(key.clone()).or_insert(id),
            Origin::Registered { by, .. } => _ = self.registrars.entry(*by).or_default().insert(id),
            Origin::Created { binding: Binding::Uid(uid), .. } => _ = self.users.entry(*uid).or_insert(id),
            Origin::Created { binding: Binding::Cgroup(path), .. } => {
                self.groups.entry(path.trim_end_matches('/').to_owned()).or_insert(id);
            }
            Origin::Created { binding: Binding::Pod(uid), .. } => {
                self.pods.entry(uid.clone()).or_insert(id);
            }
            Origin::Created { binding: Binding::Token, .. } => {}
        }
        if let Some(user) = session.user() {
            self.owned.entry(user).or_default().insert(id);
        }
        self.names.entry(session.name.clone()).or_default().insert(id);
        session.card.into_iter().for_each(|card| count_up(&mut self.placed, card));
        self.note_end(id, session);
    }

    pub(super) fn remove(&mut self, id: SessionId, session: &Session) {
        if let Some(token) = session.token() {
            self.tokens.remove(token);
        }
        match &session.origin {
            Origin::Implicit(key) => take(&mut self.keys, key, id),
            Origin::Registered { by, .. } => take_from(&mut self.registrars, by, id),
            Origin::Created { binding: Binding::Uid(uid), .. } => take(&mut self.users, uid, id),
            Origin::Created { binding: Binding::Cgroup(path), .. } => {
                take(&mut self.groups, path.trim_end_matches('/'), id);
            }
            Origin::Created { binding: Binding::Pod(uid), .. } => take(&mut self.pods, uid.as_str(), id),
            Origin::Created { binding: Binding::Token, .. } => {}
        }
        if let Some(user) = session.user() {
            take_from(&mut self.owned, &user, id);
        }
        take_from(&mut self.names, &session.name, id);
        session.card.into_iter().for_each(|card| count_down(&mut self.placed, card));
        self.forget_end(id, session);
    }

    /// Adds the end of a session, or removes that of a session that was reported as over.
    pub(super) fn note_end(&mut self, id: SessionId, session: &Session) {
        self.forget_end(id, session);
        if let Some(end) = session.expires.filter(|_| session.sent_standing != Standing::Over) {
            self.ends.insert((end.boot, id));
        }
    }

    fn forget_end(&mut self, id: SessionId, session: &Session) {
        if let Some(end) = session.expires {
            self.ends.remove(&(end.boot, id));
        }
    }

    pub(super) fn by_token(&self, token: &TokenHash) -> Option<SessionId> {
        self.tokens.get(token).copied()
    }

    pub(super) fn by_key(&self, key: &ImplicitKey) -> Option<SessionId> {
        self.keys.get(key).copied()
    }

    /// Returns the oldest session that a process registered.
    pub(super) fn by_registrar(&self, process: ProcessId) -> Option<SessionId> {
        self.registrars.get(&process)?.first().copied()
    }

    pub(super) fn of_user(&self, user: &User) -> impl Iterator<Item = SessionId> {
        self.owned.get(user).into_iter().flatten().copied()
    }

    /// Returns the users with sessions, and the number of sessions of each.
    pub(super) fn users(&self) -> impl Iterator<Item = (&User, usize)> {
        self.owned.iter().map(|(user, ids)| (user, ids.len()))
    }

    pub(super) fn placed_on(&self, card: GpuUuid) -> usize {
        self.placed.get(&card).copied().unwrap_or(0)
    }

    pub(super) fn by_user(&self, uid: u32) -> Option<SessionId> {
        self.users.get(&uid).copied()
    }

    /// Returns whether a session is bound to a pod.
    pub(super) fn has_pods(&self) -> bool {
        !self.pods.is_empty()
    }

    pub(super) fn by_pod(&self, uid: &str) -> Option<SessionId> {
        self.pods.get(uid).copied()
    }

    /// Returns the session bound to a control group or to the closest one around it, with the length of
    /// its path.
    pub(super) fn by_group(&self, path: &str) -> Option<(usize, SessionId)> {
        if self.groups.is_empty() {
            return None;
        }
        let ends = path.char_indices().filter(|(_, c)| *c == '/').map(|(at, _)| at);
        let mut around: Vec<usize> = ends.collect();
        around.push(path.len());
        around
            .into_iter()
            .rev()
            .find_map(|end| Some((end, *self.groups.get(&path[..end])?)))
    }

    /// Returns the sessions with a name, the oldest first.
    pub(super) fn named(&self, name: &str) -> impl Iterator<Item = SessionId> {
        self.names.get(name).into_iter().flatten().copied()
    }

    /// Returns the sessions whose ends are not later than `boot`, in time since boot.
    pub(super) fn ended(&self, boot: Nanos) -> impl Iterator<Item = SessionId> {
        self.ends.range(..=(boot, SessionId(u64::MAX))).map(|&(_, id)| id)
    }

    /// Returns the next end of a session, in time since boot.
    pub(super) fn next_end(&self) -> Option<Nanos> {
        self.ends.first().map(|&(end, _)| end)
    }
}

/// Removes an entry if it is this session's.
fn take<K: Ord + Borrow<Q>, Q: Ord + ?Sized>(map: &mut BTreeMap<K, SessionId>, key: &Q, id: SessionId) {
    if map.get(key) == Some(&id) {
        map.remove(key);
    }
}

fn count_up<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    *counts.entry(key).or_default() += 1;
}

fn count_down<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

fn take_from<K: Ord>(map: &mut BTreeMap<K, BTreeSet<SessionId>>, key: &K, id: SessionId) {
    if let Some(sessions) = map.get_mut(key) {
        sessions.remove(&id);
        if sessions.is_empty() {
            map.remove(key);
        }
    }
}
