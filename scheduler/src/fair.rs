//! Fair queue: serves users in turn, and the connections of each user in turn, by the time that each one
//! cost.
//!
//! ```text
//!   push(user, connection, item) ─▶ user's line ─▶ pop: user with the least tag, its connection with the least tag
//!                                                        │ the item is handled, which takes some time
//!                                                        ▼
//!                                                  charge(ticket, time): both tags rise by that time
//! ```
//!
//! This is start-time fair queueing on two levels. A tag is the time that its owner has had. The tag of
//! one that was away is raised to that of the one served last, so nobody saves up time. A connection that
//! rarely sends is therefore served next, however many messages others have queued. A user with many
//! connections gets no more than one with few.
//!
//! The items of one connection stay in order.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;

use gpushare_proto::Nanos;

/// Queue of items from the connections `C` of the users `U`.
#[derive(Debug)]
pub(crate) struct FairQueue<U, C, T> {
    /// Numbers of the users that have items, or had their turn lately.
    numbers: HashMap<U, u64>,
    users: BTreeMap<u64, User<U, C, T>>,
    line: Line<u64>,
    next: u64,
    /// User whose item was taken last and may be in work.
    serving: Option<u64>,
}

#[derive(Debug)]
struct User<U, C, T> {
    name: U,
    line: Line<C>,
    items: BTreeMap<C, VecDeque<T>>,
}

/// Owner of an item that is being handled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket<C> {
    user: u64,
    connection: C,
}

impl<U: Clone + Eq + Hash, C: Copy + Ord, T> FairQueue<U, C, T> {
    pub(crate) fn new() -> Self {
        Self {
            numbers: HashMap::new(),
            users: BTreeMap::new(),
            line: Line::default(),
            next: 0,
            serving: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.line.waiting.is_empty()
    }

    /// Adds an item behind those of the same connection.
    pub(crate) fn push(&mut self, name: &U, connection: C, item: T) {
        let number = self.ticket(name, connection).user;
        let Some(user) = self.users.get_mut(&number) else { return };
        // Most connections have one item at a time.
        let items = user.items.entry(connection).or_insert_with(|| VecDeque::with_capacity(1));
        items.push_back(item);
        user.line.enter(connection);
        self.line.enter(number);
    }

    /// Returns a ticket to charge for work that does not wait in the queue.
    pub(crate) fn ticket(&mut self, name: &U, connection: C) -> Ticket<C> {
        let known = self.numbers.get(name).copied();
        Ticket { user: known.unwrap_or_else(|| self.add(name)), connection }
    }

    fn add(&mut self, name: &U) -> u64 {
        // Those whose time is forgotten in any case.
        let over = self.users.iter().filter(|&(&number, user)| {
            user.items.is_empty() && !self.line.owes(number) && self.serving != Some(number)
        });
        let over: Vec<u64> = over.map(|(number, _)| *number).collect();
        for number in over {
            if let Some(user) = self.users.remove(&number) {
                self.numbers.remove(&user.name);
            }
        }
        let number = self.next;
        self.next += 1;
        self.numbers.insert(name.clone(), number);
        let user = User { name: name.clone(), line: Line::default(), items: BTreeMap::new() };
        self.users.insert(number, user);
        number
    }

    /// Removes and returns the item that is next. The caller handles it and then calls [`Self::charge`].
    pub(crate) fn pop(&mut self) -> Option<(Ticket<C>, T)> {
        let number = self.line.first()?;
        let user = self.users.get_mut(&number)?;
        let connection = user.line.first()?;
        let items = user.items.get_mut(&connection)?;
        let item = items.pop_front()?;
        if items.is_empty() {
            user.items.remove(&connection);
        }
        self.serving = Some(number);
        Some((Ticket { user: number, connection }, item))
    }

    /// Charges the time that the handling of an item took. Among the connections of its user, the
    /// connection is charged that time divided by `weight`.
    pub(crate) fn charge(&mut self, ticket: Ticket<C>, took: Nanos, weight: u64) {
        let Some(user) = self.users.get_mut(&ticket.user) else {
            return;
        };
        let (connection, part) = (ticket.connection, Nanos(took.0 / weight.max(1)));
        user.line.charge(connection, part, user.items.contains_key(&connection));
        self.line.charge(ticket.user, took, !user.items.is_empty());
    }
}

/// Time that an owner has had. Of equal tags the one comes first whose owner has had less and was raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Tag {
    had: Nanos,
    /// Whether the time is the owner's own, instead of that of the owner served last.
    own: bool,
}

/// Owners with waiting items, in the order of their tags.
#[derive(Debug)]
struct Line<K> {
    waiting: BTreeSet<(Tag, K)>,
    /// Tags of the waiting owners, and of others that have had more time than the one served last.
    tags: BTreeMap<K, Tag>,
    /// Tag of the owner that was served last.
    now: Nanos,
}

impl<K> Default for Line<K> {
    fn default() -> Self {
        Self { waiting: BTreeSet::new(), tags: BTreeMap::new(), now: Nanos::ZERO }
    }
}

/// Number of tags beyond those of waiting owners from which on old ones are looked for.
const MANY: usize = 64;

impl<K: Copy + Ord> Line<K> {
    fn enter(&mut self, owner: K) {
        let raised = Tag { had: self.now, own: false };
        let tag = self.tags.entry(owner).or_insert(raised);
        // A waiting owner keeps its tag, which is not below `now`.
        *tag = raised.max(*tag);
        self.waiting.insert((*tag, owner));
    }

    fn first(&mut self) -> Option<K> {
        let (tag, owner) = self.waiting.pop_first()?;
        self.now = self.now.max(tag.had);
        Some(owner)
    }

    /// Raises the tag of an owner that was served. It waits again if it has more items.
    fn charge(&mut self, owner: K, took: Nanos, has_more: bool) {
        let tag = self.tags.entry(owner).or_insert(Tag { had: self.now, own: false });
        self.waiting.remove(&(*tag, owner));
        *tag = Tag { had: tag.had.max(self.now) + took, own: true };
        if has_more {
            self.waiting.insert((*tag, owner));
        } else if self.tags.len() > self.waiting.len() + MANY {
            let now = self.now;
            self.tags
                .retain(|owner, tag| tag.had > now || self.waiting.contains(&(*tag, *owner)));
        }
    }

    /// Returns whether an owner has had more time than the one served last.
    fn owes(&self, owner: K) -> bool {
        self.tags.get(&owner).is_some_and(|tag| tag.had > self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: Nanos = Nanos(1000);

    type Queue = FairQueue<&'static str, u32, u32>;

    /// Handles the next item. Returns it.
    fn serve(queue: &mut Queue) -> Option<u32> {
        let (ticket, item) = queue.pop()?;
        queue.charge(ticket, COST, 1);
        Some(item)
    }

    #[test]
    fn one_who_rarely_asks_is_served_next() {
        let mut queue = Queue::new();
        let flood = |queue: &mut Queue| {
            (0..256).for_each(|connection| queue.push(&"greedy", connection, connection));
        };
        flood(&mut queue);
        (0..256).for_each(|_| assert!(serve(&mut queue).is_some()));
        flood(&mut queue);
        (0..9).for_each(|_| assert!(serve(&mut queue).is_some()));
        queue.push(&"modest", 999, 999);
        assert_eq!(serve(&mut queue), Some(999));
        // The same holds for another connection of the same user.
        queue.push(&"greedy", 1000, 1000);
        assert_eq!(serve(&mut queue), Some(1000));
    }

    #[test]
    fn users_get_equal_parts_however_many_connections_they_have() {
        let mut queue = Queue::new();
        let mut served = [0_u32; 2];
        (0..64).for_each(|connection| queue.push(&"many", connection, connection));
        queue.push(&"one", 100, 100);
        for _ in 0..1000 {
            let item = serve(&mut queue).unwrap();
            let user = if item == 100 { "one" } else { "many" };
            served[usize::from(item == 100)] += 1;
            queue.push(if user == "one" { &"one" } else { &"many" }, item, item);
        }
        assert!(served[0].abs_diff(served[1]) <= 2, "{served:?}");
    }

    #[test]
    fn a_connection_of_greater_weight_gets_more_of_its_users_part() {
        let mut queue = Queue::new();
        (0..10).for_each(|connection| queue.push(&"user", connection, connection));
        let mut heavy = 0;
        for _ in 0..1000 {
            let (ticket, item) = queue.pop().unwrap();
            heavy += u32::from(item == 0);
            queue.charge(ticket, COST, if item == 0 { 9 } else { 1 });
            queue.push(&"user", item, item);
        }
        assert!(heavy.abs_diff(500) < 10, "{heavy}");
    }

    #[test]
    fn new_connections_do_not_forget_what_their_user_had() {
        let mut queue = Queue::new();
        (0..10).for_each(|connection| queue.push(&"patient", connection, connection));
        let mut patient = 0;
        for connection in 100..200 {
            queue.push(&"flood", connection, connection);
            if serve(&mut queue).unwrap() < 10 {
                patient += 1;
            }
        }
        assert_eq!(patient, 10, "all were served meanwhile");
    }

    #[test]
    fn items_of_one_connection_stay_in_order() {
        let mut queue = Queue::new();
        (0..5).for_each(|item| queue.push(&"user", 1, item));
        let served: Vec<u32> = std::iter::from_fn(|| serve(&mut queue)).collect();
        assert_eq!(served, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn nothing_is_kept_of_those_who_left() {
        let mut queue: FairQueue<u32, u32, u32> = FairQueue::new();
        for user in 0..1000 {
            (0..3).for_each(|connection| queue.push(&user, connection, connection));
            while let Some((ticket, _)) = queue.pop() {
                queue.charge(ticket, COST, 1);
            }
        }
        assert!(queue.users.len() < 3 && queue.numbers.len() < 3, "{}", queue.users.len());
        assert!(queue.line.tags.len() <= MANY + 2, "{}", queue.line.tags.len());
    }
}
