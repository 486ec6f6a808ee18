//! Admission of waiting sessions on the cards that take turns, in one order over all cards.
//!
//! Waiters are examined in their order (virtual time, class, ticket). A waiter that fits beside the holders
//! on all its cards is admitted on all of them at once. One that does not fit reserves all its cards: no
//! later waiter is admitted there. Where it does not fit, the quanta of holders are not renewed. These
//! holders release the lock together once the waiter would fit on all its cards. The first waiter meets no
//! reservation, so its cards drain and it is admitted. So there is no deadlock, and a stream of single-card
//! sessions cannot starve a session with many cards. A later waiter is admitted on reserved cards if its turn
//! ends before the waiter that reserved them could begin (turns/backfill.rs).
//!
//! ```text
//!   order     1:{gpu0}  2:{gpu0,gpu1}  3:{gpu1}  4:{gpu2}
//!               fits       does not       │         fits
//!             admitted   reserves 0, 1 ───┘ waits  admitted
//! ```
//!
//! Where no memory moves, one session has a turn at a time. Its turn may begin before the last one has
//! drained ([`Drains`]).
//!
//! A waiter that could not fit beside absent memory (memory/absent.rs) even after all holders let go is
//! skipped. Every other waiter that does not fit yet reserves its cards. Otherwise smaller sessions would
//! pass it for as long as the absent memory stays.

use std::cell::Cell;

use gpushare_proto::{Bytes, GpuId, Nanos, SessionId};
use smallvec::SmallVec;

use crate::memory::absent::Absent;
use crate::values::gpu_set::GpuSet;
use crate::values::small_map::ByGpu;

/// Bytes that a session needs on a card, and whether its turn is early (turns/preempt.rs).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub(crate) bytes: Bytes,
    pub(crate) early: bool,
}

/// Numbers of sessions that hold a card and were asked for it, and may have a session begin beside them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Drains {
    /// Sessions beside which only an early turn may begin.
    pub(crate) dropping: usize,
    /// Sessions beside which any turn may begin, since their drain is about to end.
    pub(crate) leaving: usize,
}

/// Largest number of drains beside which an early turn may begin. A regular one begins beside one drain.
const DRAINS_BESIDE_EARLY: usize = 2;

/// Occupancy of a card that takes turns: number of holders and their bytes, each with its largest value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occupancy {
    /// Largest number of sessions that may hold the card together: unbounded where memory moves, else one.
    seats: usize,
    /// Sessions that hold the card, without those of `drains`.
    holders: usize,
    /// Drains beside which a session may begin, where no memory moves.
    drains: Drains,
    /// Largest sum of bytes that the sessions that hold the card may have.
    capacity: Bytes,
    held: Bytes,
    absent: Absent,
}

impl Occupancy {
    pub(crate) const fn empty(seats: usize, capacity: Bytes) -> Self {
        let drains = Drains { dropping: 0, leaving: 0 };
        Self { seats, holders: 0, drains, capacity, held: Bytes::ZERO, absent: Absent::NONE }
    }

    pub(crate) const fn beside(self, absent: Absent) -> Self {
        Self { absent, ..self }
    }

    pub(crate) const fn taken(self, holders: usize, drains: Drains, held: Bytes) -> Self {
        Self { holders, drains, held, ..self }
    }

    /// Adds a session with `bytes` to the occupancy of the card.
    pub(crate) fn enter(&mut self, bytes: Bytes) {
        self.held += bytes;
        self.holders += 1;
    }

    /// Removes a session with `bytes` that was not asked for the card from the occupancy.
    pub(crate) fn leave(&mut self, bytes: Bytes) {
        self.held -= bytes;
        self.holders = self.holders.saturating_sub(1);
    }

    /// Removes a session with `bytes` that was asked for the card from the occupancy.
    pub(crate) fn end_drain(&mut self, bytes: Bytes) {
        match &mut self.drains {
            Drains { leaving, .. } if *leaving > 0 => *leaving -= 1,
            Drains { dropping, .. } if *dropping > 0 => *dropping -= 1,
            // Where memory moves, it keeps its room like a holder.
            _ => self.holders = self.holders.saturating_sub(1),
        }
        self.held -= bytes;
    }

    /// Whether a session fits beside the card's holders, their drains and absent memory. On a card without any
    /// of them every session fits.
    pub(crate) fn fits(&self, Need { bytes, early }: Need) -> bool {
        let Drains { dropping, leaving } = self.drains;
        let (seated, most) = match early {
            true => (self.holders, DRAINS_BESIDE_EARLY),
            false => (self.holders + dropping, 1),
        };
        let alone = self.holders + dropping + leaving == 0 && self.absent == Absent::NONE;
        let seat = seated < self.seats && dropping + leaving <= most;
        alone || (seat && self.held + self.absent.bytes + bytes <= self.capacity)
    }
}

/// Occupancy of each card that takes turns.
pub(crate) type Occupancies = ByGpu<Occupancy>;

/// Decision on the waiting sessions: those to admit, and the cards that must make room.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Admission {
    /// Sessions to grant the lock now, in order. A backfilled turn must end by the point in time beside it.
    pub(crate) admitted: SmallVec<[(SessionId, Option<Nanos>); 4]>,
    /// Cards whose holders must make room for a waiting session when their quantum ends.
    pub(crate) wanted: GpuSet,
}

/// Number of waiters behind reservations that are examined for backfill. Most of a long line want the same
/// cards.
pub(crate) const DEPTH: usize = 16;

/// Decides which waiting sessions are admitted. `waiters` come in the order of turns, each with its cards in
/// `taken`, and those end whose cards are all in `closed`. `need` gives what a session needs on a card.
/// `start` gives the earliest point in time at which a session has room on the cards where it does not fit.
/// `ends_before` says whether a session's turn can end before a point in time.
pub(crate) fn admit(
    waiters: impl IntoIterator<Item = (SessionId, GpuSet)>,
    need: impl Fn(SessionId, GpuId) -> Need,
    start: impl Fn(SessionId, GpuSet) -> Nanos,
    ends_before: impl Fn(SessionId, Nanos) -> bool,
    taken: &mut Occupancies,
    closed: &Cell<GpuSet>,
) -> Admission {
    let mut admission = Admission::default();
    // By card: earliest start of the waiters that reserve it.
    let mut reserved: ByGpu<Nanos> = ByGpu::default();
    let mut behind = 0;
    for (session, cards) in waiters {
        let needs = |gpu| need(session, gpu);
        let misfits = misfits(cards, needs, taken);
        let limit = cards.into_iter().filter_map(|gpu| reserved.get(gpu)).min().copied();
        if misfits.is_empty() && limit.is_none_or(|limit| ends_before(session, limit)) {
            enter(cards, needs, taken);
            admission.admitted.push((session, limit));
            continue;
        }
        if limit.is_none() {
            admission.wanted = admission.wanted.with(misfits);
        }
        // Cards whose holders do not make room yet say nothing about the start.
        let starts = start(session, misfits.and(admission.wanted)).max(limit.unwrap_or_default());
        for gpu in cards {
            let before = reserved.get(gpu).map_or(starts, |&before| before.min(starts));
            reserved.insert(gpu, before);
        }
        behind += usize::from(limit.is_some());
        if behind > DEPTH {
            closed.set(reserved.keys().collect());
        }
    }
    admission
}

/// Decides which of the sessions that wait for one card are admitted: those before the first one that does not fit,
/// which leaves no time for others. `waiters` come in the order of turns, each with what it needs there.
pub(crate) fn admit_to_one(
    gpu: GpuId,
    waiters: impl IntoIterator<Item = (SessionId, Need)>,
    occupancy: &mut Occupancy,
) -> Admission {
    let mut admission = Admission::default();
    for (session, need) in waiters {
        if !occupancy.fits(need) {
            admission.wanted = gpu.into();
            break;
        }
        occupancy.enter(need.bytes);
        admission.admitted.push((session, None));
    }
    admission
}

/// Returns the holders that do not fit beside the ones before them; `holders` come in the order of their
/// right to stay.
pub(crate) fn surplus(
    holders: impl IntoIterator<Item = (SessionId, GpuSet)>,
    need: impl Fn(SessionId, GpuId) -> Need,
    taken: &mut Occupancies,
) -> Vec<SessionId> {
    let mut surplus = Vec::new();
    for (session, cards) in holders {
        let needs = |gpu| need(session, gpu);
        match fits(cards, needs, taken) {
            true => enter(cards, needs, taken),
            false => surplus.push(session),
        }
    }
    surplus
}

/// Whether a session fits on all of its cards.
pub(crate) fn fits(cards: GpuSet, need: impl Fn(GpuId) -> Need, taken: &Occupancies) -> bool {
    misfits(cards, need, taken).is_empty()
}

fn misfits(cards: GpuSet, need: impl Fn(GpuId) -> Need, taken: &Occupancies) -> GpuSet {
    let misfit = |gpu: &GpuId| taken.get(*gpu).is_some_and(|occupancy| !occupancy.fits(need(*gpu)));
    cards.into_iter().filter(misfit).collect()
}

pub(crate) fn enter(cards: GpuSet, need: impl Fn(GpuId) -> Need, taken: &mut Occupancies) {
    for gpu in cards {
        if let Some(occupancy) = taken.get_mut(gpu) {
            occupancy.enter(need(gpu).bytes);
        }
    }
}

pub(crate) fn leave(cards: GpuSet, need: impl Fn(GpuId) -> Need, taken: &mut Occupancies) {
    for gpu in cards {
        if let Some(occupancy) = taken.get_mut(gpu) {
            occupancy.leave(need(gpu).bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: GpuId = GpuId(0);
    const B: GpuId = GpuId(1);

    type Needs = (SessionId, ByGpu<Bytes>);

    fn needs(session: u64, needs: &[(GpuId, u64)]) -> Needs {
        let needs = needs.iter().map(|&(gpu, bytes)| (gpu, Bytes(bytes)));
        (SessionId(session), needs.collect())
    }

    fn cards(all: &[Needs]) -> impl Iterator<Item = (SessionId, GpuSet)> {
        all.iter().map(|(id, needs)| (*id, needs.keys().collect()))
    }

    fn need(all: &[Needs], session: SessionId, gpu: GpuId) -> Need {
        let (_, needs) = all.iter().find(|(id, _)| *id == session).unwrap();
        Need { bytes: needs[gpu], early: false }
    }

    fn admit(waiters: &[Needs], taken: &mut Occupancies) -> Admission {
        admit_before(waiters, Nanos::ZERO, taken)
    }

    /// Admits waiters if each turn takes 10 ns and those that do not fit can begin at the time `start`.
    fn admit_before(waiters: &[Needs], start: Nanos, taken: &mut Occupancies) -> Admission {
        let need = |id, gpu| need(waiters, id, gpu);
        super::admit(
            cards(waiters),
            need,
            |_, _| start,
            |_, limit| Nanos(10) <= limit,
            taken,
            &Cell::default(),
        )
    }

    /// Admits sessions 1 and 2 with these needs to card A, which no gang ties to others.
    fn admit_to_one(bytes: [u64; 2], mut occupancy: Occupancy) -> Admission {
        let needs = bytes.map(|bytes| Need { bytes: Bytes(bytes), early: false });
        super::admit_to_one(A, (1..).map(SessionId).zip(needs), &mut occupancy)
    }

    fn ids(admission: &Admission) -> Vec<SessionId> {
        admission.admitted.iter().map(|&(id, _)| id).collect()
    }

    /// Cards of 10 bytes where `held` bytes are taken by one holder each.
    fn taken(held: &[(GpuId, u64)]) -> Occupancies {
        let empty = |gpu| (gpu, Occupancy::empty(usize::MAX, Bytes(10)));
        let mut taken: Occupancies = [A, B].into_iter().map(empty).collect();
        for (gpu, bytes) in held {
            taken.get_mut(*gpu).unwrap().enter(Bytes(*bytes));
        }
        taken
    }

    #[test]
    fn the_head_is_admitted_beside_the_holders_if_it_fits() {
        let admission = admit(&[needs(1, &[(A, 4)]), needs(2, &[(A, 4)])], &mut taken(&[(A, 4)]));
        assert_eq!(ids(&admission), [SessionId(1)]);
        assert_eq!(admission.wanted, A.into());
    }

    #[test]
    fn nobody_passes_a_head_that_does_not_fit() {
        let admission = admit(&[needs(1, &[(A, 8)]), needs(2, &[(A, 1)])], &mut taken(&[(A, 4)]));
        assert_eq!(ids(&admission), []);
    }

    #[test]
    fn where_one_goes_at_a_time_nobody_enters_beside_another_however_small() {
        let admission = admit_to_one([1, 0], Occupancy::empty(1, Bytes(10)));
        assert_eq!(ids(&admission), [SessionId(1)]);
        assert_eq!(admission.wanted, A.into());
    }

    #[test]
    fn a_turn_begins_beside_one_drain_that_is_about_to_end_and_an_early_one_beside_any_two() {
        let begins = |holders, dropping, leaving, early| {
            let occupancy = Occupancy::empty(1, Bytes(10));
            let occupancy = occupancy.taken(holders, Drains { dropping, leaving }, Bytes(1));
            occupancy.fits(Need { bytes: Bytes(1), early })
        };
        let both =
            |holders, dropping, leaving| [false, true].map(|early| begins(holders, dropping, leaving, early));
        assert_eq!(both(0, 0, 1), [true, true]);
        assert_eq!(both(0, 0, 2), [false, true]);
        assert_eq!(both(0, 1, 0), [false, true]);
        assert_eq!(both(0, 1, 1), [false, true]);
        assert_eq!(both(0, 1, 2), [false, false]);
        assert_eq!(both(1, 0, 1), [false, false], "a session holds the card");
    }

    #[test]
    fn a_session_larger_than_the_card_is_admitted_alone() {
        let waiters = [needs(1, &[(A, 20)]), needs(2, &[(A, 0)])];
        let admission = admit(&waiters, &mut taken(&[]));
        assert_eq!(ids(&admission), [SessionId(1)]);
    }

    #[test]
    fn a_gang_reserves_all_its_cards_and_hurries_only_those_where_it_does_not_fit() {
        let waiters = [needs(1, &[(A, 8), (B, 2)]), needs(2, &[(B, 2)])];
        let admission = admit(&waiters, &mut taken(&[(A, 4), (B, 4)]));
        assert_eq!(ids(&admission), []);
        assert_eq!(admission.wanted, A.into());
    }

    #[test]
    fn who_waits_behind_a_reserved_card_reserves_its_others_too() {
        let waiters = [needs(1, &[(A, 8)]), needs(2, &[(A, 1), (B, 8)]), needs(3, &[(B, 1)])];
        let admission = admit(&waiters, &mut taken(&[(A, 4)]));
        assert_eq!(ids(&admission), [], "session 3 would keep card B from session 2 for ever");
        assert_eq!(admission.wanted, A.into(), "session 2 hurries nobody before it is its turn");
    }

    #[test]
    fn a_turn_that_ends_before_a_gang_can_begin_is_backfilled() {
        let waiters = [needs(1, &[(A, 4), (B, 8)]), needs(2, &[(A, 8)])];
        for (start, admitted) in [(9, None), (10, Some((SessionId(2), Some(Nanos(10)))))] {
            let admission = admit_before(&waiters, Nanos(start), &mut taken(&[(B, 4)]));
            assert_eq!(admission.admitted.first().copied(), admitted);
            assert_eq!(admission.wanted, B.into());
        }
    }

    #[test]
    fn where_one_goes_beside_another_that_does_not_let_go_a_second_one_does_not() {
        let absent = Absent { holders: 1, held: Bytes(4), bytes: Bytes(4) };
        let admission = admit_to_one([4, 1], Occupancy::empty(1, Bytes(10)).beside(absent));
        assert_eq!(ids(&admission), [SessionId(1)]);
        assert_eq!(admission.wanted, A.into());
    }

    #[test]
    fn who_came_first_stays_and_who_fits_beside_stays_too() {
        let holders = [needs(1, &[(A, 6)]), needs(2, &[(A, 5)]), needs(3, &[(A, 4)])];
        let surplus = surplus(cards(&holders), |id, gpu| need(&holders, id, gpu), &mut taken(&[]));
        assert_eq!(surplus, [SessionId(2)]);
    }
}
