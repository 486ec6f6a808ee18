//! Checks of the session limits in environment variables: whether they are valid and name existing cards.

use gpushare_proto::admin::GpuView;
use gpushare_proto::names::{COMPUTE_LIMIT, MEMORY_LIMIT};
use gpushare_proto::tenant::GpuChoice;

use super::super::facts::Facts;
use super::super::model::Outcome;
use crate::cli::{ComputeLimit, MemoryLimit};
use crate::set::names as names_card;
use crate::table::list;

pub(super) fn limits(facts: &Facts) -> Vec<Outcome> {
    let cards = facts.status().map_or(&[][..], |status| &status.gpus);
    let set: Vec<Outcome> = [MEMORY_LIMIT, COMPUTE_LIMIT]
        .into_iter()
        .filter_map(|name| {
            let text = facts.var(name)?.to_string_lossy();
            Some(judge(name, &text, cards).of(name))
        })
        .collect();
    match set.is_empty() {
        true => vec![Outcome::ok(format!("{MEMORY_LIMIT} and {COMPUTE_LIMIT} are not set"))],
        false => set,
    }
}

/// Checks the limit in one environment variable. A limit without effect is an error.
fn judge(name: &str, text: &str, cards: &[GpuView]) -> Outcome {
    let (quota, example) = match name {
        COMPUTE_LIMIT => (text.parse().map(|ComputeLimit(quota)| quota), "25% or {\"0\": 25}"),
        _ => (text.parse().map(|MemoryLimit(quota)| quota), "8GiB, 50% or {\"0\": 2147483648}"),
    };
    let quota = match quota {
        Ok(quota) => quota,
        Err(cause) => {
            return Outcome::error(
                format!(
                    "`{text}` is not a limit ({cause}); programs that start here are refused their first CUDA context"
                ),
                format!("write it like {example}, or remove it"),
            );
        }
    };
    let is_there = |named: &GpuChoice| cards.iter().any(|card| names_card(named, card));
    let names = || list(cards.iter().map(|card| format!("{} ({})", card.gpu.0, card.uuid)));
    if cards.is_empty() {
        return Outcome::ok(format!("{quota}; not compared with the cards, since no daemon reports them"));
    }
    if quota.matches_no_card(is_there) {
        return Outcome::error(
            format!(
                "{quota} names no card of this machine; programs that start here are refused their first CUDA context"
            ),
            format!("name one of its cards, {}, or limit every card, like 50%", names()),
        );
    }
    match quota.cards.iter().map(|limit| &limit.card).find(|card| !is_there(card)) {
        Some(other) => Outcome::warning(
            format!("{quota}: this machine has no card {other}"),
            format!("name one of its cards, {}, or remove it", names()),
        ),
        None => Outcome::ok(quota.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::admin::Mode;
    use gpushare_proto::{Bytes, GpuId, GpuUuid, Nanos};

    use super::super::super::model::Severity::{Error, Ok, Warning};
    use super::*;

    fn card() -> GpuView {
        GpuView {
            gpu: GpuId(0),
            uuid: GpuUuid::gpu([0xab; 16]),
            name: "card".into(),
            total_bytes: Bytes::gib(80),
            capacity_bytes: Bytes::gib(79),
            allocated_bytes: Bytes::ZERO,
            managed_limit_bytes: Bytes::MAX,
            mode: Mode::Parallel,
            reason: String::new(),
            mode_changes: 0,
            holders: Vec::new(),
            queue: Vec::new(),
            quantum_ns: Nanos::ZERO,
            handoffs: 0,
            aborted_drops: 0,
            drains_ns: Vec::new(),
            expected_drain_ns: Nanos::ZERO,
            moved_bytes: Bytes::ZERO,
        }
    }

    #[test]
    fn a_limit_of_no_card_that_is_there_is_an_error() {
        for (text, severity) in [
            ("8GiB", Ok),
            (r#"{"0": 2147483648}"#, Ok),
            ("GPU-abab=8GiB", Ok),
            ("4GiB,7=8GiB", Warning),
            ("0=4GiB,7=8GiB", Warning),
            (r#"{"7": 2147483648}"#, Error),
            ("GPU-0123=8GiB", Error),
            ("{}", Error),
            ("plenty", Error),
        ] {
            let outcome = judge(MEMORY_LIMIT, text, &[card()]);
            assert_eq!(outcome.severity, severity, "{text}: {}", outcome.finding);
        }
        let outcome = judge(MEMORY_LIMIT, "7=8GiB", &[card()]);
        assert!(outcome.hint.unwrap().contains("0 (GPU-abababab"));
        assert_eq!(judge(MEMORY_LIMIT, "7=8GiB", &[]).severity, Ok, "nobody can tell");
    }

    #[test]
    fn a_limit_of_time_is_no_limit_of_memory() {
        for (text, severity) in
            [("25%", Ok), (r#"{"0": 20}"#, Ok), ("8GiB", Error), (r#"{"0": 2147483648}"#, Error)]
        {
            let outcome = judge(COMPUTE_LIMIT, text, &[card()]);
            assert_eq!(outcome.severity, severity, "{text}: {}", outcome.finding);
        }
    }

    #[test]
    fn both_variables_are_looked_at() {
        let mut facts = Facts::bare("/".as_ref());
        assert_eq!(limits(&facts)[0].severity, Ok);
        facts.set(COMPUTE_LIMIT, "{}");
        let [outcome] = &limits(&facts)[..] else { panic!() };
        assert_eq!((outcome.severity, outcome.subject.as_deref()), (Error, Some(COMPUTE_LIMIT)));
    }
}
