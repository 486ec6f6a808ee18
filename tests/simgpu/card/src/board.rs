//! Board of a process: memory in which the card notes what the program may see without asking. The error from
//! which the process does not recover, and for each event how many of its records were reached.
//!
//! ```text
//!   0                      error, or 0 (u32)
//!   4                      1 while calls of the process have to wait for a checkpoint (u32)
//!   8                      number of calls that are under way; the process writes it (u32)
//!   4096 + 16 × event      number of the event's last record that was reached (u64), time of it (u64)
//! ```
//!
//! A query of an event is thus a look at memory, as with a real driver. Pages of events that do not exist are
//! never touched, and take no memory.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use crate::bytes::SharedBytes;
use crate::ids::{EventId, Time};
use crate::wire::Sticky;

const FIRST: u64 = 4096;
const SIZE: u64 = 16;
/// Events with a place on the board. Others are asked for.
const EVENTS: u32 = 1 << 20;

/// Offset of the word that says that calls of the process have to wait.
pub const HELD: u64 = 4;
/// Offset of the number of calls under way.
pub const INSIDE: u64 = 8;

/// Length of a board in bytes.
pub const LENGTH: u64 = FIRST + EVENTS as u64 * SIZE;

/// An event whose last record was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reached {
    pub(crate) event: EventId,
    /// Number of that record, from 1.
    pub(crate) record: u64,
    pub(crate) at: Time,
}

#[derive(Debug)]
pub(crate) struct Board(SharedBytes);

impl Board {
    /// An empty board, and the memfd of it for the process.
    pub(crate) fn new() -> io::Result<(Self, Option<OwnedFd>)> {
        let mut bytes = SharedBytes::allocate(LENGTH)?;
        let fd = bytes.take_fd();
        Ok((Self(bytes), fd))
    }

    pub(crate) fn note_error(&self, error: Sticky) {
        if let Some([word]) = self.0.words(0, 1) {
            word.store(error as u32, Release);
        }
    }

    /// Makes new calls of the process wait, or lets them go on.
    pub(crate) fn hold(&self, held: bool) {
        if let Some([word]) = self.0.words(HELD, 1) {
            word.store(u32::from(held), SeqCst);
        }
    }

    /// Number of the process's calls that are under way.
    pub(crate) fn inside(&self) -> u32 {
        self.0.words(INSIDE, 1).map_or(0, |words| words[0].load(SeqCst))
    }

    pub(crate) fn note(&self, reached: Reached) {
        let words = place(reached.event).map(|place| [place, place + 8].map(|word| self.0.wide_word(word)));
        if let Some([Some(record), Some(at)]) = words {
            at.store(u64::try_from(reached.at.as_nanos()).unwrap_or(u64::MAX), Relaxed);
            record.store(reached.record, Release);
        }
    }
}

/// Offset of an event's two words on a board; `None` for one that has no place there.
pub fn place(event: EventId) -> Option<u64> {
    (event.0 < EVENTS).then(|| FIRST + u64::from(event.0) * SIZE)
}
