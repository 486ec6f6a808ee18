//! Every interleaving of threads that enter and one that closes. Run by
//! `RUSTFLAGS="--cfg loom" cargo test -p gpushare-client --test loom_gate --release --target-dir target/loom`.
#![cfg(loom)]

use gpushare_client::gate::Gate;
use gpushare_client::sync::{AtomicU32, Ordering, fence};
use gpushare_proto::{GateState, GateWord};
use loom::sync::Arc;
use loom::thread;

const OPEN: GateWord = GateWord::new(1, GateState::Open);

/// One thread launches, one closes and waits until nobody is inside: the launch never overlaps what
/// comes after the drain.
#[test]
fn a_drained_gate_has_nobody_inside() {
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
            assert_eq!(card.load(Ordering::Relaxed), 0, "somebody launches after the drain");
            launcher.join().unwrap();
            assert_eq!(card.load(Ordering::Relaxed), 0);
        } else {
            launcher.join().unwrap();
        }
    });
}

/// A mover proves idleness while a thread arrives: either the thread takes the gate back and the mover
/// sees that, or the mover closes and the thread waits. Never both.
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
