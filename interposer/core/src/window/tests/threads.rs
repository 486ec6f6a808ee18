//! Tests of real threads at one table of markers: no launch is taken for done too early, and none is lost.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use gpushare_proto::Nanos;

use crate::driver::types::{CUcontext, CUevent};
use crate::window::Card;
use crate::window::markers::Markers;
use crate::window::stream::Stream;

const STREAMS: usize = 3;
const EVENTS: usize = 4096;

/// Card whose streams are done as far as the test says. Its events remember their place in the stream.
struct Ledger {
    launched: [AtomicU64; STREAMS],
    done: [AtomicU64; STREAMS],
    made: AtomicUsize,
    /// For each event: the stream in the low bits, and the number of launches before it.
    at: Vec<AtomicU64>,
    /// Whether an event belongs to a marker.
    marks: Vec<AtomicBool>,
}

impl Ledger {
    fn new() -> Self {
        Self {
            launched: [const { AtomicU64::new(0) }; STREAMS],
            done: [const { AtomicU64::new(0) }; STREAMS],
            made: AtomicUsize::new(0),
            at: (0..EVENTS).map(|_| AtomicU64::new(0)).collect(),
            marks: (0..EVENTS).map(|_| AtomicBool::new(false)).collect(),
        }
    }
}

fn number(stream: Stream) -> usize {
    let Stream::Own(handle) = stream else { panic!("no other here") };
    handle / 0x40 - 1
}

impl Card for Ledger {
    fn context_of(&self, _: Stream) -> CUcontext {
        std::ptr::without_provenance_mut(0x1000)
    }

    fn create(&self, _: CUcontext) -> Option<CUevent> {
        let event = self.made.fetch_add(1, Ordering::SeqCst);
        (event < EVENTS).then(|| std::ptr::without_provenance_mut(event + 1))
    }

    fn destroy(&self, _: CUevent) {}

    fn mark(&self, stream: Stream, event: CUevent) -> bool {
        let event = event.addr() - 1;
        assert!(!self.marks[event].swap(true, Ordering::SeqCst), "an event of two markers");
        let stream = number(stream);
        let launched = self.launched[stream].load(Ordering::SeqCst);
        self.at[event].store(launched << 8 | stream as u64, Ordering::SeqCst);
        true
    }

    fn is_done(&self, event: CUevent) -> bool {
        let event = event.addr() - 1;
        let at = self.at[event].load(Ordering::SeqCst);
        let done = self.done[(at & 0xff) as usize].load(Ordering::SeqCst) >= at >> 8;
        if done {
            assert!(self.marks[event].swap(false, Ordering::SeqCst), "a marker was taken off twice");
        }
        done
    }

    fn elapsed(&self, _: CUevent, _: CUevent) -> Option<Nanos> {
        None
    }

    fn orders_others(&self, _: Stream) -> bool {
        false
    }

    fn is_capturing(&self) -> bool {
        false
    }

    fn now(&self) -> Nanos {
        Nanos::ZERO
    }

    fn pause(&self, _: Nanos) -> bool {
        true
    }

    fn undisturbed<T>(&self, ask: impl FnOnce() -> T) -> Option<T> {
        Some(ask())
    }
}

#[test]
fn threads_on_the_same_streams_lose_and_invent_nothing() {
    const EACH: u64 = 20_000;
    let (ledger, markers) = (Ledger::new(), Markers::default());
    let (reaped, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let launch = |seed: usize| {
        let mut submitted = 0;
        for turn in 0..EACH as usize {
            let which = (seed + turn) % STREAMS;
            let stream = Stream::Own(0x40 * (which + 1));
            // Another thread may be taking this slot.
            let Some(slot) = markers.slot(stream, &ledger) else { continue };
            if slot.is_due(4) {
                reaped.fetch_add(markers.reap(slot, &ledger, |_, _| ()).launches, Ordering::SeqCst);
                assert_eq!(markers.place(slot, stream, &ledger), 0);
            }
            ledger.launched[which].fetch_add(1, Ordering::SeqCst);
            slot.submitted(1, None, || Nanos::ZERO);
            submitted += 1;
        }
        submitted
    };
    let submitted: u64 = thread::scope(|scope| {
        let launchers: Vec<_> = (0..4).map(|seed| scope.spawn(move || launch(seed))).collect();
        // The card completes its work step by step.
        let card = scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                for (launched, done) in ledger.launched.iter().zip(&ledger.done) {
                    let (launched, before) = (launched.load(Ordering::SeqCst), done.load(Ordering::SeqCst));
                    done.store(before + (launched - before).min(5), Ordering::SeqCst);
                }
                thread::yield_now();
            }
        });
        let submitted = launchers.into_iter().map(|launcher| launcher.join().unwrap()).sum();
        over.store(true, Ordering::SeqCst);
        card.join().unwrap();
        submitted
    });
    for (launched, done) in ledger.launched.iter().zip(&ledger.done) {
        done.store(launched.load(Ordering::SeqCst), Ordering::SeqCst);
    }
    for which in 0..STREAMS {
        let stream = Stream::Own(0x40 * (which + 1));
        let slot = markers.slot(stream, &ledger).unwrap();
        reaped.fetch_add(markers.reap(slot, &ledger, |_, _| ()).launches, Ordering::SeqCst);
        markers.place(slot, stream, &ledger);
        reaped.fetch_add(markers.reap(slot, &ledger, |_, _| ()).launches, Ordering::SeqCst);
        assert_eq!((slot.in_flight(), slot.is_marked()), (0, false));
    }
    assert!(submitted > 0);
    assert_eq!(reaped.into_inner(), submitted);
    // A thread may overlook an event that another one puts back at that moment. 20,000 markers were placed.
    let made = ledger.made.into_inner();
    assert!(made <= 500, "events are used again: {made}");
}
