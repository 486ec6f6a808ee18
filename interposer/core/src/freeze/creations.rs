//! Creations of contexts: each is announced to the daemon, and none begins while a frozen process comes back on the
//! card. The driver would lose that process if it found too little free memory (`gpushare_sys::growth`).
//!
//! ```text
//!   hook ─▶ HOLD? wait ─▶ announce ─▶ does a frozen process come back?  no: create the context, withdraw
//!              ▲                                                       yes: withdraw, sleep on the bell
//!              └────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A creation has a [`Pass`], so no process parks, and none is frozen, while it announces one. A thread that sleeps
//! here has neither an announcement nor a pass.

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gpushare_proto::GpuId;
use gpushare_proto::page::{FEATURE_RESTORES, MAX_GPUS};
use gpushare_sys::unwind::cancellation_point;
use gpushare_sys::{bell, growth};

use super::hold::{self, Pass, pause};
use crate::driver::types::CUdevice;
use crate::gate::{listen, page};
use crate::memory::lease::Lease;
use crate::process::{is_exiting, lock};

/// Longest wait, for the case that the driver hangs in a restore: the program gets its context late instead of never.
/// A restore takes some 0.2 s, and the time in which its memory moves.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest sleep, after which a thread looks again.
const NAP: Duration = Duration::from_millis(500);

/// Contexts that the process is creating.
#[derive(Debug, Default)]
pub(crate) struct Creations {
    /// Contexts by device, with the numbers that the page in force has. No other lock is taken while this one is held.
    rows: Mutex<[Row; MAX_GPUS]>,
}

/// Contexts that the process is creating on one device.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    /// Card of the device in the page in force, once a context was created there.
    gpu: Option<GpuId>,
    contexts: u32,
}

/// Creation of a context, announced until it is dropped.
#[derive(Debug)]
#[must_use = "a creation that is dropped at once is not announced"]
pub(crate) struct Creation<'a> {
    creations: &'a Creations,
    device: CUdevice,
    _pass: Pass,
}

impl Creations {
    /// Announces a creation, once no frozen process comes back on the card of `device`. Waits no longer if there is no
    /// daemon that says so, as `is_connected` tells.
    pub(crate) fn begin<'a>(
        &'a self,
        lease: &Lease,
        device: CUdevice,
        is_connected: impl Fn() -> bool,
    ) -> Creation<'a> {
        let mut began = Instant::now();
        loop {
            // A cancelled thread ends here: it holds nothing.
            cancellation_point();
            let (page, heard) = listen();
            let gpu = lease.gpu(device);
            // One that creates a context inside another creation would wait for itself.
            let is_nested = hold::has_pass();
            let Some(pass) = Pass::take() else {
                pause();
                // The process was frozen meanwhile, however long.
                began = Instant::now();
                continue;
            };
            let is_held_back = self.change(device, |row| {
                row.gpu = row.gpu.or(gpu);
                row.contexts = row.contexts.saturating_add(1);
            });
            let creation = Creation { creations: self, device, _pass: pass };
            let may_wait = !is_nested && is_connected() && !is_exiting() && began.elapsed() < PATIENCE;
            if !is_held_back || !may_wait {
                return creation;
            }
            drop(creation);
            // Everything is looked at again whatever ended the sleep.
            let _ = bell::sleep(page, heard, Some(NAP));
        }
    }

    /// Writes the present numbers into a page that was put in force, in which each device has such a card.
    pub(crate) fn show(&self, cards: &[(CUdevice, Option<GpuId>)]) {
        for &(device, gpu) in cards {
            self.change(device, |row| row.gpu = gpu);
        }
    }

    /// Changes the row of a device, and writes it into the page in force. Returns whether a frozen process comes back on
    /// the card.
    fn change(&self, device: CUdevice, change: impl FnOnce(&mut Row)) -> bool {
        let mut rows = lock(&self.rows);
        let row = usize::try_from(device).ok().and_then(|device| rows.get_mut(device));
        let (Some(row), page) = (row, page()) else { return false };
        change(row);
        let is_known = page.features.load(Ordering::Relaxed) & FEATURE_RESTORES != 0;
        let gpu = row.gpu.filter(|_| is_known);
        gpu.is_some_and(|gpu| growth::announce(page, gpu, row.contexts))
    }
}

impl Drop for Creation<'_> {
    fn drop(&mut self) {
        self.creations
            .change(self.device, |row| row.contexts = row.contexts.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::thread;

    use gpushare_proto::page::card_bit;

    use super::*;
    use crate::freeze::hold::testing::Held;

    const DEVICE: CUdevice = 2;
    const GPU: GpuId = GpuId(5);

    /// One test at a time, since all have the page of the process.
    static ALONE: Mutex<()> = Mutex::new(());

    /// A lease of one device, in a page whose daemon knows restores.
    fn lease() -> Lease {
        let page = page();
        page.features.fetch_or(FEATURE_RESTORES, SeqCst);
        let lease = Lease::default();
        lease.use_page(page);
        lease.attach(DEVICE, GPU);
        lease
    }

    fn announced() -> u32 {
        page().creations[usize::from(GPU.0)].load(SeqCst)
    }

    fn hold_back(is_held_back: bool) {
        growth::hold_back(page(), if is_held_back { card_bit(GPU) } else { 0 });
        bell::ring(page());
    }

    #[test]
    fn a_creation_is_announced_until_it_ends() {
        let _alone = lock(&ALONE);
        let (lease, creations) = (lease(), Creations::default());
        let first = creations.begin(&lease, DEVICE, || true);
        growth::hold_back(page(), card_bit(GpuId(6)));
        let second = thread::scope(|scope| {
            scope
                .spawn(|| {
                    let _second = creations.begin(&lease, DEVICE, || true);
                    announced()
                })
                .join()
                .unwrap()
        });
        hold_back(false);
        assert_eq!((second, announced()), (2, 1));
        drop(first);
        assert_eq!(announced(), 0);
    }

    #[test]
    fn a_creation_waits_while_a_frozen_process_comes_back() {
        let _alone = lock(&ALONE);
        let (lease, creations, looks) = (lease(), Creations::default(), AtomicU32::new(0));
        hold_back(true);
        let is_connected = || looks.fetch_add(1, SeqCst) < u32::MAX;
        thread::scope(|scope| {
            let creation = scope.spawn(|| {
                let _creation = creations.begin(&lease, DEVICE, is_connected);
                announced()
            });
            while looks.load(SeqCst) < 2 {
                bell::ring(page());
                thread::yield_now();
            }
            assert!(!creation.is_finished());
            hold_back(false);
            assert_eq!(creation.join().unwrap(), 1);
        });
        assert_eq!(announced(), 0);
    }

    #[test]
    fn a_creation_goes_on_without_a_daemon_and_inside_another_one() {
        let _alone = lock(&ALONE);
        let (lease, creations) = (lease(), Creations::default());
        hold_back(true);
        let outer = creations.begin(&lease, DEVICE, || false);
        let inner = creations.begin(&lease, DEVICE, || true);
        assert_eq!(announced(), 2);
        drop((outer, inner));
        hold_back(false);
    }

    #[test]
    fn a_creation_in_a_process_whose_calls_wait_is_not_announced() {
        let _alone = lock(&ALONE);
        let (lease, creations) = (lease(), Creations::default());
        let held = Held::begin();
        thread::scope(|scope| {
            let creation = scope.spawn(|| drop(creations.begin(&lease, DEVICE, || true)));
            while !hold::is_awaited() {
                thread::yield_now();
            }
            assert_eq!((announced(), creation.is_finished()), (0, false));
            drop(held);
        });
    }

    #[test]
    fn a_new_page_shows_the_creations_under_way() {
        let _alone = lock(&ALONE);
        let (lease, creations) = (lease(), Creations::default());
        let creation = creations.begin(&lease, DEVICE, || true);
        growth::announce(page(), GPU, 0);
        creations.show(&[(DEVICE, lease.gpu(DEVICE))]);
        assert_eq!(announced(), 1);
        drop(creation);
        assert_eq!(announced(), 0);
    }

    #[test]
    fn a_daemon_that_knows_no_restores_is_told_nothing() {
        let _alone = lock(&ALONE);
        let (lease, creations) = (lease(), Creations::default());
        page().features.fetch_and(!FEATURE_RESTORES, SeqCst);
        hold_back(true);
        let creation = creations.begin(&lease, DEVICE, || true);
        assert_eq!(announced(), 0);
        drop(creation);
        hold_back(false);
    }
}
