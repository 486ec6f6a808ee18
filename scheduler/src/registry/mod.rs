//! The registry: clients, sessions and usage, stored in a file for the next daemon.
//!
//! ```text
//!   engine ─ changes, usage ─▶ slot, added up ─▶ thread: Book ─▶ Store ─ one fsynced commit ─▶ registry.redb
//!     ▲                                             │
//!     └─ answer: all acts up to this one are stored ◀┘
//! ```
//!
//! A writer thread writes the file, so a slow disk delays no grant. Only the answers to administrators
//! wait for the thread. The engine hands over only what changed, and the thread keeps the whole book.
//! Entries about processes are valid on the boot on which they were written. Persistent sessions and usage
//! are also valid after a reboot. A damaged file is renamed.

mod file;
mod store;
mod usage;
mod writer;

use std::collections::BTreeMap;
use std::fs;

use gpushare_proto::session::{Binding, Priority, Quota, Terms};
use gpushare_proto::tenant::GpuInfo;
use gpushare_proto::{Bytes, ClientId, GpuUuid, SessionId};
use serde::{Deserialize, Serialize};

use crate::clients::joined::JoinedProcess;
use crate::identity::{ImplicitKey, ProcessId, User};
use crate::secret::TokenHash;

pub(crate) use store::{Store, view};
pub(crate) use usage::{Figures, Hour, Hours, Spent, Usage};
pub(crate) use writer::{News, Word, Writer};

/// Largest valid number of a session or client. Counting a million a second to it takes 100,000 years.
const MOST: u64 = u64::MAX / 4;

/// Sessions and clients as stored in the registry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Book {
    /// Boot id of the kernel when the registry was written.
    boot: String,
    /// Whether a daemon wrote this at its end, so that no client joined afterwards.
    pub(crate) ended: bool,
    pub(crate) next_session: u64,
    pub(crate) next_client: u64,
    pub(crate) sessions: Vec<SessionEntry>,
    pub(crate) users: Vec<UserEntry>,
    pub(crate) clients: Vec<ClientEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionEntry {
    pub(crate) session: SessionId,
    pub(crate) name: String,
    pub(crate) terms: Terms,
    pub(crate) oversubscribe: bool,
    pub(crate) card: Option<GpuUuid>,
    pub(crate) origin: Origin,
    pub(crate) paused: bool,
    pub(crate) revoked: bool,
    /// Point in time at which the session expires, in nanoseconds since 1970; `None` for never.
    pub(crate) expires_unix: Option<u64>,
    /// Totals of the session's usage under all daemons.
    pub(crate) totals: Figures,
    /// Distances of the session's virtual time from the floors of cards, at most a second old. There are none
    /// if no card takes turns, or if an older daemon wrote the entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) leads: Vec<CardLead>,
    /// Memory limit that an administrator set last; none too if an older daemon wrote the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ceiling: Option<Quota>,
    /// Processes that entered the session with its token.
    #[serde(default, rename = "entrants")]
    pub(crate) joined: Vec<JoinedProcess>,
}

/// Distance of a session's virtual time from the floor of a card, by [`gpushare_core::Core::leads`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CardLead {
    pub(crate) card: GpuUuid,
    pub(crate) lead_ns: i64,
}

/// Weight of a user, and the distances of its virtual time from the floors of cards and classes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UserEntry {
    pub(crate) user: User,
    pub(crate) weight: u32,
    pub(crate) leads: Vec<UserLead>,
}

/// Distance of a user's virtual time from a class's floor, by [`gpushare_core::Core::user_leads`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UserLead {
    pub(crate) card: GpuUuid,
    pub(crate) class: Priority,
    pub(crate) lead_ns: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Origin {
    /// Session registered by a process, which holds the token.
    Registered {
        token: TokenHash,
        uid: u32,
        by: ProcessId,
        /// User of that process; none if an older daemon wrote the entry.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<User>,
    },
    /// Session made by an administrator; it lasts until it is deleted.
    Created { token: Option<TokenHash>, binding: Binding, uid: u32 },
    /// Session made by the daemon for processes without a token.
    Implicit(ImplicitKey),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientEntry {
    pub(crate) client: ClientId,
    pub(crate) session: SessionId,
    pub(crate) process: ProcessId,
    /// Cards that the client announced; empty if there are none, or if an older daemon wrote the entry.
    #[serde(default)]
    pub(crate) cards: Vec<CardUse>,
    /// Whether the client's memory is remapped and moves by goals.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) remaps: bool,
    /// Whether the driver has frozen the client's process once, or began to.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) frozen: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CardUse {
    pub(crate) card: GpuInfo,
    /// Number of bytes that the client uses on the card, at most a second old.
    pub(crate) used: Bytes,
}

/// Changes of sessions and clients since the last ones. `None` stands for a session or client that is over.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) ended: bool,
    pub(crate) next_session: u64,
    pub(crate) next_client: u64,
    pub(crate) users: Vec<UserEntry>,
    pub(crate) sessions: BTreeMap<SessionId, Option<SessionEntry>>,
    pub(crate) clients: BTreeMap<ClientId, Option<ClientEntry>>,
}

impl Changes {
    /// Adds later changes, which replace earlier ones.
    fn add(&mut self, later: Self) {
        let Self { ended, next_session, next_client, users, sessions, clients } = later;
        (self.ended, self.next_session, self.next_client) = (ended, next_session, next_client);
        self.users = users;
        self.sessions.extend(sessions);
        self.clients.extend(clients);
    }
}

impl Book {
    fn apply(&mut self, changes: Changes) {
        let Changes { ended, next_session, next_client, users, sessions, clients } = changes;
        (self.ended, self.next_session, self.next_client) = (ended, next_session, next_client);
        self.users = users;
        replace_entries(&mut self.sessions, sessions, |entry| entry.session);
        replace_entries(&mut self.clients, clients, |entry| entry.client);
    }

    /// Puts the entries in the order of their numbers.
    fn sorted(mut self) -> Self {
        self.sessions.sort_by_key(|entry| entry.session);
        self.clients.sort_by_key(|entry| entry.client);
        self
    }

    pub(crate) fn new(next_session: u64, next_client: u64) -> Self {
        Self { boot: boot_id(), next_session, next_client, ..Self::default() }
    }

    /// Returns whether a stored number is not valid: not given out yet, or too large to count on.
    fn is_impossible(&self) -> bool {
        let given = |number: u64, next: u64| (1..next).contains(&number);
        let counts = |next: u64| (1..=MOST).contains(&next);
        let sessions = self.sessions.iter().all(|entry| given(entry.session.0, self.next_session));
        let clients = self.clients.iter().all(|entry| given(entry.client.0, self.next_client));
        !(counts(self.next_session) && counts(self.next_client) && sessions && clients)
    }

    fn is_of_this_boot(&self) -> bool {
        // An empty boot id means that the kernel did not report one.
        !self.boot.is_empty() && self.boot == boot_id()
    }

    /// Returns the contents of the registry after a reboot: only sessions made by administrators remain.
    fn over_a_boot(mut self) -> Self {
        let (next_session, next_client) = (self.next_session, self.next_client);
        self.sessions.retain(|entry| matches!(entry.origin, Origin::Created { .. }));
        let mut sessions = self.sessions;
        for entry in &mut sessions {
            entry.joined.clear();
            entry.leads.clear();
        }
        let mut users = self.users;
        users.iter_mut().for_each(|entry| entry.leads.clear());
        Self { sessions, users, ..Self::new(next_session, next_client) }
    }
}

fn replace_entries<K: Ord, T>(
    entries: &mut Vec<T>,
    changes: BTreeMap<K, Option<T>>,
    number: impl Fn(&T) -> K,
) {
    for (id, change) in changes {
        match (entries.binary_search_by(|entry| number(entry).cmp(&id)), change) {
            (Ok(at), Some(entry)) => entries[at] = entry,
            (Ok(at), None) => _ = entries.remove(at),
            (Err(at), Some(entry)) => entries.insert(at, entry),
            (Err(_), None) => {}
        }
    }
}

fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_owned()
}
