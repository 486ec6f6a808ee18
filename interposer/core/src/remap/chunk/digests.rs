//! Digests of a chunk: whether it has changed since its slot was filled, and whether work changes it on its way out.
//!
//! ```text
//!   digest 1 ── as the slot's ──▶ the slot has the bytes already, so nothing is copied
//!      │
//!      └── another one ──▶ copy out, and keep it with the slot ── `--paranoid` ──▶ digest 2 must be the same
//! ```
//!
//! A chunk that has changed [`CHANGES`] times running is copied without a digest the next [`RESTS`] times.

use crate::remap::vmm::Tier;

/// Number of changes in a row after which a chunk is taken for one that changes always.
const CHANGES: u8 = 3;
/// Number of moves out for which such a chunk is not looked at.
const RESTS: u8 = 13;

/// Digests of a chunk. See the [module](self).
#[derive(Debug)]
pub(super) struct Digests {
    /// Whether a second digest must prove that no work changes the chunk while it leaves (`--paranoid`).
    is_checked: bool,
    /// Digest of the handle's bytes, which no work has changed since.
    now: Option<u128>,
    /// Digest of the bytes in the slot.
    of_slot: Option<u128>,
    proof: Proof,
    /// Number of times running that the chunk was found changed.
    changes: u8,
    /// Number of moves out that are left without a digest.
    rests: u8,
}

/// Proof that no work has changed the chunk since the first digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    Missing,
    Passed,
    Failed,
}

/// Result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    /// The slot has the bytes of the handle.
    SameAsSlot,
    /// Different bytes, or nothing to compare with.
    Other,
}

impl Digests {
    pub(super) const fn new(is_checked: bool) -> Self {
        Self {
            is_checked,
            now: None,
            of_slot: None,
            proof: Proof::Missing,
            changes: 0,
            rests: 0,
        }
    }

    /// Whether a second digest must prove that no work changes the chunk.
    pub(super) const fn is_checked(&self) -> bool {
        self.is_checked
    }

    /// Whether a digest is to be taken before the bytes of a handle are copied out.
    pub(super) fn is_due(&self, tier: Tier) -> bool {
        // Memory of the host would be read over the bus.
        self.now.is_none() && (self.is_checked || (self.rests == 0 && tier == Tier::Device))
    }

    /// Whether a second digest is to be taken before the chunk leaves.
    pub(super) fn needs_proof(&self) -> bool {
        self.is_checked && self.now.is_some() && self.proof == Proof::Missing
    }

    /// Whether the second digest was another one.
    pub(super) fn has_failed(&self) -> bool {
        self.proof == Proof::Failed
    }

    /// Notes a digest of the handle's bytes. If `is_copied`, the slot has the same bytes, as far as is known.
    pub(super) fn add(&mut self, digest: u128, is_copied: bool) -> Comparison {
        if is_copied {
            self.proof = if self.now == Some(digest) { Proof::Passed } else { Proof::Failed };
            return Comparison::Other;
        }
        self.now = Some(digest);
        let Some(of_slot) = self.of_slot else { return Comparison::Other };
        if of_slot == digest {
            self.changes = 0;
            return Comparison::SameAsSlot;
        }
        self.changes += 1;
        if self.changes == CHANGES {
            (self.changes, self.rests) = (0, RESTS);
        }
        Comparison::Other
    }

    /// Notes that no digest could be taken. Returns whether the chunk moves without one.
    pub(super) fn do_without(&mut self) -> bool {
        if !self.is_checked {
            self.rests = RESTS;
        }
        !self.is_checked
    }

    /// Notes that the slot is being filled.
    pub(super) fn begin_copy(&mut self) {
        self.lose_slot();
        if self.now.is_none() {
            self.rests = self.rests.saturating_sub(1);
        }
    }

    /// Notes that the slot has the bytes of the handle.
    pub(super) fn keep(&mut self) {
        self.of_slot = self.now;
    }

    /// Notes that the slot was taken away.
    pub(super) fn lose_slot(&mut self) {
        (self.of_slot, self.proof) = (None, Proof::Missing);
    }

    /// Notes that work may change the handle's bytes from now on, or that the handle is gone.
    pub(super) fn note_work(&mut self) {
        (self.now, self.proof) = (None, Proof::Missing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets a chunk leave and come back with bytes of this digest. Returns whether it was looked at, and whether its
    /// bytes were copied.
    fn leave(digests: &mut Digests, digest: u128) -> (bool, bool) {
        let is_due = digests.is_due(Tier::Device);
        let is_copied = !is_due || digests.add(digest, false) == Comparison::Other;
        if is_copied {
            digests.begin_copy();
            digests.keep();
        }
        digests.note_work();
        (is_due, is_copied)
    }

    #[test]
    fn a_chunk_is_copied_only_if_it_has_changed() {
        let mut digests = Digests::new(false);
        let moves = [1, 1, 1, 2, 2, 1].map(|digest| leave(&mut digests, digest).1);
        assert_eq!(moves, [true, false, false, true, false, true]);
        digests.lose_slot();
        assert_eq!(leave(&mut digests, 1), (true, true), "nobody has the bytes any more");
    }

    #[test]
    fn a_chunk_that_always_changes_is_seldom_looked_at() {
        let mut digests = Digests::new(false);
        let looks = (0..100).map(|number| leave(&mut digests, number).0);
        let looks: Vec<_> = looks.collect();
        assert_eq!(looks[..6], [true, true, true, true, false, false]);
        assert_eq!(looks.iter().filter(|&&look| look).count(), 24);
        let mut digests = Digests::new(true);
        assert!((0..100).all(|number| leave(&mut digests, number).0), "a checked one always");
    }

    #[test]
    fn a_chunk_that_settles_down_is_found_after_a_while() {
        let mut digests = Digests::new(false);
        (0..10).for_each(|number| _ = leave(&mut digests, number));
        let until = (0..30).position(|_| !leave(&mut digests, 7).1);
        assert!(until.is_some_and(|moves| moves < 20), "{until:?}");
    }

    #[test]
    fn a_slot_that_was_filled_without_a_digest_is_like_no_other() {
        let mut digests = Digests::new(false);
        assert!(digests.do_without());
        assert!(!digests.is_due(Tier::Device));
        digests.begin_copy();
        digests.keep();
        assert_eq!(digests.add(1, false), Comparison::Other);
        assert!(!Digests::new(true).do_without(), "a proof is never left out");
    }
}
