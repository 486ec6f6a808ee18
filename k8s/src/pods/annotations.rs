//! Decision about a pod's annotations: the terms of its session, and the problems of which its owner is told.
//!
//! ```text
//!   annotation is absent           the maximum for memory and compute, weight 100, priority normal, the daemon's
//!                                  idle time until the pod is frozen
//!   annotation cannot be read      the value that the pod has, and a problem
//!   annotation is above the most   the most, and a problem
//!
//!   claim of a pod with DRA        its terms stand in for absent annotations, within the maxima;
//!                                  its memory is also the most for the annotation
//! ```

use std::collections::BTreeMap;
use std::fmt;

use gpushare_proto::session::{Amount, CardQuota, DEFAULT_WEIGHT, FreezeAfter, Priority, Quota, Terms};
use gpushare_proto::{Bytes, Percent};

use super::maxima::Most;
use super::problem::Problem;
use super::reading::{COMPUTE, FREEZE_AFTER, MEMORY, PRIORITY, WEIGHT};
use crate::terms::{self, Asked};

/// Values of a pod that the annotations set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Memory on each card; none for no limit.
    pub(crate) memory: Option<Amount>,
    /// Memory on single cards, of which claims ask for less than on others.
    pub(crate) memory_by_card: Vec<CardQuota>,
    /// Share of each card's time; none for no limit.
    pub(crate) compute: Option<Percent>,
    /// Share of the time of single cards, of which claims ask for less than of others.
    pub(crate) compute_by_card: Vec<CardQuota>,
    pub(crate) weight: u32,
    pub(crate) priority: Priority,
    /// Idle time after which the pod is frozen.
    pub(crate) freeze_after: FreezeAfter,
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
            memory_by_card: terms.memory.cards.clone(),
            compute: terms.compute.every.and_then(share),
            compute_by_card: terms.compute.cards.clone(),
            weight: terms.weight,
            priority: terms.priority,
            freeze_after: terms.freeze_after,
        }
    }

    /// Returns the quota of memory.
    pub(crate) fn memory(&self) -> Quota {
        Quota { every: self.memory, cards: self.memory_by_card.clone() }
    }

    /// Returns the quota of card time.
    pub(crate) fn compute(&self) -> Quota {
        Quota { every: self.compute.map(Amount::Share), cards: self.compute_by_card.clone() }
    }
}

/// Decides the limits of a pod. `claim` is what its claims ask for, `session` has the limits that its session has;
/// `cards` is the memory of each of its cards that is known.
pub(crate) fn judge(
    annotations: &BTreeMap<String, String>,
    claim: &Asked,
    most: &Most,
    session: Option<&Limits>,
    cards: &[Bytes],
) -> (Limits, Vec<Problem>) {
    let mut judge = Judge { annotations, problems: Vec::new() };
    let is_unknown = |asked: Option<Amount>, most: Option<Amount>| {
        asked
            .zip(most)
            .is_some_and(|(asked, most)| exceeds(asked, most, cards).is_none())
    };
    // Amounts that cannot be compared count as above.
    let exceeds = |asked, most| exceeds(asked, most, cards).unwrap_or(true);
    // Until the cards are known, the limit stays that was decided by them.
    let kept = session.and_then(|session| session.memory);
    let claim = Asked {
        memory: match kept {
            Some(kept) if is_unknown(claim.memory, most.memory) => Some(kept),
            _ => judge.of_claim("memory", claim.memory, most.memory, exceeds),
        },
        compute: judge.of_claim("compute", claim.compute, most.compute, |asked, most| asked > most),
        weight: judge.of_claim("weight", claim.weight, Some(most.weight), |asked, most| asked > most),
        priority: judge.of_claim("priority", claim.priority, Some(most.priority), |asked, most| asked > most),
    };
    let usual = Limits {
        memory: claim.memory.or(most.memory),
        memory_by_card: Vec::new(),
        compute: claim.compute.or(most.compute),
        compute_by_card: Vec::new(),
        weight: claim.weight.unwrap_or(DEFAULT_WEIGHT.min(most.weight)),
        priority: claim.priority.unwrap_or(Priority::Normal.min(most.priority)),
        freeze_after: FreezeAfter::Usual,
    };
    let had = session.unwrap_or(&usual);
    let above = match claim.memory {
        Some(_) => |key, asked, most| Problem::AboveClaim { key, asked, most },
        None => |key, asked, most| Problem::Above { key, asked, most },
    };
    let memory = judge.value(MEMORY, terms::memory, had.memory, usual.memory);
    let memory = match kept {
        Some(kept) if is_unknown(memory, usual.memory) => Some(kept),
        _ => judge.at_most(MEMORY, memory, usual.memory, exceeds, above),
    };
    let compute = judge.value(COMPUTE, terms::compute, had.compute, usual.compute);
    let compute = judge.within(COMPUTE, compute, most.compute);
    let weight = judge.value(WEIGHT, terms::weight, Some(had.weight), Some(usual.weight));
    let weight = judge.within(WEIGHT, weight, Some(most.weight));
    let priority = judge.value(PRIORITY, terms::priority, Some(had.priority), Some(usual.priority));
    let priority = judge.within(PRIORITY, priority, Some(most.priority));
    let freeze_after =
        judge.value(FREEZE_AFTER, terms::freeze_after, Some(had.freeze_after), Some(usual.freeze_after));
    let limits = Limits {
        memory,
        memory_by_card: Vec::new(),
        compute,
        compute_by_card: Vec::new(),
        weight: weight.unwrap_or(usual.weight),
        priority: priority.unwrap_or(usual.priority),
        freeze_after: freeze_after.unwrap_or(usual.freeze_after),
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
mod tests;
