//! The gate: what every call that gives work to a card passes, and what a drop closes.
//!
//! A thread says that it is inside *before* it looks at the gate's word; whoever closes the gate changes
//! the word *before* counting who is inside. Both put a sequentially consistent fence between the
//! two steps, so one of them always sees the other (Dekker's argument; `tests/loom_gate.rs` checks it):
//!
//! ```text
//!   thread                         mover (or daemon, by the shared page)
//!   entered[stripe] += 1           word = closed
//!   ── fence ──                    ── fence ──
//!   word open?  yes: call          left, then entered: equal?  yes: nobody is inside
//!               no:  left += 1, sleep
//! ```
//!
//! The counters only rise, one pair per stripe, so a thread on its own core writes its own cache line, the number of entries tells
//! whether anything was launched lately, and sums need no snapshot: if Σ left (read first) equals
//! Σ entered, then every stripe was empty at the moment its `left` was read.
//!
//! An open gate costs two atomic additions, one fence and two loads. Nothing here allocates, locks or
//! makes a system call.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize as StdAtomicUsize, Ordering as StdOrdering};

use gpushare_proto::{GateState, GateWord};

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Stripes of the counters. More than this many threads share them, which costs time, not correctness.
#[cfg(not(loom))]
const STRIPES: usize = 64;
#[cfg(loom)]
const STRIPES: usize = 2;

#[derive(Debug)]
#[repr(align(128))]
struct Stripe {
    entered: AtomicU64,
    left: AtomicU64,
}

/// Who is inside. One per process.
#[derive(Debug)]
pub struct Gate {
    stripes: [Stripe; STRIPES],
}

/// A thread inside the gate; leaves when dropped. A nested one does nothing.
#[derive(Debug)]
#[must_use = "a pass that is dropped at once guards nothing"]
pub struct Pass<'a> {
    stripe: Option<&'a Stripe>,
}

/// This thread's stripe and where it is. Plain cells without a destructor: reading them never
/// allocates and is safe in a thread that is ending.
struct Thread {
    stripe: Cell<usize>,
    place: Cell<u32>,
}

/// Where a thread is. One that was never here has no stripe yet, and is found by the same look that finds it inside.
const OUTSIDE: u32 = 0;
const INSIDE: u32 = 1;
#[cfg(not(loom))]
const NEVER_HERE: u32 = 2;

#[cfg(not(loom))]
thread_local! {
    static THREAD: Thread = const { Thread { stripe: Cell::new(0), place: Cell::new(NEVER_HERE) } };
}
#[cfg(loom)]
loom::thread_local! {
    static THREAD: Thread = Thread { stripe: Cell::new(0), place: Cell::new(OUTSIDE) };
}

/// The calling thread's number, by which its own default stream is told from others'. Given once; a later thread never has it again.
#[must_use]
pub fn thread_number() -> usize {
    THREAD.with(|thread| {
        thread.outside();
        thread.stripe.get()
    })
}

/// Whether the calling thread is inside the gate: the driver calls one of its functions from another.
#[must_use]
pub fn is_inside() -> bool {
    THREAD.with(|thread| thread.place.get() == INSIDE)
}

/// Hands out stripes to threads, round robin.
static NEXT_STRIPE: StdAtomicUsize = StdAtomicUsize::new(0);

impl Thread {
    /// Its stripe, if it is not inside.
    #[inline]
    fn outside(&self) -> Option<usize> {
        if self.place.get() == OUTSIDE {
            Some(self.stripe.get())
        } else {
            self.arrive()
        }
    }

    #[cold]
    fn arrive(&self) -> Option<usize> {
        if self.place.get() == INSIDE {
            return None;
        }
        self.stripe.set(NEXT_STRIPE.fetch_add(1, StdOrdering::Relaxed));
        self.place.set(OUTSIDE);
        Some(self.stripe.get())
    }
}

impl Gate {
    /// A gate with nobody inside.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            stripes: [const { Stripe { entered: AtomicU64::new(0), left: AtomicU64::new(0) } }; STRIPES],
        }
    }

    /// A gate with nobody inside.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            stripes: std::array::from_fn(|_| Stripe { entered: AtomicU64::new(0), left: AtomicU64::new(0) }),
        }
    }

    /// Enters if `word` is open; otherwise says which word to wait on. A thread that is inside already
    /// passes, whatever the word says: the drop waits for it.
    ///
    /// # Errors
    /// The word that is not open.
    #[inline]
    pub fn enter(&self, word: &AtomicU32) -> Result<Pass<'_>, GateWord> {
        THREAD.with(|thread| {
            let Some(stripe) = thread.outside() else {
                return Ok(Pass { stripe: None });
            };
            let stripe = &self.stripes[stripe % STRIPES];
            stripe.entered.fetch_add(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let seen = GateWord(word.load(Ordering::Acquire));
            if seen.state() == GateState::Open || cancel_idle(word, seen) {
                thread.place.set(INSIDE);
                return Ok(Pass { stripe: Some(stripe) });
            }
            stripe.left.fetch_add(1, Ordering::Release);
            Err(seen)
        })
    }

    /// Enters whatever the word says. For work that a capture records and for a process that is ending.
    pub fn enter_anyway(&self) -> Pass<'_> {
        THREAD.with(|thread| {
            let Some(stripe) = thread.outside() else {
                return Pass { stripe: None };
            };
            let stripe = &self.stripes[stripe % STRIPES];
            stripe.entered.fetch_add(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            thread.place.set(INSIDE);
            Pass { stripe: Some(stripe) }
        })
    }

    /// Whether nobody is inside. After the word was closed, a `true` is final: who comes later sees it closed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        fence(Ordering::SeqCst);
        let left: u64 = self.sum(|stripe| &stripe.left);
        let entered: u64 = self.sum(|stripe| &stripe.entered);
        left == entered
    }

    /// How often anybody entered so far. Unchanged over a while: nothing was launched in it.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.sum(|stripe| &stripe.entered)
    }

    fn sum(&self, counter: impl Fn(&Stripe) -> &AtomicU64) -> u64 {
        self.stripes
            .iter()
            .fold(0, |sum, stripe| sum.wrapping_add(counter(stripe).load(Ordering::Acquire)))
    }

    /// Forgets everybody: for the child of a fork, which has none of its parent's threads.
    pub fn reset(&self) {
        for stripe in &self.stripes {
            stripe.left.store(stripe.entered.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        THREAD.with(|thread| {
            if thread.place.get() == INSIDE {
                thread.place.set(OUTSIDE);
            }
        });
    }
}

#[cfg(not(loom))]
impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Pass<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(stripe) = self.stripe {
            THREAD.with(|thread| thread.place.set(OUTSIDE));
            stripe.left.fetch_add(1, Ordering::Release);
        }
    }
}

/// A mover is proving that the process is idle; it is not: take the gate back from it.
#[cold]
fn take_back(word: &AtomicU32, seen: GateWord) -> bool {
    let open = seen.with(GateState::Open);
    match word.compare_exchange(seen.0, open.0, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => true,
        // Another thread was faster. Anything else: wait on the new word.
        Err(now) => now == open.0,
    }
}

#[inline]
fn cancel_idle(word: &AtomicU32, seen: GateWord) -> bool {
    seen.state() == GateState::Idle && take_back(word, seen)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn word(state: GateState) -> AtomicU32 {
        AtomicU32::new(GateWord::new(3, state).0)
    }

    #[test]
    fn an_open_gate_lets_in_and_counts() {
        let gate = Gate::new();
        let pass = gate.enter(&word(GateState::Open)).unwrap();
        assert!(!gate.is_empty());
        assert_eq!(gate.entries(), 1);
        drop(pass);
        assert!(gate.is_empty());
    }

    #[test]
    fn a_closed_gate_names_the_word_to_wait_on() {
        let gate = Gate::new();
        for state in [GateState::Closed, GateState::Moving] {
            assert_eq!(gate.enter(&word(state)).unwrap_err(), GateWord::new(3, state));
        }
        assert!(gate.is_empty());
    }

    #[test]
    fn a_nested_entry_passes_a_gate_that_closed_meanwhile() {
        let gate = Gate::new();
        let open = word(GateState::Open);
        let outer = gate.enter(&open).unwrap();
        open.store(GateWord::new(4, GateState::Closed).0, Ordering::SeqCst);
        let inner = gate.enter(&open).unwrap();
        drop(inner);
        assert!(!gate.is_empty(), "the outer call is still inside");
        drop(outer);
        assert!(gate.is_empty());
    }

    #[test]
    fn an_arriving_thread_cancels_the_proof_of_idleness() {
        let gate = Gate::new();
        let idle = word(GateState::Idle);
        let _pass = gate.enter(&idle).unwrap();
        assert_eq!(GateWord(idle.load(Ordering::SeqCst)), GateWord::new(3, GateState::Open));
    }

    #[test]
    fn a_capture_passes_a_closed_gate_and_is_counted() {
        let gate = Gate::new();
        let _pass = gate.enter_anyway();
        assert!(!gate.is_empty());
    }

    #[test]
    fn the_child_of_a_fork_starts_with_nobody_inside() {
        let gate = Gate::new();
        std::mem::forget(gate.enter(&word(GateState::Open)));
        assert!(!gate.is_empty());
        gate.reset();
        assert!(gate.is_empty());
    }
}
