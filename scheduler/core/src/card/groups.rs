//! Groups of sessions on one card: the classes, and in each class the users. A group has a virtual time, and
//! the order in which its members get turns.
//!
//! ```text
//!   OnCard::listed ─▶ queue and payers of the session's group ─▶ entry of the user in its class
//!   charged time   ─▶ virtual time of the session, of its user and of its class
//! ```
//!
//! A group's virtual time contains a turn once it is charged: at its end, and at the end of each quantum. So
//! the order changes by events alone.

use std::collections::{BTreeMap, BTreeSet, btree_set};
use std::ops::Bound;

use gpushare_proto::{Nanos, Percent, SessionId};

use crate::card::charge::Reading;
use crate::session::lock::Turn;
use crate::session::on_card::Listing;
use crate::session::share::{Account, Branch, Class, Member, Share, UserId, Virtual};

/// Sort key of members that pay for the card's time: share, number of payers by each clock, and charged time
/// minus the clocks' readings. Members with equal share and numbers keep their order while the clocks run.
type Payer = (Share, [u32; 2], i128, Member);

/// Entries of a member in its group: in the queues of early and of regular turns, and among the payers. A user
/// may stand in both queues, for its first session of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entries {
    turns: [Option<Turn>; 2],
    payer: Option<Payer>,
}

/// Sessions that pay for the card's time on behalf of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Paying {
    /// Number of sessions that pay by the resident clock and by the moving clock.
    numbers: [u32; 2],
    /// Sum of the clocks' readings at which they began to pay.
    readings: [u128; 2],
}

impl Paying {
    fn add(&mut self, reading: Reading) {
        self.numbers[usize::from(reading.moves)] += 1;
        self.readings[usize::from(reading.moves)] += reading.clock;
    }

    fn subtract(&mut self, reading: Reading) {
        self.numbers[usize::from(reading.moves)] -= 1;
        self.readings[usize::from(reading.moves)] -= reading.clock;
    }

    pub(crate) const fn is_none(&self) -> bool {
        self.numbers[0] + self.numbers[1] == 0
    }

    /// Time that these sessions owe together if the clocks are at `clocks` now.
    pub(crate) fn owed(&self, clocks: [u128; 2]) -> Nanos {
        let owed = |at: usize| u128::from(self.numbers[at]) * clocks[at] - self.readings[at];
        Nanos(u64::try_from(owed(0) + owed(1)).unwrap_or(u64::MAX))
    }
}

/// One group of sessions on a card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) share: Share,
    pub(crate) account: Account,
    /// Least virtual time of the waiting and paying members; it never goes down.
    pub(crate) floor: Virtual,
    /// Members with a session that may be granted a turn, in the order of their turns: those with an early
    /// turn, and those with a regular one.
    queues: [BTreeSet<(Turn, Member)>; 2],
    /// Members with a session that pays for the card's time.
    payers: BTreeSet<Payer>,
    paying: Paying,
    /// Entries of this user's group in the group of its class.
    listed: Entries,
}

impl Group {
    fn new(share: Share) -> Self {
        Self { share, ..Self::default() }
    }

    /// Whether no member waits for a turn or has one.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_queue() && self.payers.is_empty()
    }

    /// Whether a member waits for a turn.
    pub(super) fn has_queue(&self) -> bool {
        self.queues.iter().any(|queue| !queue.is_empty())
    }

    pub(crate) fn queue(&self) -> impl Iterator<Item = (Turn, Member)> {
        self.queues.iter().flatten().copied()
    }

    /// First member in the order of turns.
    pub(super) fn first_queued(&self) -> Option<(Turn, Member)> {
        let [early, regular] = &self.queues;
        early.first().or_else(|| regular.first()).copied()
    }

    /// Members with an early turn, or those with a regular one, in the order of their turns.
    pub(super) fn queue_of(&self, regular: bool) -> btree_set::Iter<'_, (Turn, Member)> {
        self.queues[usize::from(regular)].iter()
    }

    pub(crate) fn payers(&self) -> impl Iterator<Item = Member> {
        self.payers.iter().map(|&(.., member)| member)
    }

    /// Returns the paying members among which is the one with the least virtual time: the first of those with
    /// equal share and numbers of payers.
    pub(crate) fn first_payers(&self) -> impl Iterator<Item = Member> {
        let kind = |&(share, numbers, ..): &Payer| (share, numbers);
        let last_kind = self.payers.last().map(kind);
        let after = move |payer: &Payer| {
            let (share, numbers) = Some(kind(payer)).filter(|&kind| Some(kind) != last_kind)?;
            let last = (share, numbers, i128::MAX, Member::User(UserId(u64::MAX)));
            self.payers.range((Bound::Excluded(last), Bound::Unbounded)).next()
        };
        let payers = std::iter::successors(self.payers.first(), move |payer| after(payer));
        payers.map(|&(.., member)| member)
    }

    /// Least virtual time of the members that wait.
    pub(crate) fn least_waiting(&self) -> Option<Virtual> {
        self.queues.iter().filter_map(|queue| Some(queue.first()?.0.had)).min()
    }

    /// Virtual time of the group, with the charge of its sessions' present turns.
    pub(crate) fn had(&self, clocks: [u128; 2]) -> Virtual {
        self.account.standing().plus(self.owed(clocks))
    }

    /// Virtual time that the group gains by the charge of its sessions' present turns.
    pub(crate) fn owed(&self, clocks: [u128; 2]) -> Virtual {
        self.share.virtual_time(self.paying.owed(clocks))
    }

    /// Replaces a member's entries.
    fn list(&mut self, member: Member, old: &Entries, new: &Entries) {
        for ((queue, old), new) in self.queues.iter_mut().zip(old.turns).zip(new.turns) {
            if old != new {
                old.map(|turn| queue.remove(&(turn, member)));
                queue.extend(new.map(|turn| (turn, member)));
            }
        }
        if old.payer != new.payer {
            old.payer.map(|payer| self.payers.remove(&payer));
            self.payers.extend(new.payer);
        }
    }

    /// Entries of a user's group in the group of its class.
    fn entries(&self, user: UserId) -> Entries {
        let (had, member) = (self.account.standing(), Member::User(user));
        let first = |queue: &BTreeSet<(Turn, Member)>| queue.first().map(|&(turn, _)| Turn { had, ..turn });
        let readings = self.paying.readings.iter().sum::<u128>();
        let start = self
            .share
            .real_time(had)
            .saturating_sub(i128::try_from(readings).unwrap_or(i128::MAX));
        let payer = (!self.paying.is_none()).then_some((self.share, self.paying.numbers, start, member));
        Entries { turns: self.queues.each_ref().map(first), payer }
    }
}

/// Groups of the sessions on one card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Groups {
    /// Groups of the classes, highest first.
    classes: [Group; 3],
    /// Groups of users' sessions of one class.
    users: BTreeMap<Branch, Group>,
    /// Least virtual time of the classes with waiting or paying sessions; it never goes down.
    pub(crate) floor: Virtual,
}

impl Groups {
    /// Creates the groups of a card without sessions.
    pub(crate) fn new(trickle: Percent) -> Self {
        let group = |class| Group::new(Share::of_class(class, trickle));
        Self { classes: Class::ALL.map(group), ..Self::default() }
    }

    pub(crate) fn of_class(&self, class: Class) -> &Group {
        &self.classes[class as usize]
    }

    pub(crate) fn get(&self, branch: Branch) -> Option<&Group> {
        match branch.user {
            None => Some(self.of_class(branch.class)),
            Some(_) => self.users.get(&branch),
        }
    }

    pub(crate) fn get_mut(&mut self, branch: Branch) -> Option<&mut Group> {
        match branch.user {
            None => Some(&mut self.classes[branch.class as usize]),
            Some(_) => self.users.get_mut(&branch),
        }
    }

    /// Returns the group of a branch, a new one of this share if a user has none yet.
    pub(crate) fn get_or_insert(&mut self, branch: Branch, share: Share) -> &mut Group {
        match branch.user {
            None => &mut self.classes[branch.class as usize],
            Some(_) => self.users.entry(branch).or_insert_with(|| Group::new(share)),
        }
    }

    /// Classes with waiting or paying sessions.
    pub(crate) fn busy_classes(&self) -> impl Iterator<Item = &Group> {
        self.classes.iter().filter(|group| !group.is_idle())
    }

    /// Sets the virtual times of all classes and users to their floors.
    pub(crate) fn start_level(&mut self) {
        let level = |floor| Account { had: Some(floor), behind: None };
        for (branch, group) in &mut self.users {
            group.account = level(self.classes[branch.class as usize].floor);
        }
        for group in &mut self.classes {
            group.account = level(self.floor);
        }
    }

    /// Clears the queue positions of a session's groups behind other waiters, and returns whether there were
    /// any.
    pub(crate) fn stand_up(&mut self, branch: Branch) -> bool {
        let mut any = false;
        for branch in [branch, Branch::of_class(branch.class)] {
            let group = self.get_mut(branch);
            any |= group.and_then(|group| group.account.behind.take()).is_some();
        }
        self.refresh(branch);
        any
    }

    /// Changes the factors of the classes.
    pub(crate) fn set_trickle(&mut self, trickle: Percent) {
        let groups = self.classes.iter_mut().chain(self.users.values_mut());
        groups.for_each(|group| group.share = group.share.with_trickle(trickle));
    }

    /// Whether other users or classes than that of a session wait or pay.
    pub(crate) fn are_several(&self, branch: Branch) -> bool {
        branch.user.is_some() || self.busy_classes().nth(1).is_some()
    }

    /// Whether a user is ahead of others on the card by time that it was charged.
    pub(crate) fn is_ahead(&self, user: UserId) -> bool {
        Class::ALL.into_iter().any(|class| {
            let group = self.get(Branch { class, user: Some(user) });
            group.and_then(|group| group.account.had) > Some(self.of_class(class).floor)
        })
    }

    /// Removes the groups of a user without sessions.
    pub(crate) fn forget(&mut self, user: UserId) {
        for class in Class::ALL {
            self.users.remove(&Branch { class, user: Some(user) });
        }
    }

    /// Groups that are charged for a session: the user's and the class's. A stuck session is charged to its user
    /// alone, since the others of its class wait for it like all.
    fn payers_of(branch: Branch, stuck: bool) -> impl Iterator<Item = Branch> {
        let class = (!stuck).then_some(Branch::of_class(branch.class));
        branch.user.map(|_| branch).into_iter().chain(class)
    }

    /// Charges the groups of a session.
    pub(crate) fn pay(&mut self, branch: Branch, stuck: bool, charged: Nanos) {
        for branch in Self::payers_of(branch, stuck) {
            if let Some(group) = self.get_mut(branch) {
                group.account.pay(charged, group.share);
            }
        }
    }

    /// Adds or removes a session's reading of the charge clock in its groups.
    pub(crate) fn read(&mut self, branch: Branch, stuck: bool, reading: Option<Reading>, adds: bool) {
        let Some(reading) = reading else { return };
        for branch in Self::payers_of(branch, stuck) {
            if let Some(group) = self.get_mut(branch) {
                match adds {
                    true => group.paying.add(reading),
                    false => group.paying.subtract(reading),
                }
            }
        }
    }

    /// Replaces a session's entry `old` by `new`.
    pub(crate) fn list(&mut self, id: SessionId, old: &Listing, new: &Listing) {
        let member = Member::Session(id);
        let entries = |listing: &Listing| {
            let queued = |regular| listing.queued.filter(|turn| turn.regular == regular);
            Entries { turns: [queued(false), queued(true)], payer: listing.payer(member) }
        };
        let mut replace = |branch, old, new| {
            if let Some(group) = self.get_mut(branch) {
                group.list(member, &old, &new);
            }
        };
        match old.branch == new.branch {
            true => replace(new.branch, entries(old), entries(new)),
            false => {
                replace(old.branch, entries(old), Entries::default());
                replace(new.branch, Entries::default(), entries(new));
                self.refresh(old.branch);
            }
        }
        self.refresh(new.branch);
    }

    /// Updates the entries of a user's group in the group of its class.
    pub(crate) fn refresh(&mut self, branch: Branch) {
        let Some(user) = branch.user else { return };
        let Some(group) = self.users.get_mut(&branch) else {
            return;
        };
        let new = group.entries(user);
        self.classes[branch.class as usize].list(Member::User(user), &group.listed, &new);
        group.listed = new;
    }

    /// Returns the same groups without their sessions' entries.
    pub(crate) fn emptied(&self) -> Self {
        let empty =
            |group: &Group| Group { account: group.account, floor: group.floor, ..Group::new(group.share) };
        Self {
            classes: self.classes.each_ref().map(empty),
            users: self.users.iter().map(|(&branch, group)| (branch, empty(group))).collect(),
            floor: self.floor,
        }
    }
}

impl Listing {
    /// Sort key of the session if it pays for the card's time.
    fn payer(&self, member: Member) -> Option<Payer> {
        let numbers = [u32::from(!self.moves), u32::from(self.moves)];
        Some((self.share, numbers, self.pays?, member))
    }
}
