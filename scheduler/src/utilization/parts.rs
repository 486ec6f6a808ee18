//! Arithmetic of the parts.
//!
//! ```text
//!   work of a process = Σ of its samples in the last second
//!   part of a session = Σ work of its processes / Σ work of all processes
//! ```
//!
//! NVML leaves out samples in which a process did not work. So the sum counts, not the average. A process
//! outside all sessions adds to the work, and then the parts together are less than the whole. Otherwise they
//! are exactly the whole.

use std::collections::BTreeMap;

use gpushare_proto::{SessionId, UtilizationPart};
use nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample;

/// Part of each session that uses a card.
pub(super) type Parts = BTreeMap<SessionId, UtilizationPart>;

/// Age of a sample, before the newest one, from which on the sample does not count.
const WINDOW_MICROS: u64 = 1_000_000;
/// Largest figure of a sample, in percent. NVML sometimes has larger ones, which mean nothing.
const MOST: u32 = 100;

/// Returns the same part for each of `count` sessions.
pub(super) fn equal(count: usize) -> UtilizationPart {
    let part = UtilizationPart::ONE / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
    UtilizationPart { gpu: part, memory: part }
}

/// Returns the part of each of `sessions` in the work of all processes; `None` if no process has worked.
pub(super) fn by_work(
    samples: &[ProcessUtilizationSample],
    session_of: impl Fn(u32) -> Option<SessionId>,
    sessions: impl Iterator<Item = SessionId>,
) -> Option<Parts> {
    let is_valid = |sample: &&ProcessUtilizationSample| sample.sm_util <= MOST && sample.mem_util <= MOST;
    let newest = samples.iter().filter(is_valid).map(|sample| sample.timestamp).max()?;
    let mut works: BTreeMap<Option<SessionId>, Work> = BTreeMap::new();
    for sample in samples.iter().filter(is_valid) {
        if sample.timestamp.saturating_add(WINDOW_MICROS) > newest {
            let work = works.entry(session_of(sample.pid)).or_default();
            work.gpu += u64::from(sample.sm_util);
            work.memory += u64::from(sample.mem_util);
        }
    }
    let sum = |figure: fn(&Work) -> u64| works.values().map(figure).sum();
    let all = Work { gpu: sum(|work| work.gpu), memory: sum(|work| work.memory) };
    // Work so small that one figure of all processes is zero is divided by the other figure.
    let gpu: fn(&Work) -> u64 = if all.gpu > 0 { |work| work.gpu } else { |work| work.memory };
    let memory: fn(&Work) -> u64 = if all.memory > 0 { |work| work.memory } else { |work| work.gpu };
    let (mut gpu, mut memory) = (Division::new(gpu(&all))?.by(gpu), Division::new(memory(&all))?.by(memory));
    let part = |session| {
        let work = works.get(&Some(session)).copied().unwrap_or_default();
        (session, UtilizationPart { gpu: gpu(&work), memory: memory(&work) })
    };
    Some(sessions.map(part).collect())
}

/// Work in percent times samples.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    gpu: u64,
    memory: u64,
}

/// Division of the whole in proportion to work, without a remainder: `part = ⌊Σ up to it⌋ − ⌊Σ before it⌋`.
struct Division {
    all: u64,
    so_far: u64,
}

impl Division {
    fn new(all: u64) -> Option<Self> {
        (all > 0).then_some(Self { all, so_far: 0 })
    }

    fn by(mut self, figure: fn(&Work) -> u64) -> impl FnMut(&Work) -> u32 {
        move |work| {
            let up_to = |sum: u64| u128::from(sum) * u128::from(UtilizationPart::ONE) / u128::from(self.all);
            let before = up_to(self.so_far);
            let part = up_to(self.so_far + figure(work)) - before;
            self.so_far += figure(work);
            // At most the whole, so it fits.
            part as u32
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: u32 = UtilizationPart::ONE;

    fn sample(pid: u32, millis: u64, sm_util: u32, mem_util: u32) -> ProcessUtilizationSample {
        let timestamp = 1_700_000_000_000_000 + millis * 1_000;
        ProcessUtilizationSample { pid, timestamp, sm_util, mem_util, enc_util: 0, dec_util: 0 }
    }

    /// Session of a process: its tens. Those from 90 on are outside all sessions.
    fn session_of(pid: u32) -> Option<SessionId> {
        (pid < 90).then_some(SessionId(u64::from(pid / 10)))
    }

    fn parts(samples: &[ProcessUtilizationSample], sessions: u64) -> Option<Vec<u32>> {
        let parts = by_work(samples, session_of, (1..=sessions).map(SessionId))?;
        Some(parts.values().map(|part| part.gpu).collect())
    }

    #[test]
    fn parts_are_as_the_work_of_all_processes_of_a_session() {
        let samples = [sample(10, 0, 30, 1), sample(11, 0, 15, 1), sample(20, 0, 15, 2)];
        assert_eq!(parts(&samples, 2), Some(vec![ONE / 4 * 3, ONE / 4]));
        let memory = by_work(&samples, session_of, [SessionId(1), SessionId(2)].into_iter()).unwrap();
        assert_eq!(memory[&SessionId(2)].memory, ONE / 2);
    }

    #[test]
    fn an_idle_session_beside_a_busy_one_has_nothing() {
        assert_eq!(parts(&[sample(10, 0, 97, 0)], 2), Some(vec![ONE, 0]));
        let samples = [sample(10, 0, 97, 0), sample(20, 0, 0, 0)];
        assert_eq!(parts(&samples, 2), Some(vec![ONE, 0]));
    }

    #[test]
    fn a_process_outside_all_sessions_takes_its_part() {
        let samples = [sample(10, 0, 20, 0), sample(20, 0, 20, 0), sample(99, 0, 40, 0)];
        assert_eq!(parts(&samples, 2), Some(vec![ONE / 4, ONE / 4]));
    }

    #[test]
    fn all_samples_of_the_last_second_count_and_older_ones_do_not() {
        // The second session works in two of four samples, and NVML omits it in the others.
        let turns = [0, 250, 500, 750].map(|millis| sample(10, millis, 50, 0));
        let others = [sample(20, 0, 50, 0), sample(20, 750, 50, 0)];
        assert_eq!(parts(&[turns.as_slice(), &others].concat(), 2), Some(vec![43_690, 21_846]));
        let ended = [sample(10, 1_000, 50, 0), sample(20, 0, 50, 0)];
        assert_eq!(parts(&ended, 2), Some(vec![ONE, 0]));
    }

    #[test]
    fn figures_beyond_a_hundred_percent_mean_nothing() {
        let samples = [sample(10, 0, 50, 0), sample(20, 9_000_000, 3_000_000_000, 0)];
        assert_eq!(parts(&samples, 2), Some(vec![ONE, 0]));
    }

    #[test]
    fn without_work_there_are_no_parts() {
        assert_eq!(parts(&[], 2), None);
        assert_eq!(parts(&[sample(10, 0, 0, 0), sample(20, 0, 0, 0)], 2), None);
        assert_eq!(parts(&[sample(10, 0, 0, 3), sample(20, 0, 0, 1)], 2), Some(vec![ONE / 4 * 3, ONE / 4]));
    }

    #[test]
    fn equal_parts_are_never_more_than_the_whole() {
        assert_eq!(equal(1), UtilizationPart::WHOLE);
        assert_eq!(equal(3).gpu, 21_845);
    }

    #[test]
    fn parts_of_sessions_alone_are_together_the_whole() {
        for work in 0..1_000 {
            let figures = [work % 7, work % 11, work % 13, 1];
            let samples: Vec<_> =
                (1..).zip(figures).map(|(n, work)| sample(n * 10, 0, work, work / 2)).collect();
            let parts = by_work(&samples, session_of, (1..=5).map(SessionId)).unwrap();
            assert_eq!(parts.values().map(|part| part.gpu).sum::<u32>(), ONE, "{figures:?}");
            assert_eq!(parts.values().map(|part| part.memory).sum::<u32>(), ONE, "{figures:?}");
        }
    }
}
