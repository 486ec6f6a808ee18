//! All interleavings of threads that enter the gate and one that closes it. Run by `RUSTFLAGS="--cfg loom"
//! cargo test -p gpushare-client --test loom_gate --release --target-dir target/loom`.
#![cfg(loom)]

use gpushare_client::gate::Gate;
use gpushare_proto::{GateState, GateWord};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;

const OPEN: GateWord = GateWord::new(1, GateState::Open);

/// One thread launches; another closes the gate and waits until it is empty. The launch never overlaps what
/// comes after the drain.
#[test]
fn a_drained_gate_has_no_thread_inside() {
    loom::model(|| {
        let gate = Arc::new(Gate::new());
        let word = Arc::new(AtomicU32::new(OPEN.0));
        let card = Arc::new(AtomicU32::new(0));

        let launcher = {
            let (gate, word, card) = (gate.clone(), word.clone(), card.clone());
            thread::spawn(move || {
                if let Ok(_pass) = gate.enter(&word) {
                    card.fetch_add(1, Ordering::Relaxed);
                    card.fetch_sub(1, Ordering::Relaxed);
                }
            })
        };

        word.store(OPEN.next(GateState::Closed).0, Ordering::Release);
        fence(Ordering::SeqCst);
        if gate.is_empty() {
            assert_eq!(card.load(Ordering::Relaxed), 0, "a launch after the drain");
            launcher.join().unwrap();
            assert_eq!(card.load(Ordering::Relaxed), 0);
        } else {
            launcher.join().unwrap();
        }
    });
}

/// The drainer proves idleness while a thread arrives. Either the thread reopens the gate and the drainer
/// sees it, or the drainer closes it and the thread waits.
#[test]
fn a_proof_of_idleness_and_an_arrival_exclude_each_other() {
    loom::model(|| {
        let gate = Arc::new(Gate::new());
        let word = Arc::new(AtomicU32::new(OPEN.0));

        let launcher = {
            let (gate, word) = (gate.clone(), word.clone());
            thread::spawn(move || match gate.enter(&word) {
                Ok(pass) => {
                    std::mem::forget(pass);
                    true
                }
                Err(_) => false,
            })
        };

        let idle = OPEN.with(GateState::Idle);
        let released = word
            .compare_exchange(OPEN.0, idle.0, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
            && {
                fence(Ordering::SeqCst);
                gate.is_empty()
                    && word
                        .compare_exchange(
                            idle.0,
                            OPEN.with(GateState::Closed).0,
                            Ordering::SeqCst,
                            Ordering::SeqCst,
                        )
                        .is_ok()
            };
        let inside = launcher.join().unwrap();
        assert!(!(released && inside), "released while a thread is inside");
    });
}

/// One thread launches once the daemon opens the gate; the process marks the closed gate and then makes a hole. No
/// launch meets the hole.
#[test]
fn a_marked_gate_opens_onto_no_hole() {
    loom::model(|| {
        let closed = OPEN.next(GateState::Closed);
        let gate = Arc::new(Gate::new());
        let word = Arc::new(AtomicU32::new(closed.0));
        let hole = Arc::new(AtomicU32::new(0));

        let launcher = {
            let (gate, word, hole) = (gate.clone(), word.clone(), hole.clone());
            thread::spawn(move || {
                if let Ok(_pass) = gate.enter(&word) {
                    assert_eq!(hole.load(Ordering::Relaxed), 0, "a launch onto a hole");
                }
            })
        };
        let daemon = {
            let word = word.clone();
            thread::spawn(move || {
                let open = closed.next(GateState::Open).0;
                // The process changes the word at most once.
                let _ = (0..2).any(|_| {
                    let before = word.load(Ordering::SeqCst);
                    let after = open | (before & GateWord::EVICTING);
                    word.compare_exchange(before, after, Ordering::SeqCst, Ordering::SeqCst).is_ok()
                });
            })
        };

        let marked = closed.0 | GateWord::EVICTING;
        let set = word.compare_exchange(closed.0, marked, Ordering::SeqCst, Ordering::SeqCst);
        if set.is_ok() && gate.is_empty() {
            hole.store(1, Ordering::Relaxed);
        }
        launcher.join().unwrap();
        daemon.join().unwrap();
    });
}
