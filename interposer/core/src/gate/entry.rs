//! Striped counters of the threads inside the gate, that is between the check of the gate word and the end of
//! the driver call.
//!
//! A thread counts itself as inside *before* it reads the gate's word. Closing the gate changes the word
//! *before* the counters are read. So one side always sees the other (Dekker's argument):
//!
//! ```text
//!   thread                            drainer (or daemon, by the shared page)
//!   E  entered[stripe] += 1           word = closed
//!   L  word open?  yes: call          F  ── fence ──
//!                  no:  left += 1     left, then entered: equal?  yes: no thread is inside
//! ```
//!
//! E, L and F are sequentially consistent, so they have one total order, with E before L. If the drainer's
//! load of `entered` misses E, then F is before E. If L misses the closed word, then L is before F. Both
//! together would be a circle (C++20, [atomics.order]). So the thread needs no fence of its own. The addition
//! is a full barrier on x86-64 anyway, and AArch64 orders a store-release before a later load-acquire.
//! `tests/loom_gate.rs` checks all interleavings, with a fence, because loom takes sequentially consistent
//! accesses for acquire and release.
//!
//! The counters only rise. If Σ left (read first) equals Σ entered, every stripe was empty when its `left`
//! was read, so the sums need no snapshot. Σ entered also shows whether anything was launched lately.
//!
//! Passing an open gate costs two atomic additions and two loads. Nothing in this module
//! allocates, locks or makes a system call.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize as StdAtomicUsize, Ordering as StdOrdering};

use gpushare_proto::{GateState, GateWord};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Number of stripes, which are separate counters. Threads beyond this number share stripes, which only costs
/// time.
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

/// Counters of the threads inside the gate. One per process.
#[derive(Debug)]
pub struct Gate {
    stripes: [Stripe; STRIPES],
}

/// Guard of a thread inside the gate, destroyed when the thread leaves. A nested guard does nothing.
#[derive(Debug)]
#[must_use = "a pass that is dropped at once guards nothing"]
pub struct Pass<'a> {
    stripe: Option<&'a Stripe>,
}

/// Stripe of a thread, and whether the thread is inside the gate. Plain cells without a destructor are safe
/// in a thread that is ending.
struct Thread {
    stripe: Cell<usize>,
    position: Cell<u32>,
}

/// Values of a thread's position: a new thread has no stripe, all others are outside or inside the gate.
const OUTSIDE: u32 = 0;
const INSIDE: u32 = 1;
#[cfg(not(loom))]
const NEW: u32 = 2;

#[cfg(not(loom))]
thread_local! {
    static THREAD: Thread = const { Thread { stripe: Cell::new(0), position: Cell::new(NEW) } };
}
#[cfg(loom)]
loom::thread_local! {
    static THREAD: Thread = Thread { stripe: Cell::new(0), position: Cell::new(OUTSIDE) };
}

/// Returns the calling thread's number, which is never reused. It tells per-thread default streams apart.
pub fn thread_number() -> usize {
    THREAD.with(|thread| {
        thread.outside();
        thread.stripe.get()
    })
}

/// Returns whether the calling thread is inside the gate, as when one driver function calls another.
pub fn is_inside() -> bool {
    THREAD.with(|thread| thread.position.get() == INSIDE)
}

static NEXT_STRIPE: StdAtomicUsize = StdAtomicUsize::new(0);

impl Thread {
    #[inline]
    fn outside(&self) -> Option<usize> {
        if self.position.get() == OUTSIDE {
            Some(self.stripe.get())
        } else {
            self.assign_stripe()
        }
    }

    #[cold]
    fn assign_stripe(&self) -> Option<usize> {
        if self.position.get() == INSIDE {
            return None;
        }
        self.stripe.set(NEXT_STRIPE.fetch_add(1, StdOrdering::Relaxed));
        self.position.set(OUTSIDE);
        Some(self.stripe.get())
    }
}

impl Stripe {
    /// Counts a thread as inside, before it reads the gate word (step E).
    #[inline]
    fn announce(&self) {
        self.entered.fetch_add(1, Ordering::SeqCst);
        #[cfg(loom)]
        fence(Ordering::SeqCst);
    }

    /// Reopens an idle gate. Otherwise the thread is outside again, and the error is the word for which it waits.
    #[cold]
    #[inline(never)]
    fn leave_unless_idle(&self, word: &AtomicU32, seen: GateWord) -> Result<(), GateWord> {
        if seen.state() == GateState::Idle && reopen(word, seen) {
            return Ok(());
        }
        self.left.fetch_add(1, Ordering::Release);
        Err(seen.plain())
    }
}

impl Gate {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self {
            stripes: [const { Stripe { entered: AtomicU64::new(0), left: AtomicU64::new(0) } }; STRIPES],
        }
    }

    /// Creates a gate with no thread inside.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            stripes: std::array::from_fn(|_| Stripe { entered: AtomicU64::new(0), left: AtomicU64::new(0) }),
        }
    }

    /// Enters the gate if `word` is open; otherwise returns the gate word for which to wait. A thread that is
    /// inside already passes in any case, since the drain waits for that thread.
    #[inline]
    pub fn enter(&self, word: &AtomicU32) -> Result<Pass<'_>, GateWord> {
        THREAD.with(|thread| {
            let Some(stripe) = thread.outside() else { return Ok(Pass { stripe: None }) };
            let stripe = &self.stripes[stripe % STRIPES];
            stripe.announce();
            let seen = GateWord(word.load(Ordering::SeqCst));
            if !seen.is_open() {
                stripe.leave_unless_idle(word, seen)?;
            }
            thread.position.set(INSIDE);
            Ok(Pass { stripe: Some(stripe) })
        })
    }

    /// Enters even a closed gate, for work that a capture records and for a process that is ending.
    pub fn enter_anyway(&self) -> Pass<'_> {
        THREAD.with(|thread| {
            let Some(stripe) = thread.outside() else { return Pass { stripe: None } };
            let stripe = &self.stripes[stripe % STRIPES];
            stripe.announce();
            thread.position.set(INSIDE);
            Pass { stripe: Some(stripe) }
        })
    }

    /// Returns whether no thread is inside the gate. After the gate was closed, `true` is final.
    pub fn is_empty(&self) -> bool {
        fence(Ordering::SeqCst);
        let left: u64 = self.sum(|stripe| &stripe.left);
        let entered: u64 = self.sum(|stripe| &stripe.entered);
        left == entered
    }

    /// Returns the number of entries into the gate so far. While the number is unchanged, nothing was
    /// launched.
    pub fn entries(&self) -> u64 {
        self.sum(|stripe| &stripe.entered)
    }

    fn sum(&self, counter: impl Fn(&Stripe) -> &AtomicU64) -> u64 {
        let counters = self.stripes.iter().map(|stripe| counter(stripe).load(Ordering::Acquire));
        counters.fold(0, u64::wrapping_add)
    }

    /// Sets the gate's counters to zero in the child of a fork, which has none of its parent's threads.
    pub fn reset(&self) {
        for stripe in &self.stripes {
            stripe.left.store(stripe.entered.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        THREAD.with(|thread| {
            if thread.position.get() == INSIDE {
                thread.position.set(OUTSIDE);
            }
        });
    }
}

impl Drop for Pass<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(stripe) = self.stripe {
            THREAD.with(|thread| thread.position.set(OUTSIDE));
            stripe.left.fetch_add(1, Ordering::Release);
        }
    }
}

/// Reopens a gate that the drainer set to idle for its check, because the process is about to launch work.
#[cold]
fn reopen(word: &AtomicU32, seen: GateWord) -> bool {
    let open = seen.with(GateState::Open);
    match word.compare_exchange(seen.0, open.0, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => true,
        // Another thread may have been faster. Otherwise the caller waits on the new word.
        Err(now) => now == open.0,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn word(state: GateState) -> AtomicU32 {
        AtomicU32::new(GateWord::new(3, state).0)
    }

    #[test]
    fn an_open_gate_admits_and_counts() {
        let gate = Gate::new();
        let pass = gate.enter(&word(GateState::Open)).unwrap();
        assert!(!gate.is_empty());
        assert_eq!(gate.entries(), 1);
        drop(pass);
        assert!(gate.is_empty());
    }

    #[test]
    fn a_closed_gate_returns_the_word_to_wait_on() {
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
    fn an_arriving_thread_reopens_an_idle_gate() {
        let gate = Gate::new();
        let idle = word(GateState::Idle);
        let _pass = gate.enter(&idle).unwrap();
        assert_eq!(GateWord(idle.load(Ordering::SeqCst)), GateWord::new(3, GateState::Open));
    }

    #[test]
    fn an_unconditional_entry_passes_a_closed_gate_and_is_counted() {
        let gate = Gate::new();
        let _pass = gate.enter_anyway();
        assert!(!gate.is_empty());
    }

    /// Test on real threads of what `tests/loom_gate.rs` checks in a model.
    #[test]
    fn a_thread_that_enters_is_seen_or_sees_the_closed_gate() {
        const ROUNDS: usize = 20_000;
        let (gate, word) = (Gate::new(), word(GateState::Closed));
        let [begun, seen, ended] = [(); 3].map(|()| StdAtomicUsize::new(0));
        let reach = |counter: &StdAtomicUsize, round: usize| {
            while counter.load(StdOrdering::SeqCst) < round {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    reach(&begun, round);
                    let pass = gate.enter(&word);
                    reach(&seen, round);
                    // Odd counts are rounds in which the thread is inside.
                    ended.store(2 * round + usize::from(pass.is_ok()), StdOrdering::SeqCst);
                }
            });
            for round in 1..=ROUNDS {
                word.store(GateWord::new(3, GateState::Open).0, Ordering::SeqCst);
                begun.store(round, StdOrdering::SeqCst);
                word.store(GateWord::new(4, GateState::Closed).0, Ordering::SeqCst);
                let empty = gate.is_empty();
                seen.store(round, StdOrdering::SeqCst);
                reach(&ended, 2 * round);
                let inside = ended.load(StdOrdering::SeqCst) % 2 == 1;
                assert!(!(empty && inside), "round {round}");
            }
        });
    }

    #[test]
    fn the_child_of_a_fork_starts_with_an_empty_gate() {
        let gate = Gate::new();
        std::mem::forget(gate.enter(&word(GateState::Open)));
        assert!(!gate.is_empty());
        gate.reset();
        assert!(gate.is_empty());
    }
}
