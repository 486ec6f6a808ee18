//! Order of turns by virtual time: charged time ÷ effective weight.
//!
//! Each class, user and session has a virtual time on each card (session/share.rs). The least of the classes
//! with a waiting session goes next, in it the least user, and of that user the least session. A session of
//! no user stands beside the users of its class.
//!
//! ```text
//!              floor: the least of those who wait or hold, for each group by itself
//!                │         ┌ waits: its time stands still
//!   ─────────────┼─────────●───────────────○────────────▶ virtual time
//!     ▲          │                         └ holds: its time grows with the card's clock ÷ holders ÷ weight
//!     └ slept: wakes half a quantum before the floor at best
//! ```
//!
//! Two sessions are compared where they part: by their classes, else by their users, else by themselves. At
//! the end of a quantum, a holder goes on only if the virtual time of the first waiter exceeds the holder's by
//! more than half a quantum.
//!
//! A session on several cards (a gang) is ordered by the greatest of its distances from the floors. So its
//! place is the same on each card. A distance is the sum over class, user and session: a gang that waits
//! passes the other sessions of its user and class at some time, since their own distances grow. Where the
//! first waiter is a gang that also waits for another card, others use the time until then
//! (turns/backfill.rs). A waiting gang keeps the floors of all its cards down, so that it becomes first at
//! some time. Before its turn it gives up the lead that waiting for another card gave it.
//!
//! A new session, user or class begins at the least virtual time of the others in its group. A user that comes
//! back with another session goes on where it was.
//!
//! After a restart, a session or user begins where it was: at the distance from the floor that the last daemon
//! recorded. Classes begin level. While processes of the last daemon are about to return to a card, its floors
//! stay, so that the distances do not depend on the order of their return.
//!
//! **Bound.** For a fixed set of sessions that always have work, session i waits at most Σ over j≠i of
//! [(pⱼ/pᵢ)(qᵢ+sᵢ) + (3/2)qⱼ + sⱼ], plus the switch budget. Here q is the quantum, s the duration of a switch
//! ([`Card::switch_time`]) and p the part of the time that a session is due: the product of its parts in class,
//! user and session. The three terms: j catches up with i, ends its present quantum, and may be renewed half a
//! quantum early. A gang also waits for the drain of backfilled turns. A session that waits for memory of stuck
//! or absent processes (turns/grants.rs) has no bound.

use gpushare_proto::{GpuId, Nanos, SessionId};

use crate::card::Card;
use crate::card::groups::Group;
use crate::machine::Core;
use crate::memory::absent::Absent;
use crate::session::Session;
use crate::session::lock::{Lock, Turn};
use crate::session::on_card::{OnCard, Presence};
use crate::session::share::{Account, Branch, Class, Member, Share, Virtual, part};
use crate::values::small_map::ByGpu;
use crate::view::View;

/// Level of the hierarchy at which two sessions are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// Their classes.
    Class,
    /// The users or sessions of one class.
    Member,
    /// The sessions of one user.
    Session,
}

impl Level {
    /// Group that stands for a session of `branch` at this level; `None` if the session stands for itself.
    fn group(self, branch: Branch) -> Option<Branch> {
        match self {
            Self::Class => Some(Branch::of_class(branch.class)),
            Self::Member => branch.user.map(|_| branch),
            Self::Session => None,
        }
    }
}

impl View {
    /// Virtual time of a session on a card, including the charge of its present turn.
    fn had(&self, now: Nanos, session: &Session, card: &Card, on: &OnCard) -> Virtual {
        let owed = on.entered.map_or(Nanos::ZERO, |entered| card.charge.owed(now, entered));
        on.account.standing().plus(session.share.virtual_time(owed))
    }

    /// Virtual time of a class or a user on a card, including the charges of its sessions' present turns.
    fn group_had(&self, now: Nanos, card: &Card, branch: Branch) -> Option<Virtual> {
        Some(card.groups.get(branch)?.had(card.charge.clocks(now)))
    }

    fn member_had(
        &self,
        now: Nanos,
        gpu: GpuId,
        card: &Card,
        class: Class,
        member: Member,
    ) -> Option<Virtual> {
        match member {
            Member::User(user) => self.group_had(now, card, Branch { class, user: Some(user) }),
            Member::Session(id) => {
                let session = self.sessions.get(id)?;
                Some(self.had(now, session, card, session.cards.get(gpu)?))
            }
        }
    }

    /// Least virtual time of the paying and waiting members of a group, at least the last such value.
    pub(super) fn floor(&self, now: Nanos, gpu: GpuId, branch: Branch) -> Option<Virtual> {
        let card = self.cards.get(gpu)?;
        let group = card.groups.get(branch)?;
        let pays = group.first_payers();
        let pays = pays.filter_map(|member| self.member_had(now, gpu, card, branch.class, member));
        let least = group.least_waiting().into_iter().chain(pays).min();
        Some(least.map_or(group.floor, |least| group.floor.max(least)))
    }

    /// Least virtual time of the classes with paying or waiting sessions, at least the last such value.
    fn class_floor(&self, now: Nanos, card: &Card) -> Virtual {
        self.least_class(now, card)
            .map_or(card.groups.floor, |least| card.groups.floor.max(least))
    }

    fn least_class(&self, now: Nanos, card: &Card) -> Option<Virtual> {
        let clocks = card.charge.clocks(now);
        card.groups.busy_classes().map(|class| class.had(clocks)).min()
    }

    /// Distance of a session's virtual time from the floor on one card, at one level; `None` if it has
    /// no such level.
    fn distance(&self, session: &Session, gpu: GpuId, level: Level) -> Option<i128> {
        let (card, branch) = (self.cards.get(gpu)?, session.branch());
        let had = match level.group(branch) {
            Some(branch) => self.group_had(self.now, card, branch)?,
            None => self.had(self.now, session, card, session.cards.get(gpu)?),
        };
        let floor = match (level, branch.user) {
            // Of the classes that are there now: one alone is ahead of nobody.
            (Level::Class, _) => self.least_class(self.now, card)?,
            (Level::Member, _) => card.groups.get(Branch::of_class(branch.class))?.floor,
            (Level::Session, Some(_)) => card.groups.get(branch)?.floor,
            (Level::Session, None) => return None,
        };
        Some(had.lag(floor))
    }

    /// Greatest distance of a session's virtual time from the floors of its cards with turns, at one level.
    fn lag(&self, id: SessionId, level: Level) -> i128 {
        let Some(session) = self.sessions.get(id) else {
            return 0;
        };
        let cards = session.turn_cards(self.in_turns).into_iter();
        cards
            .filter_map(|gpu| self.distance(session, gpu, level))
            .max()
            .unwrap_or_default()
    }

    /// Level at which two sessions are compared.
    fn parting(&self, one: &Session, other: &Session) -> Level {
        match (one.branch(), other.branch()) {
            (one, other) if one.class != other.class => Level::Class,
            (one, other) if one == other && one.user.is_some() => Level::Session,
            _ => Level::Member,
        }
    }

    /// Share of what stands for a session at a level.
    fn share_at(&self, session: &Session, level: Level) -> Share {
        match (level, session.user) {
            (Level::Class, _) => Share::of_class(session.share.class, self.config.trickle),
            (Level::Member, Some((_, share))) => share,
            _ => session.share,
        }
    }

    /// Least virtual time of the other members of a session's group on a card: of payers and of waiters for
    /// this card alone. If there are none, of waiting gangs.
    fn least_beside(&self, id: SessionId, gpu: GpuId, card: &Card) -> Option<Virtual> {
        let branch = self.sessions.get(id)?.branch();
        let group = card.groups.get(branch)?;
        let me = Member::Session(id);
        let line = || {
            let others = group.queue().filter(|&(_, other)| other != me);
            others.filter(|&(_, other)| match other {
                Member::Session(other) => self.is_admissible(other),
                Member::User(_) => true,
            })
        };
        let is_alone = |&(_, other): &(Turn, Member)| match other {
            Member::Session(other) => self.turn_cards(other).len() < 2,
            Member::User(_) => true,
        };
        let waits = line().find(is_alone).map(|(turn, _)| turn.had);
        let pays = group.payers().filter(|&other| other != me);
        let pays = pays.filter_map(|other| self.member_had(self.now, gpu, card, branch.class, other));
        let least = waits.into_iter().chain(pays).min();
        least.or_else(|| line().next().map(|(turn, _)| turn.had))
    }

    /// Largest virtual time by which a session, or its user or class, may be behind a floor.
    fn credit(&self, id: SessionId, share: Share) -> Virtual {
        let quantum = self.quantum(id, self.expected_move(id));
        share.virtual_time(part(quantum, self.config.credit))
    }

    /// Whether a holder whose quantum is over releases the lock for a waiter on a card.
    pub(crate) fn yields_to(&self, id: SessionId, first: SessionId, gpu: GpuId) -> bool {
        let Some(card) = self.cards.get(gpu) else {
            return true;
        };
        // Charge that the holder will have added by the end of its drain.
        let enough = self.drain_on(id, gpu, card) + Nanos(self.quantum(id, Nanos::ZERO).0 / 2);
        !self.is_behind(id, first, enough)
    }

    /// Whether a session goes before the first waiter, by their virtual times of now.
    pub(crate) fn goes_before(&self, id: SessionId, first: SessionId) -> bool {
        self.is_behind(id, first, Nanos::ZERO)
    }

    /// Whether a holder's virtual time would be at most that of a waiter without early turn, also after it was
    /// charged for `more` time.
    fn is_behind(&self, id: SessionId, waiter: SessionId, more: Nanos) -> bool {
        let (Some(holder), Some(waits)) = (self.sessions.get(id), self.sessions.get(waiter)) else {
            return false;
        };
        let level = self.parting(holder, waits);
        let ahead = self.lag(waiter, level) - self.lag(id, level);
        !waits.urgent && ahead >= distance(self.share_at(holder, level), more)
    }

    /// Returns the first session in the order of turns that waits for a turn on a card.
    pub(crate) fn first_on(&self, gpu: GpuId) -> Option<SessionId> {
        match self.tied(gpu.into()).len() {
            1 => self.cards.get(gpu)?.groups.first(|id| self.is_admissible(id)),
            _ => self.admissible(gpu.into()).next(),
        }
    }

    /// Class of a session and its distances from the floors in virtual time: the sort key of early switches.
    pub(crate) fn standing_in_line(&self, id: SessionId) -> (Option<Class>, i128, i128) {
        let session = self.sessions.get(id);
        // A session that counts by itself has no such distance.
        let of_user = session.is_some_and(|session| session.user.is_some());
        let among_users = if of_user { self.lag(id, Level::Session) } else { 0 };
        (session.map(|session| session.share.class), self.lag(id, Level::Member), among_users)
    }
}

impl Core {
    /// Raises the floors of a card: of its classes, and of the group `branch`. Returns whether any rose. The
    /// floors stay while processes of the last daemon are about to return.
    pub(crate) fn raise_floor(&mut self, gpu: GpuId, branch: Branch) -> bool {
        let Some(card) = self.view.cards.get(gpu).filter(|_| !self.returning.contains(gpu)) else {
            return false;
        };
        let level = self.view.class_floor(self.view.now, card);
        let mut rose = false;
        for class in Class::ALL {
            rose |= self.raise_group_floor(gpu, Branch::of_class(class));
        }
        if branch.user.is_some() {
            rose |= self.raise_group_floor(gpu, branch);
        }
        if let Some(card) = self.view.cards.get_mut(gpu) {
            rose |= std::mem::replace(&mut card.groups.floor, level) != level;
        }
        rose
    }

    /// Raises the floor of a group on a card, and returns whether it rose.
    fn raise_group_floor(&mut self, gpu: GpuId, branch: Branch) -> bool {
        let group = self.view.cards.get(gpu).and_then(|card| card.groups.get(branch));
        // Where nobody waits or pays, nobody raises the floor.
        if group.is_none_or(Group::is_idle) {
            return false;
        }
        let floor = self.view.floor(self.view.now, gpu, branch);
        let group = self.view.cards.get_mut(gpu).and_then(|card| card.groups.get_mut(branch));
        group
            .zip(floor)
            .is_some_and(|(group, floor)| std::mem::replace(&mut group.floor, floor) != floor)
    }

    /// Virtual time at which a session begins in its group on a card: the least of the others there. The
    /// floor would be too low where a gang, or a waiter for memory that does not come back, keeps it down.
    fn level(&self, id: SessionId, gpu: GpuId, branch: Branch) -> Virtual {
        let floor = match self.returning.contains(gpu) {
            true => self.view.floor(self.view.now, gpu, branch),
            // It was just raised.
            false => self.view.cards.get(gpu).and_then(|card| Some(card.groups.get(branch)?.floor)),
        };
        let floor = floor.unwrap_or_default();
        let held_down = |card: &&Card| card.index.has_gangs() || self.view.absent(gpu) != Absent::NONE;
        let card = self.view.cards.get(gpu).filter(held_down);
        let beside = card.and_then(|card| self.view.least_beside(id, gpu, card));
        beside.unwrap_or(floor).max(floor)
    }

    /// Raises a gang's virtual time before its turn, on cards where it could not run because another card
    /// held it up. Otherwise its lead there would keep other sessions off the card for as long.
    pub(crate) fn forgive(&mut self, id: SessionId) {
        let cards = self.view.turn_cards(id);
        if cards.len() < 2 {
            return;
        }
        let leads = self.view.cards.among(cards).filter_map(|(gpu, card)| {
            let session = self.view.sessions.get(id)?;
            let least = self.view.least_beside(id, gpu, card)?;
            Some((gpu, session.cards.get(gpu)?.account.standing().lag(least)))
        });
        let leads: ByGpu<i128> = leads.collect();
        let most = leads.values().copied().max();
        for (gpu, lead) in leads.iter() {
            if Some(*lead) < most {
                self.lift(id, gpu, false);
            }
        }
    }

    /// Raises the virtual times of a session that joins the waiters and holders of a card, and of its user and
    /// class if they were idle there. The lead over the others is at most a credit; a new one starts level. A
    /// session that was just asked for its lock did not sleep, and `keeps` its lead.
    pub(crate) fn lift(&mut self, id: SessionId, gpu: GpuId, keeps: bool) {
        let Some(session) = self.view.sessions.get(id) else {
            return;
        };
        let (branch, share, user) = (session.branch(), session.share, session.user);
        let had = session.cards.get(gpu).map(|on| on.account.had);
        // Sessions of one card are ordered by their virtual times alone.
        let is_gang = session.uses.len() > 1;
        let has_gangs = is_gang || self.view.cards.get(gpu).is_some_and(|card| card.index.has_gangs());
        if self.raise_floor(gpu, branch) && has_gangs {
            self.agenda.look_at(gpu);
            self.reordered = true;
        }
        let class = Share::of_class(branch.class, self.view.config.trickle);
        self.lift_group(id, gpu, (Branch::of_class(branch.class), class), keeps);
        if let Some((_, user)) = user {
            self.lift_group(id, gpu, (branch, user), keeps);
        }
        let level = match self.floor_to_return_to(gpu, branch).filter(|_| had != Some(None)) {
            Some(floor) => floor,
            None => self.level(id, gpu, branch),
        };
        // Only one that is behind needs its credit.
        let is_behind = had.flatten().is_some_and(|had| had < level);
        let credit = if keeps || !is_behind { Virtual::MAX } else { self.view.credit(id, share) };
        if let Some(on) = self.view.sessions.get_mut(id).and_then(|session| session.cards.get_mut(gpu)) {
            on.account.lift(level, credit);
        }
    }

    /// Raises the virtual time of a class or a user that was idle on a card, for a session that wakes there.
    fn lift_group(&mut self, id: SessionId, gpu: GpuId, (branch, share): (Branch, Share), keeps: bool) {
        let Some(card) = self.view.cards.get(gpu) else { return };
        let group = card.groups.get(branch);
        if group.is_some_and(|group| !group.is_idle()) {
            return;
        }
        let known = group.is_some_and(|group| group.account.had.is_some());
        let class = Branch::of_class(branch.class);
        let level = match branch.user {
            None => self.view.class_floor(self.view.now, card),
            Some(_) => match self.floor_to_return_to(gpu, class).filter(|_| known) {
                Some(floor) => floor,
                None => self.view.floor(self.view.now, gpu, class).unwrap_or_default(),
            },
        };
        let credit = if keeps { Virtual::MAX } else { self.view.credit(id, share) };
        if let Some(card) = self.view.cards.get_mut(gpu) {
            card.groups.get_or_insert(branch, share).account.lift(level, credit);
        }
    }

    /// Floor of a group while processes of the last daemon are about to return to a card.
    fn floor_to_return_to(&self, gpu: GpuId, branch: Branch) -> Option<Virtual> {
        let card = self.view.cards.get(gpu).filter(|_| self.returning.contains(gpu));
        card.and_then(|card| Some(card.groups.get(branch)?.floor))
    }

    /// Sets the virtual times of all classes, users and sessions on a card to their floors, when turns begin
    /// there. While processes of the last daemon are about to return, turns go on instead, and all keep their
    /// distances.
    pub(crate) fn start_level(&mut self, gpu: GpuId) {
        let Some(card) = self.view.cards.get(gpu) else { return };
        let members = card.index.members.clone();
        members.iter().for_each(|&id| self.charge_so_far(id));
        if !self.returning.contains(gpu)
            && let Some(card) = self.view.cards.get_mut(gpu)
        {
            card.groups.start_level();
            for &id in &members {
                let session = self.view.sessions.get_mut(id);
                let floor =
                    session.and_then(|session| Some((card.groups.get(session.branch())?.floor, session)));
                if let Some((floor, session)) = floor
                    && let Some(on) = session.cards.get_mut(gpu)
                {
                    on.account = Account { had: Some(floor), behind: None };
                }
            }
        }
        members.into_iter().for_each(|id| self.recount(id));
    }

    /// Charges a session, its user and its class for its present turns so far, at their present weights.
    pub(crate) fn charge_so_far(&mut self, id: SessionId) {
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        let (share, branch) = (session.share, session.branch());
        for (gpu, on) in session.cards.iter_mut() {
            if let (Some(before), Some(card)) = (on.entered, self.view.cards.get_mut(gpu)) {
                let (charged, entered) = card.charge.pay_so_far(self.view.now, before);
                on.pay(charged, share);
                on.entered = Some(entered);
                let stuck = on.listed.presence == Presence::Stuck;
                card.groups.pay(branch, stuck, charged);
                card.groups.read(branch, stuck, Some(before), false);
                card.groups.read(branch, stuck, Some(entered), true);
                card.groups.refresh(branch);
                if !charged.is_zero() && card.groups.are_several(branch) {
                    card.index.order_changed();
                    self.agenda.look_at(gpu);
                    self.reordered = true;
                }
            }
        }
    }

    /// Asks a holder for its lock on behalf of the first waiter on a card. Until its next turn the holder is
    /// queued behind that waiter, with all of its user or class if the waiter is of another one. An urgent waiter
    /// goes before all others in any case.
    pub(crate) fn make_way(&mut self, id: SessionId, gpu: GpuId) {
        let first = self.view.first_on(gpu);
        if let Some(first) = first {
            self.queue_behind(id, first, gpu);
        }
        let urgent = |first| self.view.sessions.get(first).is_some_and(|first| first.urgent);
        self.begin_drop(id, first.is_some_and(urgent));
    }

    fn queue_behind(&mut self, id: SessionId, first: SessionId, gpu: GpuId) -> Option<()> {
        let (holder, waiter) = (self.view.sessions.get(id)?, self.view.sessions.get(first)?);
        if waiter.urgent {
            return None;
        }
        let level = self.view.parting(holder, waiter);
        let (own, theirs) = (level.group(holder.branch()), level.group(waiter.branch()));
        // The others of the holder's user or class may no longer come first.
        self.reordered |= own.is_some();
        let card = self.view.cards.get_mut(gpu)?;
        let standing = match theirs {
            Some(branch) => card.groups.get(branch)?.account.standing(),
            None => waiter.cards.get(gpu)?.account.standing(),
        };
        match own {
            Some(branch) => {
                card.groups.get_mut(branch)?.account.behind = Some(standing);
                card.groups.refresh(branch);
                card.index.order_changed();
                self.agenda.look_at(gpu);
            }
            None => {
                let on = self.view.sessions.get_mut(id)?.cards.get_mut(gpu)?;
                on.account.behind = Some(standing);
            }
        }
        Some(())
    }

    /// Clears the queue positions behind other waiters that a session, its user and its class got when they
    /// last released the lock.
    pub(crate) fn stand_up(&mut self, id: SessionId) {
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        let branch = session.branch();
        for (gpu, on) in session.cards.iter_mut() {
            on.account.behind = None;
            if let Some(card) = self.view.cards.get_mut(gpu)
                && card.groups.stand_up(branch)
            {
                card.index.order_changed();
                self.agenda.look_at(gpu);
                self.reordered = true;
            }
        }
    }

    /// Starts another quantum for a holder, which ends by the `limit` of a backfilled turn.
    pub(crate) fn renew(&mut self, id: SessionId, limit: Option<Nanos>) {
        let clock = self.view.clock(id, false, limit);
        if let Some(session) = self.view.sessions.get_mut(id)
            && let Lock::Holding(grant) = &mut session.lock
        {
            grant.clock = clock;
        }
        // Gangs wait longer for this holder than expected, which leaves others more time on their other cards.
        for gpu in self.view.turn_cards(id) {
            if self.view.cards.get(gpu).is_some_and(|card| card.index.has_waiting_gangs()) {
                self.agenda.look_at(gpu);
                self.reordered = true;
            }
        }
    }
}

/// Virtual time that a session of this share gains in `real` time, as a signed number.
fn distance(share: Share, real: Nanos) -> i128 {
    share.virtual_time(real).lag(Virtual::default())
}
