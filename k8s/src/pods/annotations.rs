//! Decision about a pod's annotations: the terms of its session, and the problems of which its owner is told.
//!
//! ```text
//!   annotation is absent           the maximum for memory and compute, weight 100, priority normal
//!   annotation cannot be read      the value that the pod has, and a problem
//!   annotation is above the most   the most, and a problem
//!
//!   claim of a pod with DRA        its terms stand in for absent annotations, within the maxima;
//!                                  its memory is also the most for the annotation
//! ```

use std::collections::BTreeMap;
use std::fmt;

use gpushare_proto::session::{Amount, CardQuota, DEFAULT_WEIGHT, Priority, Quota, Terms};
use gpushare_proto::{Bytes, Percent};

use super::maxima::Most;
use super::problem::Problem;
use crate::terms::{self, Asked};

/// Annotations by which a pod asks for its terms.
pub(crate) const MEMORY: &str = "gpushare.dev/memory";
pub(crate) const COMPUTE: &str = "gpushare.dev/compute";
pub(crate) const WEIGHT: &str = "gpushare.dev/weight";
pub(crate) const PRIORITY: &str = "gpushare.dev/priority";

/// Values of a pod that the annotations set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Memory on each card; none for no limit.
    pub(crate) memory: Option<Amount>,
    /// Memory on single cards, of which claims ask for less than on others.
    pub(crate) cards: Vec<CardQuota>,
    /// Share of each card's time; none for no limit.
    pub(crate) compute: Option<Percent>,
    pub(crate) weight: u32,
    pub(crate) priority: Priority,
}

impl Limits {
    /// Returns the limits among the terms of a session.
    pub(crate) fn of(terms: &Terms) -> Self {
        let share = |amount| match amount {
            Amount::Share(share) => Some(share),
            Amount::Bytes(_) => None,
        };
        Self {
            memory: terms.memory.every,
            cards: terms.memory.cards.clone(),
            compute: terms.compute.every.and_then(share),
            weight: terms.weight,
            priority: terms.priority,
        }
    }

    /// Returns the quota of memory.
    pub(crate) fn memory(&self) -> Quota {
        Quota { every: self.memory, cards: self.cards.clone() }
    }

    /// Returns the quota of card time.
    pub(crate) fn compute(&self) -> Quota {
        Quota { every: self.compute.map(Amount::Share), cards: Vec::new() }
    }
}

/// Decides the limits of a pod. `claim` is what its claims ask for, `had` are the limits that its session has;
/// `card` is the memory of its smallest card, if that is known.
pub(crate) fn judge(
    annotations: &BTreeMap<String, String>,
    claim: &Asked,
    most: &Most,
    had: Option<&Limits>,
    card: Option<Bytes>,
) -> (Limits, Vec<Problem>) {
    let mut judge = Judge { annotations, problems: Vec::new() };
    let exceeds = |asked, most| exceeds(asked, most, card);
    let claim = Asked {
        memory: judge.of_claim("memory", claim.memory, most.memory, exceeds),
        compute: judge.of_claim("compute", claim.compute, most.compute, |asked, most| asked > most),
        weight: judge.of_claim("weight", claim.weight, Some(most.weight), |asked, most| asked > most),
        priority: judge.of_claim("priority", claim.priority, Some(most.priority), |asked, most| asked > most),
    };
    let usual = Limits {
        memory: claim.memory.or(most.memory),
        cards: Vec::new(),
        compute: claim.compute.or(most.compute),
        weight: claim.weight.unwrap_or(DEFAULT_WEIGHT.min(most.weight)),
        priority: claim.priority.unwrap_or(Priority::Normal.min(most.priority)),
    };
    let had = had.unwrap_or(&usual);
    let above = match claim.memory {
        Some(_) => |key, asked, most| Problem::AboveClaim { key, asked, most },
        None => |key, asked, most| Problem::Above { key, asked, most },
    };
    let memory = judge.value(MEMORY, terms::memory, had.memory, usual.memory);
    let memory = judge.at_most(MEMORY, memory, usual.memory, exceeds, above);
    let compute = judge.value(COMPUTE, terms::compute, had.compute, usual.compute);
    let compute = judge.within(COMPUTE, compute, most.compute);
    let weight = judge.value(WEIGHT, terms::weight, Some(had.weight), Some(usual.weight));
    let weight = judge.within(WEIGHT, weight, Some(most.weight));
    let priority = judge.value(PRIORITY, terms::priority, Some(had.priority), Some(usual.priority));
    let priority = judge.within(PRIORITY, priority, Some(most.priority));
    let limits = Limits {
        memory,
        cards: Vec::new(),
        compute,
        weight: weight.unwrap_or(usual.weight),
        priority: priority.unwrap_or(usual.priority),
    };
    (limits, judge.problems)
}

/// Annotations under decision.
struct Judge<'a> {
    annotations: &'a BTreeMap<String, String>,
    problems: Vec<Problem>,
}

impl Judge<'_> {
    /// Reads an annotation.
    fn value<T: Copy + fmt::Display>(
        &mut self,
        key: &'static str,
        read: impl Fn(&str) -> Result<T, String>,
        had: Option<T>,
        usual: Option<T>,
    ) -> Option<T> {
        let Some(text) = self.annotations.get(key) else {
            return usual;
        };
        match read(text.trim()) {
            Ok(value) => Some(value),
            Err(cause) => {
                self.problems.push(Problem::Unreadable { key, cause, kept: words(had) });
                had
            }
        }
    }

    /// Returns a term of the pod's claims, at most the greatest one.
    fn of_claim<T: Copy + fmt::Display>(
        &mut self,
        key: &'static str,
        asked: Option<T>,
        most: Option<T>,
        exceeds: impl Fn(T, T) -> bool,
    ) -> Option<T> {
        match (asked, most) {
            (Some(asked), Some(most)) if exceeds(asked, most) => {
                let words = (asked.to_string(), most.to_string());
                self.problems.push(Problem::ClaimAbove { key, asked: words.0, most: words.1 });
                Some(most)
            }
            _ => asked,
        }
    }

    /// Returns a value, at most the greatest one of the namespace.
    fn within<T: Copy + PartialOrd + fmt::Display>(
        &mut self,
        key: &'static str,
        value: Option<T>,
        most: Option<T>,
    ) -> Option<T> {
        let above = |key, asked, most| Problem::Above { key, asked, most };
        self.at_most(key, value, most, |asked, most| asked > most, above)
    }

    /// Returns a value, at most the greatest one.
    fn at_most<T: Copy + fmt::Display>(
        &mut self,
        key: &'static str,
        value: Option<T>,
        most: Option<T>,
        exceeds: impl Fn(T, T) -> bool,
        above: impl Fn(&'static str, String, String) -> Problem,
    ) -> Option<T> {
        let Some(greatest) = most else {
            return value;
        };
        match value {
            Some(asked) if exceeds(asked, greatest) => {
                // The owner of the pod did not ask for a usual value, nor for one that is kept.
                let is_asked = self.annotations.contains_key(key);
                if is_asked && !self.problems.iter().any(|problem| problem.is_of(key)) {
                    self.problems.push(above(key, asked.to_string(), greatest.to_string()));
                }
                most
            }
            None => most,
            within => within,
        }
    }
}

fn words<T: fmt::Display>(value: Option<T>) -> String {
    value.map_or_else(|| "no limit".to_owned(), |value| value.to_string())
}

/// Whether an amount of memory is above another one. Without the size of the card, bytes and shares cannot
/// be compared, and count as above.
fn exceeds(asked: Amount, most: Amount, card: Option<Bytes>) -> bool {
    match (asked, most, card) {
        (Amount::Bytes(asked), Amount::Bytes(most), _) => asked > most,
        (Amount::Share(asked), Amount::Share(most), _) => asked > most,
        (asked, most, Some(card)) => asked.of(card) > most.of(card),
        (_, _, None) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Limits = Limits {
        memory: None,
        cards: Vec::new(),
        compute: None,
        weight: 100,
        priority: Priority::Normal,
    };

    fn judged(written: &[(&str, &str)], most: &Most, had: Option<&Limits>) -> (Limits, Vec<String>) {
        let annotations = written
            .iter()
            .map(|&(key, value)| (format!("gpushare.dev/{key}"), value.to_owned()));
        claimed(&annotations.collect(), &Asked::default(), most, had)
    }

    fn claimed(
        annotations: &BTreeMap<String, String>,
        claim: &Asked,
        most: &Most,
        had: Option<&Limits>,
    ) -> (Limits, Vec<String>) {
        let (limits, problems) = judge(annotations, claim, most, had, Some(Bytes::gib(80)));
        (limits, problems.iter().map(ToString::to_string).collect())
    }

    fn wide() -> Most {
        Most { weight: 10_000, priority: Priority::High, ..Most::default() }
    }

    const fn gib(n: u64) -> Option<Amount> {
        Some(Amount::Bytes(Bytes::gib(n)))
    }

    #[test]
    fn a_share_without_annotation_has_no_memory_cap_and_weight_100() {
        assert_eq!(judged(&[], &Most::default(), None), (USUAL, vec![]));
    }

    #[test]
    fn each_annotation_sets_its_limit() {
        let all = [("memory", "8Gi"), ("compute", "25%"), ("weight", "400"), ("priority", "high")];
        let wanted = Limits {
            memory: gib(8),
            compute: Some(Percent(2500)),
            weight: 400,
            priority: Priority::High,
            ..USUAL
        };
        assert_eq!(judged(&all, &wide(), None), (wanted, vec![]));
        for (text, memory) in [("8GiB", gib(8)), ("50%", Some(Amount::Share(Percent(5000))))] {
            assert_eq!(judged(&[("memory", text)], &wide(), None).0.memory, memory);
        }
    }

    #[test]
    fn an_annotation_that_is_no_size_keeps_the_limit_that_the_pod_has() {
        let had = Limits { memory: gib(4), ..USUAL };
        let (limits, problems) = judged(&[("memory", "lots")], &wide(), Some(&had));
        assert_eq!(limits, had);
        assert_eq!(
            problems,
            ["gpushare.dev/memory: `lots` is no size; write it like 8GiB or 50%. The pod keeps 4GiB",]
        );
        let (limits, problems) = judged(&[("memory", "1KiB")], &wide(), None);
        assert_eq!(limits, USUAL);
        assert!(problems[0].ends_with("write 1MiB or more. The pod keeps no limit"), "{problems:?}");
    }

    #[test]
    fn a_limit_above_100_percent_is_refused() {
        for key in ["memory", "compute"] {
            let (limits, problems) = judged(&[(key, "150%")], &wide(), None);
            assert_eq!(limits, USUAL);
            assert_eq!(
                problems,
                [format!(
                    "gpushare.dev/{key}: `150%` is above 100%; write at most 100%. The pod keeps no limit"
                )]
            );
        }
    }

    #[test]
    fn what_is_no_share_weight_or_priority_says_what_would_be_one() {
        for (key, text, wanted) in [
            ("compute", "8GiB", "`8GiB` is no share; write it like 25%"),
            ("compute", "0%", "write more than 0%"),
            ("weight", "heavy", "`heavy` is no weight; write a number like 100"),
            ("weight", "0", "10000"),
            ("priority", "urgent", "write low, normal or high"),
        ] {
            let (limits, problems) = judged(&[(key, text)], &wide(), None);
            assert_eq!(limits, USUAL);
            assert!(problems.len() == 1 && problems[0].contains(wanted), "{problems:?}");
        }
    }

    #[test]
    fn values_above_the_maxima_become_the_maxima() {
        let most = Most { memory: gib(8), compute: Some(Percent(5000)), ..Most::default() };
        let all = [("memory", "40GiB"), ("compute", "75%"), ("weight", "200"), ("priority", "high")];
        let (limits, problems) = judged(&all, &most, None);
        let wanted = Limits { memory: gib(8), compute: Some(Percent(5000)), ..USUAL };
        assert_eq!(limits, wanted);
        assert_eq!(problems.len(), 4);
        assert_eq!(
            problems[2],
            "gpushare.dev/weight: 200 is above 100, the most for pods of this namespace. The pod gets 100; ask the \
             administrator of the node for more"
        );
        // Without annotations the maxima are silent.
        assert_eq!(judged(&[], &most, None), (wanted, vec![]));
        let low = Most { weight: 10, priority: Priority::Low, ..most };
        let (limits, problems) = judged(&[], &low, None);
        assert_eq!((limits.weight, limits.priority, problems), (10, Priority::Low, vec![]));
    }

    #[test]
    fn a_kept_limit_is_within_the_maxima_too() {
        let most = Most { memory: gib(2), ..wide() };
        let had = Limits { memory: gib(4), ..USUAL };
        let (limits, problems) = judged(&[("memory", "lots")], &most, Some(&had));
        assert_eq!((limits.memory, problems.len()), (gib(2), 1));
    }

    #[test]
    fn a_share_of_memory_is_compared_by_the_size_of_the_card() {
        let most = Most { memory: gib(8), ..Most::default() };
        let tenth = Amount::Share(Percent(1000));
        assert_eq!(judged(&[("memory", "10%")], &most, None).0.memory, Some(tenth));
        assert_eq!(judged(&[("memory", "11%")], &most, None).0.memory, gib(8));
        assert!(exceeds(tenth, Amount::Bytes(Bytes::gib(8)), None), "on a card of unknown size");
    }

    #[test]
    fn the_terms_of_a_claim_stand_in_for_absent_annotations() {
        let claim = Asked { memory: gib(8), weight: Some(300), ..Asked::default() };
        let wanted = Limits { memory: gib(8), weight: 300, ..USUAL };
        assert_eq!(claimed(&BTreeMap::new(), &claim, &wide(), None), (wanted, vec![]));
        let own = [(WEIGHT.to_owned(), "50".to_owned()), (MEMORY.to_owned(), "4GiB".to_owned())].into();
        let wanted = Limits { memory: gib(4), weight: 50, ..USUAL };
        assert_eq!(claimed(&own, &claim, &wide(), None), (wanted, vec![]));
    }

    #[test]
    fn a_claim_is_within_the_maxima_and_an_annotation_within_the_claims_memory() {
        let claim = Asked { memory: gib(8), weight: Some(300), ..Asked::default() };
        let most = Most { memory: gib(6), ..Most::default() };
        let (limits, problems) = claimed(&BTreeMap::new(), &claim, &most, None);
        assert_eq!((limits.memory, limits.weight), (gib(6), 100));
        assert!(
            problems[0].starts_with("memory of the pod's claim: 8GiB is above 6GiB, the most"),
            "{problems:?}"
        );
        assert!(
            problems[1].starts_with("weight of the pod's claim: 300 is above 100, the most"),
            "{problems:?}"
        );
        let more = [(MEMORY.to_owned(), "16GiB".to_owned())].into();
        let (limits, problems) = claimed(&more, &claim, &wide(), None);
        assert_eq!(limits.memory, gib(8));
        let wanted =
            "gpushare.dev/memory: 16GiB is above 8GiB, the memory of the pod's claim. The pod gets 8GiB;";
        assert!(problems.len() == 1 && problems[0].starts_with(wanted), "{problems:?}");
    }
}
