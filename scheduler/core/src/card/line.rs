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
use std::iter::Peekable;

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
        let busy = Class::ALL.into_iter().filter(|&class| !self.of_class(class).queue.is_empty());
        let lines = busy.map(|class| Line::new(self, class, keeps).peekable());
        let mut lines: SmallVec<[_; 1]> = lines.collect();
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

    /// Waiting sessions that come before a session in the order of turns.
    pub(crate) fn ahead_of(&self, id: SessionId) -> impl Iterator<Item = SessionId> {
        self.in_order(|_| true).take_while(move |waits| *waits != id)
    }
}

/// Waiting session with its sort key.
type Place = (Key, SessionId);

/// Sort key of a waiting session among all those of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Whether the session has no early turn for which the switch budget paid.
    regular: bool,
    distance: i128,
    class: Class,
    ticket: Ticket,
}

/// Start of the distances in a queue: of the first member that is not left out.
#[derive(Clone, Copy, Default)]
struct Origin {
    /// Distance of that member.
    distance: i128,
    /// Virtual time of that member, once it is found.
    had: Option<Virtual>,
}

impl Origin {
    fn key(self, turn: Turn) -> Key {
        let Turn { regular, had, class, ticket } = turn;
        let behind = self.had.map_or(0, |first| had.lag(first).max(0));
        Key { regular, distance: self.distance.saturating_add(behind), class, ticket }
    }

    /// Returns the key of a member that is not left out, which may be the first one.
    fn found(&mut self, turn: Turn) -> Key {
        self.had.get_or_insert(turn.had);
        self.key(turn)
    }
}

/// Waiting sessions of a class in the order of turns.
struct Line<'a, F> {
    groups: &'a Groups,
    class: Class,
    keeps: F,
    origin: Origin,
    members: Peekable<btree_set::Iter<'a, (Turn, Member)>>,
    /// Users whose first session was found.
    open: BinaryHeap<Reverse<Siblings<'a>>>,
}

impl<'a, F: Fn(SessionId) -> bool + Copy> Line<'a, F> {
    fn new(groups: &'a Groups, class: Class, keeps: F) -> Self {
        let group = groups.of_class(class);
        let distance = group.account.standing().lag(Virtual::default());
        Self {
            groups,
            class,
            keeps,
            origin: Origin { distance, had: None },
            members: group.queue.iter().peekable(),
            open: BinaryHeap::new(),
        }
    }

    /// Opens the queue of a user who stands at `turn` in the queue of the class.
    fn open(&mut self, user: UserId, turn: Turn) {
        let Some(group) = self.groups.get(Branch { class: self.class, user: Some(user) }) else {
            return;
        };
        let mut sessions = Sessions { queue: group.queue.iter(), origin: Origin::default() };
        if let Some((first, id)) = sessions.find(self.keeps) {
            sessions.origin.distance = self.origin.found(turn).distance;
            let first = (sessions.origin.found(first), id);
            self.open.push(Reverse(Siblings { first, rest: sessions }));
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
        let Reverse(Siblings { first, mut rest }) = self.open.pop()?;
        if let Some((turn, id)) = rest.find(self.keeps) {
            let first = (rest.origin.key(turn), id);
            self.open.push(Reverse(Siblings { first, rest }));
        }
        Some(first)
    }
}

/// Sessions of one user of which the first was found.
struct Siblings<'a> {
    first: Place,
    rest: Sessions<'a>,
}

/// Sessions of one user.
struct Sessions<'a> {
    queue: btree_set::Iter<'a, (Turn, Member)>,
    origin: Origin,
}

impl Sessions<'_> {
    fn find(&mut self, keeps: impl Fn(SessionId) -> bool) -> Option<(Turn, SessionId)> {
        self.queue.find_map(|&(turn, member)| match member {
            Member::Session(id) if keeps(id) => Some((turn, id)),
            _ => None,
        })
    }
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
