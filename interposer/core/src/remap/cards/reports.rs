//! Reports of a card: what the daemon hears of its memory, and the user of what stands in its way.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpushare_proto::page::{FLAG_MAPPED, GoalNumber, MAX_GPUS, Page};
use gpushare_proto::tenant::{MAX_UNKNOWN, Residence, TenantRequest};
use gpushare_proto::{Bytes, GpuId};
use gpushare_sys::bell;

use super::Card;
use crate::driver::unknown::UNKNOWN;
use crate::process::lock;
use crate::process::stderr::print;
use crate::remap::host::{HostError, Limit};
use crate::remap::lanes::Moving;

/// Whether memory of each card is mapped from the host, by the number of the card.
static MAPPED: Mutex<[bool; MAX_GPUS]> = Mutex::new([false; MAX_GPUS]);
/// Pause after a failed step until it is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Pause after host memory could not be prepared, until it is tried again. Nobody waits for it.
const RETRY_TO_PREPARE: Duration = Duration::from_secs(10);

/// Knowledge that the daemon has of a card.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Page of the daemon, and number of the card there.
    pub(super) place: Option<(&'static Page, GpuId)>,
    /// Last report; `None` if it must be made again.
    pub(super) report: Option<Report>,
}

/// Report of a card for the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    gpu: GpuId,
    seen: GoalNumber,
    residence: Residence,
    failed: Option<Failure>,
}

/// Step that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Failure {
    /// Number of the goal under which it has failed.
    number: GoalNumber,
    /// Bytes for which the card has no memory, if that is the reason.
    refused: Option<Bytes>,
}

impl Card {
    /// Reports each change of the figures to the daemon. Tries failed steps again after a pause.
    pub(super) fn run_reports(&self) {
        let mut retry: Option<Instant> = None;
        loop {
            let left = retry.map(|at| at.saturating_duration_since(Instant::now()));
            let woken = self.lanes.wait_within(left.unwrap_or(Duration::MAX), |moving| {
                // The pause begins with the failure, however often something else changes meanwhile.
                let begins = pause(moving).is_some() && retry.is_none();
                (self.news(moving, &lock(&self.told)).is_some() || begins).then_some(())
            });
            if woken.is_none() {
                retry = None;
                self.lanes.change(|moving| {
                    moving.blocks.engine().retry();
                    moving.pool.retry();
                });
                continue;
            }
            self.report();
            let next = self.lanes.look(pause).map(|pause| Instant::now() + pause);
            retry = next.map(|next| retry.map_or(next, |retry| retry.min(next)));
        }
    }

    /// Reports the figures to the daemon, if they differ from the last report.
    pub(super) fn report(&self) {
        // Is held until the report is sent, so that no later one overtakes it.
        let in_order = lock(&self.reporting);
        let news = self.lanes.look(|moving| {
            let mut told = lock(&self.told);
            let news = self.news(moving, &told)?;
            told.report = Some(news.1);
            Some(news)
        });
        if let Some((page, report, failed)) = news {
            self.send(page, report, failed);
            note_mapped(page, report.gpu, !report.residence.mapped.is_zero());
            drop(in_order);
            self.warn_of_missed_work();
            self.warn_of_no_room();
        }
    }

    fn send(&self, page: &'static Page, report: Report, failed: Option<Failure>) {
        let Report { gpu, seen, residence, .. } = report;
        let is_in_force = || std::ptr::eq(page, crate::gate::page());
        // What does not reach the daemon is reported to the next one.
        self.daemon
            .send_if(&TenantRequest::Resides { gpu, seen, residence }, is_in_force);
        if let Some(Failure { number, refused }) = failed {
            let failure = match refused {
                Some(bytes) => TenantRequest::CardFull { gpu, number, bytes },
                None => TenantRequest::MoveFailed { gpu, number },
            };
            self.daemon.send_if(&failure, is_in_force);
        }
    }

    /// Tells the user of work that was in flight while the process was taken for idle.
    fn warn_of_missed_work(&self) {
        if let Some(chunk) = self.lanes.look(|moving| moving.blocks.engine().take_missed()) {
            let unknown: Vec<_> = (0..MAX_UNKNOWN).filter_map(|slot| Some(UNKNOWN.get(slot)?.0)).collect();
            let unknown = if unknown.is_empty() { "none".to_owned() } else { unknown.join(", ") };
            print(format_args!(
                "paranoid: the program wrote to its memory at {:#x} ({}) while gpushare took it for idle. \
                 No byte is lost, and its memory stays on the card from now on. \
                 Driver functions that it looked up and gpushare does not know: {unknown}. \
                 Please report this with the name of the program",
                chunk.address, chunk.size,
            ));
        }
    }

    /// Tells the user once for each limit of memory that cannot leave the card, since the program's own control
    /// group or the machine has no room.
    fn warn_of_no_room(&self) {
        static IS_TOLD: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
        if IS_TOLD.iter().all(|is_told| is_told.load(Ordering::Relaxed)) {
            return;
        }
        let trouble = self.lanes.look(|moving| moving.pool.trouble());
        if let Some(HostError::NoRoom { room, limit, .. }) = trouble
            && !IS_TOLD[limit as usize].swap(true, Ordering::Relaxed)
        {
            let (whose, remedy) = match limit {
                Limit::Group => (
                    "its control group",
                    "Raise the memory limit of the container or the service by the program's memory on the card",
                ),
                Limit::Machine => ("the machine", "End programs that use much of the host's memory"),
            };
            print(format_args!(
                "memory of this program cannot leave the card: {whose} has {room} of the host's memory left for \
                 it. Other programs may have to wait for the card. {remedy}"
            ));
        }
    }

    /// Returns a report that differs from the last one, with the step that has failed since.
    fn news(&self, moving: &mut Moving, told: &Told) -> Option<(&'static Page, Report, Option<Failure>)> {
        let (page, gpu) = told.place?;
        let (engine, sizes) = (moving.blocks.engine(), moving.pool.sizes());
        let figures = engine.figures();
        let residence = Residence {
            resident: figures.resident,
            hosted: figures.hosted,
            unbacked: figures.unbacked + Bytes(self.wanted.load(Ordering::Relaxed)),
            pinned: figures.immovable,
            prepared: sizes.total - figures.needed_slots,
            mapped: figures.mapped,
            copied_out: figures.copied_out,
        };
        let failure = |_| Failure { number: engine.goal().number, refused: engine.refused() };
        let failed = engine.trouble().map(failure);
        let report = Report { gpu, seen: figures.seen, residence, failed };
        let before = told.report;
        let failed = failed.filter(|_| before.is_none_or(|before| before.failed != failed));
        (before != Some(report)).then_some((page, report, failed))
    }
}

/// Returns the pause until what has failed is tried again.
fn pause(moving: &mut Moving) -> Option<Duration> {
    // An eviction that is not wanted any more leaves the pool's failure behind, which would fail the next one.
    let has_failed = moving.blocks.engine().trouble().is_some() || moving.pool.trouble().is_some();
    match (has_failed, moving.pool.is_short()) {
        (true, _) => Some(RETRY),
        (false, true) => Some(RETRY_TO_PREPARE),
        (false, false) => None,
    }
}

/// Notes whether memory of a card is mapped from the host, and says in the page whether that of any is.
fn note_mapped(page: &Page, gpu: GpuId, is_mapped: bool) {
    let mut mapped = lock(&MAPPED);
    if let Some(of_card) = mapped.get_mut(usize::from(gpu.0)) {
        *of_card = is_mapped;
    }
    let before = match mapped.contains(&true) {
        true => page.flags.fetch_or(FLAG_MAPPED, Ordering::SeqCst),
        false => page.flags.fetch_and(!FLAG_MAPPED, Ordering::SeqCst),
    };
    if (before & FLAG_MAPPED != 0) != mapped.contains(&true) {
        bell::ring(page);
    }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::GateState;

    use super::*;

    #[test]
    fn the_page_says_whether_memory_of_any_card_is_mapped_from_the_host() {
        let page = Page::new(GateState::Open);
        let says = |card, is_mapped| {
            let heard = bell::heard(&page);
            note_mapped(&page, GpuId(card), is_mapped);
            (page.flags.load(Ordering::SeqCst) == FLAG_MAPPED, bell::heard(&page) != heard)
        };
        assert_eq!(says(0, false), (false, false));
        assert_eq!(says(0, true), (true, true));
        assert_eq!([says(1, true), says(0, false)], [(true, false); 2]);
        assert_eq!(says(1, false), (false, true));
    }
}
