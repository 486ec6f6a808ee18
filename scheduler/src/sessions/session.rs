//! One session: what it was given, what has become of it, and what was counted of it.

use gpushare_core::Standing;
use gpushare_proto::admin::SessionState;
use gpushare_proto::session::{Binding, SessionPhase, Terms};
use gpushare_proto::{Bytes, GpuUuid, Nanos};

use crate::registry::{Figures, Hour, Origin};
use crate::secret::TokenHash;

/// One session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) terms: Terms,
    pub(crate) oversubscribe: bool,
    /// The card it was placed on.
    pub(crate) card: Option<GpuUuid>,
    pub(crate) origin: Origin,
    /// Whether the process that registered it lives; never true for an implicit one.
    pub(crate) bound: bool,
    /// Clients connected or still expected back.
    pub(crate) clients: usize,
    pub(crate) paused: bool,
    pub(crate) revoked: bool,
    /// When its time is over, on the monotonic clock.
    pub(crate) expires: Option<Nanos>,
    /// What the core knows of that.
    pub(crate) told: Standing,
    /// What it used under daemons of before.
    pub(crate) before: Figures,
    /// What it used under this one, as of the last look.
    pub(crate) used: Figures,
    /// The most that was counted of its memory in an hour: the latest in which it had any.
    pub(crate) peak: (Hour, Bytes),
}

impl Session {
    /// One that nobody has joined.
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
            card,
            origin,
            bound: false,
            clients: 0,
            paused: false,
            revoked: false,
            expires: None,
            told: Standing::Good,
            before: Figures::default(),
            used: Figures::default(),
            peak: (Hour(0), Bytes::ZERO),
        }
    }

    /// What came to what was counted of it, and its peak of this hour. A peak is news when it is the hour's greatest.
    pub(crate) fn news(&self, used: Figures, allocated: Bytes, hour: Hour) -> (Figures, (Hour, Bytes)) {
        let mut news = used.since(self.used);
        let counted = match self.peak.0 == hour {
            true => self.peak.1,
            false => Bytes::ZERO,
        };
        let peak = news.peak.max(allocated);
        news.peak = match peak > counted {
            true => peak,
            false => Bytes::ZERO,
        };
        (news, (hour, peak.max(counted)))
    }

    /// Counts what came.
    pub(crate) fn count(&mut self, used: Figures, allocated: Bytes, hour: Hour) -> Figures {
        let (news, peak) = self.news(used, allocated, hour);
        (self.used, self.peak) = (used, peak);
        news
    }

    pub(crate) fn is_implicit(&self) -> bool {
        matches!(self.origin, Origin::Implicit(_))
    }

    /// Whose it is.
    pub(crate) fn uid(&self) -> u32 {
        match &self.origin {
            Origin::Registered { uid, .. } | Origin::Created { uid, .. } => *uid,
            Origin::Implicit(key) => key.uid,
        }
    }

    /// Whether it lives until somebody deletes it.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.origin, Origin::Created { .. })
    }

    pub(super) fn is_over(&self) -> bool {
        self.clients == 0 && !self.bound && !self.is_kept()
    }

    /// What it was given, and what has become of it by now.
    pub(crate) fn state(&self, now: Nanos) -> SessionState {
        SessionState {
            terms: self.terms.clone(),
            standing: self.standing(now),
            expires_in_ns: self.expires.map(|end| end - now),
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

    /// What it may do at a time, in the words that people read.
    pub(crate) fn standing(&self, now: Nanos) -> SessionPhase {
        match self.expires {
            _ if self.revoked => SessionPhase::Revoked,
            Some(end) if end <= now => SessionPhase::Expired,
            _ if self.paused => SessionPhase::Paused,
            _ => SessionPhase::Good,
        }
    }
}
