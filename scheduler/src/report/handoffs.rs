//! Last handoff of each session on each card, for `gpushare-ctl explain`. The decision machine keeps that of each card
//! only.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpushare_proto::handoff::{CardHandoffs, EndedHandoff, Handoff};
use gpushare_proto::{GpuId, Nanos, SessionId};

use crate::sessions::Sessions;

/// Handoff, with the point in time of its end.
type Ended = Arc<(Nanos, Handoff)>;

/// Ended handoffs by session and card. Those of sessions that are over are forgotten.
#[derive(Debug, Default)]
pub(crate) struct LastHandoffs(BTreeMap<SessionId, BTreeMap<GpuId, Ended>>);

impl LastHandoffs {
    /// Keeps a handoff that has just ended as the last one of each session whose memory has moved.
    pub(crate) fn keep(&mut self, now: Nanos, handoff: &Handoff, sessions: &Sessions) {
        let ended = Arc::new((now, handoff.clone()));
        for moved in handoff.out.sessions.iter().chain(&handoff.into.sessions) {
            if sessions.get(moved.session).is_some() {
                self.0.entry(moved.session).or_default().insert(handoff.gpu, ended.clone());
            }
        }
    }

    pub(crate) fn forget(&mut self, session: SessionId) {
        self.0.remove(&session);
    }

    /// Puts the last handoff of a session on each card in place of that of the card.
    pub(crate) fn of_session(
        &self,
        session: SessionId,
        now: Nanos,
        of_cards: Vec<CardHandoffs>,
    ) -> Vec<CardHandoffs> {
        let own = |gpu| {
            let (at, handoff) = &**self.0.get(&session)?.get(&gpu)?;
            Some(EndedHandoff { ago_ns: now - *at, handoff: handoff.clone() })
        };
        of_cards
            .into_iter()
            .map(|card| CardHandoffs { last: own(card.gpu), ..card })
            .filter(|card| card.running.is_some() || card.last.is_some())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::handoff::{Direction, SessionMove};
    use gpushare_proto::{Bytes, Percent};

    use super::*;
    use crate::engine::bench::{Bench, GPU};

    fn handoff(took: u64, leaver: SessionId, entrant: SessionId) -> Handoff {
        let moves = |session| Direction {
            sessions: vec![SessionMove { session, bytes: Bytes::gib(1) }],
            ..Direction::default()
        };
        Handoff {
            gpu: GPU,
            took_ns: Nanos(took),
            out: moves(leaver),
            copied_out_bytes: Bytes::ZERO,
            into: moves(entrant),
            both_ns: Nanos::ZERO,
            overlap: Percent(0),
        }
    }

    #[tokio::test]
    async fn a_session_keeps_its_last_handoff_while_others_have_theirs() {
        let mut bench = Bench::new();
        let [a, b, c] = [(); 3].map(|()| bench.session());
        let over = SessionId(77);
        let mut kept = LastHandoffs::default();
        let sessions = &bench.engine.sessions;
        let [first, second] = [handoff(1, a, b), handoff(2, b, c)];
        kept.keep(Nanos(10), &first, sessions);
        kept.keep(Nanos(20), &second, sessions);
        kept.keep(Nanos(20), &handoff(3, over, over), sessions);
        let last_of_card = EndedHandoff { ago_ns: Nanos(10), handoff: second.clone() };
        let of_card = CardHandoffs { gpu: GPU, running: None, last: Some(last_of_card.clone()) };
        let last = |kept: &LastHandoffs, session| {
            let shown = kept.of_session(session, Nanos(30), vec![of_card.clone()]);
            shown.into_iter().next().and_then(|card| card.last)
        };
        assert_eq!(last(&kept, a), Some(EndedHandoff { ago_ns: Nanos(20), handoff: first }));
        assert_eq!([b, c].map(|session| last(&kept, session)), [(); 2].map(|()| Some(last_of_card.clone())));
        kept.forget(a);
        assert_eq!([a, over].map(|session| last(&kept, session)), [None, None]);
    }
}
