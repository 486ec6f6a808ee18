//! Estimated residency of managed memory on one card, and what should leave while a process comes in.
//!
//! ```text
//!   a session lets go ──▶ all its memory may be on the card
//!   another one is granted ─▶ excess ─▶ goals of those who give: at most so much stays
//!   all who come in are in, or gone ──▶ the goals are lifted
//! ```
//!
//! The driver moves managed memory and tells nobody where it is. An estimate is what may be on the card: all of a
//! process that has the lock, and what handoffs since left of another one. A goal is a hint, which makes the driver's
//! own eviction unnecessary: what does not leave by it is evicted. No room is handed out because of either.
//!
//! Only processes with memory on the card are kept, so a handoff costs the same in a crowd.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::page::GoalNumber;
use gpushare_proto::{Bytes, ClientId, Nanos};
use smallvec::SmallVec;

use crate::memory::sums::Total;

/// Next turn of a process that has let go, the nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NextTurn {
    /// Its session waits, and let go at this time. Who has waited longest is usually the next.
    Waits(Nanos),
    /// Its session has no work since this time.
    Idles(Reverse<Nanos>),
    /// Its session may not run.
    Barred,
}

/// Process that has let go, with managed memory on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) client: ClientId,
    pub(crate) next: NextTurn,
    /// Most bytes that may be on the card.
    pub(crate) resident: Bytes,
}

/// Returns those who should give so that what holders need and the others have fits a card with so much managed
/// memory, and the bytes of each that may stay. The furthest next turn gives first.
pub(crate) fn plan(rows: &mut [Row], held: Bytes, card: Bytes) -> SmallVec<[(ClientId, Bytes); 2]> {
    let mut excess = Total::from(held);
    rows.iter().for_each(|row| excess += row.resident.into());
    excess -= card.into();
    let mut excess = excess.get();
    rows.sort_unstable_by_key(|row| (Reverse(row.next), row.client));
    let gives = |row: &Row| {
        let gives = excess.min(row.resident);
        excess -= gives;
        (!gives.is_zero()).then_some((row.client, row.resident - gives))
    };
    rows.iter().filter_map(gives).collect()
}

/// Estimates and goals of the processes with managed memory on one card.
#[derive(Clone, Debug, Default)]
pub(crate) struct Estimates {
    /// Whether memory moves on the card when turns change. Else nothing is kept.
    pub(crate) are_kept: bool,
    /// Bytes on the card of those who have let go, and the time when they did.
    left: BTreeMap<ClientId, (Bytes, Nanos)>,
    /// Processes that were granted a turn since the last plan.
    entrants: SmallVec<[ClientId; 4]>,
    /// Latest goal of each process, and its number; [`Bytes::MAX`] if it is lifted.
    goals: BTreeMap<ClientId, (GoalNumber, Bytes)>,
    /// Processes with a goal that is not lifted.
    in_force: BTreeSet<ClientId>,
    /// Those among them that come in themselves.
    limited: BTreeSet<ClientId>,
}

impl Estimates {
    /// Notes that a process has the lock.
    pub(crate) fn enters(&mut self, client: ClientId) {
        self.left.remove(&client);
        self.entrants.push(client);
    }

    /// Notes that a process with so much memory on the card lets go.
    pub(crate) fn leaves(&mut self, client: ClientId, bytes: Bytes, at: Nanos) {
        self.left.insert(client, (bytes, at));
    }

    /// Notes how many bytes of a process that has let go stay on the card.
    pub(crate) fn keep(&mut self, client: ClientId, bytes: Bytes) {
        if bytes.is_zero() {
            self.left.remove(&client);
        } else if let Some((resident, _)) = self.left.get_mut(&client) {
            *resident = bytes;
        }
    }

    /// Processes that have let go, their bytes on the card, and the times when they did.
    pub(crate) fn left(&self) -> impl Iterator<Item = (ClientId, Bytes, Nanos)> {
        self.left.iter().map(|(&client, &(bytes, at))| (client, bytes, at))
    }

    /// Whether all that may be on the card fits there beside so much of holders.
    pub(crate) fn fit(&self, held: Bytes, card: Bytes) -> bool {
        let mut sum = Total::from(held);
        self.left.values().for_each(|&(bytes, _)| sum += bytes.into());
        sum <= card.into()
    }

    /// Whether a process was granted a turn since the last plan.
    pub(crate) fn have_entrants(&self) -> bool {
        !self.entrants.is_empty()
    }

    /// Takes the processes that were granted a turn since the last plan.
    pub(crate) fn take_entrants(&mut self) -> SmallVec<[ClientId; 4]> {
        std::mem::take(&mut self.entrants)
    }

    /// Gives a process a goal, or lifts it with [`Bytes::MAX`]. Returns the number to write; `None` if the page has
    /// the goal.
    pub(crate) fn give(&mut self, client: ClientId, goal: Bytes) -> Option<GoalNumber> {
        let latest = self.goals.entry(client).or_insert((GoalNumber::NONE, Bytes::MAX));
        if latest.1 == goal {
            return None;
        }
        let number = latest.0.next();
        *latest = (number, goal);
        match goal == Bytes::MAX {
            true => {
                self.in_force.remove(&client);
                self.limited.remove(&client);
            }
            false => _ = self.in_force.insert(client),
        }
        Some(number)
    }

    /// Notes that the goal of a process limits what it brings in.
    pub(crate) fn limit(&mut self, client: ClientId) {
        self.limited.insert(client);
    }

    /// Processes whose goals limit what they bring in.
    pub(crate) fn limited(&self) -> impl Iterator<Item = ClientId> {
        self.limited.iter().copied()
    }

    /// Whether a goal is not lifted.
    pub(crate) fn has_goals(&self) -> bool {
        !self.in_force.is_empty()
    }

    /// Processes with a goal that is not lifted, and their goals.
    pub(crate) fn in_force(&self) -> impl Iterator<Item = (ClientId, Bytes)> {
        let goal = |client: &ClientId| Some((*client, self.goals.get(client)?.1));
        self.in_force.iter().filter_map(goal)
    }

    /// Notes that the page of a process is new and has no goal.
    pub(crate) fn has_new_page(&mut self, client: ClientId) {
        self.limited.remove(&client);
        if self.in_force.remove(&client)
            && let Some((_, goal)) = self.goals.get_mut(&client)
        {
            *goal = Bytes::MAX;
        }
    }

    /// Forgets a process that is dead.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.left.remove(&client);
        self.entrants.retain(|entrant| *entrant != client);
        self.goals.remove(&client);
        self.in_force.remove(&client);
        self.limited.remove(&client);
    }

    /// Forgets where memory is, since none moves any more.
    pub(crate) fn forget_places(&mut self) {
        self.left.clear();
        self.entrants.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Bytes = Bytes::MAX;

    fn gib(bytes: u64) -> Bytes {
        Bytes::gib(bytes)
    }

    fn waits(client: u64, left: u64, resident: u64) -> Row {
        Row {
            client: ClientId(client),
            next: NextTurn::Waits(Nanos(left)),
            resident: gib(resident),
        }
    }

    fn stays(rows: &[Row], held: u64, card: u64) -> Vec<(u64, Bytes)> {
        let stays = plan(&mut rows.to_vec(), gib(held), gib(card));
        stays.into_iter().map(|(client, bytes)| (client.0, bytes)).collect()
    }

    #[test]
    fn only_what_the_entrant_lacks_leaves_and_the_furthest_turn_gives_it() {
        assert_eq!(stays(&[waits(2, 7, 6)], 6, 8), [(2, gib(2))]);
        assert_eq!(stays(&[waits(2, 5, 2), waits(3, 7, 6)], 6, 10), [(3, gib(2))]);
        assert_eq!(stays(&[waits(2, 5, 2), waits(3, 7, 6)], 6, 7), [(3, gib(0)), (2, gib(1))]);
        assert_eq!(stays(&[waits(2, 7, 2)], 6, 8), []);
        assert_eq!(stays(&[waits(2, 7, 6)], 12, 8), [(2, gib(0))], "the entrant is larger than the card");
    }

    #[test]
    fn who_may_not_run_gives_first_then_the_longest_idle_and_then_who_waits() {
        let row = |client, next| Row { client: ClientId(client), next, resident: gib(1) };
        let rows = [
            row(1, NextTurn::Idles(Reverse(Nanos(7)))),
            row(2, NextTurn::Waits(Nanos(9))),
            row(3, NextTurn::Barred),
            row(4, NextTurn::Idles(Reverse(Nanos(2)))),
            row(5, NextTurn::Waits(Nanos(8))),
        ];
        let order: Vec<u64> = stays(&rows, 5, 5).into_iter().map(|(client, _)| client).collect();
        assert_eq!(order, [3, 4, 1, 2, 5]);
    }

    #[test]
    fn a_goal_is_written_once_and_a_new_page_has_none() {
        let (mut estimates, client) = (Estimates::default(), ClientId(1));
        assert_eq!(estimates.give(client, ALL), None, "a page begins without one");
        assert_eq!(estimates.give(client, gib(2)), Some(GoalNumber(1)));
        assert_eq!(estimates.give(client, gib(2)), None);
        estimates.has_new_page(client);
        assert_eq!(estimates.in_force().collect::<Vec<_>>(), []);
        assert_eq!(estimates.give(client, gib(2)), Some(GoalNumber(2)));
        assert_eq!(estimates.in_force().collect::<Vec<_>>(), [(client, gib(2))]);
        assert_eq!(estimates.give(client, ALL), Some(GoalNumber(3)));
        assert_eq!(estimates.in_force().collect::<Vec<_>>(), []);
    }

    #[test]
    fn what_has_left_is_not_asked_for_again_until_its_process_had_a_turn() {
        let (mut estimates, client) = (Estimates::default(), ClientId(1));
        estimates.leaves(client, gib(6), Nanos(5));
        estimates.keep(client, gib(2));
        assert_eq!(estimates.left().collect::<Vec<_>>(), [(client, gib(2), Nanos(5))]);
        estimates.keep(client, gib(0));
        assert_eq!(estimates.left().count(), 0);
        estimates.leaves(client, gib(6), Nanos(9));
        estimates.enters(client);
        assert_eq!(estimates.left().count(), 0);
        assert_eq!(estimates.take_entrants().as_slice(), [client]);
    }
}
