//! Bytes of quota, taken at memory speed: from the page by compare-and-swap, and only when it is short
//! from the daemon. Counted per device as the process numbers them, whatever the daemon calls the card now.
//!
//! ```text
//!   reserve ──▶ row.free ≥ bytes?  yes: take, used += bytes
//!                                  no:  ask the daemon; its answer counts as used at once
//!   give back ──▶ used −= bytes, row.free += bytes       fixed bytes that the daemon knows of: back to it
//!   charge ──▶ as reserve, but the bytes are there already: what nobody gives is owed
//! ```
//!
//! **Fixed bytes.** The daemon holds a limit for managed memory, and counts as such all that it leased and that is not
//! known to be fixed. So it must never think that more is fixed than is: `told` follows `fixed` from below. It
//! rises when the daemon is asked for something anyway. It falls when fixed bytes are freed that it counts: those do not
//! go into the page, where managed memory could take them unseen, but back to the daemon, which puts them there
//! if it can. What is allocated from the page and freed again is below its notice.
//!
//! **Debts.** Memory that is there before anybody asked (a pool that grew, a graph that was launched) is counted
//! even beyond the limit. What is owed is paid by the next bytes that are given back; until then nothing is reserved.
//!
//! A page is exchanged when a daemon returns: the new one starts empty and is told what is used. The
//! lock around the page makes "taken from the page" and "counted as used" one step for that moment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use gpushare_proto::page::{LeaseRow, MAX_GPUS, Page};
use gpushare_proto::{Bytes, GpuId};

use crate::driver::types::CUdevice;
use crate::lock;

/// Free lease beyond which a process offers some back.
const TRIM_ABOVE: Bytes = Bytes::mib(128);

/// Whether bytes can leave the card while they are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Managed memory: the driver moves it.
    Movable,
    /// Memory that stays where it is: native allocations, pools, arrays, handles.
    Fixed,
}

/// The lease of the process.
#[derive(Debug, Default)]
pub struct Leases {
    shared: RwLock<Option<Shared>>,
    devices: [Count; MAX_GPUS],
}

/// What the process has on one device.
#[derive(Debug, Default)]
struct Count {
    /// All bytes.
    used: AtomicU64,
    /// The most that there ever were.
    peak: AtomicU64,
    /// Those that never move.
    fixed: AtomicU64,
    /// How many of these the daemon knows of; never less than it does.
    told: AtomicU64,
    /// Changed together with what is sent, so that messages go out in the order of the changes.
    telling: Mutex<()>,
    /// Bytes that are there and that nobody leased: movable and fixed ones.
    owed: [AtomicU64; 2],
}

/// The page, and the row of each device in it.
#[derive(Clone, Debug)]
struct Shared {
    page: &'static Page,
    rows: [Option<GpuId>; MAX_GPUS],
}

/// What a process is told about a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// The session's quota; [`Bytes::MAX`] for none.
    pub limit: Bytes,
    /// The most that the session may use at present, quota or not.
    pub ceiling: Bytes,
    /// What the session uses, this process included.
    pub used: Bytes,
}

impl Figures {
    /// How large the card is to the session: its quota, or the card. It does not change while the session lives.
    #[must_use]
    pub fn total(&self, card: Bytes) -> Bytes {
        self.limit.min(card)
    }

    /// What the session may still allocate: the rest of its total, as far as the card can back it.
    #[must_use]
    pub fn free(&self, card: Bytes) -> Bytes {
        self.total(card).min(self.ceiling) - self.used
    }
}

/// What the daemon should hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// So much lies free in the page that it should take some.
    Trim(GpuId),
    /// Bytes that counted as fixed are free and belong to the daemon.
    Return(GpuId, Bytes),
    /// More bytes are fixed than it knows of.
    Fixed(GpuId, Bytes),
}

impl Leases {
    /// The page came with the first welcome.
    pub fn share(&self, page: &'static Page) {
        *self.write() = Some(Shared { page, rows: [None; MAX_GPUS] });
    }

    /// The daemon numbered a device.
    pub fn attach(&self, device: CUdevice, gpu: GpuId) {
        if let (Some(shared), Some(slot)) = (self.write().as_mut(), index(device)) {
            shared.rows[slot] = Some(gpu);
        }
    }

    /// The daemon's number of a device, if the process attached to it.
    #[must_use]
    pub fn gpu(&self, device: CUdevice) -> Option<GpuId> {
        self.read().as_ref()?.rows[index(device)?]
    }

    /// Takes `bytes` from the page; `false` if it is short.
    #[must_use]
    pub fn take(&self, device: CUdevice, bytes: Bytes, kind: Kind) -> bool {
        let shared = self.read();
        let taken = shared
            .as_ref()
            .and_then(|shared| shared.row(device))
            .is_some_and(|row| gpushare_sys::lease::take(row, bytes));
        if taken && let Some(count) = self.of(device) {
            count.add(bytes, kind);
        }
        taken
    }

    /// Takes what the page has, at most `bytes`, and counts it; how much it was.
    #[must_use]
    pub fn take_up_to(&self, device: CUdevice, bytes: Bytes, kind: Kind) -> Bytes {
        let shared = self.read();
        let (Some(row), Some(count)) =
            (shared.as_ref().and_then(|shared| shared.row(device)), self.of(device))
        else {
            return Bytes::ZERO;
        };
        let taken = gpushare_sys::lease::take_up_to(row, bytes);
        count.add(taken, kind);
        taken
    }

    /// The daemon gave `bytes` to an allocation. Of fixed ones it knows that they are.
    pub fn count(&self, device: CUdevice, bytes: Bytes, kind: Kind) {
        if let Some(count) = self.of(device) {
            count.add(bytes, kind);
            if kind == Kind::Fixed {
                count.told.fetch_add(bytes.0, Ordering::SeqCst);
            }
        }
    }

    /// `bytes` are there, and nobody leased them.
    pub fn owe(&self, device: CUdevice, bytes: Bytes, kind: Kind) {
        if let Some(count) = self.of(device) {
            // First: what is fixed and leased must not seem more for a moment.
            count.owed[kind as usize].fetch_add(bytes.0, Ordering::SeqCst);
            count.add(bytes, kind);
        }
    }

    /// What is owed of `kind`.
    #[must_use]
    pub fn owed(&self, device: CUdevice, kind: Kind) -> Bytes {
        self.of(device)
            .map_or(Bytes::ZERO, |count| Bytes(count.owed[kind as usize].load(Ordering::SeqCst)))
    }

    /// Whether anything is owed.
    #[must_use]
    pub fn is_in_debt(&self, device: CUdevice) -> bool {
        self.of(device)
            .is_some_and(|count| count.owed.iter().any(|owed| owed.load(Ordering::SeqCst) > 0))
    }

    /// Pays debts of `kind` out of `bytes` that were taken for that and counted: they are not counted twice from now
    /// on. What was left over when nothing was owed any more.
    #[must_use]
    pub fn pay(&self, device: CUdevice, bytes: Bytes, kind: Kind) -> Bytes {
        let Some(count) = self.of(device) else { return bytes };
        let paid = count.pay(bytes, kind);
        count.remove(paid, kind);
        bytes - paid
    }

    /// Puts `bytes` back: against debts first, into the page otherwise, and fixed ones that the daemon knows of back to
    /// it. `tell` sends what it should hear, before anybody can take them again, and says whether that went out.
    pub fn give_back(&self, device: CUdevice, bytes: Bytes, kind: Kind, tell: impl Fn(News) -> bool) {
        let shared = self.read();
        let (Some(shared), Some(count)) = (shared.as_ref(), self.of(device)) else { return };
        let (Some(row), Some(gpu)) = (shared.row(device), shared.gpu(device)) else { return };
        count.remove(bytes, kind);
        let mut free = bytes;
        for debt in [kind, kind.other()] {
            free = free - count.pay(free, debt);
        }
        if kind == Kind::Fixed {
            free = free - count.shrink(free, |back| tell(News::Return(gpu, back)));
        }
        if free.is_zero() {
            return;
        }
        gpushare_sys::lease::put(row, free);
        if Bytes(row.free.load(Ordering::Relaxed)) > TRIM_ABOVE {
            tell(News::Trim(gpu));
        }
    }

    /// Tells how many bytes are fixed, if the daemon knows of less.
    pub fn tell_fixed(&self, device: CUdevice, tell: impl Fn(News) -> bool) {
        if let (Some(count), Some(gpu)) = (self.of(device), self.gpu(device)) {
            count.grow(|fixed| tell(News::Fixed(gpu, fixed)));
        }
    }

    /// The devices that the process attached to.
    #[must_use]
    pub fn devices(&self) -> Vec<CUdevice> {
        self.read().as_ref().map_or_else(Vec::new, Shared::devices)
    }

    /// What the session may use and uses on a device; `None` for a device that is not shared.
    #[must_use]
    pub fn figures(&self, device: CUdevice) -> Option<Figures> {
        let shared = self.read();
        let row = shared.as_ref()?.row(device)?;
        let (limit, ceiling) = (row.limit.load(Ordering::Relaxed), row.ceiling.load(Ordering::Relaxed));
        let used = self.used(device) + Bytes(row.siblings.load(Ordering::Relaxed));
        Some(Figures { limit: Bytes(limit), ceiling: Bytes(ceiling), used })
    }

    /// Bytes in use on a device by this process.
    #[must_use]
    pub fn used(&self, device: CUdevice) -> Bytes {
        self.of(device)
            .map_or(Bytes::ZERO, |count| Bytes(count.used.load(Ordering::Relaxed)))
    }

    /// Those of them that never move.
    #[must_use]
    pub fn fixed(&self, device: CUdevice) -> Bytes {
        self.of(device)
            .map_or(Bytes::ZERO, |count| Bytes(count.fixed.load(Ordering::SeqCst)))
    }

    /// The most that was ever in use, over all devices.
    #[must_use]
    pub fn peak(&self) -> Bytes {
        self.devices.iter().map(|count| Bytes(count.peak.load(Ordering::Relaxed))).sum()
    }

    /// Exchanges the page for a returned daemon's. `greet` says hello with what is used, while nobody takes
    /// or puts back, and gives the new page and the new numbers of the devices it named. The daemon books all of it: nothing
    /// is owed any more, and of what is fixed it is to be told.
    ///
    /// # Errors
    /// Whatever `greet` says; then the old page stays.
    pub fn exchange<E>(
        &self,
        greet: impl FnOnce(&[(CUdevice, Bytes)]) -> Result<(&'static Page, Vec<GpuId>), E>,
    ) -> Result<(), E> {
        let mut shared = self.write();
        let devices: Vec<CUdevice> = shared.as_ref().map_or_else(Vec::new, Shared::devices);
        let used: Vec<_> = devices.iter().map(|&device| (device, self.used(device))).collect();
        let (page, numbers) = greet(&used)?;
        let mut rows = [None; MAX_GPUS];
        for (device, gpu) in devices.into_iter().zip(numbers) {
            if let Some(slot) = index(device) {
                rows[slot] = Some(gpu);
                let count = &self.devices[slot];
                count.told.store(0, Ordering::SeqCst);
                count.owed.iter().for_each(|owed| owed.store(0, Ordering::SeqCst));
            }
        }
        *shared = Some(Shared { page, rows });
        Ok(())
    }

    fn of(&self, device: CUdevice) -> Option<&Count> {
        index(device).map(|slot| &self.devices[slot])
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Option<Shared>> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Option<Shared>> {
        self.shared.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kind {
    const fn other(self) -> Self {
        match self {
            Self::Movable => Self::Fixed,
            Self::Fixed => Self::Movable,
        }
    }
}

impl Count {
    fn add(&self, bytes: Bytes, kind: Kind) {
        let used = self.used.fetch_add(bytes.0, Ordering::Relaxed) + bytes.0;
        // Most of the time it is no new peak, and a load is all.
        if used > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(used, Ordering::Relaxed);
        }
        if kind == Kind::Fixed {
            self.fixed.fetch_add(bytes.0, Ordering::SeqCst);
        }
    }

    fn remove(&self, bytes: Bytes, kind: Kind) {
        self.used.fetch_sub(bytes.0, Ordering::Relaxed);
        if kind == Kind::Fixed {
            self.fixed.fetch_sub(bytes.0, Ordering::SeqCst);
        }
    }

    /// Takes at most `bytes` off what is owed; how much it was.
    fn pay(&self, bytes: Bytes, kind: Kind) -> Bytes {
        let owed = &self.owed[kind as usize];
        if bytes.is_zero() || owed.load(Ordering::SeqCst) == 0 {
            return Bytes::ZERO;
        }
        let before =
            owed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |owed| Some(owed.saturating_sub(bytes.0)));
        let (Ok(before) | Err(before)) = before;
        Bytes(before.min(bytes.0))
    }

    /// Fixed bytes that somebody leased to us.
    fn leased_fixed(&self) -> u64 {
        let fixed = self.fixed.load(Ordering::SeqCst);
        fixed.saturating_sub(self.owed[Kind::Fixed as usize].load(Ordering::SeqCst))
    }

    /// Fewer bytes are fixed: if the daemon counts some of the `free` ones as such, tells it so. How many it was.
    fn shrink(&self, free: Bytes, tell: impl FnOnce(Bytes) -> bool) -> Bytes {
        if self.told.load(Ordering::SeqCst) <= self.leased_fixed() {
            return Bytes::ZERO;
        }
        let _in_order = lock(&self.telling);
        let told = self.told.load(Ordering::SeqCst);
        let back = free.min(Bytes(told.saturating_sub(self.leased_fixed())));
        if !back.is_zero() {
            self.told.fetch_sub(back.0, Ordering::SeqCst);
            // What is not heard is settled when a daemon returns: it books what is used then.
            tell(back);
        }
        back
    }

    /// Tells how many bytes are fixed, if that is more than the daemon knows of.
    fn grow(&self, tell: impl FnOnce(Bytes) -> bool) {
        let _in_order = lock(&self.telling);
        let before = self.told.load(Ordering::SeqCst);
        let mut fixed = self.leased_fixed();
        if fixed <= before {
            return;
        }
        loop {
            // Stored before it is looked at again: whoever frees meanwhile sees the one or is seen by the other.
            self.told.store(fixed, Ordering::SeqCst);
            let now = self.leased_fixed();
            if now >= fixed {
                break;
            }
            fixed = now;
        }
        if !tell(Bytes(fixed)) {
            self.told.fetch_sub(fixed.saturating_sub(before), Ordering::SeqCst);
        }
    }
}

impl Shared {
    fn gpu(&self, device: CUdevice) -> Option<GpuId> {
        self.rows[index(device)?]
    }

    fn row(&self, device: CUdevice) -> Option<&'static LeaseRow> {
        self.page.gpus.get(usize::from(self.gpu(device)?.0))
    }

    fn devices(&self) -> Vec<CUdevice> {
        (0..).zip(&self.rows).filter_map(|(device, row)| row.map(|_| device)).collect()
    }
}

fn index(device: CUdevice) -> Option<usize> {
    usize::try_from(device).ok().filter(|&slot| slot < MAX_GPUS)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use gpushare_proto::GateState;

    use super::Kind::{Fixed, Movable};
    use super::*;

    fn page(free: u64) -> &'static Page {
        let page = Box::leak(Box::new(Page::new(GateState::Open)));
        page.gpus[3].free.store(free, Ordering::Relaxed);
        page
    }

    fn leases(free: u64) -> (Leases, &'static Page) {
        let (leases, page) = (Leases::default(), page(free));
        leases.share(page);
        leases.attach(0, GpuId(3));
        (leases, page)
    }

    /// Gives back, and what the daemon is told of it.
    fn give(leases: &Leases, bytes: Bytes, kind: Kind) -> Vec<News> {
        let told = RefCell::new(Vec::new());
        leases.give_back(0, bytes, kind, |news| {
            told.borrow_mut().push(news);
            true
        });
        told.into_inner()
    }

    fn fixed_told(leases: &Leases) -> Vec<News> {
        let told = RefCell::new(Vec::new());
        leases.tell_fixed(0, |news| {
            told.borrow_mut().push(news);
            true
        });
        told.into_inner()
    }

    #[test]
    fn what_is_taken_is_counted_and_what_is_given_back_can_be_taken_again() {
        let (leases, page) = leases(100);
        assert!(leases.take(0, Bytes(60), Movable));
        assert!(!leases.take(0, Bytes(60), Movable));
        assert_eq!(leases.used(0), Bytes(60));
        assert_eq!(give(&leases, Bytes(60), Movable), [], "a little is kept for the next allocation");
        assert_eq!(page.gpus[3].free.load(Ordering::Relaxed), 100);
        assert_eq!((leases.used(0), leases.peak()), (Bytes::ZERO, Bytes(60)));
    }

    #[test]
    fn a_device_without_a_row_has_nothing_to_take() {
        let (leases, _) = leases(100);
        assert!(!leases.take(1, Bytes(1), Movable));
        assert!(!leases.take(-1, Bytes(1), Movable));
        assert!(!leases.take(99, Bytes(1), Movable));
        assert_eq!(leases.take_up_to(99, Bytes(1), Movable), Bytes::ZERO);
        assert_eq!(leases.figures(1), None);
    }

    #[test]
    fn much_free_lease_is_offered_back() {
        let (leases, _) = leases(Bytes::gib(1).0);
        assert!(leases.take(0, Bytes::gib(1), Movable));
        assert_eq!(give(&leases, Bytes::gib(1), Movable), [News::Trim(GpuId(3))]);
    }

    #[test]
    fn fixed_bytes_that_the_daemon_knows_of_go_back_to_it_and_others_into_the_page() {
        let (leases, page) = leases(100);
        leases.count(0, Bytes(50), Fixed);
        assert!(leases.take(0, Bytes(30), Fixed));
        assert_eq!(give(&leases, Bytes(20), Fixed), [], "it knows of 50, and 60 are left");
        assert_eq!(page.gpus[3].free.load(Ordering::Relaxed), 90);
        assert_eq!(give(&leases, Bytes(25), Fixed), [News::Return(GpuId(3), Bytes(15))]);
        assert_eq!(page.gpus[3].free.load(Ordering::Relaxed), 100);
        assert_eq!((leases.fixed(0), leases.used(0)), (Bytes(35), Bytes(35)));
    }

    #[test]
    fn the_daemon_is_told_of_fixed_bytes_when_it_is_asked_and_only_of_more() {
        let (leases, _) = leases(100);
        assert!(leases.take(0, Bytes(30), Fixed));
        assert_eq!(fixed_told(&leases), [News::Fixed(GpuId(3), Bytes(30))]);
        assert_eq!(fixed_told(&leases), []);
        assert_eq!(give(&leases, Bytes(30), Fixed), [News::Return(GpuId(3), Bytes(30))]);
        assert_eq!(fixed_told(&leases), []);
    }

    #[test]
    fn what_no_daemon_heard_is_told_again() {
        let (leases, _) = leases(100);
        assert!(leases.take(0, Bytes(30), Fixed));
        leases.tell_fixed(0, |_| false);
        assert_eq!(fixed_told(&leases), [News::Fixed(GpuId(3), Bytes(30))]);
    }

    #[test]
    fn a_debt_is_paid_by_what_is_given_back_next() {
        let (leases, page) = leases(10);
        leases.owe(0, Bytes(40), Fixed);
        assert!(leases.is_in_debt(0));
        assert_eq!((leases.used(0), leases.fixed(0)), (Bytes(40), Bytes(40)));
        assert_eq!(fixed_told(&leases), [], "nobody leased them");
        leases.count(0, Bytes(30), Movable);
        assert_eq!(give(&leases, Bytes(30), Movable), []);
        assert_eq!((leases.owed(0, Fixed), leases.used(0)), (Bytes(10), Bytes(40)));
        assert_eq!(page.gpus[3].free.load(Ordering::Relaxed), 10);
        assert_eq!(give(&leases, Bytes(40), Fixed), []);
        assert!(!leases.is_in_debt(0));
        assert_eq!(page.gpus[3].free.load(Ordering::Relaxed), 40);
        assert_eq!((leases.used(0), leases.fixed(0)), (Bytes::ZERO, Bytes::ZERO));
    }

    #[test]
    fn a_debt_that_somebody_paid_meanwhile_leaves_the_payment_over() {
        let (leases, _) = leases(0);
        leases.owe(0, Bytes(40), Movable);
        leases.count(0, Bytes(40), Movable);
        assert_eq!(give(&leases, Bytes(25), Movable), []);
        assert_eq!(leases.pay(0, Bytes(40), Movable), Bytes(25));
        assert!(!leases.is_in_debt(0));
        assert_eq!(leases.used(0), Bytes(40), "15 that were owed, and 25 left over");
    }

    /// What the daemon knows and what it leased, from the messages in their order, as the core counts.
    #[derive(Debug, Default)]
    struct Daemon {
        leased: i64,
        fixed: i64,
    }

    #[test]
    fn in_any_interleaving_the_daemon_never_counts_more_fixed_bytes_than_there_are() {
        for _ in 0..20 {
            let (leases, page) = leases(0);
            let daemon = Mutex::new(Daemon::default());
            let hear = |news| {
                let mut daemon = lock(&daemon);
                match news {
                    News::Fixed(_, bytes) => daemon.fixed = bytes.0 as i64,
                    News::Return(_, bytes) => {
                        daemon.leased -= bytes.0 as i64;
                        daemon.fixed = (daemon.fixed - bytes.0 as i64).max(0);
                    }
                    News::Trim(_) => {}
                }
                true
            };
            std::thread::scope(|scope| {
                for seed in 0..4_u64 {
                    let (leases, hear, daemon) = (&leases, &hear, &daemon);
                    scope.spawn(move || {
                        for round in 0..300_u64 {
                            let bytes = Bytes(1 + (seed * 7 + round * 13) % 40);
                            let kind = if (seed + round) % 3 == 0 { Movable } else { Fixed };
                            let debt = (seed + round) % 5 == 0;
                            if debt {
                                leases.owe(0, bytes, kind);
                            } else if !leases.take(0, bytes, kind) {
                                leases.tell_fixed(0, hear);
                                let mut daemon = lock(daemon);
                                daemon.leased += bytes.0 as i64;
                                if kind == Fixed {
                                    daemon.fixed += bytes.0 as i64;
                                }
                                leases.count(0, bytes, kind);
                            }
                            leases.give_back(0, bytes, kind, hear);
                        }
                    });
                }
            });
            let daemon = lock(&daemon);
            assert_eq!((leases.used(0), leases.fixed(0)), (Bytes::ZERO, Bytes::ZERO));
            assert!(!leases.is_in_debt(0));
            assert!(daemon.fixed <= 0, "{daemon:?}");
            assert_eq!(
                page.gpus[3].free.load(Ordering::Relaxed) as i64,
                daemon.leased,
                "every byte is somewhere, once"
            );
        }
    }

    #[test]
    fn a_returned_daemon_is_told_what_is_used_and_starts_with_an_empty_page() {
        let (leases, _) = leases(100);
        assert!(leases.take(0, Bytes(60), Fixed));
        leases.owe(0, Bytes(5), Movable);
        assert_eq!(fixed_told(&leases).len(), 1);
        let fresh = page(0);
        leases
            .exchange(|used| {
                assert_eq!(used, [(0, Bytes(65))]);
                Ok::<_, ()>((fresh, vec![GpuId(5)]))
            })
            .unwrap();
        assert_eq!(leases.gpu(0), Some(GpuId(5)));
        assert!(!leases.take(0, Bytes(1), Movable), "the rest of the old lease is gone");
        assert!(!leases.is_in_debt(0), "it was told of everything");
        assert_eq!(fixed_told(&leases), [News::Fixed(GpuId(5), Bytes(60))]);
        assert_eq!(give(&leases, Bytes(5), Movable), []);
        assert_eq!(fresh.gpus[5].free.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn a_quota_and_what_siblings_use_are_one_story() {
        let (leases, page) = leases(100);
        page.gpus[3].limit.store(1000, Ordering::Relaxed);
        page.gpus[3].siblings.store(200, Ordering::Relaxed);
        assert!(leases.take(0, Bytes(50), Movable));
        let figures = leases.figures(0).unwrap();
        assert_eq!(figures, Figures { limit: Bytes(1000), ceiling: Bytes::MAX, used: Bytes(250) });
        assert_eq!((figures.total(Bytes(5000)), figures.free(Bytes(5000))), (Bytes(1000), Bytes(750)));
        assert_eq!((figures.total(Bytes(600)), figures.free(Bytes(600))), (Bytes(600), Bytes(350)));
    }

    #[test]
    fn a_card_that_cannot_back_a_quota_keeps_its_size_and_has_less_free() {
        let (leases, page) = leases(100);
        page.gpus[3].limit.store(1000, Ordering::Relaxed);
        page.gpus[3].ceiling.store(400, Ordering::Relaxed);
        let figures = leases.figures(0).unwrap();
        assert_eq!((figures.total(Bytes(5000)), figures.free(Bytes(5000))), (Bytes(1000), Bytes(400)));
    }
}
