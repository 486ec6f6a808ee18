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

/// Sum of the durations for which the stopwatch ran, each divided by the number of those who shared the time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DividedStopwatch {
    total: Nanos,
    /// Point in time since which the stopwatch runs, and by how many the time is divided.
    since: Option<(Nanos, u32)>,
}

impl DividedStopwatch {
    /// Lets the stopwatch run from the time `now` on, divided by the number of `sharers`, or stops it for none.
    pub(crate) fn run_divided(&mut self, sharers: u32, now: Nanos) {
        if self.since.map_or(0, |(_, number)| number) != sharers {
            self.total = self.read(now);
            self.since = (sharers > 0).then_some((now, sharers));
        }
    }

    /// Sum of all divided durations up to the time `now`.
    pub(crate) fn read(&self, now: Nanos) -> Nanos {
        let running = self.since.map(|(since, number)| Nanos((now - since).0 / u64::from(number)));
        self.total + running.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_several_share_is_divided() {
        let mut watch = DividedStopwatch::default();
        watch.run_divided(1, Nanos(10));
        watch.run_divided(2, Nanos(20));
        assert_eq!(watch.read(Nanos(26)), Nanos(13));
        watch.run_divided(0, Nanos(30));
        assert_eq!(watch.read(Nanos(90)), Nanos(15));
    }

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
    }
}
