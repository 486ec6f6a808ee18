//! What a program would get that is not started yet, for `gpushare-ctl run --dry-run`. Nothing is made of it.
//!
//! Each answer takes a copy of the machine, so a user gets so many a second.

use gpushare_core::forecast::{DryRunSession as Newcomer, Forecast as Figures};
use gpushare_proto::dry_run::{CardForecast, DryRunSession, Forecast};
use gpushare_proto::explain::AheadView;
use gpushare_proto::session::{Amount, SessionPhase, Terms};
use gpushare_proto::tenant::{Failure, FailureCode};
use gpushare_proto::{GpuId, GpuUuid, SessionId};
use gpushare_sys::clock;

use super::checks::check_new;
use super::{Shell, failure};
use crate::config::Owner;
use crate::identity::PeerProcess;

/// Answers a second, for each user.
pub(super) const QUESTIONS: u64 = 10;

/// No session has it.
const NOBODY: SessionId = SessionId(u64::MAX);

impl Shell {
    pub(super) fn foresee(
        &mut self,
        peer: &PeerProcess,
        prospect: DryRunSession,
    ) -> Result<Forecast, Failure> {
        if self.questions.admit(peer.user, clock::monotonic()).is_none() {
            let message =
                format!("user {} asks more than {QUESTIONS} times a second; wait a second", peer.user);
            return Err(failure(FailureCode::Unavailable, message));
        }
        self.look_at_all_pages();
        let (known, name, placed, terms, oversubscribe) = match prospect {
            DryRunSession::New(wish) => {
                let wish = self.permitted(peer, wish)?;
                check_new(&wish)?;
                let placed = self.place(&wish.gpu)?;
                (None, wish.name, placed, wish.terms, wish.oversubscribe)
            }
            DryRunSession::Existing(token) => {
                let session = self.sessions.by_token(&token);
                let found = session.and_then(|id| Some((id, self.sessions.get(id)?)));
                let Some((id, session)) = found else {
                    let message =
                        "the daemon knows no session with that token; see `gpushare-ctl session list`";
                    return Err(failure(FailureCode::NotFound, message));
                };
                if session.standing(clock::monotonic()) != SessionPhase::Good {
                    let message = format!(
                        "session {0} is granted nothing: it is paused or over; `gpushare-ctl explain {0}` says more",
                        session.name
                    );
                    return Err(failure(FailureCode::Permission, message));
                }
                let name = Some(session.name.clone());
                (Some(id), name, session.card, session.terms.clone(), session.oversubscribe)
            }
        };
        let here = |uuid: GpuUuid| placed.is_none_or(|placed| placed == uuid);
        let cards: Vec<GpuId> = self
            .cards
            .iter()
            .filter(|(_, card)| here(card.info.uuid))
            .map(|(gpu, _)| gpu)
            .collect();
        let cards = cards
            .into_iter()
            .filter_map(|gpu| self.foresee_on(gpu, known, &terms, oversubscribe));
        Ok(Forecast { session: known, name, placed, cards: cards.collect() })
    }

    fn foresee_on(
        &self,
        gpu: GpuId,
        known: Option<SessionId>,
        terms: &Terms,
        oversubscribe: bool,
    ) -> Option<CardForecast> {
        let info = &self.cards.get(gpu)?.info;
        let limit = self.amount_on(&terms.memory, gpu).map(|amount| amount.of(info.total));
        let compute = self.amount_on(&terms.compute, gpu).and_then(|amount| match amount {
            Amount::Share(share) => Some(share),
            Amount::Bytes(_) => None,
        });
        let session = known.unwrap_or(NOBODY);
        let newcomer = Newcomer {
            session,
            limit,
            compute,
            weight: terms.weight,
            priority: terms.priority,
            oversubscribe,
        };
        let Figures { capacity, promised, used, fits, mode, then, ahead, quantum, switch, bound } =
            self.core.foresee(clock::monotonic(), gpu, newcomer)?;
        let named = self.settings.owner == Owner::User;
        let before = |(session, turn_ns)| AheadView {
            session,
            // On the system's daemon others are other people.
            name: if named { self.sessions.name(session) } else { String::new() },
            turn_ns,
        };
        Some(CardForecast {
            gpu,
            uuid: info.uuid,
            total_bytes: info.total,
            capacity_bytes: capacity,
            promised_bytes: promised,
            used_bytes: used,
            free_bytes: capacity - used,
            asked_bytes: limit,
            fits,
            mode,
            mode_then: then,
            ahead: ahead.into_iter().map(before).collect(),
            quantum_ns: quantum,
            switch_ns: switch,
            bound_ns: bound,
        })
    }
}
