//! The registry: clients, sessions and usage, stored on disk for the next daemon.
//!
//! ```text
//!   engine ─ book, usage ─▶ slot, latest wins ─▶ thread: Store ─ one fsynced commit ─▶ registry.redb
//!     ▲                                             │
//!     └─── word: all acts up to this one are stored ◀┘
//! ```
//!
//! A thread writes beside the engine, so a slow disk delays no grant. Only the answers to administrators wait
//! for the thread's word. Entries about processes count on the boot on which they were written; persistent
//! sessions and usage also count after a reboot. A damaged file is set aside.

mod file;
mod store;
mod usage;
mod writer;

use std::fs;

use gpushare_proto::session::{Binding, Terms};
use gpushare_proto::tenant::GpuInfo;
use gpushare_proto::{Bytes, ClientId, GpuUuid, SessionId};
use serde::{Deserialize, Serialize};

use crate::clients::joined::JoinedProcess;
use crate::identity::{ImplicitKey, ProcessId};
use crate::secret::TokenHash;

pub(crate) use store::{Store, view};
pub(crate) use usage::{Figures, Hour, Spent, Usage};
pub(crate) use writer::{News, Word, Writer};

/// Greatest valid number of a session or client. Counting there at a million a second takes 100,000 years.
const MOST: u64 = u64::MAX / 4;

/// Contents of the registry, without usage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Book {
    /// Boot id of the kernel when the book was written.
    boot: String,
    /// Whether a daemon wrote the book at its end, so that no client joined afterwards.
    pub(crate) ended: bool,
    pub(crate) next_session: u64,
    pub(crate) next_client: u64,
    pub(crate) sessions: Vec<SessionEntry>,
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
    /// End of the session's time, in nanoseconds since 1970; `None` for no end.
    pub(crate) expires_unix: Option<u64>,
    /// Totals that the session has used under all daemons.
    pub(crate) totals: Figures,
    /// Processes that entered the session.
    #[serde(default, rename = "entrants")]
    pub(crate) joined: Vec<JoinedProcess>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Origin {
    /// Registered by a process, which holds the token.
    Registered { token: TokenHash, uid: u32, by: ProcessId },
    /// Made by an administrator; it lives until it is deleted.
    Created { token: Option<TokenHash>, binding: Binding, uid: u32 },
    /// Made for peers without a token.
    Implicit(ImplicitKey),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientEntry {
    pub(crate) client: ClientId,
    pub(crate) session: SessionId,
    pub(crate) process: ProcessId,
    /// Cards that the client announced; empty if it announced none yet, or an older daemon wrote the entry.
    #[serde(default)]
    pub(crate) cards: Vec<CardUse>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CardUse {
    pub(crate) card: GpuInfo,
    /// Bytes in use, at most a second old.
    pub(crate) used: Bytes,
}

impl Book {
    pub(crate) fn new(next_session: u64, next_client: u64) -> Self {
        Self { boot: boot_id(), next_session, next_client, ..Self::default() }
    }

    /// Returns whether a number is not valid: not given out yet, or so great that counting on would overflow.
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

    /// Returns the book after a reboot: only sessions made by administrators remain.
    fn over_a_boot(mut self) -> Self {
        let (next_session, next_client) = (self.next_session, self.next_client);
        self.sessions.retain(|entry| matches!(entry.origin, Origin::Created { .. }));
        let mut sessions = self.sessions;
        sessions.iter_mut().for_each(|entry| entry.joined.clear());
        Self { sessions, ..Self::new(next_session, next_client) }
    }
}

fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_owned()
}
