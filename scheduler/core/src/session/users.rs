//! Users and their sessions.

use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::SessionId;

use super::share::UserId;

/// Sessions of each user, and the users whose sessions are over but who may be ahead of others on a card.
#[derive(Clone, Debug, Default)]
pub(crate) struct Users {
    present: BTreeMap<UserId, BTreeSet<SessionId>>,
    departed: BTreeSet<UserId>,
}

impl Users {
    pub(crate) fn join(&mut self, user: UserId, session: SessionId) {
        self.departed.remove(&user);
        self.present.entry(user).or_default().insert(session);
    }

    pub(crate) fn leave(&mut self, user: UserId, session: SessionId) {
        let Some(sessions) = self.present.get_mut(&user) else {
            return;
        };
        sessions.remove(&session);
        if sessions.is_empty() {
            self.present.remove(&user);
            self.departed.insert(user);
        }
    }

    pub(crate) fn sessions(&self, user: UserId) -> Vec<SessionId> {
        self.present.get(&user).into_iter().flatten().copied().collect()
    }

    /// Forgets the users without sessions for whom `keeps` is false.
    pub(crate) fn retain_departed(&mut self, mut keeps: impl FnMut(UserId) -> bool) {
        self.departed.retain(|&user| keeps(user));
    }
}
