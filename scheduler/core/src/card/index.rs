//! Index of a card's sessions: counts, sums and ordered sets that a change of a session updates, so that a
//! decision looks at few sessions.
//!
//! ```text
//!   a book changes ─▶ sums
//!   book or lock changes ─▶ OnCard::listed, as it was ─▶ CardIndex::list takes that out and the new one in
//! ```

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use gpushare_proto::{Bytes, SessionId};

use crate::memory::sums::{Sums, Total};
use crate::session::lock::Turn;
use crate::session::on_card::{Listing, Presence};
use crate::session::share::{Share, Virtual};

/// Counts, sums and ordered sets over the sessions on one card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CardIndex {
    /// Sums over the memory books of all sessions on the card.
    pub(crate) sums: Sums,
    /// Sessions with a process that uses the card.
    pub(crate) members: BTreeSet<SessionId>,
    /// Sessions that hold the lock, including those that were asked to give it back.
    pub(crate) holders: BTreeSet<SessionId>,
    /// Sessions that pay for the card's time, ordered by share and charge clock. Equal ones are ordered by
    /// charged time minus the clock's reading at its start.
    payers: BTreeSet<(Share, bool, i128, SessionId)>,
    /// Waiting sessions that may be granted a turn on the card, in the order of their turns.
    pub(crate) queue: BTreeSet<(Turn, SessionId)>,
    /// Gangs (sessions that use several cards) in the card's queue.
    pub(crate) gangs: BTreeSet<SessionId>,
    /// Number of gangs (sessions that use several cards) that hold this card or wait for it.
    in_gangs: u32,
    /// Number of sessions with a live CUDA context on the card.
    users: u32,
    /// Shares of the time of sessions with a live CUDA context.
    live: Shares,
    /// Shares of the time of those among them that want to run.
    wanting: Shares,
    /// Sum of the compute limits of sessions that want to run, in hundredths of a percent.
    limits: u64,
    /// Number of sessions that hold the lock and were not asked to give it back.
    holding: u32,
    /// Number of sessions that hold the lock and have a compute limit.
    limited: u32,
    limited_holding: u32,
    /// Number of stuck sessions: they were asked for the lock and did not give it back in time.
    stuck: u32,
    /// Sum of the working sets (movable bytes) of all sessions that hold the lock.
    held: Total,
    kept: Total,
    /// Sum of the working sets (movable bytes) of stuck sessions.
    stuck_bytes: Total,
    /// Counter that grows whenever the card's lock holders or its queue change.
    line: u64,
}

impl CardIndex {
    /// Replaces a session's entry `old` by `new` in all counts, sums and sets.
    pub(crate) fn list(&mut self, id: SessionId, old: &Listing, new: &Listing) {
        change(&mut self.members, id, old.member, new.member);
        change(&mut self.holders, id, old.holds(), new.holds());
        count(&mut self.users, old.live, new.live);
        self.live.replace(old.share_if(old.live), new.share_if(new.live));
        self.wanting.replace(old.share_if(old.wants), new.share_if(new.wants));
        self.limits -= old.wanted_limit();
        self.limits += new.wanted_limit();
        count(&mut self.holding, old.keeps(), new.keeps());
        let limited = |listing: &Listing| listing.limit.is_some();
        count(&mut self.limited, old.holds() && limited(old), new.holds() && limited(new));
        let holding = &mut self.limited_holding;
        count(holding, old.keeps() && limited(old), new.keeps() && limited(new));
        count(&mut self.stuck, old.is_stuck(), new.is_stuck());
        if (old.presence, old.movable) != (new.presence, new.movable) {
            self.move_parts(old, new);
        }
        change(&mut self.gangs, id, old.waits_in_gang(), new.waits_in_gang());
        let in_gang = |listing: &Listing| listing.gang && listing.shares();
        count(&mut self.in_gangs, in_gang(old), in_gang(new));
        let payer = |listing: &Listing| Some((listing.share, listing.moves, listing.pays?, id));
        if payer(old) != payer(new) {
            payer(old).map(|payer| self.payers.remove(&payer));
            self.payers.extend(payer(new));
        }
        if old.queued != new.queued {
            old.queued.map(|turn| self.queue.remove(&(turn, id)));
            self.queue.extend(new.queued.map(|turn| (turn, id)));
        }
        self.line += u64::from((old.presence, old.queued) != (new.presence, new.queued));
    }

    /// Whether a session other than the asking one has a live context. `live` says whether the asking one
    /// has.
    pub(crate) fn has_other_users(&self, live: bool) -> bool {
        self.users > u32::from(live)
    }

    fn move_parts(&mut self, old: &Listing, new: &Listing) {
        self.held -= old.part(old.holds());
        self.held += new.part(new.holds());
        self.kept -= old.part(old.keeps());
        self.kept += new.part(new.keeps());
        self.stuck_bytes -= old.part(old.is_stuck());
        self.stuck_bytes += new.part(new.is_stuck());
    }

    /// Reason why sessions must take turns although their working sets fit the card together. Idle sessions
    /// are no reason.
    pub(crate) fn contention(&self) -> Option<&'static str> {
        if self.wanting.are_unequal() {
            return Some("sessions of unequal weight or priority want the card");
        }
        (self.limits >= 10_000).then_some("the compute limits add up to the whole card")
    }

    /// Whether sessions of unequal shares may contend for the card as soon as they have work.
    pub(crate) fn may_contend(&self) -> bool {
        self.live.are_unequal()
    }

    /// Number of sessions with the lock that exclude each other where memory does not move: `all`, or only
    /// those with a compute limit.
    pub(crate) fn seated(&self, all: bool) -> usize {
        match all {
            true => self.holders.len(),
            false => self.limited as usize,
        }
    }

    /// Number of [`Self::seated`] sessions that were not asked to give the lock back.
    pub(crate) fn seated_holding(&self, all: bool) -> u32 {
        match all {
            true => self.holding,
            false => self.limited_holding,
        }
    }

    pub(crate) fn least_waiting(&self) -> Option<Virtual> {
        // The urgent ones are few, since the switch budget paid for each.
        let urgent = self.queue.iter().take_while(|(turn, _)| !turn.regular);
        let regular = self.queue.iter().find(|(turn, _)| turn.regular);
        urgent.chain(regular).map(|(turn, _)| turn.had).min()
    }

    /// Whether a session with several cards holds this one or waits for it.
    pub(crate) fn has_gangs(&self) -> bool {
        self.in_gangs > 0
    }

    pub(crate) fn payers(&self) -> impl Iterator<Item = SessionId> {
        self.payers.iter().map(|&(.., id)| id)
    }

    /// Returns, for each share and clock, the paying session with the least virtual time.
    pub(crate) fn first_payers(&self) -> impl Iterator<Item = SessionId> {
        let after = |&(share, moves, ..): &(Share, bool, i128, SessionId)| {
            let last = (share, moves, i128::MAX, SessionId(u64::MAX));
            self.payers.range((Bound::Excluded(last), Bound::Unbounded)).next()
        };
        let payers = std::iter::successors(self.payers.first(), move |payer| after(payer));
        payers.map(|&(.., id)| id)
    }

    /// Returns the queued sessions that come before a session in the order of turns.
    pub(crate) fn ahead_of(&self, id: SessionId) -> impl Iterator<Item = SessionId> {
        let queue = self.queue.iter().map(|&(_, waits)| waits);
        queue.take_while(move |waits| *waits != id)
    }

    /// Number of sessions with a live context, counted up to 2.
    pub(crate) fn users(&self) -> u32 {
        self.users.min(2)
    }

    pub(crate) fn held(&self) -> Bytes {
        self.held.get()
    }

    /// Whether the working sets of holders that are not being dropped fit `capacity`, or there is at most one
    /// such holder.
    pub(crate) fn holders_fit(&self, capacity: Bytes) -> bool {
        self.holding <= 1 || self.kept.get() <= capacity
    }

    pub(crate) fn stuck(&self) -> usize {
        self.stuck as usize
    }

    pub(crate) fn stuck_bytes(&self) -> Bytes {
        self.stuck_bytes.get()
    }

    /// Whether two indexes are equal apart from their change counters.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let line = self.line;
        let other = Self { line, ..other.clone() };
        *self == other
    }

    pub(crate) fn line(&self) -> u64 {
        self.line
    }
}

/// Number of sessions with each share of the time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Shares(BTreeMap<Share, u32>);

impl Shares {
    fn replace(&mut self, old: Option<Share>, new: Option<Share>) {
        if old == new {
            return;
        }
        if let Some(share) = old
            && let Entry::Occupied(mut number) = self.0.entry(share)
        {
            *number.get_mut() -= 1;
            if *number.get() == 0 {
                number.remove();
            }
        }
        if let Some(share) = new {
            *self.0.entry(share).or_default() += 1;
        }
    }

    fn are_unequal(&self) -> bool {
        self.0.len() > 1
    }
}

impl Listing {
    fn share_if(&self, counts: bool) -> Option<Share> {
        counts.then_some(self.share)
    }

    fn wanted_limit(&self) -> u64 {
        self.limit.filter(|_| self.wants).map_or(0, |limit| u64::from(limit.0))
    }

    fn holds(&self) -> bool {
        self.presence != Presence::None
    }

    fn waits_in_gang(&self) -> bool {
        self.gang && self.queued.is_some()
    }

    fn keeps(&self) -> bool {
        self.presence == Presence::Holding
    }

    fn is_stuck(&self) -> bool {
        self.presence == Presence::Stuck
    }

    fn part(&self, counts: bool) -> Total {
        match counts {
            true => self.movable,
            false => Total::default(),
        }
    }
}

fn change(set: &mut BTreeSet<SessionId>, id: SessionId, was: bool, is: bool) {
    match (was, is) {
        (false, true) => {
            set.insert(id);
        }
        (true, false) => {
            set.remove(&id);
        }
        _ => {}
    }
}

fn count(number: &mut u32, was: bool, is: bool) {
    match (was, is) {
        (false, true) => *number += 1,
        (true, false) => *number -= 1,
        _ => {}
    }
}
