//! Who is on a card: counted as sessions change, so that no decision has to look at everybody.
//!
//! ```text
//!   a book changes ─▶ sums
//!   book or lock changes ─▶ OnCard::listed, as it was ─▶ Census::list takes that out and the new one in
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use gpushare_proto::{Bytes, SessionId};

use crate::session::lock::Turn;
use crate::session::on_card::{Listing, Presence};
use crate::session::share::{Class, Share};
use crate::sums::{Sums, Total};

/// The sessions on one card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    /// Of all of them.
    pub(crate) sums: Sums,
    /// Those with a process that uses the card.
    pub(crate) members: BTreeSet<SessionId>,
    /// Those with the lock, dropped or not.
    pub(crate) holders: BTreeSet<SessionId>,
    /// Those that pay for the time, and where each began to, by share.
    payers: BTreeSet<(Share, i128, SessionId)>,
    /// Those that wait and may be granted something, in order.
    pub(crate) queue: BTreeSet<(Turn, SessionId)>,
    /// Those of them that use other cards too.
    pub(crate) gangs: BTreeSet<SessionId>,
    /// How many who use other cards too share the time.
    in_gangs: u32,
    /// How many have a live context.
    users: u32,
    /// The shares of those, and how many have each.
    shares: BTreeMap<Share, u32>,
    /// The compute limits of those, in hundredths of a percent.
    limits: u64,
    /// How many hold the lock, by class.
    classes: [u32; 3],
    /// How many wait for it, by class.
    waiting: [u32; 3],
    /// How many keep the lock.
    holding: u32,
    /// How many hold the lock under a compute limit, and how many of them keep it.
    limited: u32,
    limited_holding: u32,
    /// How many do not let go.
    stuck: u32,
    /// The working sets of those with the lock, and of those of them that keep it.
    held: Total,
    kept: Total,
    /// The working sets of those that do not let go.
    lost: Total,
    /// Changes with the holders and the queue.
    line: u64,
}

impl Census {
    /// A session that was listed as `old` is `new`.
    pub(crate) fn list(&mut self, id: SessionId, old: &Listing, new: &Listing) {
        change(&mut self.members, id, old.member, new.member);
        change(&mut self.holders, id, old.holds(), new.holds());
        count(&mut self.users, old.live, new.live);
        self.list_share(old, new);
        count(&mut self.holding, old.keeps(), new.keeps());
        let limited = |listing: &Listing| listing.limit.is_some();
        count(&mut self.limited, old.holds() && limited(old), new.holds() && limited(new));
        let holding = &mut self.limited_holding;
        count(holding, old.keeps() && limited(old), new.keeps() && limited(new));
        move_one(&mut self.classes, old.runs_in(), new.runs_in());
        move_one(&mut self.waiting, old.waits_in(), new.waits_in());
        count(&mut self.stuck, old.is_stuck(), new.is_stuck());
        if (old.presence, old.movable) != (new.presence, new.movable) {
            self.move_parts(old, new);
        }
        change(&mut self.gangs, id, old.waits_in_gang(), new.waits_in_gang());
        let in_gang = |listing: &Listing| listing.gang && listing.shares();
        count(&mut self.in_gangs, in_gang(old), in_gang(new));
        let payer = |listing: &Listing| Some((listing.share, listing.pays?, id));
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

    /// Whether a session other than one that is itself counted if `live` has a live context.
    pub(crate) fn has_other_users(&self, live: bool) -> bool {
        self.users > u32::from(live)
    }

    fn move_parts(&mut self, old: &Listing, new: &Listing) {
        self.held -= old.part(old.holds());
        self.held += new.part(new.holds());
        self.kept -= old.part(old.keeps());
        self.kept += new.part(new.keeps());
        self.lost -= old.part(old.is_stuck());
        self.lost += new.part(new.is_stuck());
    }

    fn list_share(&mut self, old: &Listing, new: &Listing) {
        let live = |listing: &Listing| listing.live.then_some((listing.share, listing.limit));
        if live(old) == live(new) {
            return;
        }
        if let Some((share, limit)) = live(old) {
            if let Some(number) = self.shares.get_mut(&share) {
                *number -= 1;
            }
            self.shares.retain(|_, number| *number > 0);
            self.limits -= limit.map_or(0, |limit| u64::from(limit.0));
        }
        if let Some((share, limit)) = live(new) {
            *self.shares.entry(share).or_default() += 1;
            self.limits += limit.map_or(0, |limit| u64::from(limit.0));
        }
    }

    /// Why sessions that fit the card must take turns all the same, if they must.
    pub(crate) fn contention(&self) -> Option<&'static str> {
        if self.shares.len() > 1 {
            return Some("sessions of unequal weight or priority share the card");
        }
        (self.limits >= 10_000).then_some("the compute limits add up to the whole card")
    }

    /// How many sessions with the lock stand in each other's way where memory does not: those with a compute
    /// limit, or `all`.
    pub(crate) fn seated(&self, all: bool) -> usize {
        match all {
            true => self.holders.len(),
            false => self.limited as usize,
        }
    }

    /// As [`Self::seated`], of those that keep the lock.
    pub(crate) fn seated_holding(&self, all: bool) -> u32 {
        match all {
            true => self.holding,
            false => self.limited_holding,
        }
    }

    /// The first in line of a class.
    pub(crate) fn first_of(&self, class: Class) -> Option<(Turn, SessionId)> {
        let first = self.queue.first()?;
        let first = match first.0.class < class {
            true => self.queue.range((Turn::first_of(class), SessionId(0))..).next()?,
            false => first,
        };
        Some(*first).filter(|(turn, _)| turn.class == class)
    }

    /// Those in line of a class, in order.
    pub(crate) fn in_line_of(&self, class: Class) -> impl Iterator<Item = (Turn, SessionId)> {
        let line = self.queue.range((Turn::first_of(class), SessionId(0))..);
        line.copied().take_while(move |(turn, _)| turn.class == class)
    }

    /// Whether anybody who uses other cards too shares the time.
    pub(crate) fn has_gangs(&self) -> bool {
        self.in_gangs > 0
    }

    /// Those of a class that pay.
    pub(crate) fn payers(&self, class: Class) -> impl Iterator<Item = SessionId> {
        let payers = self.payers.iter().filter(move |(share, ..)| share.class == class);
        payers.map(|&(.., id)| id)
    }

    /// Of each weight in a class the one that pays and has had least.
    pub(crate) fn first_payers(&self, class: Class) -> impl Iterator<Item = SessionId> {
        let after = |&(share, ..): &(Share, i128, SessionId)| {
            let last = (share, i128::MAX, SessionId(u64::MAX));
            self.payers.range((Bound::Excluded(last), Bound::Unbounded)).next()
        };
        let payers = std::iter::successors(self.payers.first(), move |payer| after(payer));
        let payers = payers.skip_while(move |(share, ..)| share.class < class);
        payers.take_while(move |(share, ..)| share.class == class).map(|&(.., id)| id)
    }

    /// Whether one of a class waits while none of it holds the lock, because one of a higher class holds it
    /// or waits too.
    pub(crate) fn is_passed_over(&self, class: Class) -> bool {
        let higher = || Class::ALL.into_iter().take_while(move |higher| *higher < class);
        let goes_first = |higher: Class| self.classes[higher as usize] + self.waiting[higher as usize] > 0;
        self.classes[class as usize] == 0 && self.waiting[class as usize] > 0 && higher().any(goes_first)
    }

    /// Who waits before a session.
    pub(crate) fn ahead_of(&self, id: SessionId) -> impl Iterator<Item = SessionId> {
        let queue = self.queue.iter().map(|&(_, waits)| waits);
        queue.take_while(move |waits| *waits != id)
    }

    /// Nobody, one, or more than one session with a live context.
    pub(crate) fn users(&self) -> u32 {
        self.users.min(2)
    }

    /// The working sets of those with the lock.
    pub(crate) fn held(&self) -> Bytes {
        self.held.get()
    }

    /// Whether those that keep the lock fit a card of `capacity` together, or there is at most one.
    pub(crate) fn holders_fit(&self, capacity: Bytes) -> bool {
        self.holding <= 1 || self.kept.get() <= capacity
    }

    /// How many do not let go.
    pub(crate) fn stuck(&self) -> usize {
        self.stuck as usize
    }

    /// What those have.
    pub(crate) fn lost(&self) -> Bytes {
        self.lost.get()
    }

    /// Whether it counts the same.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let line = self.line;
        let other = Self { line, ..other.clone() };
        *self == other
    }

    /// Another number for another line of waiters and holders.
    pub(crate) fn line(&self) -> u64 {
        self.line
    }
}

impl Listing {
    fn holds(&self) -> bool {
        self.presence != Presence::None
    }

    /// The class that has its turn with it: who does not let go is no proof of that.
    fn runs_in(&self) -> Option<Class> {
        let runs = self.holds() && !self.is_stuck();
        runs.then_some(self.share.class)
    }

    /// The class in which it waits.
    fn waits_in(&self) -> Option<Class> {
        self.queued.map(|turn| turn.class)
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

fn move_one(numbers: &mut [u32; 3], was: Option<Class>, is: Option<Class>) {
    if was != is {
        was.into_iter().for_each(|class| numbers[class as usize] -= 1);
        is.into_iter().for_each(|class| numbers[class as usize] += 1);
    }
}
