//! Rows of the table of sessions: filtered, sorted, and folded by user if wanted.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::follow::LockState;
use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, Nanos, SessionId};

use super::model::{Model, Session, word};
use super::names::Names;
use crate::table::{count, harmless};

/// Row of the table: one session, or all sessions of one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) key: RowKey,
    pub(super) name: String,
    pub(super) user: String,
    pub(super) state: String,
    pub(super) lock: LockState,
    pub(super) memory: Option<Bytes>,
    pub(super) limit: Option<Bytes>,
    /// Remapped bytes on a card, and those that move; none without remapped memory.
    pub(super) resident: Option<(Bytes, Bytes)>,
    /// Part of the time in hundredths of a percent of one card.
    pub(super) share: Option<u32>,
    pub(super) p50: Option<Nanos>,
    pub(super) p99: Option<Nanos>,
    pub(super) quantum: Option<Nanos>,
    pub(super) weight: Option<u32>,
    pub(super) priority: Option<Priority>,
    pub(super) command: String,
}

/// Identity of a row, which the cursor keeps while the rows change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RowKey {
    Session(SessionId),
    /// All sessions of a user, as the daemon names that user.
    User(String),
}

/// Order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// Number of the session, the oldest first.
    #[default]
    Number,
    Name,
    User,
    /// Holders first, then those that wait.
    State,
    /// Most memory first.
    Memory,
    /// Largest part of the time first.
    Time,
    /// Longest waits first.
    Wait,
}

impl Sort {
    const ALL: [Self; 7] =
        [Self::Number, Self::Name, Self::User, Self::State, Self::Memory, Self::Time, Self::Wait];

    /// Returns the next order, or the one before.
    pub(super) fn step(self, forward: bool) -> Self {
        let at = Self::ALL.iter().position(|&sort| sort == self).unwrap_or(0);
        let step = if forward { 1 } else { Self::ALL.len() - 1 };
        Self::ALL[(at + step) % Self::ALL.len()]
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Number => "number",
            Self::Name => "name",
            Self::User => "user",
            Self::State => "state",
            Self::Memory => "memory",
            Self::Time => "time",
            Self::Wait => "wait",
        }
    }

    fn compare(self, a: &Row, b: &Row) -> Ordering {
        let first = match self {
            Self::Number => Ordering::Equal,
            Self::Name => a.name.cmp(&b.name),
            Self::User => a.user.cmp(&b.user),
            Self::State => Reverse(rank(a.lock)).cmp(&Reverse(rank(b.lock))),
            Self::Memory => b.memory.cmp(&a.memory),
            Self::Time => b.share.cmp(&a.share),
            Self::Wait => b.p99.cmp(&a.p99),
        };
        first.then_with(|| a.key.cmp(&b.key))
    }
}

/// Returns the place of a state in the order by states, the most interesting last.
fn rank(lock: LockState) -> u8 {
    match lock {
        LockState::Frozen => 0,
        LockState::Idle => 1,
        LockState::Waiting => 2,
        LockState::Moving | LockState::Holding => 3,
        LockState::Dropping => 4,
        LockState::Stuck => 5,
    }
}

/// Choice and order of the rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
    /// Text that the name, user, state or command of each shown session contains.
    pub(super) filter: String,
    /// Whether all sessions of a user are one row.
    pub(super) by_user: bool,
    /// Users whose sessions are shown although `by_user` holds.
    pub(super) unfolded: BTreeSet<String>,
}

/// Returns the rows in the order in which they are shown.
pub(super) fn rows(model: &Model, names: &Names, selection: &Selection) -> Vec<Row> {
    let known = model
        .sessions
        .values()
        .map(|session| (user_of(session), of_session(model, names, session)));
    let strangers = model.strangers().into_iter();
    let others = strangers.map(|(id, lock)| (String::new(), of_stranger(model, id, lock)));
    let mut all: Vec<(String, Row)> = known.chain(others).filter(|(_, row)| selection.shows(row)).collect();
    all.sort_by(|(_, a), (_, b)| selection.compare(a, b));
    if !selection.by_user {
        return all.into_iter().map(|(_, row)| row).collect();
    }
    let mut users: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    for (user, row) in all {
        users.entry(user).or_default().push(row);
    }
    let mut folded: Vec<(Row, Vec<Row>)> =
        users.into_iter().map(|(user, rows)| (sum(names, user, &rows), rows)).collect();
    folded.sort_by(|(a, _), (b, _)| selection.compare(a, b));
    let unfold = |(sum, rows): (Row, Vec<Row>)| {
        let is_unfolded = matches!(&sum.key, RowKey::User(user) if selection.unfolded.contains(user));
        std::iter::once(sum).chain(rows.into_iter().filter(move |_| is_unfolded))
    };
    folded.into_iter().flat_map(unfold).collect()
}

impl Selection {
    fn shows(&self, row: &Row) -> bool {
        let wanted = self.filter.to_lowercase();
        let number = match &row.key {
            RowKey::Session(id) => id.to_string(),
            RowKey::User(_) => String::new(),
        };
        let texts = [&row.name, &row.user, &row.state, &row.command, &number];
        texts.iter().any(|text| text.to_lowercase().contains(&wanted))
    }

    fn compare(&self, a: &Row, b: &Row) -> Ordering {
        let order = self.sort.compare(a, b);
        if self.is_reversed { order.reverse() } else { order }
    }
}

fn user_of(session: &Session) -> String {
    session.facts.user.clone().unwrap_or_default()
}

fn of_session(model: &Model, names: &Names, session: &Session) -> Row {
    let facts = &session.facts;
    let place = model
        .place(facts.session)
        .filter(|_| session.state() == word(LockState::Waiting));
    Row {
        key: RowKey::Session(facts.session),
        name: harmless(&facts.name),
        user: facts
            .user
            .as_deref()
            .map_or_else(String::new, |user| harmless(names.user(user))),
        state: match place {
            Some(place) => format!("{} #{place}", session.state()),
            None => session.state().to_owned(),
        },
        lock: session.lock(),
        memory: Some(session.allocated()),
        limit: session.limit(),
        resident: session.resident(),
        share: session.share,
        p50: session.wait(50),
        p99: session.wait(99),
        quantum: session.quantum,
        weight: Some(facts.weight),
        priority: Some(facts.priority),
        command: names.command(&facts.pids).to_owned(),
    }
}

/// Returns the row of another user's session, of which only the number and the lock are known.
fn of_stranger(model: &Model, id: SessionId, lock: LockState) -> Row {
    let place = model.place(id).filter(|_| lock == LockState::Waiting);
    Row {
        key: RowKey::Session(id),
        name: String::new(),
        user: String::new(),
        state: match place {
            Some(place) => format!("{} #{place}", word(lock)),
            None => word(lock).to_owned(),
        },
        lock,
        memory: None,
        limit: None,
        resident: None,
        share: None,
        p50: None,
        p99: None,
        quantum: None,
        weight: None,
        priority: None,
        command: String::new(),
    }
}

/// Returns the row that stands for all sessions of a user.
fn sum(names: &Names, user: String, rows: &[Row]) -> Row {
    let lock = rows
        .iter()
        .map(|row| row.lock)
        .max_by_key(|&lock| rank(lock))
        .unwrap_or_default();
    let shares: Option<Vec<u32>> = rows.iter().map(|row| row.share).collect();
    Row {
        name: count(rows.len(), "session"),
        user: match user.as_str() {
            "" => "others".to_owned(),
            user => harmless(names.user(user)),
        },
        key: RowKey::User(user),
        state: word(lock).to_owned(),
        lock,
        memory: Some(rows.iter().filter_map(|row| row.memory).sum()),
        limit: None,
        resident: rows.iter().filter_map(|row| row.resident).reduce(|a, b| (a.0 + b.0, a.1 + b.1)),
        share: shares.map(|shares| shares.iter().sum()),
        p50: None,
        p99: rows.iter().filter_map(|row| row.p99).max(),
        quantum: None,
        weight: None,
        priority: None,
        command: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn shown(selection: &Selection) -> Vec<String> {
        let rows = rows(&sample::model(), &sample::names(), selection);
        rows.into_iter().map(|row| row.name).collect()
    }

    #[test]
    fn rows_are_sorted_by_any_column_and_back() {
        let sorted = |sort| shown(&Selection { sort, ..Selection::default() });
        assert_eq!(sorted(Sort::Number), ["train", "notebook", "eval", "idle"]);
        assert_eq!(sorted(Sort::Name), ["eval", "idle", "notebook", "train"]);
        assert_eq!(sorted(Sort::User), ["train", "eval", "notebook", "idle"]);
        assert_eq!(sorted(Sort::State), ["train", "eval", "notebook", "idle"]);
        assert_eq!(sorted(Sort::Memory), ["train", "notebook", "eval", "idle"]);
        assert_eq!(sorted(Sort::Time), ["eval", "train", "notebook", "idle"]);
        assert_eq!(sorted(Sort::Wait), ["notebook", "train", "eval", "idle"]);
        let reversed = Selection { is_reversed: true, ..Selection::default() };
        assert_eq!(shown(&reversed), ["idle", "eval", "notebook", "train"]);
    }

    #[test]
    fn the_orders_form_a_circle() {
        assert_eq!(Sort::Wait.step(true), Sort::Number);
        assert_eq!(Sort::Number.step(false), Sort::Wait);
        let all = Sort::ALL.iter().fold(Sort::Number, |sort, _| sort.step(true));
        assert_eq!(all, Sort::Number);
    }

    #[test]
    fn a_filter_finds_names_users_states_commands_and_numbers() {
        let filtered = |filter: &str| shown(&Selection { filter: filter.into(), ..Selection::default() });
        assert_eq!(filtered("TRAIN"), ["train"]);
        assert_eq!(filtered("ana"), ["train", "eval"]);
        assert_eq!(filtered("waiting"), ["notebook"]);
        assert_eq!(filtered("ipykernel"), ["notebook"]);
        assert_eq!(filtered("s6"), ["idle"]);
        assert_eq!(filtered("nothing of that"), [""; 0]);
    }

    #[test]
    fn sessions_fold_into_users_and_out_again() {
        let mut selection = Selection { by_user: true, ..Selection::default() };
        assert_eq!(shown(&selection), ["1 session", "2 sessions", "1 session"]);
        let all = rows(&sample::model(), &sample::names(), &selection);
        let ana = &all[1];
        assert_eq!((ana.user.as_str(), ana.memory, ana.share), ("ana", Some(Bytes::gib(72)), Some(16_000)));
        selection.unfolded.insert("1001".into());
        assert_eq!(shown(&selection), ["1 session", "2 sessions", "train", "eval", "1 session"]);
    }
}
