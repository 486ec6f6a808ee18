//! Host memory that processes prepare before memory has to leave a card, since touching and registering it takes
//! longer than a copy.
//!
//! ```text
//!   Σ of what processes use on the card  −  four fifths of the card  =  most that one of them may have to give
//!        each process prepares that much, at most what of its own can leave, within half of the host budget
//! ```
//!
//! A process does so while it waits behind its closed gate, where it keeps no call of the program waiting.
//! One that is alone on its card gives nothing, so it prepares nothing. If host memory is scarce, processes
//! that came first get it, whoever has its turn: targets that followed the turns would make memory come and
//! go.

use gpushare_proto::{Bytes, ClientId};
use smallvec::SmallVec;

use crate::memory::sums::Total;
use crate::residency::CHUNK;
use crate::residency::facts::Figures;
use crate::residency::plan::Row;

/// Part of a card, as `1 - 1 / PART`, above which processes prepare.
const PART: u64 = 5;

/// Part of the host budget up to which memory is prepared ahead. Memory that has to leave may use all of it.
pub(crate) fn share(budget: Bytes) -> Bytes {
    Bytes(budget.0 / 2)
}

/// Most bytes that one of the processes may have to give; none if a process is alone.
pub(crate) fn most_to_give(rows: &[Row], card: Bytes) -> Bytes {
    if rows.iter().filter(|row| !movable(row).is_zero()).count() < 2 {
        return Bytes::ZERO;
    }
    let mut used = Total::default();
    rows.iter().for_each(|row| used += row.figures.whole.into());
    used -= (card - Bytes(card.0 / PART)).into();
    used.get()
}

/// Bytes of registered host memory, used and unused, that each process should have ready if one may have to
/// give `most`. `room` is what the node has beside all that processes have or were promised.
pub(crate) fn targets(rows: &[Row], most: Bytes, room: Bytes) -> SmallVec<[(ClientId, Bytes); 4]> {
    let mut sorted: SmallVec<[&Row; 4]> = rows.iter().collect();
    sorted.sort_unstable_by_key(|row| row.client);
    let mut room = room;
    let target = |row: &Row| {
        let has = slots(&row.figures);
        let wanted = whole_chunks(most.min(movable(row)));
        let target = wanted.min(has + room);
        room -= target - has;
        (row.client, target)
    };
    sorted.into_iter().map(target).collect()
}

/// Bytes of slots that a process has, or will have once it has followed its goal.
fn slots(figures: &Figures) -> Bytes {
    let stays = figures.goal.map_or(figures.resident, |goal| goal.min(figures.resident));
    (figures.hosted + figures.prepared).max(figures.whole - figures.unbacked - stays) - figures.mapped
}

/// Bytes of a process that can leave the card.
fn movable(row: &Row) -> Bytes {
    row.figures.whole - (row.figures.pinned + row.figures.mapped)
}

fn whole_chunks(bytes: Bytes) -> Bytes {
    Bytes(bytes.0.div_ceil(CHUNK.0).saturating_mul(CHUNK.0))
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use super::*;
    use crate::residency::plan::Rank;

    const CARD: Bytes = Bytes::gib(10);
    const WIDE: Bytes = Bytes::gib(1000);

    /// A process that uses so much, of which `hosted` is away.
    fn row(client: u64, used: Bytes, hosted: Bytes) -> Row {
        let figures = Figures::of_used(used, used - hosted);
        let rank = Rank::Idles(Reverse(None));
        Row {
            client: ClientId(client),
            rank,
            figures,
            ends_work: false,
            late: None,
            may_overflow: false,
            leaves: false,
            returns: false,
        }
    }

    fn gib(client: u64, used: u64) -> Row {
        row(client, Bytes::gib(used), Bytes::ZERO)
    }

    fn prepared(rows: &[Row], room: Bytes) -> Vec<Bytes> {
        targets(rows, most_to_give(rows, CARD), room)
            .into_iter()
            .map(|(_, bytes)| bytes)
            .collect()
    }

    #[test]
    fn processes_that_may_have_to_give_prepare_the_most_that_each_may_give() {
        assert_eq!(prepared(&[gib(1, 4), gib(2, 4)], WIDE), [Bytes::ZERO; 2], "both are far from the card");
        assert_eq!(prepared(&[gib(1, 5), gib(2, 4)], WIDE), [Bytes::gib(1); 2]);
        assert_eq!(prepared(&[gib(1, 8), gib(2, 2), gib(3, 1)], WIDE).as_slice(), [3, 2, 1].map(Bytes::gib));
    }

    #[test]
    fn a_process_that_is_alone_prepares_nothing() {
        assert_eq!(prepared(&[gib(1, 9)], WIDE), [Bytes::ZERO]);
        assert_eq!(prepared(&[gib(1, 9), gib(2, 0)], WIDE), [Bytes::ZERO; 2]);
    }

    #[test]
    fn memory_that_cannot_leave_needs_no_place() {
        let mut fixed = gib(1, 8);
        fixed.figures.pinned = Bytes::gib(7);
        assert_eq!(prepared(&[fixed, gib(2, 8)], WIDE), [Bytes::gib(1), Bytes::gib(8)]);
    }

    #[test]
    fn processes_that_came_first_get_scarce_host_memory_whoever_has_its_turn() {
        let rows = [gib(2, 6), gib(1, 6)];
        assert_eq!(prepared(&rows, Bytes::gib(5)), [Bytes::gib(4), Bytes::gib(1)]);
        let mut rows = [gib(1, 6), row(2, Bytes::gib(6), Bytes::gib(2))];
        assert_eq!(prepared(&rows, Bytes::ZERO), [Bytes::ZERO, Bytes::gib(2)], "and what is used stays");
        rows[0].figures.prepared = Bytes::gib(1);
        assert_eq!(prepared(&rows, Bytes::ZERO), [Bytes::gib(1), Bytes::gib(2)]);
    }

    #[test]
    fn memory_that_is_mapped_from_the_host_has_no_slots() {
        let mut large = row(1, Bytes::gib(14), Bytes::gib(4));
        large.figures.mapped = Bytes::gib(4);
        assert_eq!(prepared(&[large, gib(2, 2)], Bytes::ZERO), [Bytes::ZERO; 2]);
        assert_eq!(prepared(&[large, gib(2, 2)], WIDE), [Bytes::gib(8), Bytes::gib(2)]);
    }

    #[test]
    fn what_a_process_is_to_give_now_is_its_own_room() {
        let mut leaver = gib(2, 8);
        leaver.figures.goal = Some(Bytes::gib(2));
        assert_eq!(prepared(&[gib(1, 8), leaver], Bytes::gib(1)), [Bytes::gib(1), Bytes::gib(6)]);
    }

    #[test]
    fn a_target_is_a_whole_number_of_chunks_whatever_processes_claim() {
        assert_eq!(
            prepared(&[row(1, Bytes::gib(8) + Bytes(1), Bytes::ZERO), gib(2, 4)], WIDE)[0].0 % CHUNK.0,
            0
        );
        let huge = [row(1, Bytes::MAX, Bytes::ZERO), row(2, Bytes::MAX, Bytes::MAX)];
        assert!(prepared(&huge, WIDE).into_iter().all(|bytes| bytes >= WIDE));
    }
}
