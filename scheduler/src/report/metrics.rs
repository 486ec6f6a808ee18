//! Events for the metrics: the core's notices as they come, and the last figures of sessions that end.

use gpushare_core::{Core, Notice};
use gpushare_proto::SessionId;
use gpushare_sys::clock;

use crate::cards::Cards;
use crate::metrics::{Observer, SessionPicture};

/// Receiver of events for the metrics, if there is a metrics server.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Option<Observer>);

impl Metrics {
    pub(crate) fn report_to(&mut self, observer: Observer) {
        self.0 = Some(observer);
    }

    pub(crate) fn note(&mut self, notice: &Notice, cards: &Cards) {
        self.name_cards(cards);
        if let Some(observer) = &self.0 {
            observer.events.note(notice);
        }
    }

    /// Names all cards, so that each has its counters from the time when it is known.
    pub(crate) fn name_cards(&mut self, cards: &Cards) {
        if let Some(observer) = &mut self.0 {
            let cards = cards.iter();
            cards.for_each(|(gpu, card)| observer.events.card(gpu, card.info.uuid));
        }
    }

    /// Keeps the last figures of a session that ends for a while.
    pub(crate) fn keep_last(&mut self, session: SessionId, name: &str, core: &Core) {
        let now = clock::monotonic();
        if let (Some(observer), Some(state)) = (&mut self.0, core.session_snapshot(now, session)) {
            observer.ended.add(now, SessionPicture { name: name.to_owned(), state });
        }
    }

    pub(crate) fn ended(&mut self) -> Vec<SessionPicture> {
        let observer = self.0.as_mut();
        observer.map_or(Vec::new(), |observer| observer.ended.at(clock::monotonic()).cloned().collect())
    }
}
