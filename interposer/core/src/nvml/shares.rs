//! Shares of the caller's session in the utilization of its cards. NVML's figures by process cost about a
//! millisecond, and the session's processes a message to the daemon. So both are asked rarely:
//!
//! ```text
//!   own utilization = the card's own, asked each time × own part of all processes' samples, asked rarely
//! ```
//!
//! A session that is alone on a card has the whole, and reads the card's own figure. A caller that asks often
//! gets a share that is up to [`KEPT`] old; one that asks seldom gets a new share each time.
//!
//! The shares are plain atomics, since the child of a fork has no use for a lock that its parent held. A race
//! of two threads stores the share of one of them.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use gpushare_proto::Nanos;

use super::types::{Device, Sample, Utilization};

/// Time for which a share is kept while it is asked for often.
pub(super) const KEPT: Nanos = Nanos::from_secs(10);
/// Time for which a share is kept that was computed before NVML had samples of the work.
pub(super) const KEPT_WITHOUT_SAMPLES: Nanos = Nanos::from_secs(1);
/// Pause between two questions after which a caller counts as one that asks seldom.
const SELDOM: Nanos = Nanos::from_millis(500);
/// Age of a process's newest sample, before the newest of all, at which the process counts as idle.
const STALE_MICROS: u64 = 1_000_000;
/// Most cards whose shares are kept.
const CARDS: usize = 32;
/// Parts of a share that is a whole.
const WHOLE: u32 = 1 << 16;

pub(super) static SHARES: Shares = Shares::new();

/// Shares of the session in its cards, by NVML's handles.
#[derive(Debug)]
pub(super) struct Shares([Slot; CARDS]);

#[derive(Debug)]
struct Slot {
    /// Address of the card's handle; 0 for an empty slot.
    device: AtomicUsize,
    /// Time of the last question for this share; 0 before the first one.
    asked: AtomicU64,
    /// Time at which the share is computed again.
    until: AtomicU64,
    gpu: AtomicU32,
    memory: AtomicU32,
}

/// Part of the session in the utilization of one card, in parts of [`WHOLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    gpu: u32,
    memory: u32,
}

impl Share {
    pub(super) const NOTHING: Self = Self { gpu: 0, memory: 0 };
    pub(super) const WHOLE: Self = Self { gpu: WHOLE, memory: WHOLE };

    /// Returns the part of the processes for which `is_own` is true in the work of all processes; `None` if no
    /// process has worked. Of each process the newest sample counts.
    pub(super) fn of_samples(samples: &[Sample], is_own: impl Fn(&Sample) -> bool) -> Option<Self> {
        let latest = samples.iter().map(|sample| sample.timestamp).max().unwrap_or(0);
        let recent: Vec<_> = newest(samples)
            .filter(|sample| sample.timestamp + STALE_MICROS >= latest)
            .collect();
        let part = |figure: fn(&Sample) -> u32| {
            let sum = |own_only: bool| -> u64 {
                let counted = recent.iter().filter(|sample| !own_only || is_own(sample));
                counted.map(|sample| u64::from(figure(sample))).sum()
            };
            (sum(true) * u64::from(WHOLE)).checked_div(sum(false)).map(|part| part as u32)
        };
        let (gpu, memory) = (part(|sample| sample.sm), part(|sample| sample.memory));
        Some(Self { gpu: gpu.or(memory)?, memory: memory.or(gpu)? })
    }

    pub(super) fn of(self, card: Utilization) -> Utilization {
        let part = |figure: u32, share: u32| {
            let rounded = (u64::from(figure) * u64::from(share) + u64::from(WHOLE / 2)) / u64::from(WHOLE);
            rounded as u32
        };
        Utilization { gpu: part(card.gpu, self.gpu), memory: part(card.memory, self.memory) }
    }
}

impl Shares {
    const fn new() -> Self {
        Self([const { Slot::new() }; CARDS])
    }

    /// Returns the session's share in a card. Asks `compute` if the kept share is too old. `compute` returns a
    /// share and the time for which to keep it.
    pub(super) fn get(&self, device: Device, now: Nanos, compute: impl FnOnce() -> (Share, Nanos)) -> Share {
        let Some(slot) = self.slot(device) else { return compute().0 };
        let asked = Nanos(slot.asked.swap(now.0, Ordering::Relaxed));
        if now - asked >= SELDOM || now >= Nanos(slot.until.load(Ordering::Relaxed)) {
            let (Share { gpu, memory }, kept) = compute();
            slot.gpu.store(gpu, Ordering::Relaxed);
            slot.memory.store(memory, Ordering::Relaxed);
            slot.until.store((now + kept).0, Ordering::Relaxed);
        }
        Share {
            gpu: slot.gpu.load(Ordering::Relaxed),
            memory: slot.memory.load(Ordering::Relaxed),
        }
    }

    fn slot(&self, device: Device) -> Option<&Slot> {
        let device = device.addr();
        self.0.iter().find(|slot| {
            let taken = slot.device.compare_exchange(0, device, Ordering::Relaxed, Ordering::Relaxed);
            taken.map_or_else(|other| other == device, |_| true)
        })
    }
}

impl Slot {
    const fn new() -> Self {
        Self {
            device: AtomicUsize::new(0),
            asked: AtomicU64::new(0),
            until: AtomicU64::new(0),
            gpu: AtomicU32::new(0),
            memory: AtomicU32::new(0),
        }
    }
}

fn newest(samples: &[Sample]) -> impl Iterator<Item = &Sample> {
    let is_last = |sample: &Sample| {
        samples
            .iter()
            .filter(|other| other.pid == sample.pid)
            .all(|other| other.timestamp < sample.timestamp || std::ptr::eq(other, sample))
    };
    samples.iter().filter(move |sample| is_last(sample))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn sample(pid: u32, timestamp: u64, sm: u32) -> Sample {
        Sample { pid, timestamp, sm, memory: sm / 2, ..Sample::default() }
    }

    fn utilization(samples: &[Sample], gpu: u32) -> u32 {
        let share = Share::of_samples(samples, |sample| sample.pid < 10).unwrap();
        share.of(Utilization { gpu, memory: 0 }).gpu
    }

    #[test]
    fn of_each_process_its_last_sample_counts() {
        let samples = [sample(1, 10, 90), sample(2, 10, 5), sample(1, 20, 30)];
        let sm: Vec<_> = newest(&samples).map(|sample| (sample.pid, sample.sm)).collect();
        assert_eq!(sm, [(2, 5), (1, 30)]);
    }

    #[test]
    fn a_session_that_is_alone_reads_the_cards_own_figure() {
        assert_eq!(Share::of_samples(&[], |_| true), None);
        assert_eq!(Share::of_samples(&[sample(1, 10, 0)], |_| true), None);
        assert_eq!(utilization(&[sample(1, 10, 31)], 99), 99);
        assert_eq!(utilization(&[sample(1, 10, 31), sample(2, 10, 40), sample(99, 10, 0)], 99), 99);
    }

    #[test]
    fn beside_others_a_session_reads_its_part() {
        assert_eq!(utilization(&[sample(1, 10, 30), sample(99, 10, 30)], 80), 40);
        assert_eq!(utilization(&[sample(1, 10, 0), sample(99, 10, 30)], 80), 0);
        let gone = [sample(1, 2_000_000, 50), sample(99, 900_000, 50)];
        assert_eq!(utilization(&gone, 80), 80, "the other one ended long before");
    }

    #[test]
    fn who_asks_often_is_told_a_kept_share() {
        let (shares, computed) = (Shares::new(), Cell::new(0));
        let device = std::ptr::without_provenance_mut(0x10);
        let ask = |millis: u64| {
            shares.get(device, Nanos::from_millis(1_000 + millis), || {
                computed.set(computed.get() + 1);
                (Share { gpu: computed.get(), memory: 0 }, KEPT)
            })
        };
        let told: Vec<_> = (0..=100).map(|tick| ask(tick * 100).gpu).collect();
        assert_eq!((told[0], told[99], told[100]), (1, 1, 2));
        assert_eq!(ask(10_400).gpu, 2);
        assert_eq!(ask(11_000).gpu, 3, "after a long pause");
    }

    #[test]
    fn each_card_has_its_own_share() {
        let shares = Shares::new();
        for card in 1..100 {
            let device = std::ptr::without_provenance_mut(card);
            let share = Share { gpu: card as u32, memory: 1 };
            for _ in 0..2 {
                assert_eq!(shares.get(device, Nanos::from_secs(1), || (share, KEPT)), share);
            }
        }
    }
}
