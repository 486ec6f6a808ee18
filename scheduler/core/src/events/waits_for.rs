//! Reasons why a session waits for its turn, and their wording.

use std::fmt;

use gpushare_proto::{Bytes, Percent, SessionId};
use serde::{Deserialize, Serialize};

use super::{Standing, ThawWait};

/// Reason why a session with the lock cannot have all its remapped memory on a card yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lack {
    /// Other processes give up memory or credit.
    Moves,
    /// The host memory is used up.
    HostMemory,
    /// The rest of the card is held by processes that work, do not answer, or whose memory cannot move.
    Kept,
}

/// Reason why a session that wants a turn does not have one yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitsFor {
    /// The session is next in the queue.
    #[default]
    Turn,
    /// Other sessions hold the lock.
    Holders(Vec<SessionId>),
    /// A session that holds the lock does not give it back.
    Stuck {
        /// Identifier of the session that holds the lock.
        session: SessionId,
        /// Reason why that session does not give the lock back, in words.
        reason: String,
    },
    /// This number of processes of the last daemon have not come back, and may use the waiting session's
    /// cards.
    Return(u32),
    /// The administrator paused the session, or it expired or was revoked.
    Pardon(Standing),
    /// The session has used up its compute limit for the present.
    Limit(Percent),
    /// Processes of the session are frozen and come back, in whole or in part.
    Thaw(ThawWait),
    /// The session has the lock, and a part of its remapped memory is not on its cards.
    Memory {
        /// Number of bytes that are not on the cards.
        missing: Bytes,
        /// Reason why they cannot come in yet; `None` if they may.
        lack: Option<Lack>,
    },
}

impl WaitsFor {
    /// Largest number of holding sessions that a wording names.
    const NAMED: usize = 5;

    /// Returns the reason in words, with session names from `name`, which only the daemon knows.
    #[must_use]
    pub fn words(&self, name: impl Fn(SessionId) -> String) -> String {
        match self {
            Self::Turn => "its turn is next".to_owned(),
            Self::Holders(holders) => {
                let named = holders.iter().take(Self::NAMED);
                let names = named.map(|id| name(*id)).collect::<Vec<_>>().join(", ");
                match holders.len().saturating_sub(Self::NAMED) {
                    0 => format!("held by {names}"),
                    more => format!("held by {names} and {more} more"),
                }
            }
            Self::Stuck { session, reason } => {
                format!("session {} does not let go: {reason}", name(*session))
            }
            Self::Pardon(Standing::Paused) => {
                "the session is paused, until `gpushare-ctl session resume`".to_owned()
            }
            Self::Pardon(_) => {
                "the session has expired or was revoked; `gpushare-ctl session renew` lets it go on"
                    .to_owned()
            }
            Self::Limit(limit) => format!("its compute limit of {limit} is used up for now"),
            Self::Thaw(ThawWait::Driver) => "it is frozen, and the driver brings it back".to_owned(),
            Self::Thaw(ThawWait::Room) => {
                "it is frozen, and its cards have no room for what the driver must bring back".to_owned()
            }
            Self::Thaw(ThawWait::FreeMemory) => {
                "it is frozen, and NVML shows less free memory on its cards than the driver must bring back: programs \
                 without gpushare may use it"
                    .to_owned()
            }
            Self::Memory { missing, lack } => {
                let why = match lack {
                    None => "it is moving in",
                    Some(Lack::Moves) => "memory of other sessions leaves the card first",
                    Some(Lack::HostMemory) => "the host memory is too full for what must leave the card",
                    Some(Lack::Kept) => "the card is full of memory that cannot leave it now",
                };
                format!("it has the card and waits for {missing} of its own memory: {why}")
            }
            Self::Return(0) => "the scheduler restarted and is about to go on".to_owned(),
            Self::Return(1) => "the scheduler restarted and waits for 1 process to return".to_owned(),
            Self::Return(n) => format!("the scheduler restarted and waits for {n} processes to return"),
        }
    }
}

/// Words the reason with the numbers of sessions and cards instead of their names.
impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words(|session| session.to_string()))
    }
}

/// Place of a waiting session in the queue, with the reason for its wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Number of waiting sessions that come first on any of the session's cards.
    pub(crate) ahead: u32,
    /// Reason why the session waits.
    pub(crate) reason: WaitsFor,
}
