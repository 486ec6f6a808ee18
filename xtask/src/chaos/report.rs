//! Report of a run: one model, as text or as JSON, with a sentence for each broken promise.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use gpushare_workload::report::percentile;
use serde::Serialize;

/// From the kernel's word of a death to lock and bytes free.
const RECOVERY_MS: f64 = 50.0;

/// The whole run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    /// How often each kind happened.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    /// Difference in bytes between the daemon's count and the memory of living programs, summed over all
    /// checkpoints.
    pub(crate) bytes_lost: u64,
    /// Programs that did not answer though they should have.
    pub(crate) hung: u64,
    /// From a program's death to its lock and bytes free, while the daemon lived.
    pub(crate) recovery_p99_ms: f64,
    /// From the daemon's death to the moment when all its clients were back and grants went on.
    pub(crate) restart_p99_ms: f64,
    /// How many recoveries and restarts these are of.
    pub(crate) recoveries: usize,
    pub(crate) restarts: usize,
    /// Number of times that the daemon's count was compared with the programs' memory.
    pub(crate) checkpoints: u64,
    /// Answers of the programs, and among them the refusals of memory.
    pub(crate) answers: u64,
    pub(crate) refusals: u64,
    /// Buffers that did not hold what was written into them.
    pub(crate) corrupted: u64,
    /// How a full disk was made: `tmpfs`, or `blocked` where nothing may be mounted.
    pub(crate) disk: &'static str,
    pub(crate) seed: u64,
    /// A sentence for each broken promise.
    pub(crate) broken: Vec<String>,
}

impl Report {
    pub(crate) fn recovered(&mut self, mut took: Vec<Duration>) {
        took.sort_unstable();
        self.recoveries = took.len();
        self.recovery_p99_ms = millis(percentile(&took, 99));
    }

    pub(crate) fn restarted(&mut self, mut took: Vec<Duration>) {
        took.sort_unstable();
        self.restarts = took.len();
        self.restart_p99_ms = millis(percentile(&took, 99));
    }

    /// Adds what the figures break to what was seen to break.
    pub(crate) fn judge(&mut self) {
        if self.recoveries == 0 {
            self.broken
                .push("no program's death was recovered from, so nothing was tested".to_owned());
        }
        if self.bytes_lost > 0 {
            self.broken.push(format!("{} bytes were lost", self.bytes_lost));
        }
        if self.hung > 0 {
            self.broken.push(format!("{} programs hung", self.hung));
        }
        if self.corrupted > 0 {
            self.broken.push(format!("{} buffers were corrupted", self.corrupted));
        }
    }

    /// Adds a sentence if a recovery took longer than promised. Only release builds promise a time.
    pub(crate) fn judge_time(&mut self) {
        if self.recovery_p99_ms > RECOVERY_MS {
            self.broken.push(format!(
                "a dead program's lock and bytes took {} ms to be free (p99), and may take {RECOVERY_MS}",
                self.recovery_p99_ms
            ));
        }
    }
}

fn millis(took: Duration) -> f64 {
    (took.as_secs_f64() * 1e6).round() / 1e3
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: u64 = self.faults.values().sum();
        writeln!(f, "{faults} faults: {:?}", self.faults)?;
        writeln!(
            f,
            "{} recoveries, p99 {} ms; {} restarts, p99 {} ms",
            self.recoveries, self.recovery_p99_ms, self.restarts, self.restart_p99_ms
        )?;
        writeln!(
            f,
            "{} answers, {} refusals, {} checkpoints",
            self.answers, self.refusals, self.checkpoints
        )?;
        write!(f, "{} bytes lost, {} hung, {} corrupted", self.bytes_lost, self.hung, self.corrupted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_broken_promise_has_its_sentence() {
        let mut report = Report::default();
        report.judge();
        assert_eq!(report.broken.len(), 1, "nothing was recovered: {:?}", report.broken);
        report.broken.clear();
        report.recovered(vec![Duration::from_millis(50)]);
        report.judge();
        report.judge_time();
        assert!(report.broken.is_empty());
        report.recovered(vec![Duration::from_micros(50_001)]);
        (report.bytes_lost, report.hung, report.corrupted) = (1, 1, 1);
        report.judge();
        report.judge_time();
        assert_eq!(report.broken.len(), 4, "{:?}", report.broken);
    }
}
