//! Parking of the process: it holds its calls back as the flag in the page says, proves that none is under
//! way, and tells the daemon.
//!
//! A thread is outside of the few instructions between its look at `HOLD` and the driver if, after `HOLD`
//! was set,
//!
//! - it was seen asleep, since there is no system call between them, or
//! - it has run for [`RUN`] since, which takes far longer than they do. The kernel updates the time that a thread has
//!   run now and then, so only what it ran between two updates counts.
//!
//! A process that is ending does not park, since the driver's own handlers at exit pass no look.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gpushare_proto::Bytes;
use gpushare_proto::page::{FEATURE_FREEZE, FLAG_FROZEN, Page};
use gpushare_proto::tenant::{FreezeObstacle, TenantRequest};
use gpushare_sys::memory_limit;

use super::{hold, obstacles, room};
use crate::daemon::Daemon;
use crate::driver::Driver;
use crate::gate::{self, GATE};
use crate::memory::Memory;
use crate::process::is_exiting;

/// Pause between two looks at threads that are not proved to be outside.
pub(crate) const LOOK: Duration = Duration::from_millis(1);
/// Time in nanoseconds that a thread runs before it is taken to be past the look.
const RUN: u64 = 1_000_000;

/// Parking of the process. Only the drainer changes it.
#[derive(Debug, Default)]
pub(crate) struct Parking {
    /// Page whose flag is followed, by its address; `None` while calls go on.
    page: Option<usize>,
    /// Page and number of the request that the daemon has an answer to.
    answered: Option<(usize, u32)>,
    /// Whether the daemon was told that the process has parked, so that it may have frozen the process.
    told: bool,
    proof: Option<Proof>,
    /// Obstacle that the daemon of a page was told last.
    reported: Option<(usize, Option<FreezeObstacle>)>,
    /// Room on the host when the process last looked beforehand.
    room: room::Found,
}

impl Parking {
    /// Tells the next daemon, whose page is in force, that the last one may have frozen the process.
    pub(crate) fn report_held(&self, daemon: &Daemon, page: &'static Page) {
        if self.told && is_known(page) {
            send(daemon, page, &TenantRequest::Held);
        }
    }

    /// Tells the daemon what keeps the process from being frozen, if that changed. Returns whether it may go away
    /// although nobody rings.
    pub(crate) fn report(&mut self, parts: (&Driver, &Memory, &Daemon), page: &'static Page) -> bool {
        let daemon = parts.2;
        if !is_known(page) || hold::is_held() {
            return false;
        }
        let obstacle = obstacle(parts, page, |needed| self.room.lacks(needed, memory_limit::room));
        if self.reported != Some((address(page), obstacle)) {
            self.tell(daemon, page, obstacle);
        }
        obstacle == Some(FreezeObstacle::HostMemory)
    }

    fn tell(&mut self, daemon: &Daemon, page: &'static Page, obstacle: Option<FreezeObstacle>) {
        if send(daemon, page, &TenantRequest::Freezable { obstacle }) {
            self.reported = Some((address(page), obstacle));
        }
    }

    /// Does what the flag in the page asks for. Returns whether calls wait, and whether to look again soon.
    pub(crate) fn serve(&mut self, parts: (&Driver, &Memory, &Daemon), page: &'static Page) -> (bool, bool) {
        // A daemon that is gone has frozen only what had told it that it has parked.
        let may_ask = self.told || parts.2.is_connected();
        let is_asked = may_ask && is_known(page) && page.flags.load(Ordering::Acquire) & FLAG_FROZEN != 0;
        let number = page.freezes.load(Ordering::Acquire);
        let request = (address(page), number);
        if !is_asked {
            // A page of the next daemon has the flag once that knows of the process.
            let is_over = !self.told || self.page == Some(address(page)) || number > 0;
            if self.page.is_some() && is_over {
                self.end();
            }
            if self.page.is_none() {
                parts.1.remap.hide_copies(false);
            }
            return (self.page.is_some(), false);
        }
        if self.page.is_none() {
            // Before calls wait, since one of the questions is for the driver.
            let obstacle = obstacle(parts, page, |needed| room::lacks(needed, memory_limit::room));
            if is_exiting() || obstacle.is_some() {
                if self.answered != Some(request) && obstacle.is_some() {
                    self.answered = Some(request);
                    self.tell(parts.2, page, obstacle);
                }
                return (false, false);
            }
            if !parts.1.remap.hide_copies(true) {
                return (false, true);
            }
            hold::hold();
            // After it: the end of the process sets its mark and then looks whether calls wait.
            if is_exiting() {
                hold::release();
                return (false, false);
            }
            self.proof = Proof::begin();
        }
        self.page = Some(address(page));
        if is_exiting() && !self.told {
            self.end();
            return (false, false);
        }
        if self.answered == Some(request) {
            return (true, false);
        }
        if self.proof.is_none() {
            self.proof = Proof::begin();
        }
        if !self.proof.as_mut().is_some_and(Proof::holds) {
            return (true, true);
        }
        // A call that had passed before calls waited may have made an obstacle.
        if let Some(obstacle) = obstacles::known(parts.1, page).filter(|_| !self.told) {
            self.end();
            self.answered = Some(request);
            self.tell(parts.2, page, Some(obstacle));
            return (false, false);
        }
        // First: a link that is lost meanwhile has to tell the next daemon.
        let before = std::mem::replace(&mut self.told, true);
        if send(parts.2, page, &TenantRequest::Parked { number }) {
            self.answered = Some(request);
        } else {
            self.told = before;
        }
        (true, false)
    }

    fn end(&mut self) {
        (self.page, self.proof, self.told, self.answered) = (None, None, false, None);
        hold::release();
    }
}

/// Tells the daemon that a thread waits with a call, unless that would block. Returns whether it was told.
pub(crate) fn call(daemon: &Daemon) -> bool {
    let page = gate::page();
    let holds = || std::ptr::eq(page, gate::page());
    is_known(page)
        && daemon
            .link()
            .is_some_and(|link| link.try_send_if(&TenantRequest::Called, holds))
}

/// Whether the daemon of a page knows how to freeze processes.
fn is_known(page: &Page) -> bool {
    page.features.load(Ordering::Relaxed) & FEATURE_FREEZE != 0
}

fn address(page: &'static Page) -> usize {
    std::ptr::from_ref(page).addr()
}

fn send(daemon: &Daemon, page: &'static Page, request: &TenantRequest) -> bool {
    daemon.send_if(request, || std::ptr::eq(page, gate::page()))
}

/// Proof that no thread is between its look and the driver.
#[derive(Debug)]
struct Proof {
    /// Threads that are not proved to be outside: the time that each had run at the first look, and at the
    /// first update after that.
    threads: BTreeMap<u32, (Option<u64>, Option<u64>)>,
}

impl Proof {
    /// Lists the threads of the process, after calls began to wait. A thread that begins later looks itself.
    /// `None` if the system does not list them now.
    fn begin() -> Option<Self> {
        // SAFETY: has no condition.
        let own = unsafe { libc::gettid() }.cast_unsigned();
        let tasks = fs::read_dir("/proc/self/task").ok()?.collect::<Result<Vec<_>, _>>().ok()?;
        let numbers = tasks.iter().filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
        let threads = numbers
            .filter(|&thread| thread != own)
            .map(|thread| (thread, (ran(thread), None)));
        Some(Self { threads: threads.collect() })
    }

    /// Looks at all threads that are left. Returns whether none is.
    fn holds(&mut self) -> bool {
        self.threads.retain(|&thread, (first, base)| !is_outside(thread, *first, base));
        self.threads.is_empty() && GATE.is_empty() && hold::has_no_passes()
    }
}

fn is_outside(thread: u32, first: Option<u64>, base: &mut Option<u64>) -> bool {
    let stat = match fs::read_to_string(format!("/proc/self/task/{thread}/stat")) {
        Ok(stat) => stat,
        // No other error says that the thread has ended.
        Err(cause) => return matches!(cause.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)),
    };
    // The name before the state may contain anything.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    if matches!(state, Some('S' | 'Z' | 'X')) {
        return true;
    }
    let now = ran(thread);
    match *base {
        None if now != first => *base = now,
        None => {}
        Some(base) => return now.is_some_and(|now| now >= base + RUN),
    }
    false
}

/// Returns the time in nanoseconds that a thread has run, as of the last update.
fn ran(thread: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Returns what keeps the process from being frozen. `lacks_room` says whether there is no host memory for so many
/// bytes.
fn obstacle(
    (driver, memory, _): (&Driver, &Memory, &Daemon),
    page: &'static Page,
    lacks_room: impl FnOnce(Bytes) -> bool,
) -> Option<FreezeObstacle> {
    let lacking = || lacks_room(room::needed(&memory.lease)).then_some(FreezeObstacle::HostMemory);
    obstacles::obstacle(driver, memory, page).or_else(lacking)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    fn with_thread(run: impl FnOnce() + Send, check: impl FnOnce(u32)) {
        let (send, receive) = channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                // SAFETY: has no condition.
                send.send(unsafe { libc::gettid() }.cast_unsigned()).unwrap();
                run();
            });
            check(receive.recv().unwrap());
        });
    }

    #[test]
    fn a_call_is_told_only_to_a_daemon_that_knows_freezing() {
        let (_alone, link, _connection, mut stream) = crate::daemon::link::tests::link();
        stream.set_nonblocking(true).unwrap();
        let daemon = Daemon::behind(link);
        assert!(!call(&daemon));
        let read = std::io::Read::read(&mut stream, &mut [0]);
        assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        let features = &gate::page().features;
        features.fetch_or(FEATURE_FREEZE, Ordering::Relaxed);
        assert!(call(&daemon));
        features.fetch_and(!FEATURE_FREEZE, Ordering::Relaxed);
    }

    #[test]
    fn a_process_that_has_not_parked_goes_on_when_its_daemon_is_gone() {
        let (_alone, link, _connection, _stream) = crate::daemon::link::tests::link();
        let daemon = Daemon::behind(link);
        let driver = crate::driver::fake::driver();
        let memory = Memory::new(driver, std::sync::Arc::default());
        let page: &'static Page = Box::leak(Box::new(Page::new(gpushare_proto::GateState::Open)));
        page.features.store(FEATURE_FREEZE, Ordering::SeqCst);
        page.flags.store(FLAG_FROZEN, Ordering::SeqCst);
        // Keeps the process from parking.
        let pass = hold::testing::pass();
        let held = hold::testing::Held::begin();
        let mut parking = Parking { page: Some(address(page)), ..Parking::default() };
        assert_eq!(parking.serve((&driver, &memory, &daemon), page), (true, true));
        daemon.link().unwrap().unplug();
        assert_eq!(parking.serve((&driver, &memory, &daemon), page), (false, false));
        assert!(!hold::is_held());

        hold::hold();
        let mut parking = Parking { page: Some(address(page)), told: true, ..Parking::default() };
        let (waits, _) = parking.serve((&driver, &memory, &daemon), page);
        assert!(waits && hold::is_held(), "the daemon may have frozen it");
        drop((held, pass));
    }

    #[test]
    fn an_obstacle_that_a_request_meets_is_taken_back_once_it_is_gone() {
        let (_alone, link, _connection, _stream) = crate::daemon::link::tests::link();
        let daemon = Daemon::behind(link);
        // Its version is too old.
        let driver = crate::driver::fake::driver();
        let memory = Memory::new(driver, std::sync::Arc::default());
        let page = gate::page();
        page.features.fetch_or(FEATURE_FREEZE, Ordering::SeqCst);
        page.flags.fetch_or(FLAG_FROZEN, Ordering::SeqCst);
        let mut parking = Parking { reported: Some((address(page), None)), ..Parking::default() };
        assert_eq!(parking.serve((&driver, &memory, &daemon), page), (false, false));
        page.flags.fetch_and(!FLAG_FROZEN, Ordering::SeqCst);
        page.features.fetch_and(!FEATURE_FREEZE, Ordering::SeqCst);
        let told = parking.reported.expect("the daemon was told");
        assert!(told.0 == address(page) && told.1.is_some(), "a report without it differs: {told:?}");
    }

    #[test]
    fn a_thread_that_sleeps_is_outside() {
        let (end, ended) = channel::<()>();
        with_thread(
            move || _ = ended.recv(),
            |thread| {
                while !is_outside(thread, ran(thread), &mut None) {
                    thread::yield_now();
                }
                drop(end);
            },
        );
    }

    #[test]
    fn a_thread_that_runs_is_outside_after_a_while() {
        let ends = AtomicBool::new(false);
        with_thread(
            || {
                while !ends.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            },
            |thread| {
                let (first, mut base) = (ran(thread), None);
                assert!(!is_outside(thread, first, &mut base), "nothing is known of it yet");
                while !is_outside(thread, first, &mut base) {
                    thread::sleep(LOOK);
                }
                assert!(base > first);
                ends.store(true, Ordering::Relaxed);
            },
        );
    }
}
