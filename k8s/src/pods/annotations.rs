//! Decision about a pod's annotations: the terms of its session, and the problems of which its owner is told.
//!
//! ```text
//!   annotation is absent           the maximum for memory and compute, weight 100, priority normal
//!   annotation cannot be read      the value that the pod has, and a problem
//!   annotation is above the most   the most, and a problem
//! ```

use std::collections::BTreeMap;
use std::fmt;

use gpushare_proto::session::{Amount, DEFAULT_WEIGHT, Priority, Quota, Terms};
use gpushare_proto::{Bytes, Percent};

use super::maxima::Most;
use super::reading::{COMPUTE, MEMORY, PRIORITY, WEIGHT, compute, memory, priority, weight};

/// Values of a pod that the annotations set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Memory on each card; none for no limit.
    pub(crate) memory: Option<Amount>,
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
            compute: terms.compute.every.and_then(share),
            weight: terms.weight,
            priority: terms.priority,
        }
    }

    /// Returns the quota of memory.
    pub(crate) fn memory(&self) -> Quota {
        Quota { every: self.memory, cards: Vec::new() }
    }

    /// Returns the quota of card time.
    pub(crate) fn compute(&self) -> Quota {
        Quota { every: self.compute.map(Amount::Share), cards: Vec::new() }
    }
}

/// Reason why an annotation does not count as it is written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Problem {
    #[error("{key}: {cause}. The pod keeps {kept}")]
    Unreadable { key: &'static str, cause: String, kept: String },
    #[error(
        "{key}: {asked} is above {most}, the most for pods of this namespace. The pod gets {most}; ask the \
         administrator of the node for more"
    )]
    Above { key: &'static str, asked: String, most: String },
}

impl Problem {
    /// Returns the annotation with its fault, whatever limit the pod has meanwhile.
    pub(crate) fn fault(&self) -> String {
        match self {
            Self::Unreadable { key, cause, .. } => format!("{key}: {cause}"),
            Self::Above { .. } => self.to_string(),
        }
    }

    fn is_of(&self, annotation: &str) -> bool {
        let (Self::Unreadable { key, .. } | Self::Above { key, .. }) = self;
        *key == annotation
    }
}

/// Decides the limits of a pod. `session` has those that its session has; `cards` is the memory of each of its
/// cards that is known.
pub(crate) fn judge(
    annotations: &BTreeMap<String, String>,
    most: &Most,
    session: Option<&Limits>,
    cards: &[Bytes],
) -> (Limits, Vec<Problem>) {
    let usual = Limits {
        memory: most.memory,
        compute: most.compute,
        weight: DEFAULT_WEIGHT.min(most.weight),
        priority: Priority::Normal.min(most.priority),
    };
    let had = session.unwrap_or(&usual);
    let mut judge = Judge { annotations, problems: Vec::new() };
    let memory = judge.value(MEMORY, memory, had.memory, usual.memory);
    let memory = match (memory, most.memory, session.and_then(|session| session.memory)) {
        // Until the cards are known, the limit stays that was decided by them.
        (Some(asked), Some(most), Some(kept)) if exceeds(asked, most, cards).is_none() => Some(kept),
        _ => judge
            .within(MEMORY, memory, most.memory, |asked, most| exceeds(asked, most, cards).unwrap_or(true)),
    };
    let compute = judge.value(COMPUTE, compute, had.compute, usual.compute);
    let compute = judge.within(COMPUTE, compute, most.compute, |asked, most| asked > most);
    let weight = judge.value(WEIGHT, weight, Some(had.weight), Some(usual.weight));
    let weight = judge.within(WEIGHT, weight, Some(most.weight), |asked, most| asked > most);
    let priority = judge.value(PRIORITY, priority, Some(had.priority), Some(usual.priority));
    let priority = judge.within(PRIORITY, priority, Some(most.priority), |asked, most| asked > most);
    let limits = Limits {
        memory,
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

    /// Returns a value, at most the greatest one.
    fn within<T: Copy + fmt::Display>(
        &mut self,
        key: &'static str,
        value: Option<T>,
        most: Option<T>,
        exceeds: impl Fn(T, T) -> bool,
    ) -> Option<T> {
        let Some(greatest) = most else {
            return value;
        };
        match value {
            Some(asked) if exceeds(asked, greatest) => {
                // The owner of the pod did not ask for a usual value, nor for one that is kept.
                let is_asked = self.annotations.contains_key(key);
                if is_asked && !self.problems.iter().any(|problem| problem.is_of(key)) {
                    let (asked, most) = (asked.to_string(), greatest.to_string());
                    self.problems.push(Problem::Above { key, asked, most });
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

/// Whether an amount of memory is above another one on any of the cards. Bytes and shares cannot be compared
/// without the size of a card.
fn exceeds(asked: Amount, most: Amount, cards: &[Bytes]) -> Option<bool> {
    match (asked, most) {
        (Amount::Bytes(asked), Amount::Bytes(most)) => Some(asked > most),
        (Amount::Share(asked), Amount::Share(most)) => Some(asked > most),
        _ if cards.is_empty() => None,
        _ => Some(cards.iter().any(|&card| asked.of(card) > most.of(card))),
    }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::text::is_printable;

    use super::super::reading::kept;
    use super::*;

    const USUAL: Limits = Limits { memory: None, compute: None, weight: 100, priority: Priority::Normal };

    fn judged(written: &[(&str, &str)], most: &Most, had: Option<&Limits>) -> (Limits, Vec<String>) {
        let annotations = written
            .iter()
            .map(|&(key, value)| (format!("gpushare.dev/{key}"), value.to_owned()));
        let (limits, problems) = judge(&annotations.collect(), most, had, &[Bytes::gib(80)]);
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
    }

    fn on_cards(text: &str, most: &Most, had: Option<&Limits>, cards: &[u64]) -> Option<Amount> {
        let cards: Vec<Bytes> = cards.iter().map(|&size| Bytes::gib(size)).collect();
        judge(&BTreeMap::from([(MEMORY.to_owned(), text.to_owned())]), most, had, &cards)
            .0
            .memory
    }

    #[test]
    fn a_limit_is_within_the_maximum_on_each_of_several_cards() {
        let (bytes, half) = (gib(40), Some(Amount::Share(Percent(5000))));
        let all = Some(Amount::Share(Percent(10_000)));
        let within = |text, most, cards: &[u64]| {
            on_cards(text, &Most { memory: most, ..Most::default() }, None, cards)
        };
        assert_eq!(within("100%", bytes, &[24]), all);
        assert_eq!(within("100%", bytes, &[24, 80]), bytes, "80GiB of the second card would be too much");
        assert_eq!(within("100%", bytes, &[80, 24]), bytes);
        assert_eq!(within("30GiB", half, &[80]), gib(30));
        assert_eq!(within("30GiB", half, &[80, 24]), half, "30GiB of the second card would be too much");
    }

    #[test]
    fn a_limit_that_cannot_be_compared_stays_and_a_new_one_is_the_maximum() {
        let most = Most { memory: gib(8), ..Most::default() };
        let tenth = Some(Amount::Share(Percent(1000)));
        let had = Limits { memory: tenth, ..USUAL };
        assert_eq!(on_cards("10%", &most, Some(&had), &[]), tenth);
        assert_eq!(on_cards("90%", &most, Some(&had), &[]), tenth, "nobody knows what 90% would be");
        assert_eq!(on_cards("10%", &most, None, &[]), gib(8));
        assert_eq!(on_cards("10%", &most, Some(&USUAL), &[]), gib(8), "a session without a limit");
        assert_eq!(on_cards("4GiB", &most, Some(&had), &[]), gib(4));
    }

    #[test]
    fn other_annotations_and_long_texts_are_not_kept() {
        let long = format!("8GiB{}", " ".repeat(200_000));
        let all = [(MEMORY, long.as_str()), (WEIGHT, "50"), ("example.org/notes", &long)];
        let kept = kept(all.map(|(key, text)| (key.to_owned(), text.to_owned())).into());
        assert_eq!(kept.keys().collect::<Vec<_>>(), [MEMORY, WEIGHT]);
        assert!(kept[WEIGHT] == "50" && kept[MEMORY].len() < 200);
        let (limits, problems) = judge(&kept, &Most::default(), None, &[]);
        assert_eq!((limits.memory, limits.weight, problems.len()), (None, 50, 1));
    }

    #[test]
    fn a_message_repeats_the_beginning_of_an_annotation_without_commands() {
        let long = format!("\u{1b}[2J\n{}\u{202e}", "9".repeat(100_000));
        for (key, wanted) in [
            ("memory", "is no size"),
            ("compute", "is no share"),
            ("weight", "is no weight"),
            ("priority", "is no priority"),
        ] {
            let (_, problems) = judged(&[(key, &long)], &Most::default(), None);
            assert!(problems[0].contains(wanted) && problems[0].contains("`?[2J?999"), "{problems:?}");
            assert!(problems[0].len() < 300 && problems[0].chars().all(is_printable), "{problems:?}");
        }
        let (_, problems) = judged(&[("compute", &format!("{}%", "9".repeat(1000)))], &wide(), None);
        assert!(problems[0].contains("…` is above 100%") && problems[0].len() < 300, "{problems:?}");
    }
}
