//! Index of a card's sessions: counts, sums and ordered sets that a change of a session updates, so that a
//! decision looks at few sessions.
//!
//! ```text
//!   a book changes ─▶ sums
//!   book or lock changes ─▶ OnCard::listed, as it was ─▶ CardIndex::list takes that out and the new one in
//! ```

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::{Bytes, ClientId, GpuId, SessionId};

use crate::memory::sums::{Sums, Total};
use crate::session::on_card::{Listing, Presence};
use crate::session::share::{Branch, Class, Share};
use crate::values::gpu_set::GpuSet;
use crate::values::small_map::ByGpu;

/// Counts, sums and ordered sets over the sessions on one card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CardIndex {
    /// Sums over the memory books of all sessions on the card.
    pub(crate) sums: Sums,
    /// Processes with free lease on the card as last seen, by the number of bytes.
    pub(crate) lenders: BTreeSet<(Bytes, Reverse<ClientId>)>,
    /// Sessions with a process that uses the card.
    pub(crate) members: BTreeSet<SessionId>,
    /// Sessions that hold the lock, including those that were asked to give it back.
    pub(crate) holders: BTreeSet<SessionId>,
    /// Number of waiting sessions that may be granted a turn on the card.
    waiting: u32,
    /// Number of gangs (sessions that use several cards) in the card's queue, by each of their cards.
    ties: ByGpu<u32>,
    /// Number of gangs (sessions that use several cards) that hold this card or wait for it.
    in_gangs: u32,
    /// Number of sessions with a live CUDA context on the card.
    users: u32,
    /// Number of sessions with a live CUDA context, by class.
    live_in: [u32; 3],
    /// Parts of the time of sessions with a live CUDA context.
    live: Parts,
    /// Parts of the time of those among them that want to run.
    wanting: Parts,
    /// Sum of the compute limits of sessions that want to run, in hundredths of a percent.
    limits: u64,
    /// Numbers of all sessions that hold the lock, and of those with a compute limit.
    in_turn: [Turns; 2],
    /// Sum of the working sets (movable bytes) of all sessions that hold the lock.
    held: Total,
    kept: Total,
    /// Remapped part of `held`.
    held_remapped: Total,
    /// Sum of the remapped working sets of sessions that do not want to run.
    cold: Total,
    /// Sum of the bytes that unmeasured contexts are assumed to take.
    claimed: Total,
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
        for (listing, joins) in [(old, false), (new, true)] {
            count(
                &mut self.live_in[listing.branch.class as usize],
                listing.live && !joins,
                listing.live && joins,
            );
        }
        self.live.replace(old.live.then_some(old), new.live.then_some(new));
        self.wanting.replace(old.wants.then_some(old), new.wants.then_some(new));
        self.limits -= old.wanted_limit();
        self.limits += new.wanted_limit();
        let limited = |listing: &Listing| match listing.limit {
            Some(_) => listing.presence,
            None => Presence::None,
        };
        self.in_turn[ALL].replace(old.presence, new.presence);
        self.in_turn[LIMITED].replace(limited(old), limited(new));
        self.claimed -= old.claimed.into();
        self.claimed += new.claimed.into();
        if (old.presence, old.movable) != (new.presence, new.movable) {
            self.move_parts(old, new);
        }
        let none = Total::default();
        if (old.swappable, new.swappable) != (none, none) {
            self.move_remapped(old, new);
        }
        if old.tied() != new.tied() {
            old.tied().into_iter().for_each(|gpu| self.tie(gpu, false));
            new.tied().into_iter().for_each(|gpu| self.tie(gpu, true));
        }
        let in_gang = |listing: &Listing| listing.is_gang() && listing.shares();
        count(&mut self.in_gangs, in_gang(old), in_gang(new));
        count(&mut self.waiting, old.queued.is_some(), new.queued.is_some());
        self.line += u64::from((old.presence, old.queued) != (new.presence, new.queued));
    }

    /// Updates the free lease of a process.
    pub(crate) fn lend(&mut self, client: ClientId, before: Bytes, after: Bytes) {
        if before == after {
            return;
        }
        self.lenders.remove(&(before, Reverse(client)));
        if !after.is_zero() {
            self.lenders.insert((after, Reverse(client)));
        }
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

    fn move_remapped(&mut self, old: &Listing, new: &Listing) {
        let part =
            |listing: &Listing, counts: bool| if counts { listing.swappable } else { Total::default() };
        self.held_remapped -= part(old, old.holds());
        self.held_remapped += part(new, new.holds());
        self.cold -= part(old, !old.is_hot);
        self.cold += part(new, !new.is_hot);
    }

    /// Reason why sessions must take turns although their working sets fit the card together. Idle sessions
    /// are no reason.
    pub(crate) fn contention(&self) -> Option<&'static str> {
        if self.wanting.are_unequal() {
            return Some("sessions with unequal shares of the time want the card");
        }
        (self.limits >= 10_000).then_some("the compute limits add up to the whole card")
    }

    /// Whether sessions of unequal shares may contend for the card as soon as they have work.
    pub(crate) fn may_contend(&self) -> bool {
        self.live.are_unequal()
    }

    /// Numbers of the sessions with the lock that exclude each other where memory does not move: `all`, or
    /// only those with a compute limit.
    pub(crate) fn in_turn(&self, all: bool) -> Turns {
        self.in_turn[if all { ALL } else { LIMITED }]
    }

    /// Number of waiting sessions that may be granted a turn on the card.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting as usize
    }

    /// Counts a waiting gang that uses another card or this one.
    fn tie(&mut self, gpu: GpuId, joins: bool) {
        let number = self.ties.get_or_insert_with(gpu, || 0);
        count(number, !joins, joins);
        if *number == 0 {
            self.ties.remove(gpu);
        }
    }

    /// Cards of the gangs in the card's queue.
    pub(crate) fn tied(&self) -> GpuSet {
        self.ties.keys().collect()
    }

    /// Whether a gang is in the card's queue.
    pub(crate) fn has_waiting_gangs(&self) -> bool {
        !self.ties.is_empty()
    }

    /// Whether a session with several cards holds this one or waits for it.
    pub(crate) fn has_gangs(&self) -> bool {
        self.in_gangs > 0
    }

    /// Whether a session of a class has a live context.
    pub(crate) fn has_live(&self, class: Class) -> bool {
        self.live_in[class as usize] > 0
    }

    /// Number of sessions with a live context, counted up to 2.
    pub(crate) fn users(&self) -> u32 {
        self.users.min(2)
    }

    /// Number of bytes that unmeasured contexts are assumed to take.
    pub(crate) fn claimed(&self) -> Bytes {
        self.claimed.get()
    }

    /// Remapped bytes of sessions that do not want to run.
    pub(crate) fn cold(&self) -> Bytes {
        self.cold.get()
    }

    pub(crate) fn held(&self) -> Bytes {
        self.held.get()
    }

    /// Sum of the managed working sets of all sessions that hold the lock.
    pub(crate) fn held_managed(&self) -> Bytes {
        let mut managed = self.held;
        managed -= self.held_remapped;
        managed.get()
    }

    /// Whether the working sets of holders that are not being dropped fit `capacity`, or there is at most one
    /// such holder.
    pub(crate) fn holders_fit(&self, capacity: Bytes) -> bool {
        self.in_turn[ALL].holding <= 1 || self.kept.get() <= capacity
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

    /// Notes that the order of users or classes in the queue changed.
    pub(crate) fn order_changed(&mut self) {
        self.line += 1;
    }

    pub(crate) fn line(&self) -> u64 {
        self.line
    }
}

const ALL: usize = 0;
const LIMITED: usize = 1;

/// Numbers of sessions that hold the lock, by [`Presence`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turns {
    pub(crate) holding: u32,
    pub(crate) dropping: u32,
    pub(crate) leaving: u32,
    pub(crate) stuck: u32,
}

impl Turns {
    /// Number of the sessions, whatever they were asked.
    pub(crate) fn all(self) -> u32 {
        self.holding + self.dropping + self.leaving + self.stuck
    }

    fn replace(&mut self, old: Presence, new: Presence) {
        if old != new {
            self.of(old).into_iter().for_each(|number| *number -= 1);
            self.of(new).into_iter().for_each(|number| *number += 1);
        }
    }

    fn of(&mut self, presence: Presence) -> Option<&mut u32> {
        match presence {
            Presence::None => None,
            Presence::Holding => Some(&mut self.holding),
            Presence::Dropping => Some(&mut self.dropping),
            Presence::Leaving => Some(&mut self.leaving),
            Presence::Stuck => Some(&mut self.stuck),
        }
    }
}

/// Parts of a class's time that sessions are entitled to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Parts {
    /// Sessions of each user and class.
    users: BTreeMap<Branch, Siblings>,
    /// Number of users' groups, and of sessions without user, by the part of each of their sessions. `None`
    /// stands for groups in which the parts differ.
    parts: BTreeMap<Option<Fraction>, u32>,
}

/// Number of a user's sessions of each share, and the part of each of them as it is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Siblings {
    shares: BTreeMap<Share, u32>,
    counted: Option<Option<Fraction>>,
}

/// Part of a class's time: the class, a weight, and the number of sessions that divide it.
type Fraction = (Class, u32, u32);

impl Parts {
    fn replace(&mut self, old: Option<&Listing>, new: Option<&Listing>) {
        let part = |listing: &Listing| (listing.branch, listing.share, listing.user_share);
        if old.map(part) == new.map(part) {
            return;
        }
        old.into_iter().for_each(|listing| self.change(listing, false));
        new.into_iter().for_each(|listing| self.change(listing, true));
    }

    fn change(&mut self, listing: &Listing, joins: bool) {
        let Some(user) = listing.user_share else {
            return add(&mut self.parts, Some(fraction(listing.share, 1)), joins);
        };
        let siblings = self.users.entry(listing.branch).or_default();
        add(&mut siblings.shares, listing.share, joins);
        let number = siblings.shares.values().next().copied();
        let part = number.map(|number| (siblings.shares.len() == 1).then(|| fraction(user, number)));
        let counted = std::mem::replace(&mut siblings.counted, part);
        if part.is_none() {
            self.users.remove(&listing.branch);
        }
        counted.into_iter().for_each(|part| add(&mut self.parts, part, false));
        part.into_iter().for_each(|part| add(&mut self.parts, part, true));
    }

    fn are_unequal(&self) -> bool {
        self.parts.len() > 1 || self.parts.contains_key(&None)
    }
}

/// Returns the part of each of `number` equal sessions that divide a share, as a reduced fraction.
fn fraction(share: Share, number: u32) -> Fraction {
    let (mut divisor, mut rest) = (share.weight(), number);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (share.class, share.weight() / divisor, number / divisor)
}

/// Counts one more or one less of `key`.
fn add<K: Ord>(numbers: &mut BTreeMap<K, u32>, key: K, joins: bool) {
    match numbers.entry(key) {
        Entry::Vacant(number) if joins => _ = number.insert(1),
        Entry::Vacant(_) => {}
        Entry::Occupied(mut number) if joins => *number.get_mut() += 1,
        Entry::Occupied(number) if *number.get() == 1 => _ = number.remove(),
        Entry::Occupied(mut number) => *number.get_mut() -= 1,
    }
}

impl Listing {
    fn wanted_limit(&self) -> u64 {
        self.limit.filter(|_| self.wants).map_or(0, |limit| u64::from(limit.0))
    }

    pub(crate) fn holds(&self) -> bool {
        self.presence != Presence::None
    }

    fn is_gang(&self) -> bool {
        self.cards.len() > 1
    }

    /// Cards that the session ties together as a gang in the queue.
    fn tied(&self) -> GpuSet {
        match self.is_gang() && self.queued.is_some() {
            true => self.cards,
            false => GpuSet::default(),
        }
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
