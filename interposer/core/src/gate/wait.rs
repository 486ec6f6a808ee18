//! The slow path of the gate: a thread that finds it closed asks the daemon for the lock and sleeps on the
//! gate's word. Some threads pass a closed gate: those beside a running capture, those of a process that
//! ends, and collectives while the drain runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gpushare_proto::page::Page;
use gpushare_proto::tenant::TenantRequest;
use gpushare_proto::{GateState, GateWord, Nanos};
use gpushare_sys::unwind::cancellation_point;
use gpushare_sys::{clock, futex};

use super::{GATE, Pass, captures::Captures, collectives::Collectives, communication::MarkedStreams};
use super::{drain::AnsweredDrop, page, waiters::Waiters};
use crate::daemon::Daemon;
use crate::process::is_exiting;

/// Time within which a drain begins after the gate closed, and the pause between two looks for that.
const DRAIN_BEGINS: Nanos = Nanos::from_millis(2);
const GLANCE: Duration = Duration::from_micros(50);
/// Longest sleep, since the page may have been replaced meanwhile.
const NAP: Duration = Duration::from_millis(500);

/// Keeper of the closed gate: decides which threads pass it, and remembers the drainer's answers.
#[derive(Debug, Default)]
pub(crate) struct Gatekeeper {
    daemon: Arc<Daemon>,
    pub(crate) captures: Captures,
    pub(crate) collectives: Collectives,
    pub(crate) marked: MarkedStreams,
    pub(crate) waiters: Waiters,
    pub(super) answered: AnsweredDrop,
    /// Bytes that the drainer asked the driver to move to the card.
    pub(crate) moved: AtomicU64,
}

impl Gatekeeper {
    pub(crate) fn new(daemon: Arc<Daemon>) -> Self {
        Self { daemon, collectives: Collectives::of_environment(), ..Self::default() }
    }

    /// Waits at the gate, which was found closed with `word`, until it opens, and enters.
    pub(crate) fn wait(&self, mut word: GateWord) -> Pass<'static> {
        let sleeper = self.waiters.add();
        loop {
            // A cancelled thread ends here: it holds nothing, and natively it would not wait.
            cancellation_point();
            if let Some(pass) = self.excuse() {
                return pass;
            }
            self.waiters.ask(word, || self.daemon.send(&TenantRequest::Wait { word }));
            // The word is read again whatever ended the sleep.
            let _ = futex::wait(&page().gate, word.0, Some(NAP));
            match GATE.enter(&page().gate) {
                Ok(pass) => return pass,
                Err(seen) => word = seen,
            }
            sleeper.explain(|| self.daemon.link().map_or_else(String::new, |link| link.identity().waits_for));
        }
    }

    /// Passes the closed gate with communication, if its drain has not ended.
    pub(crate) fn pass_communication(&self, word: GateWord) -> Option<Pass<'static>> {
        // The drainer may not have noticed yet that the gate closed.
        let began = clock::monotonic();
        loop {
            let now = clock::monotonic();
            if self.collectives.is_admitted(word, now) {
                let pass = GATE.enter_anyway();
                // Checked again inside: a drain that ended before this thread was counted does not wait for
                // it.
                let admitted = self.collectives.is_admitted(word, now);
                return admitted.then_some(pass);
            }
            let page = page();
            let seen = GateWord(page.gate.load(Ordering::Acquire));
            if seen != word || self.answered.covers(page, word) || now - began >= DRAIN_BEGINS {
                return None;
            }
            let _ = futex::wait(&page.gate, word.0, Some(GLANCE));
        }
    }

    /// Passes the closed gate in a process that ends, or while a capture runs, which only records launches.
    fn excuse(&self) -> Option<Pass<'static>> {
        let excused = || self.captures.any() || is_exiting();
        // Checked again inside: a capture that ended before this thread was counted held up no drain.
        excused().then(|| GATE.enter_anyway()).filter(|_| excused())
    }

    /// Returns whether work may be in flight under the grant of `page`: its drop is not answered yet.
    pub(crate) fn may_hold(&self, page: &Page) -> bool {
        let word = GateWord(page.gate.load(Ordering::Acquire));
        word.state() != GateState::Closed || !self.answered.covers(page, word)
    }
}
