//! Stopwatch that sums the durations for which a condition held.

use gpushare_proto::Nanos;

/// Sum of the durations for which the stopwatch ran.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stopwatch {
    total: Nanos,
    since: Option<Nanos>,
}

impl Stopwatch {
    /// Starts or stops the stopwatch at the time `now`.
    pub(crate) fn run(&mut self, running: bool, now: Nanos) {
        match (self.since, running) {
            (None, true) => self.since = Some(now),
            (Some(_), false) => {
                self.total = self.read(now);
                self.since = None;
            }
            _ => {}
        }
    }

    /// Point in time since which the stopwatch runs; `None` while it is stopped.
    pub(crate) const fn since(&self) -> Option<Nanos> {
        self.since
    }

    /// Sum of all durations up to the time `now`.
    pub(crate) fn read(&self, now: Nanos) -> Nanos {
        match self.since {
            Some(since) => self.total + (now - since),
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
    }
}
