//! Passes over the chunks that rest, by a thread that lives as long as the process rests and there is something to share.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::ptr::with_exposed_provenance;
use std::time::{Duration, Instant};

use gpushare_proto::copies::{CopyAnswer, CopyName, is_size_of_copy};
use gpushare_sys::copies::{self, Copy};
use xxhash_rust::xxh3::Xxh3;

use super::{Claim, Sharing};
use crate::driver::types::CUdeviceptr;
use crate::remap::host::Registration;
use crate::remap::lanes::{Lanes, Moving};
use crate::remap::swap::Resting;

/// Pause until the daemon is asked for a copy again. It doubles each time, up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// Bytes that are named at once.
const PIECE: usize = 256 << 10;

/// Passes of one card.
#[derive(Debug)]
pub(in crate::remap) struct Pass<'a> {
    lanes: &'a Lanes,
    sharing: &'a Sharing,
    /// Chunks for which the daemon was asked, by their addresses.
    offers: BTreeMap<CUdeviceptr, Offer>,
}

/// Chunk for which the daemon was asked.
#[derive(Debug)]
struct Offer {
    resting: Resting,
    claim: Claim,
    /// Time of the next question, and the pause after that; `None` if there is no use in asking.
    next: Option<(Instant, Duration)>,
}

impl<'a> Pass<'a> {
    pub(in crate::remap) fn new(lanes: &'a Lanes, sharing: &'a Sharing) -> Self {
        Self { lanes, sharing, offers: BTreeMap::new() }
    }

    /// Shares what rests, until the process rests no more or there is nothing to share.
    pub(in crate::remap) fn run(&mut self) {
        while let Some(resting) = self.lanes.look(Self::resting) {
            for chunk in resting {
                if is_size_of_copy(chunk.chunk.size) && self.is_due(&chunk) {
                    self.offer(chunk);
                }
            }
            let next = self.offers.values().filter_map(|offer| offer.next).map(|(at, _)| at).min();
            let Some(next) = next else { break };
            let pause = next.saturating_duration_since(Instant::now());
            let ends = |moving: &mut Moving| (!moving.may_share()).then_some(());
            if self.lanes.wait_within(pause, ends).is_some() {
                break;
            }
        }
        for offer in std::mem::take(&mut self.offers).into_values() {
            self.sharing.release(offer.claim);
        }
    }

    fn resting(moving: &mut Moving) -> Option<Vec<Resting>> {
        moving.may_share().then(|| moving.blocks.engine().resting())
    }

    /// Whether the daemon is to be asked for a chunk now. What is known of an earlier rest of the chunk is forgotten.
    fn is_due(&mut self, resting: &Resting) -> bool {
        let address = resting.chunk.address;
        let changed = self
            .offers
            .extract_if(.., |at, offer| *at == address && offer.resting != *resting);
        changed.for_each(|(_, offer)| self.sharing.release(offer.claim));
        let offer = self.offers.get(&address);
        offer.is_none_or(|offer| offer.next.is_some_and(|(at, _)| at <= Instant::now()))
    }

    /// Asks the daemon for a chunk, and exchanges its slot if there is a copy.
    fn offer(&mut self, resting: Resting) {
        let goes_on = || {
            self.lanes
                .look(|moving| moving.may_share() && moving.blocks.engine().still_rests(&resting))
        };
        let slot = with_exposed_provenance::<u8>(resting.slot.0 as usize);
        let before = self.offers.remove(&resting.chunk.address);
        let is_first = before.is_none();
        let size = resting.chunk.size;
        let known = before.as_ref().map(|offer| offer.claim);
        // SAFETY: slots are parts of mappings that live as long as the process.
        let claim = known.or_else(|| Some((unsafe { name(slot, size.0 as usize, &goes_on) }?, size)));
        let Some(claim) = claim else { return };
        let Some((answer, file)) = self.sharing.ask(claim, is_first) else { return };
        let pause = before.and_then(|offer| offer.next).map_or(PAUSE, |(_, pause)| pause);
        let later = Some((Instant::now() + pause, (pause * 2).min(LONGEST_PAUSE)));
        let next = match (answer, file) {
            (CopyAnswer::Alone | CopyAnswer::Busy, _) => later,
            (CopyAnswer::Refused, _) => return,
            (CopyAnswer::Fill | CopyAnswer::Made, Some(file)) => {
                let is_new = answer == CopyAnswer::Fill;
                // SAFETY: as above.
                match unsafe { Self::copy(&file, is_new, slot, claim, &goes_on) } {
                    Some(copy) => return self.use_copy(resting, copy, claim),
                    None => None,
                }
            }
            (CopyAnswer::Fill | CopyAnswer::Made, None) => None,
        };
        if next.is_none() {
            return self.sharing.release(claim);
        }
        self.offers.insert(resting.chunk.address, Offer { resting, claim, next });
    }

    /// Fills a new copy, or compares the one that was made with the slot. Returns a copy with the same bytes.
    ///
    /// # Safety
    /// The slot is mapped and of the size of the claim.
    unsafe fn copy(
        file: &OwnedFd,
        is_new: bool,
        slot: *const u8,
        (_, size): Claim,
        goes_on: impl Fn() -> bool,
    ) -> Option<Copy> {
        let copy = match is_new {
            // SAFETY: the caller's promise.
            true => copies::map(unsafe { copies::fill(file, slot, size, &goes_on) }.ok()?, size),
            false => copies::map(file, size),
        };
        let copy = copy.ok()?;
        // SAFETY: the caller's promise.
        let is_same = unsafe { copy.equals(slot, goes_on) };
        (is_same == Some(true)).then_some(copy)
    }

    /// Puts a copy in the place of the slot of a chunk, once it is registered. A copy that cannot be used is given up.
    fn use_copy(&self, resting: Resting, copy: Copy, claim: Claim) {
        let address = self.sharing.keep(copy, claim);
        let slot = self.lanes.change(|moving| moving.pool.add_copy(address, resting.chunk.size));
        let registration = self.lanes.wait_for(|moving| match moving.pool.registration(&slot) {
            Registration::Coming if moving.may_share() => None,
            known => Some(known),
        });
        self.lanes.change(|moving| {
            let unused = match registration {
                Registration::Done => moving.blocks.engine().exchange_slot(&resting, slot),
                Registration::Coming | Registration::Refused => Some(slot),
            };
            if registration == Registration::Refused {
                moving.refuse_sharing();
            }
            unused.into_iter().for_each(|slot| moving.pool.put(slot));
        });
    }
}

/// Returns the name of memory: 128 bits of a hash of its bytes. `None` if it was called off.
///
/// # Safety
/// The memory is mapped. If its bytes change meanwhile, the name means nothing.
unsafe fn name(memory: *const u8, size: usize, goes_on: impl Fn() -> bool) -> Option<CopyName> {
    let (mut hash, mut piece) = (Xxh3::new(), vec![0; PIECE]);
    for (offset, length) in copies::steps(gpushare_proto::Bytes(size as u64)) {
        if !goes_on() {
            return None;
        }
        for at in (offset..offset + length).step_by(PIECE) {
            let part = PIECE.min(offset + length - at);
            // SAFETY: the range is within the memory. The bytes are copied before they are looked at, since others may
            // change them.
            unsafe { memory.add(at).copy_to_nonoverlapping(piece.as_mut_ptr(), part) };
            hash.update(&piece[..part]);
        }
    }
    Some(CopyName(hash.digest128().to_le_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_bytes_have_equal_names_and_others_have_others() {
        let mut bytes = vec![7_u8; 9 << 20];
        let named = |bytes: &[u8], goes_on| {
            // SAFETY: the slice is mapped.
            unsafe { name(bytes.as_ptr(), bytes.len(), || goes_on) }
        };
        let first = named(&bytes, true);
        assert!(first.is_some());
        assert_eq!(named(&bytes.clone(), true), first);
        *bytes.last_mut().unwrap() = 8;
        assert_ne!(named(&bytes, true), first);
        assert_eq!(named(&bytes, false), None);
    }
}
