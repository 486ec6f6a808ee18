//! Estimated residency of managed memory on one card, and what should leave while a process comes in.
//!
//! ```text
//!   a process comes in ─▶ excess ─▶ goals of those who give: at most so much stays
//!   it is in ───────────▶ their estimates fall to these goals, and the goals are lifted
//!   it is gone ─────────▶ the goals are lifted, and the estimates stay
//! ```
//!
//! The driver moves managed memory and tells nobody where it is. An estimate is the most bytes that may be on the
//! card: all of a process that has the lock, and what its last handoffs left of another one. So a goal is a hint,
//! which makes the driver's own eviction unnecessary. No room is handed out because of it.

use std::collections::BTreeMap;

use gpushare_proto::page::GoalNumber;
use gpushare_proto::{Bytes, ClientId};
use smallvec::SmallVec;

use crate::memory::sums::Total;
use crate::residency::plan::Rank;

/// Process with managed memory on the card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) client: ClientId,
    pub(crate) rank: Rank,
    /// Whether the process brings its memory in.
    pub(crate) enters: bool,
    /// Working set of the process.
    pub(crate) movable: Bytes,
    /// Most bytes that may be on the card: for a process with the lock, its working set.
    pub(crate) resident: Bytes,
}

/// Returns the most bytes of each process that may stay on a card with so much managed memory; [`Bytes::MAX`] for
/// those that give nothing. `rows` are sorted by rank.
///
/// A process with the lock gives nothing. If the card has less for it than it needs, it should bring in no more.
pub(crate) fn plan(rows: &[Row], card: Bytes) -> SmallVec<[Bytes; 4]> {
    let (mut all, mut held) = (Total::default(), Total::default());
    for row in rows {
        all += row.resident.into();
        if row.rank.has_lock() {
            held += row.resident.into();
        }
    }
    all -= card.into();
    let mut excess = all.get();
    let mut stays: SmallVec<[Bytes; 4]> = rows
        .iter()
        .rev()
        .map(|row| match row.rank.has_lock() {
            true if row.enters => {
                let mut others = held;
                others -= row.resident.into();
                let most = card - others.get();
                if most < row.movable { most } else { Bytes::MAX }
            }
            true => Bytes::MAX,
            false => {
                let gives = excess.min(row.resident);
                excess -= gives;
                if gives.is_zero() { Bytes::MAX } else { row.resident - gives }
            }
        })
        .collect();
    stays.reverse();
    stays
}

/// Estimates and goals of the processes with managed memory on one card.
#[derive(Clone, Debug, Default)]
pub(crate) struct Estimates {
    of: BTreeMap<ClientId, Estimate>,
}

/// Estimate and goal of one process.
#[derive(Clone, Copy, Debug)]
struct Estimate {
    /// Most bytes that may be on the card; [`Bytes::MAX`] if all may be.
    resident: Bytes,
    /// Goal in the page of the process; [`Bytes::MAX`] for none.
    goal: Bytes,
    last: GoalNumber,
}

impl Default for Estimate {
    fn default() -> Self {
        Self { resident: Bytes::MAX, goal: Bytes::MAX, last: GoalNumber::NONE }
    }
}

impl Estimates {
    /// Most bytes of a process that may be on the card, if it has so many; [`Bytes::MAX`] if all may be.
    pub(crate) fn resident(&self, client: ClientId) -> Bytes {
        self.of.get(&client).copied().unwrap_or_default().resident
    }

    /// Notes the most bytes of a process that may be on the card.
    pub(crate) fn set_resident(&mut self, client: ClientId, bytes: Bytes) {
        if bytes != self.resident(client) {
            self.of.entry(client).or_default().resident = bytes;
        }
    }

    /// Gives a process a goal, or lifts it with [`Bytes::MAX`]. Returns the number to write; `None` if the page has
    /// the goal.
    pub(crate) fn give(&mut self, client: ClientId, goal: Bytes) -> Option<GoalNumber> {
        let present = self.of.get(&client).copied().unwrap_or_default();
        (present.goal != goal).then(|| {
            let last = present.last.next();
            self.of.insert(client, Estimate { goal, last, ..present });
            last
        })
    }

    /// Processes with a goal that is not lifted, and their goals.
    pub(crate) fn goals(&self) -> impl Iterator<Item = (ClientId, Bytes)> {
        let goals = self.of.iter().map(|(&client, estimate)| (client, estimate.goal));
        goals.filter(|&(_, goal)| goal < Bytes::MAX)
    }

    /// Notes that the page of a process is new and has no goal.
    pub(crate) fn has_new_page(&mut self, client: ClientId) {
        if let Some(estimate) = self.of.get_mut(&client) {
            estimate.goal = Bytes::MAX;
        }
    }

    /// Forgets a process that is dead.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.of.remove(&client);
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use super::*;

    const ALL: Bytes = Bytes::MAX;

    fn gib(bytes: u64) -> Bytes {
        Bytes::gib(bytes)
    }

    fn row(client: u64, rank: Rank, movable: u64, resident: u64) -> Row {
        let enters = rank.has_lock();
        Row {
            client: ClientId(client),
            rank,
            enters,
            movable: gib(movable),
            resident: gib(resident),
        }
    }

    fn stays(rows: &[Row], card: u64) -> Vec<Bytes> {
        assert!(rows.is_sorted_by_key(|row| row.rank));
        plan(rows, gib(card)).into_vec()
    }

    #[test]
    fn only_what_the_entrant_lacks_leaves_and_the_furthest_turn_gives_it() {
        let entrant = row(1, Rank::Holds(1), 6, 6);
        let waits = |client, place, resident| row(client, Rank::Waits(place), 6, resident);
        assert_eq!(stays(&[entrant, waits(2, 0, 6)], 8), [ALL, gib(2)]);
        assert_eq!(stays(&[entrant, waits(2, 0, 2), waits(3, 1, 6)], 10), [ALL, ALL, gib(2)]);
        assert_eq!(stays(&[entrant, waits(2, 0, 4), waits(3, 1, 0)], 8), [ALL, gib(2), ALL]);
        let idle = row(4, Rank::Idles(Reverse(None)), 6, 2);
        assert_eq!(stays(&[entrant, waits(2, 0, 4), idle], 8), [ALL, gib(2), gib(0)]);
        assert_eq!(stays(&[entrant, waits(2, 0, 2)], 8), [ALL, ALL]);
    }

    #[test]
    fn nobody_with_the_lock_gives_and_an_entrant_brings_in_what_the_card_has_for_it() {
        let (works, drains) = (row(1, Rank::Holds(1), 3, 3), row(3, Rank::Drains, 4, 4));
        let [mut works, drains] = [works, drains];
        works.enters = false;
        let entrant = row(2, Rank::Holds(2), 5, 5);
        assert_eq!(stays(&[works, entrant, drains], 12), [ALL, ALL, ALL]);
        let stuck = Row { enters: false, ..drains };
        assert_eq!(stays(&[works, entrant, stuck], 10), [ALL, gib(3), ALL]);
        assert_eq!(stays(&[row(1, Rank::Holds(1), 12, 12), row(2, Rank::Barred, 6, 6)], 8), [gib(8), gib(0)]);
    }

    #[test]
    fn a_goal_is_written_once_and_a_new_page_has_none() {
        let (mut estimates, client) = (Estimates::default(), ClientId(1));
        assert_eq!(estimates.give(client, ALL), None, "a page begins without one");
        assert_eq!(estimates.give(client, gib(2)), Some(GoalNumber(1)));
        assert_eq!(estimates.give(client, gib(2)), None);
        estimates.has_new_page(client);
        assert_eq!(estimates.goals().count(), 0);
        assert_eq!(estimates.give(client, gib(2)), Some(GoalNumber(2)));
        assert_eq!(estimates.give(client, ALL), Some(GoalNumber(3)));
        assert_eq!(estimates.resident(client), ALL, "a goal is no estimate");
    }
}
