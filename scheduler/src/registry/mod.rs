//! What outlives a daemon: whom a restarted one must wait for, what sessions were given, and what they used.
//!
//! ```text
//!   shell ── book, usage ──▶ slot, the latest wins ──▶ thread: Store ── one fsynced commit ──▶ registry.redb
//!     ▲                                                  │
//!     └──── word: all acts up to here are on the disk ◀──┘        next daemon ◀── whose processes still live?
//! ```
//!
//! The thread works beside the shell, so a slow disk delays no grant; an administrator's tool waits for the
//! word. Clients are of use on the boot that wrote them only, what was made to last and usage also on the
//! next. A file that does not read is set aside, never guessed at.

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

/// No daemon counts as far: it would take a million sessions a second for a hundred thousand years.
const MOST: u64 = u64::MAX / 4;

/// Everything that outlives a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Book {
    /// The kernel's name for this run of the machine.
    boot: String,
    /// Whether it is a daemon's last word: then nobody joined after it.
    ended: bool,
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
    /// When its time is over, in nanoseconds of the wall clock.
    pub(crate) expires_unix: Option<u64>,
    /// What it has used so far, under all daemons.
    pub(crate) totals: Figures,
    /// Processes that entered the session.
    #[serde(default, rename = "entrants")]
    pub(crate) joined: Vec<JoinedProcess>,
}

/// Where a session comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Origin {
    /// A process registered it and holds its token.
    Registered { token: TokenHash, uid: u32, by: ProcessId },
    /// An administrator made it, and it lives until one deletes it.
    Created { token: Option<TokenHash>, binding: Binding, uid: u32 },
    /// It was made for peers without a token.
    Implicit(ImplicitKey),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientEntry {
    pub(crate) client: ClientId,
    pub(crate) session: SessionId,
    pub(crate) process: ProcessId,
    /// The cards that it said it uses; none where it had not said so yet, or an older daemon wrote it down.
    #[serde(default)]
    pub(crate) cards: Vec<CardUse>,
}

/// What a client has of one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CardUse {
    pub(crate) card: GpuInfo,
    /// As of the last look, a second ago at most.
    pub(crate) used: Bytes,
}

impl Book {
    pub(crate) fn new(next_session: u64, next_client: u64) -> Self {
        Self { boot: boot_id(), next_session, next_client, ..Self::default() }
    }

    /// Whether a number is used that was not given yet, or so great that counting on would wrap.
    fn is_impossible(&self) -> bool {
        let given = |number: u64, next: u64| (1..next).contains(&number);
        let counts = |next: u64| (1..=MOST).contains(&next);
        let sessions = self.sessions.iter().all(|entry| given(entry.session.0, self.next_session));
        let clients = self.clients.iter().all(|entry| given(entry.client.0, self.next_client));
        !(counts(self.next_session) && counts(self.next_client) && sessions && clients)
    }

    /// The last word of a daemon that ends.
    pub(crate) fn ended(self) -> Self {
        Self { ended: true, ..self }
    }

    /// Whether what it says of processes is about this run of the machine.
    fn is_of_this_boot(&self) -> bool {
        // Where the kernel does not say, nobody knows.
        !self.boot.is_empty() && self.boot == boot_id()
    }

    /// What is left of it when the machine has started anew: sessions that live until they are deleted.
    fn over_a_boot(mut self) -> Self {
        let (next_session, next_client) = (self.next_session, self.next_client);
        self.sessions.retain(|entry| matches!(entry.origin, Origin::Created { .. }));
        let mut sessions = self.sessions;
        sessions.iter_mut().for_each(|entry| entry.joined.clear());
        Self { sessions, ..Self::new(next_session, next_client) }
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}
