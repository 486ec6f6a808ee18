//! The line of one card: its waiting sessions in the order of turns, merged from the queues of classes and
//! users.
//!
//! ```text
//!   queue of a class ── session              ─┐
//!                    └─ user ─▶ user's queue ─┴─ merge ─▶ line of the class ─┬─ least ─▶ line of the card
//!                                                         other classes ─────┘
//! ```
//!
//! The first session is the first one of the first user of the first class: each by the least virtual time.
//! Behind it, sessions are ordered by the sum of the distances from the first one on each level. So the turns
//! of users alternate as far as their virtual times do.
//!
//! Most readers want the first few sessions only. So a user's queue is opened when its first session may be
//! next.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, btree_set};
use std::iter::{Chain, Peekable};

use gpushare_proto::SessionId;
use smallvec::SmallVec;

use crate::card::groups::Groups;
use crate::session::lock::{Ticket, Turn};
use crate::session::share::{Branch, Class, Member, UserId, Virtual};

impl Groups {
    /// Waiting sessions that may be granted a turn, in the order of turns. Those for which `keeps` is false are
    /// left out, and hold nobody of their class or user back.
    pub(crate) fn in_order(
        &self,
        keeps: impl Fn(SessionId) -> bool + Copy,
    ) -> impl Iterator<Item = SessionId> {
        let line = |class| Line::new(self, class, keeps, self.before_first(class)).peekable();
        let mut lines: SmallVec<[_; 1]> = self.waiting_classes().map(line).collect();
        std::iter::from_fn(move || {
            let line = match lines.as_mut_slice() {
                [line] => line,
                lines => {
                    let open = lines.iter_mut().filter_map(|line| Some((*line.peek()?, line)));
                    open.min_by_key(|&(place, _)| place)?.1
                }
            };
            line.next().map(|(_, id)| id)
        })
    }

    /// Returns the first of the sessions that [`Self::in_order`] returns.
    pub(crate) fn first(&self, keeps: impl Fn(SessionId) -> bool + Copy) -> Option<SessionId> {
        let firsts = Class::ALL.into_iter().filter_map(|class| self.first_of(class, keeps));
        firsts.min().map(|(_, id)| id)
    }

    /// Place of the first waiting session of a class that `keeps`. Only where the first one of all is left out, the
    /// queues of users are merged.
    fn first_of(&self, class: Class, keeps: impl Fn(SessionId) -> bool + Copy) -> Option<Place> {
        let (turn, member) = self.of_class(class).first_queued()?;
        let origin = self.before_first(class);
        let first = match member {
            Member::Session(id) => Some((turn, id)),
            Member::User(user) => {
                let group = self.get(Branch { class, user: Some(user) })?;
                find(&mut group.queue_of(turn.regular), |_| true)
            }
        };
        match first.filter(|&(_, id)| keeps(id)) {
            Some((turn, id)) => Some((origin.key(turn), id)),
            None => Line::new(self, class, keeps, origin).next(),
        }
    }

    /// Start of the distances in the line of a class of which no session was found yet.
    fn before_first(&self, class: Class) -> Origin {
        let distance = self.of_class(class).account.standing().lag(Virtual::default());
        Origin::First { distance, had: [None; 2] }
    }

    /// Waiting sessions of each class that may be granted a turn and that `keeps`, by their distances from the
    /// floors.
    pub(crate) fn by_floors<'a>(
        &'a self,
        keeps: impl Fn(SessionId) -> bool + Copy + 'a,
    ) -> impl Iterator<Item = impl Iterator<Item = Place> + 'a> {
        self.waiting_classes().filter_map(move |class| {
            let distance = self.class_distance(class)?;
            let floor = self.of_class(class).floor;
            Some(Line::new(self, class, keeps, Origin::Floor { distance, floor, behind: i128::MAX }))
        })
    }

    /// Distance of a class's virtual time from the least of the classes with waiting or paying sessions, without
    /// their present turns.
    pub(crate) fn class_distance(&self, class: Class) -> Option<i128> {
        let least = self.busy_classes().map(|class| class.account.standing()).min()?;
        Some(self.of_class(class).account.standing().lag(least))
    }

    fn waiting_classes(&self) -> impl Iterator<Item = Class> {
        Class::ALL.into_iter().filter(|&class| self.of_class(class).has_queue())
    }

    /// Waiting sessions that come before a session in the order of turns.
    pub(crate) fn ahead_of(&self, id: SessionId) -> impl Iterator<Item = SessionId> {
        self.in_order(|_| true).take_while(move |waits| *waits != id)
    }
}

/// Waiting session with its sort key.
pub(crate) type Place = (Key, SessionId);

/// Sort key of a waiting session among all those of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// Whether the session has no early turn for which the switch budget paid.
    regular: bool,
    pub(crate) distance: i128,
    class: Class,
    ticket: Ticket,
}

/// Start of the distances in a queue.
#[derive(Clone, Copy)]
enum Origin {
    /// The first member that is not left out: its distance, and its virtual time once it is found. The first
    /// one with an early turn says nothing about the regular ones, so each kind has its own.
    First { distance: i128, had: [Option<Virtual>; 2] },
    /// The floor, which has this distance. Members that are behind the floor by more than `behind` count as
    /// behind it by so much.
    Floor { distance: i128, floor: Virtual, behind: i128 },
}

impl Origin {
    fn key(self, Turn { regular, had, class, ticket }: Turn) -> Key {
        let (distance, lag) = match self {
            Self::First { distance, had: first } => {
                (distance, first[usize::from(regular)].map_or(0, |first| had.lag(first)))
            }
            Self::Floor { distance, floor, behind } => (distance, had.lag(floor).max(-behind)),
        };
        Key { regular, distance: distance.saturating_add(lag), class, ticket }
    }

    /// Notes a member that is not left out, which may be the first one, and returns its key.
    fn found(&mut self, turn: Turn) -> Key {
        if let Self::First { had, .. } = self {
            had[usize::from(turn.regular)].get_or_insert(turn.had);
        }
        self.key(turn)
    }

    /// Returns the start of the distances in the queue of a user whose distance is `distance`.
    fn of_user(self, distance: i128, floor: Virtual) -> Self {
        match self {
            Self::First { .. } => Self::First { distance, had: [None; 2] },
            // So that no session comes before its user.
            Self::Floor { .. } => Self::Floor { distance, floor, behind: 0 },
        }
    }
}

/// Waiting sessions of a class in the order of turns.
struct Line<'a, F> {
    groups: &'a Groups,
    class: Class,
    keeps: F,
    origin: Origin,
    members: Peekable<Chain<Queue<'a>, Queue<'a>>>,
    /// Users whose first session was found.
    open: BinaryHeap<Reverse<Siblings<'a>>>,
}

impl<'a, F: Fn(SessionId) -> bool + Copy> Line<'a, F> {
    fn new(groups: &'a Groups, class: Class, keeps: F, origin: Origin) -> Self {
        let group = groups.of_class(class);
        let members = group.queue_of(false).chain(group.queue_of(true)).peekable();
        Self { groups, class, keeps, origin, members, open: BinaryHeap::new() }
    }

    /// Opens one of the queues of a user who stands at `turn` in the queue of the class.
    fn open(&mut self, user: UserId, turn: Turn) {
        let Some(group) = self.groups.get(Branch { class: self.class, user: Some(user) }) else {
            return;
        };
        let mut queue = group.queue_of(turn.regular);
        if let Some((first, id)) = find(&mut queue, self.keeps) {
            let distance = self.origin.found(turn).distance;
            let mut origin = self.origin.of_user(distance, group.floor);
            let first = (origin.found(first), id);
            self.open.push(Reverse(Siblings { first, origin, rest: queue }));
        }
    }
}

impl<F: Fn(SessionId) -> bool + Copy> Iterator for Line<'_, F> {
    type Item = Place;

    fn next(&mut self) -> Option<Place> {
        loop {
            let least = self.open.peek().map(|Reverse(siblings)| siblings.first.0);
            let origin = self.origin;
            let is_next = |(turn, _): &&(Turn, Member)| least.is_none_or(|least| origin.key(*turn) < least);
            match self.members.next_if(is_next) {
                Some(&(turn, Member::User(user))) => self.open(user, turn),
                Some(&(turn, Member::Session(id))) if (self.keeps)(id) => {
                    return Some((self.origin.found(turn), id));
                }
                Some(_) => {}
                None => break,
            }
        }
        let Reverse(mut siblings) = self.open.pop()?;
        let place = siblings.first;
        if let Some((turn, id)) = find(&mut siblings.rest, self.keeps) {
            siblings.first = (siblings.origin.key(turn), id);
            self.open.push(Reverse(siblings));
        }
        Some(place)
    }
}

/// Queue of one group, with early turns or with regular ones.
type Queue<'a> = btree_set::Iter<'a, (Turn, Member)>;

/// Returns the next session that `keeps`.
fn find(queue: &mut Queue<'_>, keeps: impl Fn(SessionId) -> bool) -> Option<(Turn, SessionId)> {
    queue.find_map(|&(turn, member)| match member {
        Member::Session(id) if keeps(id) => Some((turn, id)),
        _ => None,
    })
}

/// Waiting sessions of one user with turns of one kind, from the first one that was found.
struct Siblings<'a> {
    first: Place,
    origin: Origin,
    rest: Queue<'a>,
}

impl PartialEq for Siblings<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.first == other.first
    }
}

impl Eq for Siblings<'_> {}

impl PartialOrd for Siblings<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Siblings<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.first.cmp(&other.first)
    }
}
