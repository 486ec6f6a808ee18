//! State of the process, created in the first hooked call, and the process's membership in a session.
//!
//! ```text
//!   State ──▶ driver · contexts · memory · gate · window     each owns its facts
//!     └─────▶ daemon ── link     decided by the first context (join): shared, native or refused
//!                        ▲ a thread listens, and returns to the next daemon (rejoin)
//! ```
//!
//! One pointer leads to the whole state. So the child of a fork forgets it in one store, with all locks that
//! threads of the parent held.

mod exports;
pub(crate) mod inquiry;
mod join;
mod rejoin;
mod summary;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use gpushare_proto::GateWord;
use gpushare_proto::page::Page;
use gpushare_proto::tenant::TenantRequest;

use crate::daemon::{Daemon, address::Address};
use crate::driver::types::{CUDA_ERROR_SYSTEM_NOT_READY, CUdevice, CUresult};
use crate::driver::{Driver, contexts::Contexts, dynlink::LIBCUDA};
use crate::freeze::creations::{Creation, Creations};
use crate::freeze::park::{self, Parking};
use crate::freeze::{entry::entry_of, hold};
use crate::gate::{
    drain::Drainer, drain::Graces, drain::WayOut, interrupt::INTERRUPTS, page, reset, wait::Gatekeeper,
    wait::is_quiet, wait::is_unused, wake_sleepers,
};
use crate::memory::Memory;
use crate::process::fork::ForkCell;
use crate::process::{EXITING, Starter, fork, lock, spawn, stderr};
use crate::remap::Gate;
use crate::window::process::ProcessWindow;
use join::Cards;

static STATE: ForkCell<State> = ForkCell::new();
/// Functions of the present state. A child of a fork has a state of its own.
const ACTS: hold::Acts = hold::Acts {
    serve: |page| State::existing().map_or((false, false), |state| state.serve_freeze(page)),
    report: |page| State::existing().is_some_and(|state| state.report_freezable(page)),
    call: || State::existing().is_some_and(|state| park::call(&state.daemon)),
};

/// Whether the process is required to share although its driver lacks functions for that.
static MUST_NOT_RUN: AtomicBool = AtomicBool::new(false);

/// Returns the result of a hook that creates a context in a process without a state.
pub(crate) fn without_state(real: impl FnOnce() -> CUresult) -> CUresult {
    if MUST_NOT_RUN.load(Ordering::Relaxed) {
        CUDA_ERROR_SYSTEM_NOT_READY
    } else {
        real()
    }
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) driver: Driver,
    pub(crate) daemon: Arc<Daemon>,
    pub(crate) contexts: Contexts,
    creations: Creations,
    pub(crate) memory: Memory,
    pub(crate) gate: Gatekeeper,
    pub(crate) window: ProcessWindow,
    cards: Cards,
    /// Locked by the drainer, and by the thread of the link while it joins a daemon.
    parking: Mutex<Parking>,
    drainer_started: Starter,
    started: Instant,
    /// Time that the library itself took in the creation of the first context, in nanoseconds; 0 before.
    first_context: AtomicU64,
}

impl State {
    /// Returns the process's state, created in the first hooked call. `None` without a usable driver.
    pub(crate) fn get() -> Option<&'static Self> {
        Self::existing().or_else(Self::begin)
    }

    #[inline]
    pub(crate) fn existing() -> Option<&'static Self> {
        STATE.get()
    }

    pub(crate) fn is_shared() -> bool {
        Self::existing().is_some_and(|state| state.daemon.link().is_some())
    }

    #[cold]
    fn begin() -> Option<&'static Self> {
        static PRINTED: AtomicBool = AtomicBool::new(false);
        match Driver::load(|name| entry_of(LIBCUDA.symbol(name))) {
            Ok(driver) => {
                let state = STATE.set(Self::new(driver));
                let _ = hold::ACTS.set(ACTS);
                Some(state)
            }
            Err(missing) => {
                let missing = missing.to_string_lossy();
                // Settings that are not understood may require sharing.
                let required = Address::from_environment().map_or(true, |address| address.required.is_some());
                MUST_NOT_RUN.store(required, Ordering::Relaxed);
                let consequence = match required {
                    true => "this process must not use the GPU without sharing it",
                    false => "this process runs without sharing",
                };
                let line = format_args!("the CUDA driver lacks {missing}; {consequence} (update the driver)");
                stderr::print_once(&PRINTED, line);
                None
            }
        }
    }

    fn new(driver: Driver) -> Self {
        let daemon = Arc::new(Daemon::default());
        let memory = Memory::new(driver, daemon.clone());
        memory.remap.stand_at(Gate { page, is_quiet, is_unused });
        Self {
            driver,
            contexts: Contexts::default(),
            creations: Creations::default(),
            memory,
            gate: Gatekeeper::new(daemon.clone()),
            daemon,
            window: ProcessWindow::default(),
            cards: Cards::default(),
            parking: Mutex::default(),
            drainer_started: Starter::default(),
            started: Instant::now(),
            first_context: AtomicU64::new(0),
        }
    }

    pub(crate) fn send_contexts(&self, device: CUdevice, live: u32) {
        if let (Some(link), Some(gpu)) = (self.daemon.link(), self.memory.lease.gpu(device)) {
            link.send(&TenantRequest::Contexts { gpu, live });
        }
    }

    /// Begins the creation of a context, once no frozen process comes back on the card. Called right before the driver.
    pub(crate) fn begin_creation(&self, device: CUdevice) -> Creation<'_> {
        self.creations.begin(&self.memory.lease, device, || self.daemon.is_connected())
    }

    /// Follows the flag in the page by which the daemon freezes the process. Returns whether calls wait, and whether to
    /// look again soon. Only the drainer calls this.
    pub(crate) fn serve_freeze(&self, page: &'static Page) -> (bool, bool) {
        lock(&self.parking).serve((&self.driver, &self.memory, &self.daemon), page)
    }

    /// Tells the daemon of a page what keeps the process from being frozen, if that changed. Returns whether it may go
    /// away although nobody rings.
    pub(crate) fn report_freezable(&self, page: &'static Page) -> bool {
        lock(&self.parking).report((&self.driver, &self.memory, &self.daemon), page)
    }

    /// Tells the next daemon, whose page is in force, that the last one may have frozen the process.
    fn report_held(&self, page: &'static Page) {
        lock(&self.parking).report_held(&self.daemon, page);
    }

    /// Starts the drainer after the first grant, even if nothing is to be drained, and for remapped memory, which it
    /// lets leave and come in. The daemon asks an idle session for the lock only by a flag in the shared page, so no
    /// later message would start the drainer. Returns `false` if the drainer is needed and could not be started.
    pub(crate) fn start_drainer(&'static self) -> bool {
        let word = GateWord(page().gate.load(Ordering::Acquire));
        // Every page begins with change 0, under which nothing was granted.
        word.change() == 0 && !self.memory.remap.is_used()
            || self.drainer_started.ensure("gpushare-drain", || {
                let Self { driver, daemon, contexts, memory, gate, window, .. } = self;
                let (graces, way_out) = (Graces::default(), WayOut::default());
                let drainer = Drainer { driver, daemon, contexts, memory, gate, window, graces, way_out };
                spawn("gpushare-drain", || drainer.run())
            })
    }
}

/// Resets the child of a fork as if CUDA was never used. Only atomics and system calls are safe here.
extern "C" fn in_child() {
    inquiry::forget();
    INTERRUPTS.forget();
    STATE.forget();
    reset();
    hold::reset();
    fork::close_sockets();
}

extern "C" fn at_exit() {
    EXITING.store(true, Ordering::SeqCst);
    // The driver's own handlers call it without a look, so a frozen process comes back first.
    hold::pause_at_exit();
    if let Some(state) = State::existing() {
        let park = std::panic::AssertUnwindSafe(|| state.memory.remap.park());
        let _ = std::panic::catch_unwind(park);
    }
    wake_sleepers();
    // A panic must not cross into the C library.
    let _ = std::panic::catch_unwind(summary::print);
}
