//! The sessions: who may join which, and when one is over.
//!
//! A registered session lives as long as the process that registered it or any of its clients; an implicit
//! one as long as its clients. Clients of the last daemon that may still return count.

mod session;

use std::collections::BTreeMap;

use gpushare_core::Standing;
use gpushare_proto::called::{self, LONGEST_NAME, NotOne};
use gpushare_proto::session::Binding;
use gpushare_proto::{Nanos, SessionId, Token};

pub(crate) use self::session::Session;
use crate::identity::{ImplicitKey, ProcessId};
use crate::registry::{Origin, SessionEntry};
use crate::secret::TokenHash;

/// Both clocks at one instant: ends are kept in the time of people, since no other goes on over a restart.
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
        let session = self.by_any_token(token)?;
        self.get(session)
            .is_some_and(|found| !found.revoked)
            .then_some(session)
    }

    /// As [`Self::by_token`], also of a session that was revoked.
    pub(crate) fn by_any_token(&self, token: &Token) -> Option<SessionId> {
        let hash = TokenHash::of(token);
        self.find(|session| session.token().is_some_and(|ours| ours.matches(&hash)))
    }

    /// The session that a process belongs to whatever token it has: that of the closest control group, else that
    /// of its user, else that of who answers for it.
    pub(crate) fn by_binding(
        &self,
        users: [u32; 2],
        cgroups: impl FnOnce() -> Vec<String>,
    ) -> Option<SessionId> {
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

    /// The session that somebody calls by its number or its name.
    pub(crate) fn named(&self, which: &str) -> Result<SessionId, String> {
        let all = self
            .iter()
            .map(|(id, session)| (id, session.name.as_str(), session.is_kept()));
        called::find(which, all).map_err(|not_one| match not_one {
            NotOne::Nobody => {
                format!("there is no session {which}; `gpushare-ctl session list` shows them")
            }
            NotOne::Several(found) => {
                let ids: Vec<String> = found.iter().map(ToString::to_string).collect();
                format!(
                    "several sessions are named {which}: {}; name one by its number",
                    ids.join(", ")
                )
            }
        })
    }

    /// Gives an administrator's new session its name: what programs have named so is called otherwise from now on. Who that was,
    /// with their new names.
    pub(crate) fn displace(&mut self, name: &str) -> Vec<(SessionId, String)> {
        let squatters: Vec<SessionId> = self
            .iter()
            .filter(|(_, session)| session.name == name && !session.is_kept())
            .map(|(id, _)| id)
            .collect();
        let displaced = squatters.into_iter().map(|id| {
            let other = self.beside(name, id);
            if let Some(session) = self.all.get_mut(&id) {
                session.name.clone_from(&other);
            }
            (id, other)
        });
        displaced.collect()
    }

    /// The name that a session gets which nobody made to last: the wished one, unless an administrator's has it.
    fn free(&self, wished: String, id: SessionId) -> String {
        let is_kept = |session: &Session| session.is_kept() && session.name == wished;
        match self.all.values().any(is_kept) {
            true => self.beside(&wished, id),
            false => wished,
        }
    }

    /// A name like another one that no administrator's session has.
    fn beside(&self, name: &str, id: SessionId) -> String {
        let mut suffix = String::new();
        loop {
            suffix.push_str(&format!("-{}", id.0));
            let kept: String = name
                .chars()
                .take(LONGEST_NAME.saturating_sub(suffix.len()))
                .collect();
            let other = kept + &suffix;
            if !self
                .all
                .values()
                .any(|session| session.is_kept() && session.name == other)
            {
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

    /// When the next session's time is over.
    pub(crate) fn next_end(&self, now: Nanos) -> Option<Nanos> {
        let ends = self.all.values().filter(|session| session.told != Standing::Over);
        ends.filter_map(|session| session.expires)
            .map(|end| end.max(now))
            .min()
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

    /// A new session under a new number. `name` makes it from the number; one that an administrator's session has is not given
    /// to a program's.
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

    /// A session of the last daemon under its old number.
    pub(crate) fn restore(&mut self, entry: SessionEntry, bound: bool, clocks: Clocks) {
        self.all.insert(
            entry.session,
            Session {
                bound,
                paused: entry.paused,
                revoked: entry.revoked,
                expires: entry.expires_unix.map(|end| clocks.monotonic(end)),
                before: entry.totals,
                ..Session::new(
                    entry.name,
                    entry.terms,
                    entry.origin,
                    entry.oversubscribe,
                    entry.card,
                )
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
                entrants: Vec::new(),
            })
            .collect()
    }

    fn find(&self, is: impl Fn(&Session) -> bool) -> Option<SessionId> {
        self.iter().find(|(_, session)| is(session)).map(|(id, _)| id)
    }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::session::{StandingView, Terms};

    use super::*;

    const TOKEN: Token = Token([9; 32]);
    const REGISTRAR: ProcessId = ProcessId { pid: 5, start: 50 };

    const CLOCKS: Clocks = Clocks {
        monotonic: Nanos(1000),
        unix: 5000,
    };

    fn created(name: &str, origin: Origin) -> Session {
        Session::new(name.to_owned(), Terms::default(), origin, false, None)
    }

    fn bound_to(sessions: &mut Sessions, binding: Binding) -> SessionId {
        let origin = Origin::Created {
            token: None,
            binding,
            uid: 0,
        };
        sessions.add(|id| id.to_string(), |name| created(&name, origin))
    }

    #[test]
    fn a_control_group_comes_before_a_user_and_the_closest_first() {
        let mut sessions = Sessions::new(1);
        let user = bound_to(&mut sessions, Binding::Uid(7));
        let outer = bound_to(&mut sessions, Binding::Cgroup("/pods".into()));
        let inner = bound_to(&mut sessions, Binding::Cgroup("/pods/a".into()));
        let of = |uid, path: &str| sessions.by_binding([uid, uid], || vec![path.to_owned()]);
        assert_eq!(of(7, "/pods/a/b"), Some(inner));
        assert_eq!(of(7, "/pods/ab"), Some(outer));
        assert_eq!(of(8, "/pods"), Some(outer));
        assert_eq!(of(7, "/podsters"), Some(user));
        assert_eq!(of(8, "/"), None);
        let docker = ["/system.slice/containerd.service", "/pods/a"].map(str::to_owned);
        assert_eq!(sessions.by_binding([7, 7], || docker.to_vec()), Some(inner));
        assert_eq!(sessions.by_binding([100_005, 7], Vec::new), Some(user));
    }

    #[test]
    fn a_session_is_named_by_its_number_or_by_a_name_that_is_its_own() {
        let mut sessions = Sessions::new(1);
        for _ in 0..2 {
            sessions.add(
                |_| "twin".to_owned(),
                |name| {
                    created(
                        &name,
                        Origin::Created {
                            token: None,
                            binding: Binding::Token,
                            uid: 0,
                        },
                    )
                },
            );
        }
        assert_eq!(sessions.named("s2"), Ok(SessionId(2)));
        assert_eq!(sessions.named("1"), Ok(SessionId(1)));
        assert!(sessions.named("twin").unwrap_err().contains("s1, s2"));
        assert!(sessions.named("nobody").unwrap_err().contains("session list"));
    }

    fn by_program(sessions: &mut Sessions, name: &str) -> SessionId {
        let origin = Origin::Registered {
            token: TokenHash::of(&TOKEN),
            uid: 7,
            by: REGISTRAR,
        };
        sessions.add(|_| name.to_owned(), |name| created(&name, origin))
    }

    fn by_administrator(sessions: &mut Sessions, name: &str) -> SessionId {
        let origin = Origin::Created {
            token: None,
            binding: Binding::Token,
            uid: 0,
        };
        sessions.add(|_| name.to_owned(), |name| created(&name, origin))
    }

    #[test]
    fn a_name_is_the_administrators_whoever_had_it_first() {
        let mut sessions = Sessions::new(1);
        let squatters = [by_program(&mut sessions, "b"), by_program(&mut sessions, "b")];
        assert_eq!(sessions.displace("a"), []);
        assert_eq!(
            sessions.displace("b"),
            [(squatters[0], "b-1".to_owned()), (squatters[1], "b-2".to_owned())]
        );
        let own = by_administrator(&mut sessions, "b");
        assert_eq!(sessions.named("b"), Ok(own));
        assert_eq!(sessions.named("b-2"), Ok(squatters[1]));
        assert_eq!(sessions.displace("b"), [], "an administrator's stays");

        let late = by_program(&mut sessions, "b");
        assert_eq!(
            (sessions.name(late).as_str(), sessions.named("b")),
            ("b-4", Ok(own))
        );
        let taken = by_administrator(&mut sessions, "c-7");
        by_administrator(&mut sessions, "c");
        let beside = by_program(&mut sessions, "c");
        assert_eq!(sessions.name(beside), "c-7-7");
        assert_eq!(sessions.named("c-7"), Ok(taken));
    }

    #[test]
    fn a_name_that_is_made_up_is_no_longer_than_others() {
        let mut sessions = Sessions::new(1000);
        let long = "x".repeat(LONGEST_NAME);
        by_administrator(&mut sessions, &long);
        let beside = by_program(&mut sessions, &long);
        assert_eq!(
            sessions.name(beside),
            format!("{}-1001", "x".repeat(LONGEST_NAME - 5))
        );
    }

    #[test]
    fn an_end_is_the_same_instant_after_a_restart() {
        let mut sessions = Sessions::new(1);
        let id = bound_to(&mut sessions, Binding::Token);
        if let Some(session) = sessions.get_mut(id) {
            session.expires = Some(Nanos(3000));
        }
        assert_eq!(sessions.entries(CLOCKS)[0].expires_unix, Some(7000));
        let later = Clocks {
            monotonic: Nanos(50),
            unix: 6500,
        };
        let mut next = Sessions::new(2);
        next.restore(sessions.entries(CLOCKS).remove(0), false, later);
        assert_eq!(next.get(id).unwrap().expires, Some(Nanos(550)));
        let standing = |now| next.get(id).unwrap().standing(Nanos(now));
        assert_eq!(
            (standing(549), standing(550)),
            (StandingView::Good, StandingView::Expired)
        );
    }

    fn with_one() -> (Sessions, SessionId) {
        let mut sessions = Sessions::new(4);
        let session = sessions.add(
            |id| format!("session-{}", id.0),
            |name| Session {
                bound: true,
                ..created(
                    &name,
                    Origin::Registered {
                        token: TokenHash::of(&TOKEN),
                        uid: 7,
                        by: REGISTRAR,
                    },
                )
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
        for entry in old.entries(CLOCKS) {
            new.restore(entry, false, CLOCKS);
        }
        assert_eq!(new.by_token(&TOKEN), Some(session));
        assert_eq!(new.entries(CLOCKS), old.entries(CLOCKS));
        assert_eq!(new.next(), 5);
        assert!(new.take_if_over(session).is_some());
    }
}
