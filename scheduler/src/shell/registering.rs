//! Sessions that peers register for themselves: what they may have, and which card they are placed on.

use gpushare_proto::session::{Amount, DEFAULT_WEIGHT, Priority};
use gpushare_proto::tenant::{Failure, FailureCode, GpuChoice, NewSession, TenantReply};
use gpushare_proto::{Bytes, GpuId, GpuUuid, SessionId};
use gpushare_sys::clock;

use super::checks::check_new;
use super::sessions::fresh_token;
use super::tenant::plain;
use super::{Shell, failure};
use crate::config::Owner;
use crate::identity::PeerProcess;
use crate::input::Watched;
use crate::registry::Origin;
use crate::secret::TokenHash;
use crate::sessions::Session;

impl Shell {
    pub(super) fn register(&mut self, peer: &PeerProcess, wish: NewSession) -> Result<TenantReply, Failure> {
        let wish = self.permitted(peer, wish)?;
        check_new(&wish)?;
        self.check_cards(&wish.terms.memory)?;
        self.check_cards(&wish.terms.compute)?;
        let by = peer.id.ok_or_else(|| {
            failure(
                FailureCode::Permission,
                "the process is in a pid namespace that the daemon does not see; register the session outside",
            )
        })?;
        let card = self.place(&wish.gpu)?;
        let token = fresh_token()?;
        let now = clock::monotonic();
        let session = self.open_session(
            |id| wish.name.unwrap_or_else(|| format!("session-{}", id.0)),
            |name| Session {
                bound: true,
                expires: wish.terms.ttl.map(|ttl| now + ttl),
                ..Session::new(
                    name,
                    wish.terms,
                    Origin::Registered { token: TokenHash::of(&token), uid: peer.user, by },
                    wish.oversubscribe,
                    card,
                )
            },
        );
        self.watch(peer.pidfd.clone(), Watched::Registrar(session)).until_death();
        self.entrants.moved(by, session);
        let name = self.sessions.name(session);
        Ok(TenantReply::Session { session, name, token, gpu: card })
    }

    /// The wish, within what the peer may have.
    pub(super) fn permitted(&self, peer: &PeerProcess, mut wish: NewSession) -> Result<NewSession, Failure> {
        let denied = |message: String| Err(failure(FailureCode::Permission, message));
        if self.settings.owner == Owner::User {
            return Ok(wish);
        }
        let Some(service) = &self.settings.self_service else {
            return denied(
                "this daemon lets nobody register sessions; ask its administrator for a session, \
                 or for [self_service] in /etc/gpushare/config.toml"
                    .to_owned(),
            );
        };
        let greatest = self.greatest_card();
        if wish
            .terms
            .memory
            .amounts()
            .any(|amount| amount.of(greatest) > service.max_memory)
        {
            return denied(format!(
                "sessions get at most {0} here; ask for --memory {0}",
                service.max_memory
            ));
        }
        if wish.oversubscribe && !service.oversubscribe {
            return denied(
                "sessions may not be larger than a card here; run without --oversubscribe".to_owned(),
            );
        }
        if self.sessions.registered_by(peer.user) >= service.max_sessions {
            return denied(format!(
                "user {} has {} sessions here already; end one first",
                peer.user, service.max_sessions
            ));
        }
        let most = Amount::Bytes(service.max_memory);
        wish.terms.memory.every = wish.terms.memory.every.or(Some(most));
        // These are given, not taken.
        wish.terms.weight = wish.terms.weight.min(DEFAULT_WEIGHT);
        wish.terms.priority = wish.terms.priority.min(Priority::Normal);
        Ok(wish)
    }

    /// The cards, by number and identity.
    pub(super) fn cards_in_words(&self) -> String {
        let known: Vec<String> = self
            .cards
            .iter()
            .map(|(gpu, card)| format!("{} ({})", gpu.0, card.info.uuid))
            .collect();
        known.join(", ")
    }

    /// The memory of the largest card; without any, more than any has.
    fn greatest_card(&self) -> Bytes {
        let totals = self.cards.iter().map(|(_, card)| card.info.total);
        totals.max().unwrap_or(Bytes::MAX)
    }

    /// The card for a new session; none if no card is known yet and none was named by identity.
    pub(super) fn place(&self, wish: &GpuChoice) -> Result<Option<GpuUuid>, Failure> {
        let unknown = |card: String| {
            failure(
                FailureCode::NotFound,
                format!("there is no GPU {card}; this daemon has {}", self.cards_in_words()),
            )
        };
        let none_known = self.cards.iter().next().is_none();
        match *wish {
            // One known card may not be all there are: without NVML each is known from its first process.
            GpuChoice::Auto if self.cards.iter().count() < 2 => Ok(None),
            GpuChoice::Auto => Ok(self.least_used()),
            GpuChoice::Uuid(uuid) if none_known => Ok(Some(uuid)),
            // The card's own UUID: whether it is an instance is known here and not by who asks.
            GpuChoice::Uuid(uuid) => match self.cards.by_uuid(uuid).and_then(|gpu| self.cards.get(gpu)) {
                Some(card) => Ok(Some(card.info.uuid)),
                None => Err(unknown(uuid.to_string())),
            },
            GpuChoice::Prefix(ref prefix) => {
                let mut found = self
                    .cards
                    .iter()
                    .map(|(_, card)| card.info.uuid)
                    .filter(|uuid| uuid.begins_with(prefix));
                match (found.next(), found.next()) {
                    (Some(uuid), None) => Ok(Some(uuid)),
                    (Some(_), Some(_)) => Err(failure(
                        FailureCode::BadRequest,
                        format!("more than one GPU begins with {}; write more of its UUID", plain(prefix)),
                    )),
                    (None, _) => Err(unknown(plain(prefix))),
                }
            }
            GpuChoice::Index(_) if none_known => Ok(None),
            GpuChoice::Index(index) => match self.cards.get(GpuId(index)) {
                Some(card) => Ok(Some(card.info.uuid)),
                None => Err(unknown(index.to_string())),
            },
        }
    }

    /// The card with the fewest sessions; among those, the one with the least memory allocated.
    fn least_used(&self) -> Option<GpuUuid> {
        let snapshot = self.core.snapshot(clock::monotonic());
        let load = |gpu: GpuId, uuid: GpuUuid| {
            let on_it = |session: SessionId| {
                self.clients
                    .values()
                    .any(|client| client.session == session && client.page.is_on(gpu))
            };
            let sessions = self
                .sessions
                .iter()
                .filter(|(id, session)| session.card == Some(uuid) || on_it(*id))
                .count();
            let card = snapshot.gpus.iter().find(|card| card.gpu == gpu);
            (sessions, card.map(|card| card.allocated_bytes))
        };
        self.cards
            .iter()
            .min_by_key(|(gpu, card)| load(*gpu, card.info.uuid))
            .map(|(_, card)| card.info.uuid)
    }
}
