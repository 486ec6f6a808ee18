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

mod changes;

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

/// Virtual time that a session of this share gains in `real` time, as a signed number.
fn distance(share: Share, real: Nanos) -> i128 {
    share.virtual_time(real).lag(Virtual::default())
}
