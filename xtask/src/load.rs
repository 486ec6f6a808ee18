//! Processor time that other programs of the machine take while something is measured.

use std::fmt;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::output::progress;

/// Processors that others may use before a measurement tells more of them than of what is measured.
const QUIET: f64 = 0.3;
/// Milliseconds of a tick of `/proc`, on all architectures that gpushare runs on.
const TICK: u64 = 10;

/// Measures, and says on stderr if other programs kept processors busy meanwhile.
pub(crate) fn beside_others<T>(measure: impl FnOnce() -> T) -> T {
    let before = Load::now();
    let result = measure();
    match before.and_then(Load::others_since) {
        Ok(others) if !others.are_quiet() => progress(others),
        // Where the system does not tell, nothing is said.
        Ok(_) | Err(_) => {}
    }
    result
}

/// Processor time since the start of the machine and of this process.
#[derive(Clone, Copy, Debug)]
struct Load {
    at: Instant,
    all: Duration,
    own: Duration,
}

/// Processors that other programs used on average.
#[derive(Clone, Copy, Debug)]
struct Others {
    used: f64,
    of: usize,
}

impl Load {
    /// Reads the processor time so far.
    fn now() -> anyhow::Result<Self> {
        let read = |file: &str| fs::read_to_string(file).with_context(|| format!("cannot read {file}"));
        let ticks =
            |ticks: Option<u64>, file: &str| ticks.with_context(|| format!("{file} is not as expected"));
        let all = ticks(busy_ticks(&read("/proc/stat")?), "/proc/stat")?;
        let own = ticks(own_ticks(&read("/proc/self/stat")?), "/proc/self/stat")?;
        let time = |ticks: u64| Duration::from_millis(ticks * TICK);
        Ok(Self { at: Instant::now(), all: time(all), own: time(own) })
    }

    /// Returns what others have used since then. Children of this process count as others until they are waited
    /// for.
    fn others_since(self) -> anyhow::Result<Others> {
        let now = Self::now()?;
        let (all, own) = (now.all.saturating_sub(self.all), now.own.saturating_sub(self.own));
        let used = all.saturating_sub(own).as_secs_f64() / now.at.duration_since(self.at).as_secs_f64();
        Ok(Others { used, of: thread::available_parallelism()?.get() })
    }
}

impl Others {
    /// Returns whether so little was used that a measurement beside it counts.
    fn are_quiet(self) -> bool {
        self.used <= QUIET
    }
}

impl fmt::Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { used, of } = self;
        write!(
            f,
            "other programs used {used:.1} of {of} processors meanwhile: measure again when the machine is idle"
        )
    }
}

/// Ticks of all processors that were neither idle nor waiting, from the text of `/proc/stat`.
fn busy_ticks(stat: &str) -> Option<u64> {
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = all.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are among the first two.
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = ticks[..] else {
        return None;
    };
    Some(user + nice + system + irq + softirq + steal)
}

/// Ticks of a process and of its children that were waited for, from the text of its `stat`.
fn own_ticks(stat: &str) -> Option<u64> {
    // The name of the program may have spaces and brackets.
    let (_, fields) = stat.rsplit_once(") ")?;
    let times = fields.split(' ').skip(11).take(4).map(|word| word.parse::<u64>().ok());
    times.collect::<Option<Vec<_>>>().map(|times| times.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_ticks_are_all_but_those_of_waiting() {
        let stat = "cpu  10 20 30 1000 2000 1 2 3 4 5\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(busy_ticks(stat), Some(66));
        assert_eq!(busy_ticks("intr 5\n"), None);
    }

    #[test]
    fn own_ticks_are_those_of_a_process_and_its_children_whatever_its_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 100 0 0 0 11 12 13 14 20 0 1 0 99 1000 5\n";
        assert_eq!(own_ticks(stat), Some(50));
        assert_eq!(own_ticks("7 (a) S 1\n").unwrap_or(0), 0);
    }

    #[test]
    fn work_of_this_process_is_among_that_of_the_machine() {
        let before = Load::now().unwrap();
        let own = |load: Load| load.own - before.own;
        while own(Load::now().unwrap()) < Duration::from_millis(50) {}
        let after = Load::now().unwrap();
        assert!(after.all - before.all >= Duration::from_millis(30), "{before:?} {after:?}");
    }
}
