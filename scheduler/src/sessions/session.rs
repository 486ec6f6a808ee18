//! One session: its terms, its state and its counted usage.

use gpushare_core::Standing;
use gpushare_proto::admin::SessionState;
use gpushare_proto::session::{Binding, Quota, SessionPhase, Terms};
use gpushare_proto::{Bytes, GpuUuid, Nanos};

use crate::identity::User;
use crate::registry::{CardLead, Figures, Hour, Origin, Spent};
use crate::secret::TokenHash;

/// Point in time at which a session expires, by two clocks. It is the same instant at each write of the
/// registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// Time since boot, suspends included: a session expires while the machine is suspended.
    pub(crate) boot: Nanos,
    /// Nanoseconds since 1970, for the next daemon.
    pub(crate) unix: u64,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) terms: Terms,
    pub(crate) oversubscribe: bool,
    /// Memory limit that an administrator set last. The session's own user may only go below it.
    pub(crate) ceiling: Option<Quota>,
    /// Card to which the session is assigned; none for any card.
    pub(crate) card: Option<GpuUuid>,
    pub(crate) origin: Origin,
    /// Whether the process that registered the session is alive; false for other sessions.
    pub(crate) bound: bool,
    /// Number of clients: connected, disconnected, awaited, or dead with memory on a card.
    pub(crate) clients: usize,
    pub(crate) paused: bool,
    pub(crate) revoked: bool,
    /// Point in time at which the session expires; none for never.
    pub(crate) expires: Option<End>,
    /// Permission to run (standing) that the decision machine was told last.
    pub(crate) sent_standing: Standing,
    pub(crate) before: Figures,
    pub(crate) used: Figures,
    /// Hour in which the session last had memory, and the counted peak of its memory in that hour.
    pub(crate) peak: (Hour, Bytes),
    /// Distances of the session's virtual time from the floors of cards, at the last count.
    pub(crate) leads: Vec<CardLead>,
}

impl Session {
    pub(crate) fn new(
        name: String,
        terms: Terms,
        origin: Origin,
        oversubscribe: bool,
        card: Option<GpuUuid>,
    ) -> Self {
        Self {
            name,
            terms,
            oversubscribe,
            ceiling: None,
            card,
            origin,
            bound: false,
            clients: 0,
            paused: false,
            revoked: false,
            expires: None,
            sent_standing: Standing::Good,
            before: Figures::default(),
            used: Figures::default(),
            peak: (Hour(0), Bytes::ZERO),
            leads: Vec::new(),
        }
    }

    /// Returns the usage since the last count, and the peak of memory in this hour. The peak is part of the
    /// usage only if it is a new one.
    pub(crate) fn news(&self, used: Figures, allocated: Bytes, hour: Hour) -> (Figures, (Hour, Bytes)) {
        let mut news = used.since(self.used);
        let counted = if self.peak.0 == hour { self.peak.1 } else { Bytes::ZERO };
        let peak = news.peak.max(allocated);
        news.peak = if peak > counted { peak } else { Bytes::ZERO };
        (news, (hour, peak.max(counted)))
    }

    pub(crate) fn count(&mut self, used: Figures, allocated: Bytes, hour: Hour) -> Figures {
        let (news, peak) = self.news(used, allocated, hour);
        (self.used, self.peak) = (used, peak);
        news
    }

    pub(crate) fn is_implicit(&self) -> bool {
        matches!(self.origin, Origin::Implicit(_))
    }

    pub(crate) fn uid(&self) -> u32 {
        match &self.origin {
            Origin::Registered { uid, .. } | Origin::Created { uid, .. } => *uid,
            Origin::Implicit(key) => key.uid,
        }
    }

    /// Returns the user whose time the session shares; none for a session that an administrator made.
    pub(crate) fn user(&self) -> Option<User> {
        match &self.origin {
            Origin::Registered { user, uid, .. } => Some(user.clone().unwrap_or(User::Uid(*uid))),
            Origin::Implicit(key) => Some(key.user()),
            Origin::Created { .. } => None,
        }
    }

    /// Returns the row of an hour in which the session used nothing, with its name and its user.
    ///
    /// A session that an administrator bound to a user or control group belongs to that one.
    pub(crate) fn spent_nothing(&self) -> Spent {
        let bound = || match &self.origin {
            Origin::Created { binding: Binding::Uid(uid), .. } => Some(uid.to_string()),
            Origin::Created { binding: Binding::Cgroup(group), .. } => Some(group.clone()),
            Origin::Created { binding: binding @ Binding::Pod(_), .. } => Some(binding.to_string()),
            _ => None,
        };
        let user = self.user().map(|user| user.given()).or_else(bound);
        Spent { name: self.name.clone(), user, figures: Figures::default() }
    }

    /// Returns whether a user made the session. Root in a container is another user than the machine's.
    pub(crate) fn is_of(&self, user: &User) -> bool {
        self.user().unwrap_or(User::Uid(self.uid())) == *user
    }

    /// Returns whether the session lasts until an administrator deletes it.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.origin, Origin::Created { .. })
    }

    pub(super) fn is_over(&self) -> bool {
        self.clients == 0 && !self.bound && !self.is_kept()
    }

    /// Returns the state of the session, as tools show it, at a time since boot.
    pub(crate) fn state(&self, boot: Nanos) -> SessionState {
        SessionState {
            terms: self.terms.clone(),
            standing: self.phase(boot),
            expires_in_ns: self.expires.map(|end| end.boot - boot),
            binding: match &self.origin {
                Origin::Created { binding, .. } => binding.clone(),
                _ => Binding::default(),
            },
            kept: self.is_kept(),
        }
    }

    pub(super) fn token(&self) -> Option<&TokenHash> {
        match &self.origin {
            Origin::Registered { token, .. } => Some(token),
            Origin::Created { token, .. } => token.as_ref(),
            Origin::Implicit(_) => None,
        }
    }

    /// Returns the phase of the session at a time since boot, as tools show it.
    pub(crate) fn phase(&self, boot: Nanos) -> SessionPhase {
        match self.expires {
            _ if self.revoked => SessionPhase::Revoked,
            Some(end) if end.boot <= boot => SessionPhase::Expired,
            _ if self.paused => SessionPhase::Paused,
            _ => SessionPhase::Good,
        }
    }
}
