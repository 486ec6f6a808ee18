//! Copies of host memory that the process shares with others of its user, and the daemon's table of them.
//!
//! ```text
//!   chunk rests ─▶ name of its bytes ─▶ daemon ─┬─ Alone, Busy ─▶ asked again after a pause
//!                                               ├─ Fill ─▶ write the bytes, seal the file ─┐
//!                                               └─ Made ───────────────────────────────────┴─▶ map, compare
//!                                                                                                  │ equal
//!   slot of its own given back ◀── exchanged, if the chunk still rests ◀── registered ◀────────────┘
//! ```
//!
//! A copy is never mapped at an address of the program: its chunks read it, as they read a slot. A chunk that has changed
//! gets a slot of its own again. The daemon and the protocol are described in `gpushare_proto::copies`.

mod desk;
mod pass;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use gpushare_proto::Bytes;
use gpushare_proto::copies::{CopyAnswer, CopyName};
use gpushare_sys::copies::Copy;

use self::desk::Desk;
use super::vmm::HostAddress;
use crate::process::lock;

pub(super) use self::pass::Pass;

/// Copies of the process, of all cards.
#[derive(Debug, Default)]
pub(crate) struct Sharing(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    desk: Desk,
    /// Number of chunks that have bytes of this name and size, as the daemon knows it.
    claims: BTreeMap<Claim, u32>,
    mapped: BTreeMap<HostAddress, (Copy, Claim)>,
}

/// Bytes for which a chunk asks.
type Claim = (CopyName, Bytes);

impl Sharing {
    /// Asks the daemon for the copy of a chunk. A first asking adds the chunk to those that have such bytes. `None` if no
    /// daemon answers.
    pub(super) fn ask(&self, claim: Claim, is_first: bool) -> Option<(CopyAnswer, Option<OwnedFd>)> {
        let mut inner = lock(&self.0);
        let chunks = inner.claims.get(&claim).copied().unwrap_or(0) + u32::from(is_first);
        let answer = inner.desk.ask(claim, chunks.max(1));
        match answer {
            Some((CopyAnswer::Refused, _)) => {}
            Some(_) => drop(inner.claims.insert(claim, chunks.max(1))),
            // The next daemon knows nothing of these.
            None => inner.claims.clear(),
        }
        answer
    }

    /// Notes that a chunk has such bytes no more, or does without a copy.
    pub(super) fn release(&self, claim: Claim) {
        lock(&self.0).release(claim);
    }

    /// Keeps the mapping of a copy until [`Self::unmap`], and returns its address.
    pub(super) fn keep(&self, copy: Copy, claim: Claim) -> HostAddress {
        let address = HostAddress(copy.address() as u64);
        lock(&self.0).mapped.insert(address, (copy, claim));
        address
    }

    /// Gives a copy up, which nobody reads any more.
    pub(super) fn unmap(&self, address: HostAddress) {
        let mut inner = lock(&self.0);
        if let Some((copy, claim)) = inner.mapped.remove(&address) {
            drop(copy);
            inner.release(claim);
        }
    }
}

impl Inner {
    fn release(&mut self, claim: Claim) {
        let Some(chunks) = self.claims.get_mut(&claim) else { return };
        *chunks -= 1;
        if *chunks == 0 {
            self.claims.remove(&claim);
            self.desk.end(claim);
        }
    }
}
