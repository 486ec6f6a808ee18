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
//! A copy is never mapped at an address of the program: its chunks read it, as they read a slot. A chunk that
//! has changed gets a slot of its own again. The daemon and the protocol are described in
//! `gpushare_proto::copies`.
//!
//! A chunk for which the daemon is asked has a *claim* (`claims`). Its owner is the pass that asks, and
//! later the mapping of the copy. The claim ends with its owner, and the connection to the daemon ends with
//! the last claim.

mod claims;
mod desk;
mod pass;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::time::{Duration, Instant};
use std::{io, thread};

use gpushare_proto::copies::CopyAnswer;
use gpushare_sys::copies::Copy;

use self::claims::{Claim, Claims, Key};
use self::desk::Desk;
use super::vmm::HostAddress;
use crate::daemon::address::Address;
use crate::process::lock;

pub(super) use self::pass::Pass;

/// Pause after which a daemon that took no message may take one.
const BREATH: Duration = Duration::from_millis(2);

/// Copies of the process, of all cards.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// Address of the daemon that the process has joined.
    address: OnceLock<Address>,
    claims: Arc<Claims>,
    /// Locked while the daemon is asked, so that nobody may wait for it who frees memory or moves it.
    desk: Mutex<Desk>,
    mapped: Mutex<BTreeMap<HostAddress, (Arc<Copy>, Claim)>>,
}

/// Answer of the daemon, with the claim of the chunk and the file of the copy.
type Answered = (Claim, CopyAnswer, Option<OwnedFd>);

impl Sharing {
    /// Sets the address of the daemon, once.
    pub(super) fn use_address(&self, address: Address) {
        let _ = self.address.set(address);
    }

    /// Asks the daemon for the copy of a chunk, which keeps the claim that it has. `None` if no daemon
    /// answers.
    fn ask(&self, key: Key, claim: Option<Claim>) -> Option<Answered> {
        let mut desk = lock(&self.desk);
        let answered = self.ask_by(&mut desk, key, claim);
        // The connection may be that of an earlier daemon.
        let answered = answered.or_else(|| self.ask_by(&mut desk, key, None));
        drop(desk);
        self.settle();
        answered
    }

    fn ask_by(&self, desk: &mut Desk, key: Key, claim: Option<Claim>) -> Option<Answered> {
        desk.connect(self.address.get()?)?;
        let claim = claim.filter(Claim::is_known).unwrap_or_else(|| self.claims.add(key));
        let Some((answer, file)) = desk.ask(key, self.claims.chunks(key)) else {
            self.hang_up(desk);
            return None;
        };
        Some((claim, answer, file))
    }

    /// Tells the daemon of claims that have ended, and hangs up after the last one. Never waits: if the
    /// daemon is being asked now, the thread that asks does this afterwards. What the daemon does not take
    /// now it is told at the next occasion.
    fn settle(&self) {
        while let Some(key) = self.claims.next_ended() {
            let mut desk = match self.desk.try_lock() {
                Ok(desk) => desk,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            if self.claims.are_none() {
                self.hang_up(&mut desk);
                return;
            }
            // A thread that had the desk meanwhile may have claimed the same bytes again.
            if self.claims.next_ended() != Some(key) {
                continue;
            }
            match desk.end(key) {
                Ok(()) => self.claims.note_told(key),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.hang_up(&mut desk),
            }
        }
    }

    /// Tells the daemon of claims that have ended until it has heard of all, for about as long as `patience`.
    fn settle_within(&self, patience: Duration) {
        let end = Instant::now() + patience;
        while self.claims.next_ended().is_some() && Instant::now() < end {
            self.settle();
            thread::sleep(BREATH);
        }
    }

    /// Ends the connection, and with it all claims that the daemon knows.
    fn hang_up(&self, desk: &mut Desk) {
        desk.hang_up();
        self.claims.forget();
    }

    /// Forgets what an earlier daemon knew, if the connection to that one has ended.
    fn notice_end_of_daemon(&self) {
        let mut desk = lock(&self.desk);
        if desk.has_ended() {
            self.hang_up(&mut desk);
        }
    }

    /// Returns whether the daemon knows memory as a copy that the process uses.
    fn is_known_copy(&self, address: HostAddress) -> bool {
        let mapped = lock(&self.mapped);
        mapped.get(&address).is_some_and(|(_, claim)| claim.is_known())
    }

    /// Returns the copy at an address, which stays mapped as long as the result lives; `None` if there is none.
    fn copy_at(&self, address: HostAddress) -> Option<Arc<Copy>> {
        lock(&self.mapped).get(&address).map(|(copy, _)| copy.clone())
    }

    /// Keeps the mapping of a copy until [`Self::unmap`], and returns its address.
    fn keep(&self, copy: Copy, claim: Claim) -> HostAddress {
        let address = HostAddress(copy.address() as u64);
        lock(&self.mapped).insert(address, (Arc::new(copy), claim));
        address
    }

    /// Gives a copy up, which nobody reads any more.
    pub(super) fn unmap(&self, address: HostAddress) {
        let kept = lock(&self.mapped).remove(&address);
        drop(kept);
        self.settle();
    }
}
