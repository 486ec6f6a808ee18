//! Pass over the chunks that rest, by a thread that lives as long as the process rests and there is something
//! to share.
//!
//! The pass has one offer for each chunk that it has asked for. An offer ends with the rest of its chunk, and
//! its claim with it, unless the mapping of a copy has taken the claim over.
//!
//! A new daemon knows none of the copies that were made under an earlier one. Its processes ask it for all of them
//! again. Otherwise a program that has such a copy and one that has none would never share.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::ptr::with_exposed_provenance;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use gpushare_proto::Bytes;
use gpushare_proto::copies::{CopyAnswer, CopyName, is_size_of_copy};
use gpushare_proto::page::FLAG_HOST_FULL;
use gpushare_sys::copies::{self, Copy};
use gpushare_sys::memory_limit::{self, Machine};
use xxhash_rust::xxh3::Xxh3;

use super::{Claim, Sharing};
use crate::driver::types::CUdeviceptr;
use crate::gate::page;
use crate::remap::host::Registration;
use crate::remap::lanes::{Lanes, Moving};
use crate::remap::swap::Resting;

/// Pause until the daemon is asked for a copy again. It doubles each time, up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// Pause before each step of [`copies::STEP`] bytes, so that others get at the memory and at the processor.
const STEP_PAUSE: Duration = Duration::from_millis(2);
/// Longest time in which the daemon is told of claims that have ended, when there are many.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes that are named at once.
const PIECE: usize = 256 << 10;

/// Pass of one card. See the [module](self).
#[derive(Debug)]
pub(in crate::remap) struct Pass<'a> {
    lanes: &'a Lanes,
    sharing: &'a Sharing,
    offers: BTreeMap<CUdeviceptr, Offer>,
    /// Pause after the first question for a chunk.
    pause: Duration,
}

/// Chunk for which the daemon was asked.
#[derive(Debug)]
struct Offer {
    resting: Resting,
    /// Claim of the chunk, if the daemon knows of one.
    claim: Option<Claim>,
    /// Time of the next question, and the pause after that; `None` if there is no use in asking in this rest.
    next: Option<(Instant, Duration)>,
}

/// Bytes of a slot, which are mapped as long as this value lives.
struct Source {
    address: *const u8,
    /// Copy that is the slot; `None` for a part of a region, whose addresses stay mapped.
    _copy: Option<Arc<Copy>>,
}

/// Work on a chunk that was called off, since the chunk or the process rests no more.
struct CalledOff;

impl<'a> Pass<'a> {
    pub(in crate::remap) fn new(lanes: &'a Lanes, sharing: &'a Sharing) -> Self {
        Self { lanes, sharing, offers: BTreeMap::new(), pause: PAUSE }
    }

    /// Shares what rests, until the process rests no more or there is nothing to share. Then it gives up all
    /// claims but those of copies.
    pub(in crate::remap) fn run(mut self) {
        let is_done = loop {
            let Some(resting) = self.lanes.look(Self::resting) else { break false };
            self.sharing.notice_end_of_daemon();
            self.keep_offers_of(&resting);
            let due = resting
                .into_iter()
                .filter(|chunk| is_size_of_copy(chunk.chunk.size) && self.is_due(chunk));
            let due: Vec<_> = due.collect();
            if due.into_iter().any(|chunk| self.offer(chunk).is_err()) {
                continue;
            }
            let next = self.offers.values().filter_map(|offer| offer.next).map(|(at, _)| at).min();
            let Some(next) = next else { break true };
            let pause = next.saturating_duration_since(Instant::now());
            let ends = |moving: &mut Moving| (!moving.may_go_on()).then_some(());
            self.lanes.wait_within(pause, ends);
        };
        self.keep_offers_of(&[]);
        self.sharing.settle_within(PATIENCE);
        self.lanes.change(|moving| moving.end_pass(is_done));
    }

    fn resting(moving: &mut Moving) -> Option<Vec<Resting>> {
        moving.may_go_on().then(|| moving.blocks.engine().resting())
    }

    /// Ends the offers of all chunks but these.
    fn keep_offers_of(&mut self, resting: &[Resting]) {
        let resting: BTreeMap<_, _> = resting.iter().map(|chunk| (chunk.chunk.address, chunk)).collect();
        self.offers
            .retain(|address, offer| resting.get(address).is_some_and(|chunk| **chunk == offer.resting));
        self.sharing.settle();
    }

    /// Whether the daemon is to be asked for a chunk now.
    fn is_due(&self, resting: &Resting) -> bool {
        let offer = self.offers.get(&resting.chunk.address);
        let is_due = offer.is_none_or(|offer| offer.next.is_some_and(|(at, _)| at <= Instant::now()));
        is_due && !self.sharing.is_known_copy(resting.slot)
    }

    /// Asks the daemon for a chunk, and exchanges its slot if there is a copy.
    fn offer(&mut self, resting: Resting) -> Result<(), CalledOff> {
        let key = (self.name(&resting)?, resting.chunk.size);
        let before = self.offers.remove(&resting.chunk.address);
        let pause = before
            .as_ref()
            .and_then(|offer| offer.next)
            .map_or(self.pause, |(_, pause)| pause);
        let answered = self.sharing.ask(key, before.and_then(|offer| offer.claim));
        let later = Some((Instant::now() + pause, (pause * 2).min(LONGEST_PAUSE)));
        let (claim, next) = match answered {
            None => (None, later),
            Some((claim, CopyAnswer::Alone | CopyAnswer::Busy, _)) => (Some(claim), later),
            Some((claim, answer @ (CopyAnswer::Fill | CopyAnswer::Made), Some(file))) => {
                let copy = self.copy(&resting, &file, answer == CopyAnswer::Fill)?;
                // Another card of this process may have been told to fill the file, too.
                let may_be_another_cards = copy.is_none() && answer == CopyAnswer::Fill;
                if copy.is_some_and(|copy| self.use_copy(resting, copy, claim)) {
                    return Ok(());
                }
                (None, later.filter(|_| may_be_another_cards))
            }
            Some((_, CopyAnswer::Fill | CopyAnswer::Made | CopyAnswer::Refused, _)) => (None, None),
        };
        self.offers.insert(resting.chunk.address, Offer { resting, claim, next });
        self.sharing.settle();
        Ok(())
    }

    /// Whether work on the bytes of a chunk may go on, after a pause.
    fn goes_on(&self, resting: &Resting) -> bool {
        thread::sleep(STEP_PAUSE);
        self.lanes
            .look(|moving| moving.may_go_on() && moving.blocks.engine().still_rests(resting))
    }

    /// Returns the bytes of a chunk that still rests.
    fn source(&self, resting: &Resting) -> Result<Source, CalledOff> {
        let copy = self.sharing.copy_at(resting.slot);
        // Looked at afterwards: a copy that the chunk still has was not given up before.
        let still_rests = self.lanes.look(|moving| moving.blocks.engine().still_rests(resting));
        let address = with_exposed_provenance(resting.slot.0 as usize);
        still_rests.then_some(Source { address, _copy: copy }).ok_or(CalledOff)
    }

    /// Returns the name of the bytes of a chunk. It is computed once for each copy out of the chunk.
    fn name(&self, resting: &Resting) -> Result<CopyName, CalledOff> {
        if let Some(known) = self.lanes.look(|moving| moving.blocks.engine().name_of(resting)) {
            return Ok(known);
        }
        let (source, size) = (self.source(resting)?, resting.chunk.size.0 as usize);
        // SAFETY: the source is mapped.
        let name = unsafe { name(source.address, size, || self.goes_on(resting)) }.ok_or(CalledOff)?;
        let is_of_chunk = self.lanes.look(|moving| moving.blocks.engine().set_name(resting, name));
        is_of_chunk.then_some(name).ok_or(CalledOff)
    }

    /// Fills a new copy, or compares the one that was made with the slot of a chunk. Returns a copy with the
    /// same bytes, if that can be had.
    fn copy(&self, resting: &Resting, file: &OwnedFd, is_new: bool) -> Result<Option<Copy>, CalledOff> {
        let (source, size) = (self.source(resting)?, resting.chunk.size);
        let goes_on = || self.goes_on(resting);
        // A new copy stands beside the slot for some time. At the limit of its control group the process
        // would be killed, and at that of the machine some process.
        let machine = || memory_limit::machine().map(Machine::room);
        let has_no_room = || memory_limit::room().into_iter().chain(machine()).any(|room| room < size);
        if is_new && (has_no_room() || is_host_full()) {
            return Ok(None);
        }
        let map = || match is_new {
            // SAFETY: the source is mapped.
            true => copies::map(unsafe { copies::fill(file, source.address, size, goes_on) }?, size),
            false => copies::map(file, size),
        };
        // SAFETY: as above.
        let is_same = |copy: &Copy| unsafe { copy.equals(source.address, goes_on) } == Some(true);
        let copy = map().ok().filter(is_same);
        if copy.is_none() && !self.goes_on(resting) {
            return Err(CalledOff);
        }
        Ok(copy)
    }

    /// Puts a copy in the place of the slot of a chunk, once it is registered. A copy that cannot be used is
    /// given up. Returns whether it is used.
    fn use_copy(&self, resting: Resting, copy: Copy, claim: Claim) -> bool {
        let address = self.sharing.keep(copy, claim);
        let slot = self.lanes.change(|moving| moving.pool.add_copy(address, resting.chunk.size));
        let registration = self.lanes.wait_for(|moving| match moving.pool.registration(&slot) {
            Registration::Coming if moving.may_go_on() => None,
            known => Some(known),
        });
        self.lanes.change(|moving| {
            let unused = match registration {
                Registration::Done => moving.blocks.engine().exchange_slot(&resting, slot),
                Registration::Coming | Registration::Refused | Registration::Unsupported => Some(slot),
            };
            if registration == Registration::Unsupported {
                moving.refuse_sharing();
            }
            let is_used = unused.as_ref().is_none_or(|slot| slot.address() != address);
            unused.into_iter().for_each(|slot| moving.pool.put(slot));
            is_used
        })
    }
}

/// Whether the daemon says that the host memory is full.
fn is_host_full() -> bool {
    page().flags.load(Ordering::Relaxed) & FLAG_HOST_FULL != 0
}

/// Returns the name of memory: 128 bits of a hash of its bytes. `None` if it was called off.
///
/// # Safety
/// The memory is mapped. If its bytes change meanwhile, the name means nothing.
unsafe fn name(memory: *const u8, size: usize, goes_on: impl Fn() -> bool) -> Option<CopyName> {
    let (mut hash, mut piece) = (Xxh3::new(), vec![0; PIECE]);
    for (offset, length) in copies::steps(Bytes(size as u64)) {
        if !goes_on() {
            return None;
        }
        for at in (offset..offset + length).step_by(PIECE) {
            let part = PIECE.min(offset + length - at);
            // SAFETY: the range is within the memory. The bytes are copied before they are looked at, since
            // others may change them.
            unsafe { memory.add(at).copy_to_nonoverlapping(piece.as_mut_ptr(), part) };
            hash.update(&piece[..part]);
        }
    }
    Some(CopyName(hash.digest128().to_le_bytes()))
}

#[cfg(test)]
mod tests;
