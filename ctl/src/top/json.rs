//! Model as one JSON document: bytes and nanoseconds as numbers, `null` for what is not known.

use gpushare_proto::admin::ResidenceView;
use gpushare_proto::follow::{
    CardFacts, CardFigures, CardHandoff, CardResidence, DaemonFacts, LockState, Sensors, SessionFacts,
    SessionFigures,
};
use gpushare_proto::{Nanos, SessionId};
use serde::Serialize;

use super::model::{Model, Session};
use super::names::Names;

#[derive(Serialize)]
pub(super) struct Document<'a> {
    daemon: &'a DaemonFacts,
    uptime_ns: Nanos,
    gpus: Vec<Card<'a>>,
    sessions: Vec<Known<'a>>,
    /// Sessions of other users, of which only the lock is known.
    others: Vec<Stranger>,
}

#[derive(Serialize)]
struct Card<'a> {
    #[serde(flatten)]
    facts: &'a CardFacts,
    figures: Option<&'a CardFigures>,
    sensors: Option<&'a Sensors>,
    /// Places of remapped memory; none on a card that never had such memory.
    residence: Option<&'a CardResidence>,
    /// Running handoff of remapped memory, or else the last one; none before the first one.
    handoff: Option<&'a CardHandoff>,
    /// Rest of the first holder's quantum; none while nobody waits.
    left_ns: Option<Nanos>,
}

#[derive(Serialize)]
struct Known<'a> {
    #[serde(flatten)]
    facts: &'a SessionFacts,
    user_name: Option<&'a str>,
    command: &'a str,
    figures: Option<&'a SessionFigures>,
    /// Places of remapped memory on each card.
    residences: &'a [ResidenceView],
    /// Part of the time of the last second in hundredths of a percent of one card.
    share: Option<u32>,
    place: Option<usize>,
    wait_p50_ns: Option<Nanos>,
    wait_p99_ns: Option<Nanos>,
    quantum_ns: Option<Nanos>,
}

#[derive(Serialize)]
struct Stranger {
    session: SessionId,
    lock: LockState,
}

/// Returns the document of a model.
pub(super) fn document<'a>(model: &'a Model, names: &'a Names) -> Document<'a> {
    let card = |card: &'a super::model::Card| Card {
        facts: &card.facts,
        figures: card.figures.as_ref(),
        sensors: card.sensors.as_ref(),
        residence: card.residence.as_ref(),
        handoff: card.handoff.as_ref(),
        left_ns: card.left(model.at),
    };
    let known = |session: &'a Session| Known {
        facts: &session.facts,
        user_name: session.facts.user.as_deref().map(|user| names.user(user)),
        command: names.command(&session.facts.pids),
        figures: session.figures.as_ref(),
        residences: &session.places,
        share: session.share,
        place: model.place(session.facts.session),
        wait_p50_ns: session.wait(50),
        wait_p99_ns: session.wait(99),
        quantum_ns: session.quantum,
    };
    let strangers = model.strangers().into_iter();
    Document {
        daemon: &model.daemon,
        uptime_ns: model.at,
        gpus: model.cards.values().map(card).collect(),
        sessions: model.sessions.values().map(known).collect(),
        others: strangers.map(|(session, lock)| Stranger { session, lock }).collect(),
    }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::Bytes;
    use serde_json::{Value, json};

    use super::super::sample;
    use super::*;

    #[test]
    fn the_document_has_facts_figures_and_what_follows_from_them() {
        let (model, names) = (sample::model(), sample::names());
        let document: Value = serde_json::to_value(document(&model, &names)).unwrap();
        assert_eq!(document["daemon"]["pid"], 4242);
        assert_eq!(document["gpus"][0]["figures"]["queue"], json!([4]));
        assert_eq!(document["gpus"][0]["left_ns"], 1_200_000_000_u64);
        assert_eq!(document["gpus"][0]["sensors"]["celsius"], 61);
        assert_eq!(document["gpus"][0]["residence"]["hosted_bytes"], Bytes::gib(19).0);
        assert_eq!(document["gpus"][1]["residence"], Value::Null);
        assert_eq!(document["gpus"][0]["handoff"]["overlap"], 8049);
        assert_eq!(document["gpus"][1]["handoff"], Value::Null);
        let notebook = &document["sessions"][1];
        assert_eq!(notebook["residences"][0]["resident_bytes"], Bytes::gib(19).0);
        assert_eq!((&notebook["name"], &notebook["user_name"]), (&json!("notebook"), &json!("bob")));
        assert_eq!((&notebook["place"], &notebook["figures"]["lock"]), (&json!(1), &json!("waiting")));
        assert_eq!(notebook["wait_p50_ns"], 5_200_000_000_u64);
        assert_eq!(document["sessions"][3]["wait_p99_ns"], Value::Null);
        assert_eq!(document["others"], json!([]));
    }
}
