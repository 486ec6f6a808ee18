//! Copies that other work of their process disturbs.
//!
//! ```text
//! copy           |------ reads A ------|
//! kernel    |-- writes A --|              both are under way at once: the copy is torn
//! ```
//!
//! Work is under way from when its engine gets it until it is done. Nothing orders two pieces that are under
//! way at once. So a copy is *raced* if another piece writes what it reads or writes, or reads what it writes,
//! whichever of them comes to the bytes first. A handoff whose proof of idleness is right has no raced copy.
//!
//! Addresses are compared, not bytes: memory that is mapped at two addresses is two places here. What the
//! program itself does with memory of the host is not seen. A spinning kernel's flag may be written.

use std::collections::BTreeMap;

use crate::ids::{ClientId, StreamKey};
use crate::kernel::Kernel;
use crate::wire::{Op, Plane, Shape};

/// All work under way that reads or writes memory.
#[derive(Debug, Default)]
pub(crate) struct Races {
    running: BTreeMap<StreamKey, Running>,
}

#[derive(Debug)]
struct Running {
    reads: Option<Span>,
    writes: Option<Span>,
    is_copy: bool,
    raced: bool,
}

/// Rows of bytes.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: u64,
    shape: Shape,
    pitch: u64,
}

impl Races {
    /// Begins a piece of work and returns how many copies it races with, itself counted if it is one.
    pub(crate) fn begin(&mut self, key: StreamKey, op: &Op) -> u64 {
        let Some(mut begun) = Running::of(op) else {
            return 0;
        };
        let mut raced = 0;
        let own = |other: &StreamKey| other.client == key.client && *other != key;
        for (_, other) in self.running.iter_mut().filter(|(other, _)| own(other)) {
            if begun.disturbs(other) {
                raced += begun.mark() + other.mark();
            }
        }
        self.running.insert(key, begun);
        raced
    }

    /// Ends a piece of work.
    pub(crate) fn end(&mut self, key: StreamKey) {
        self.running.remove(&key);
    }

    /// Ends all work of a client.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.running.retain(|key, _| key.client != client);
    }
}

impl Running {
    /// The bytes that work reads and writes, or `None` if it does neither.
    fn of(op: &Op) -> Option<Self> {
        let words = |p: u64, n: u64| Some(Span::range(p, n.saturating_mul(4)));
        let (reads, writes, is_copy) = match *op {
            Op::Kernel(Kernel::Checksum { p, n, out }) => (words(p, n), Some(Span::range(out, 8)), false),
            Op::Kernel(ref kernel @ Kernel::Fingerprint { p, n, .. }) => {
                let output = kernel.output().map(|(out, length)| Span::range(out, length));
                (words(p, n), output, false)
            }
            Op::Kernel(Kernel::Fill { p, n, .. } | Kernel::Add { p, n, .. } | Kernel::Touch { p, n, .. }) => {
                (None, words(p, n), false)
            }
            Op::Set { to, shape, .. } => (None, Some(Span::new(to, shape)), false),
            Op::WriteValue { address, wide, .. } => {
                (None, Some(Span::range(address, if wide { 8 } else { 4 })), false)
            }
            Op::Copy { to, from, shape } => (Some(Span::new(from, shape)), Some(Span::new(to, shape)), true),
            Op::Upload { to, shape, .. } => (None, Some(Span::new(to, shape)), true),
            Op::Download { from, shape, .. } => (Some(Span::new(from, shape)), None, true),
            _ => return None,
        };
        Some(Self { reads, writes, is_copy, raced: false })
    }

    fn disturbs(&self, other: &Self) -> bool {
        let meet =
            |one: Option<Span>, two: Option<Span>| one.zip(two).is_some_and(|(one, two)| one.overlaps(&two));
        (self.is_copy || other.is_copy)
            && (meet(self.writes, other.writes)
                || meet(self.writes, other.reads)
                || meet(self.reads, other.writes))
    }

    /// Marks a copy as raced and returns 1 if it was not.
    fn mark(&mut self) -> u64 {
        u64::from(self.is_copy && !std::mem::replace(&mut self.raced, true))
    }
}

impl Span {
    fn new(plane: Plane, shape: Shape) -> Self {
        Self { start: plane.address, shape, pitch: plane.pitch }
    }

    fn range(start: u64, width: u64) -> Self {
        Self { start, shape: Shape { width, rows: 1 }, pitch: 0 }
    }

    fn end(&self) -> u64 {
        let before = self.shape.rows.saturating_sub(1).saturating_mul(self.pitch);
        self.start.saturating_add(before).saturating_add(self.shape.width)
    }

    fn overlaps(&self, other: &Self) -> bool {
        if self.start >= other.end() || other.start >= self.end() {
            return false;
        }
        match (self.is_range(), other.is_range()) {
            (true, true) => true,
            (false, true) => self.rows().any(|row| row.overlaps(other)),
            _ => other.rows().any(|row| row.overlaps(self)),
        }
    }

    fn is_range(&self) -> bool {
        self.shape.rows <= 1 || self.pitch == self.shape.width
    }

    fn rows(&self) -> impl Iterator<Item = Self> + use<> {
        let Self { start, shape, pitch } = *self;
        (0..shape.rows).map(move |row| Self::range(start + row * pitch, shape.width))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::StreamId;

    const ONE: StreamKey = StreamKey { client: ClientId(1), stream: StreamId(1) };
    const OTHER: StreamKey = StreamKey { client: ClientId(1), stream: StreamId(2) };
    const STRANGER: StreamKey = StreamKey { client: ClientId(2), stream: StreamId(2) };

    fn copy(to: u64, from: u64) -> Op {
        rows_copy(Plane { address: to, pitch: 0 }, Plane { address: from, pitch: 0 }, 1)
    }

    fn rows_copy(to: Plane, from: Plane, rows: u64) -> Op {
        Op::Copy { to, from, shape: Shape { width: 64, rows } }
    }

    fn fill(p: u64) -> Op {
        Op::Kernel(Kernel::Fill { p, n: 16, value: 1 })
    }

    fn sum(p: u64, out: u64) -> Op {
        Op::Kernel(Kernel::Checksum { p, n: 16, out })
    }

    /// Copies raced by the second piece of work while the first one is under way.
    fn raced(first: &Op, second: &Op, key: StreamKey) -> u64 {
        let mut races = Races::default();
        assert_eq!(races.begin(ONE, first), 0);
        races.begin(key, second)
    }

    #[test]
    fn a_copy_is_raced_by_writes_to_its_source_and_by_any_use_of_its_target() {
        for (other, expected) in [
            (fill(0x1020), 1),
            (fill(0x2020), 1),
            (fill(0x3000), 0),
            (sum(0x1000, 0x3000), 0),
            (sum(0x2000, 0x3000), 1),
            (sum(0x3000, 0x1000), 1),
            (copy(0x3000, 0x1000), 0),
            (copy(0x1000, 0x3000), 2),
        ] {
            assert_eq!(raced(&copy(0x2000, 0x1000), &other, OTHER), expected, "{other:?}");
            assert_eq!(raced(&other, &copy(0x2000, 0x1000), OTHER), expected, "{other:?} first");
        }
    }

    #[test]
    fn another_process_has_other_memory_and_kernels_may_race_each_other() {
        assert_eq!(raced(&copy(0x2000, 0x1000), &fill(0x1000), STRANGER), 0);
        assert_eq!(raced(&fill(0x1000), &fill(0x1000), OTHER), 0);
    }

    #[test]
    fn a_copy_counts_once_and_not_after_its_end() {
        let mut races = Races::default();
        races.begin(ONE, &copy(0x2000, 0x1000));
        let again = [0, 1].map(|_| {
            let raced = races.begin(OTHER, &fill(0x1000));
            races.end(OTHER);
            raced
        });
        assert_eq!(again, [1, 0]);
        races.end(ONE);
        races.begin(ONE, &copy(0x2000, 0x1000));
        races.forget(ClientId(1));
        assert_eq!(races.begin(OTHER, &fill(0x1000)), 0);
    }

    #[test]
    fn bytes_between_the_rows_of_a_copy_belong_to_nobody() {
        let from = Plane { address: 0x1000, pitch: 256 };
        let rows = rows_copy(Plane { address: 0x9000, pitch: 64 }, from, 4);
        assert_eq!(raced(&rows, &fill(0x1040), OTHER), 0, "behind the first row");
        assert_eq!(raced(&rows, &fill(0x1300), OTHER), 1, "the last row");
        assert_eq!(raced(&rows, &fill(0x1340), OTHER), 0, "behind the last row");
    }
}
