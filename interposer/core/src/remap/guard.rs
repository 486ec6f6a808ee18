//! Mark of the process's gate while memory is away from a card, so that nobody opens the gate onto a hole.
//!
//! ```text
//!   drained ── the proven word ──▶ set: word ─ compare-and-swap ─▶ word + evicting     fails if the word changed
//!                                  clear: the last card without holes removes the bit
//! ```
//!
//! The proof is of one word of one page. Under another closed word, as the first one of a new daemon's page, the
//! drainer proves again. It does so too after a refusal, since the gate may still be closed.
//!
//! The bit is in the gate word ([`GateWord::EVICTING`]). While it is set, an open word acts as *moving*. The
//! daemon keeps the bit when it writes the word, and the page of a new daemon gets it before it is in force.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, OnceLock};

use gpushare_proto::page::Page;
use gpushare_proto::{GateState, GateWord};
use gpushare_sys::bell;

use crate::driver::types::CUdevice;
use crate::process::lock;

/// Mark of the gate, which is set while at least one card has holes.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    inner: Mutex<Inner>,
    gate: OnceLock<Gate>,
}

/// Gate of the process, as the guard sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate {
    /// Returns the page in force.
    pub(crate) page: fn() -> &'static Page,
    /// Returns whether no thread is inside the gate, and only so many have ever passed a closed one.
    pub(crate) is_quiet: fn(u64) -> bool,
    /// Returns whether no thread has ever looked at the gate.
    pub(crate) is_unused: fn() -> bool,
}

#[derive(Debug, Default)]
struct Inner {
    proof: Option<Proof>,
    /// Cards with holes.
    cards: BTreeSet<CUdevice>,
}

/// Proof that nothing is in flight, as long as the gate word stays the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proof {
    /// Address of the page.
    page: usize,
    word: GateWord,
    /// Number of threads that had passed the closed gate before the proof began.
    excused: u64,
}

impl Proof {
    /// Returns the proof for a closed gate word of `page`. `excused` is the number of threads that had passed a closed
    /// gate before the process was found idle.
    pub(crate) fn new(page: &Page, word: GateWord, excused: u64) -> Self {
        Self { page: std::ptr::from_ref(page).addr(), word, excused }
    }

    fn is_of(&self, page: &Page) -> bool {
        self.page == std::ptr::from_ref(page).addr()
    }
}

impl Guard {
    /// Sets the gate, once.
    pub(crate) fn stand_at(&self, gate: Gate) {
        let _ = self.gate.set(gate);
    }

    /// Notes that nothing is in flight.
    pub(crate) fn note(&self, proof: Proof) {
        lock(&self.inner).proof = Some(proof);
    }

    /// Notes that the session was granted the lock by `word` of the same page, and that the gate did not open since the
    /// proof. Returns whether that is so.
    pub(crate) fn prolong(&self, page: &Page, word: GateWord) -> bool {
        let mut inner = lock(&self.inner);
        let follows = |proof: &&mut Proof| {
            let is_next =
                proof.word.state() == GateState::Closed && proof.word.next(GateState::Moving) == word;
            proof.is_of(page) && (proof.word == word || is_next)
        };
        let proof = inner.proof.as_mut().filter(follows);
        proof.map(|proof| proof.word = word).is_some()
    }

    /// Returns whether nothing is in flight under a closed gate word of `page`, as far as that was proved.
    pub(crate) fn is_proved(&self, page: &Page, word: GateWord) -> bool {
        let proof = lock(&self.inner).proof;
        proof.is_some_and(|proof| proof.is_of(page) && proof.word == word)
    }

    /// Returns whether nothing is in flight under the present gate word: that was proved, or the gate is closed and no
    /// thread has ever looked at it, so that the process has given no work to its cards.
    pub(crate) fn is_idle_now(&self) -> bool {
        let Some(Gate { page, is_unused, .. }) = self.gate.get() else { return false };
        let page = page();
        let word = GateWord(page.gate.load(Ordering::SeqCst)).plain();
        if word.state() != GateState::Closed {
            return false;
        }
        if !self.is_proved(page, word) && is_unused() {
            self.note(Proof::new(page, word, 0));
        }
        self.is_proved(page, word)
    }

    /// Forgets the proof after the mark was refused, and wakes the drainer, which proves again under a closed gate.
    pub(crate) fn ask_for_proof(&self) {
        lock(&self.inner).proof = None;
        if let Some(Gate { page, .. }) = self.gate.get() {
            bell::ring(page());
        }
    }

    /// Returns whether memory may be away from a card.
    pub(crate) fn is_set(&self) -> bool {
        !lock(&self.inner).cards.is_empty()
    }

    /// Sets the mark for a card, before its first hole.
    ///
    /// # Errors
    /// Work may be in flight: the gate word has changed since the proof, or a thread passed the closed gate.
    pub(crate) fn set(&self, device: CUdevice) -> Result<(), ()> {
        let Gate { page, is_quiet, .. } = self.gate.get().copied().ok_or(())?;
        self.set_on(page, device, is_quiet)
    }

    fn set_on<'a>(
        &self,
        page: impl FnOnce() -> &'a Page,
        device: CUdevice,
        is_quiet: impl FnOnce(u64) -> bool,
    ) -> Result<(), ()> {
        let mut inner = lock(&self.inner);
        if inner.cards.is_empty() {
            let page = page();
            let proof = inner.proof.ok_or(())?;
            if !proof.is_of(page) {
                return Err(());
            }
            let marked = proof.word.0 | GateWord::EVICTING;
            let set = page
                .gate
                .compare_exchange(proof.word.0, marked, Ordering::SeqCst, Ordering::SeqCst);
            set.map_err(drop)?;
            // A thread that passes a closed gate counts itself before it looks at the mark.
            if !is_quiet(proof.excused) {
                unmark(page);
                return Err(());
            }
        }
        inner.cards.insert(device);
        Ok(())
    }

    /// Removes the mark of a card that has no hole any more.
    pub(crate) fn clear(&self, device: CUdevice) {
        if let Some(Gate { page, .. }) = self.gate.get() {
            self.clear_on(page, device);
        }
    }

    /// The page is looked up under the lock, since another one may come into force.
    fn clear_on<'a>(&self, page: impl FnOnce() -> &'a Page, device: CUdevice) {
        let mut inner = lock(&self.inner);
        if inner.cards.remove(&device) && inner.cards.is_empty() {
            unmark(page());
        }
    }

    /// Marks the page of a new daemon, if memory is away, and puts the page in force by `replace`.
    pub(crate) fn carry_over(&self, fresh: &Page, replace: impl FnOnce()) {
        let inner = lock(&self.inner);
        if !inner.cards.is_empty() {
            fresh.gate.fetch_or(GateWord::EVICTING, Ordering::SeqCst);
        }
        replace();
    }
}

fn unmark(page: &Page) {
    page.gate.fetch_and(!GateWord::EVICTING, Ordering::SeqCst);
    bell::ring(page);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_word_of_one_page() {
        let (page, other) = (Page::new(GateState::Closed), Page::new(GateState::Closed));
        let word = GateWord::new(3, GateState::Closed);
        let guard = Guard::default();
        assert!(!guard.is_proved(&page, word));
        guard.note(Proof::new(&page, word, 0));
        assert!(guard.is_proved(&page, word));
        assert!(!guard.is_proved(&page, word.next(GateState::Closed)));
        assert!(!guard.is_proved(&other, word), "the page of another daemon");
    }

    #[test]
    fn a_process_that_never_looked_at_its_closed_gate_is_idle() {
        static PAGE: OnceLock<Page> = OnceLock::new();
        let page: fn() -> &'static Page = || PAGE.get_or_init(|| Page::new(GateState::Closed));
        let guard_of = |is_unused| {
            let guard = Guard::default();
            guard.stand_at(Gate { page, is_quiet: |_| true, is_unused });
            guard
        };
        assert!(!guard_of(|| false).is_idle_now(), "work may have run");
        let fresh = guard_of(|| true);
        assert!(fresh.is_idle_now());
        assert_eq!(fresh.set(0), Ok(()));
        fresh.clear(0);
        let word = GateWord(page().gate.load(Ordering::SeqCst));
        page().gate.store(word.next(GateState::Open).0, Ordering::SeqCst);
        assert!(!fresh.is_idle_now() && !guard_of(|| true).is_idle_now(), "the gate is open");
    }

    #[test]
    fn a_gate_is_marked_only_under_the_word_that_was_proved() {
        let (page, other) = (Page::new(GateState::Open), Page::new(GateState::Closed));
        let word = GateWord(page.gate.load(Ordering::SeqCst)).next(GateState::Closed);
        let guard = Guard::default();
        let set = |device| guard.set_on(|| &page, device, |excused| excused == 3);
        let state = |page: &Page| GateWord(page.gate.load(Ordering::SeqCst)).state();
        assert_eq!(set(0), Err(()), "nothing is proved");
        guard.note(Proof::new(&page, word, 3));
        assert_eq!(set(0), Err(()), "the gate has another word");
        page.gate.store(word.0, Ordering::SeqCst);
        guard.note(Proof::new(&page, word, 2));
        assert_eq!(set(0), Err(()), "a thread passed the closed gate");
        assert_eq!(page.gate.load(Ordering::SeqCst), word.0);
        assert!(guard.is_proved(&page, word));
        guard.ask_for_proof();
        assert!(!guard.is_proved(&page, word), "the drainer proves again");
        guard.note(Proof::new(&other, word, 3));
        assert_eq!(set(0), Err(()), "the proof is of another daemon's page");
        guard.note(Proof::new(&page, word, 3));
        assert_eq!((set(0), set(1)), (Ok(()), Ok(())));
        page.gate
            .store(word.next(GateState::Open).0 | GateWord::EVICTING, Ordering::SeqCst);
        assert_eq!(state(&page), GateState::Moving);
        guard.carry_over(&other, || ());
        assert!(GateWord(other.gate.load(Ordering::SeqCst)).is_evicting());
        guard.clear_on(|| &page, 0);
        assert_eq!(state(&page), GateState::Moving, "the other card has holes");
        guard.clear_on(|| &page, 1);
        assert_eq!(state(&page), GateState::Open);
        assert!(!guard.is_set());
    }

    #[test]
    fn a_proof_holds_for_the_grant_that_follows_it() {
        let (page, other) = (Page::new(GateState::Closed), Page::new(GateState::Closed));
        let word = GateWord(page.gate.load(Ordering::SeqCst));
        let guard = Guard::default();
        assert!(!guard.prolong(&page, word), "nothing is proved");
        guard.note(Proof::new(&page, word, 0));
        let granted = word.next(GateState::Moving);
        for later in [word.next(GateState::Open), granted.next(GateState::Moving)] {
            assert!(!guard.prolong(&page, later), "work may have run");
        }
        assert!(!guard.prolong(&other, granted));
        page.gate.store(granted.0, Ordering::SeqCst);
        assert_eq!(guard.set_on(|| &page, 0, |_| true), Err(()));
        assert!(guard.prolong(&page, granted));
        assert_eq!(guard.set_on(|| &page, 0, |_| true), Ok(()));
        let again = granted.next(GateState::Moving);
        assert!(!guard.prolong(&page, again), "the process may have opened its gate by itself");
    }
}
