//! Learned time of each kernel: how long one launch of it keeps the card busy.
//!
//! ```text
//!   launches    a   b b b b   a   c          between two launch markers: an interval
//!               └─ expected: the sum of their costs ─┘     measured: the time between the two events
//!   a, b, c     each falls half the way to its cost × measured ÷ expected, or rises an eighth of it
//! ```
//!
//! A kernel is known by its function and its grid. An interval seldom has more than a few different kernels, and
//! the same ones come in other company again and again, so that the costs converge. Kernels beyond the table's
//! size, and the first launches of each, count as an average launch.
//!
//! A launch finds its kernel by a hash, without a lock. An update that meets another one may be lost, because the
//! next interval serves as well.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use gpushare_proto::Nanos;

/// Number of kernels whose cost is learned.
const KERNELS: usize = 1024;
/// Number of places in the table where a kernel may be.
const PROBES: usize = 8;
/// Number of different kernels that an interval tells apart.
const KINDS: usize = 8;
/// Least cost of a launch. The card needs about so long between two kernels of a stream.
const LEAST: Nanos = Nanos(500);
/// Divisor of the way by which a cost rises towards a measured one. It is large since the slices of other programs
/// make a measured time longer now and then.
const RISE: u64 = 8;
/// Divisor of the way by which a cost falls.
const FALL: u64 = 2;
/// Largest factor by which a measured cost counts as greater than the known one.
const STEP: u64 = 4;

/// Table of the kernels of a process and their learned costs.
#[derive(Debug)]
pub struct Costs {
    entries: Box<[Entry]>,
}

#[derive(Debug, Default)]
struct Entry {
    /// Identity of the kernel; 0 while the entry is free.
    kernel: AtomicU64,
    /// Learned cost in nanoseconds; 0 while it is not known.
    cost: AtomicU32,
    /// Number of launches as which one launch of the kernel counts. A graph counts as its kernel nodes.
    size: AtomicU32,
}

/// Identity of a kernel with its grid, of an executable graph, or of copies and fills together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(u64);

/// Place of a kernel in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known(u16);

impl Kernel {
    /// Copies and fills, and launches without further description.
    pub const OTHER: Self = Self(1);

    /// Returns the identity of a function with its grid in blocks, or of an executable graph with a grid of zeros.
    pub fn new(function: usize, grid: [u32; 3]) -> Self {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let mix = |hash: u64, part: u64| (hash ^ part).wrapping_mul(ODD).rotate_left(29);
        let hash = grid
            .iter()
            .fold(mix(0, function as u64), |hash, part| mix(hash, u64::from(*part)));
        Self(mix(hash, 0).max(2))
    }
}

impl Entry {
    /// Takes a free entry for a kernel, and returns whether it is that kernel's now.
    #[cold]
    fn take(&self, kernel: Kernel, size: u64) -> bool {
        let taken = self.kernel.compare_exchange(0, kernel.0, Ordering::Relaxed, Ordering::Relaxed);
        if taken.is_ok() {
            self.size
                .store(u32::try_from(size.max(1)).unwrap_or(u32::MAX), Ordering::Relaxed);
        }
        taken.is_ok() || taken == Err(kernel.0)
    }
}

impl Default for Costs {
    fn default() -> Self {
        Self { entries: (0..KERNELS).map(|_| Entry::default()).collect() }
    }
}

impl Costs {
    /// Returns the place of a kernel that counts as `size` launches. A new one gets a place; `None` if there is no
    /// room.
    pub fn find(&self, kernel: Kernel, size: u64) -> Option<Known> {
        let from = (kernel.0 >> 40) as usize;
        (0..PROBES).map(|step| (from + step) % KERNELS).find_map(|place| {
            let entry = &self.entries[place];
            let found = match entry.kernel.load(Ordering::Relaxed) {
                0 => entry.take(kernel, size),
                other => other == kernel.0,
            };
            found.then(|| Known(u16::try_from(place).unwrap_or(u16::MAX)))
        })
    }

    /// Returns the learned cost of a launch; `None` before the first measurement.
    pub fn of(&self, known: Known) -> Option<Nanos> {
        let cost = self.entry(known).cost.load(Ordering::Relaxed);
        (cost > 0).then(|| Nanos(u64::from(cost)))
    }

    /// Returns the learned cost of a launch, or that of as many `usual` ones as it counts as.
    fn of_or(&self, known: Known, usual: Nanos) -> Nanos {
        let size = || u64::from(self.entry(known).size.load(Ordering::Relaxed));
        self.of(known).unwrap_or_else(|| Nanos(usual.0.saturating_mul(size())))
    }

    fn entry(&self, known: Known) -> &Entry {
        &self.entries[usize::from(known.0) % KERNELS]
    }

    /// Returns the expected time of an interval. Launches of unknown cost count as `usual` ones.
    pub fn expected(&self, interval: &Interval, usual: Nanos) -> Nanos {
        let times = |cost: Nanos, launches: u32| Nanos(cost.0.saturating_mul(u64::from(launches)));
        let rest = times(usual, interval.rest.load(Ordering::Relaxed));
        interval
            .kinds()
            .fold(rest, |sum, (known, launches)| sum + times(self.of_or(known, usual), launches))
    }

    /// Learns from an interval that `took` so long. `usual` is the cost of an average launch.
    pub fn learn(&self, interval: &Interval, took: Nanos, usual: Nanos) {
        let usual = usual.max(LEAST);
        let expected = self.expected(interval, usual);
        for (known, _) in interval.kinds() {
            let old = self.of_or(known, usual).0;
            let measured = u128::from(old) * u128::from(took.0) / u128::from(expected.0.max(1));
            let measured = u64::try_from(measured).unwrap_or(u64::MAX);
            let new = match self.of(known) {
                None => measured,
                Some(_) if measured > old => old + (measured.min(old.saturating_mul(STEP)) - old) / RISE,
                Some(_) => old - (old - measured) / FALL,
            };
            let new = u32::try_from(new.max(LEAST.0)).unwrap_or(u32::MAX);
            self.entry(known).cost.store(new, Ordering::Relaxed);
        }
    }
}

/// Launches of a stream between two launch markers, by kernel.
#[derive(Debug, Default)]
pub struct Interval {
    /// For each kernel: its place in the table plus 1 in the upper half, and its launches in the lower half.
    kinds: [AtomicU32; KINDS],
    /// Number of launches beyond these; a graph counts as many launches as it has kernel nodes.
    rest: AtomicU32,
}

impl Interval {
    /// Adds a kernel or a graph that counts as `size` launches.
    pub fn add(&self, kernel: Option<Known>, size: u64) {
        let Some(Known(place)) = kernel else { return self.add_rest(size) };
        let name = (u32::from(place) + 1) << 16;
        for kind in &self.kinds {
            let seen = kind.load(Ordering::Relaxed);
            if seen == 0 || (seen & 0xffff_0000 == name && seen & 0xffff < 0xffff) {
                return kind.store((seen + 1) | name, Ordering::Relaxed);
            }
        }
        self.add_rest(size);
    }

    fn add_rest(&self, size: u64) {
        self.rest.fetch_add(u32::try_from(size).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Moves the launches of `other` here, which is empty afterwards.
    pub fn take(&self, other: &Self) {
        for (kind, taken) in self.kinds.iter().zip(&other.kinds) {
            kind.store(taken.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
        self.rest.store(other.rest.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Forgets all launches.
    pub fn clear(&self) {
        self.kinds.iter().for_each(|kind| kind.store(0, Ordering::Relaxed));
        self.rest.store(0, Ordering::Relaxed);
    }

    fn kinds(&self) -> impl Iterator<Item = (Known, u32)> {
        let kinds = self.kinds.iter().map(|kind| kind.load(Ordering::Relaxed));
        kinds.filter_map(|kind| {
            let place = u16::try_from((kind >> 16).checked_sub(1)?).ok()?;
            Some((Known(place), kind & 0xffff))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Nanos = Nanos(100_000);

    /// Learns from intervals of kernels, named by numbers, until nothing changes any more.
    fn learned<T: Fn(usize) -> u64>(intervals: &[&[usize]], cost: T) -> impl Fn(usize) -> u64 + use<T> {
        let (costs, interval) = (Costs::default(), Interval::default());
        let kernel = |number| Kernel::new(number, [1, 1, 1]);
        for launches in intervals.iter().cycle().take(100 * intervals.len()) {
            let collected = Interval::default();
            launches
                .iter()
                .for_each(|&number| collected.add(costs.find(kernel(number), 1), 1));
            interval.take(&collected);
            let took = launches.iter().map(|&number| cost(number)).sum();
            costs.learn(&interval, Nanos(took), USUAL);
        }
        move |number| costs.of(costs.find(kernel(number), 1).unwrap()).unwrap().0
    }

    #[track_caller]
    fn assert_near(found: u64, expected: u64) {
        assert!(found.abs_diff(expected) <= expected / 50, "{found}, not {expected}");
    }

    #[test]
    fn kernels_that_always_come_together_are_told_apart_once_they_come_alone() {
        let cost = |number| [5_000, 2_000_000, 300_000][number];
        let found = learned(&[&[0, 1], &[1, 2], &[0, 0, 0]], cost);
        (0..3).for_each(|number| assert_near(found(number), cost(number)));
    }

    #[test]
    fn the_launches_of_an_interval_count_each() {
        let many = [0; 100];
        let found = learned(&[&many], |_| 5_000);
        assert_near(found(0), 5_000);
    }

    #[test]
    fn an_interval_of_many_kernels_still_teaches_those_that_it_tells_apart() {
        let many: Vec<usize> = (0..20).collect();
        let found = learned(&[&many], |_| USUAL.0);
        assert_near(found(3), USUAL.0);
    }

    #[test]
    fn slices_of_other_programs_now_and_then_change_little() {
        let (costs, interval) = (Costs::default(), Interval::default());
        let kernel = costs.find(Kernel::new(0x1000, [1; 3]), 1);
        (0..4).for_each(|_| interval.add(kernel, 1));
        for number in 0..300 {
            let slice = if number % 3 == 0 { 2_000_000 } else { 0 };
            costs.learn(&interval, Nanos(4 * 40_000 + slice), USUAL);
            let cost = costs.of(kernel.unwrap()).unwrap();
            assert!(number < 10 || cost < Nanos(70_000), "{cost} after {number}");
        }
    }

    #[test]
    fn a_kernel_with_another_grid_is_another_kernel() {
        let costs = Costs::default();
        let [one, other] = [[1, 1, 1], [2, 1, 1]].map(|grid| costs.find(Kernel::new(0x1000, grid), 1));
        assert!(one.is_some() && other.is_some() && one != other);
        assert_eq!(one, costs.find(Kernel::new(0x1000, [1, 1, 1]), 1));
    }

    #[test]
    fn a_full_table_has_no_room_and_loses_nothing() {
        let costs = Costs::default();
        let places: Vec<_> = (0..2 * KERNELS)
            .map(|number| costs.find(Kernel::new(number, [1; 3]), 1))
            .collect();
        assert!(places.iter().any(Option::is_none) && places.iter().flatten().count() > KERNELS / 2);
        for (number, place) in places.iter().enumerate() {
            assert_eq!(costs.find(Kernel::new(number, [1; 3]), 1), *place);
        }
    }

    #[test]
    fn no_measurement_breaks_it() {
        let (costs, interval) = (Costs::default(), Interval::default());
        for took in [0, 1, u64::MAX, 0] {
            costs.learn(&interval, Nanos(took), Nanos(took));
            interval.add(costs.find(Kernel::OTHER, 1), 1);
            costs.learn(&interval, Nanos(took), Nanos(u64::MAX));
            let cost = costs.of(costs.find(Kernel::OTHER, 1).unwrap()).unwrap();
            assert!(cost >= LEAST, "{cost}");
        }
    }
}
