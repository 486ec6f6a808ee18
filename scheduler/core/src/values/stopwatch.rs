//! Stopwatch that sums the durations for which a condition held.

use gpushare_proto::Nanos;

/// Sum of the durations for which the stopwatch ran, each times the number of things that it ran for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stopwatch {
    total: Nanos,
    /// Point in time since which the stopwatch runs, and for how many things.
    since: Option<(Nanos, u32)>,
}

impl Stopwatch {
    /// Starts or stops the stopwatch at the time `now`.
    pub(crate) fn run(&mut self, running: bool, now: Nanos) {
        self.run_for(u32::from(running), now);
    }

    /// Lets the stopwatch run for a number of things from the time `now` on, or stops it for none.
    pub(crate) fn run_for(&mut self, number: u32, now: Nanos) {
        if self.since.map_or(0, |(_, number)| number) != number {
            self.total = self.read(now);
            self.since = (number > 0).then_some((now, number));
        }
    }

    /// Subtracts a part of the time since the stopwatch was started.
    pub(crate) fn give_back(&mut self, part: Nanos) {
        if let Some((since, _)) = &mut self.since {
            *since += part;
        }
    }

    /// Point in time since which the stopwatch runs; `None` while it is stopped.
    pub(crate) fn since(&self) -> Option<Nanos> {
        self.since.map(|(since, _)| since)
    }

    /// Sum of all durations up to the time `now`.
    pub(crate) fn read(&self, now: Nanos) -> Nanos {
        match self.since {
            Some((since, number)) => self.total + Nanos((now - since).0.saturating_mul(u64::from(number))),
            None => self.total,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_while_it_runs_is_added_up() {
        let mut watch = Stopwatch::default();
        watch.run(true, Nanos(10));
        watch.run(true, Nanos(12));
        assert_eq!(watch.since(), Some(Nanos(10)));
        assert_eq!(watch.read(Nanos(15)), Nanos(5));
        watch.run(false, Nanos(20));
        watch.run(true, Nanos(100));
        assert_eq!(watch.read(Nanos(101)), Nanos(11));
        watch.run_for(3, Nanos(101));
        watch.run(false, Nanos(111));
        assert_eq!(watch.read(Nanos(200)), Nanos(41));
        watch.run(true, Nanos(200));
        watch.give_back(Nanos(4));
        watch.run(false, Nanos(210));
        assert_eq!(watch.read(Nanos(300)), Nanos(47));
    }
}
