//! Line on stderr at exit with figures about the process's life (`GPUSHARE_SUMMARY=1`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gpushare_proto::{Bytes, Nanos, names};

use super::State;
use crate::process::stderr;
use crate::window::launch_window::Counters;

impl State {
    /// Remembers how long the library itself took in the creation of a context, if it is the first.
    pub(crate) fn note_first_context(&self, ours: Duration) {
        let (first, ours) = (&self.first_context, Nanos::from(ours).0.max(1));
        // Fails if another context was the first.
        let _ = first.compare_exchange(0, ours, Ordering::Relaxed, Ordering::Relaxed);
    }
}

pub(super) fn print() {
    let wanted = std::env::var_os(names::SUMMARY).is_some_and(|value| value == "1");
    let Some(state) = State::existing().filter(|_| wanted) else { return };
    let Some(link) = state.daemon.link() else { return };
    let window = state.window.get().map(|window| &window.counters);
    let counted =
        |counter: fn(&Counters) -> &AtomicU64| window.map_or(0, |all| counter(all).load(Ordering::Relaxed));
    stderr::print(format_args!(
        "session {}: ran {:.1} s, waited {:.1} s at the gate, moved {} to the card, peak {}, first context {:.2} ms, \
         counted {} launches, most in flight {}, held back {}, let through {}",
        link.identity().name,
        state.started.elapsed().as_secs_f64(),
        state.gate.waiters.waited.load(Ordering::Relaxed) as f64 / 1e9,
        Bytes(state.gate.moved.load(Ordering::Relaxed)),
        state.memory.lease.peak(),
        state.first_context.load(Ordering::Relaxed) as f64 / 1e6,
        counted(|all| &all.launches),
        counted(|all| &all.most),
        counted(|all| &all.held_back),
        counted(|all| &all.let_through),
    ));
}
