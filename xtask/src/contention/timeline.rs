//! Timeline of the card: the share of each program in even slots of time, for a picture.
//!
//! The simulated card tells every turn of its compute engine. On a real card the daemon's word on who
//! holds the lock is sampled.

use std::time::Duration;

use gpushare_proto::Nanos;
use gpushare_proto::admin::Status;
use gpushare_workload::clock;
use simgpu_card::stats::Stats;

use super::measure::NAMES;

/// A span of time in which one program had the GPU, on any clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    who: usize,
    from: Nanos,
    to: Nanos,
}

/// All turns, and when the first began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timeline {
    start: Nanos,
    turns: Vec<Turn>,
}

impl Timeline {
    /// From the counters of a simulated card, for the programs with these pids.
    pub(crate) fn of_card(stats: &Stats, pids: [u32; 2]) -> Self {
        let turns = stats.timeline.iter().filter_map(|interval| {
            let who = pids.iter().position(|&pid| pid == interval.pid)?;
            Some(Turn { who, from: Nanos(interval.from), to: Nanos(interval.to) })
        });
        Self::new(turns.collect())
    }

    fn new(turns: Vec<Turn>) -> Self {
        let start = turns.iter().map(|turn| turn.from).min().unwrap_or_default();
        Self { start, turns }
    }

    /// For each of `slots` slots of length `slot`: the share of it, in percent, in which `who` had the GPU.
    pub(crate) fn shares(&self, who: usize, slot: Duration, slots: u32) -> Vec<u64> {
        let slot = Nanos::from(slot).0.max(1);
        let mut busy = vec![0; slots as usize];
        for turn in self.turns.iter().filter(|turn| turn.who == who) {
            let (from, to) = ((turn.from - self.start).0, (turn.to - self.start).0);
            for index in from / slot..to.div_ceil(slot).min(u64::from(slots)) {
                let (begin, end) = (index * slot, (index + 1) * slot);
                busy[index as usize] += to.min(end) - from.max(begin);
            }
        }
        busy.into_iter().map(|nanos| (nanos * 100 / slot).min(100)).collect()
    }
}

/// Watches who holds the lock.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    last: Option<Nanos>,
    turns: Vec<Turn>,
}

impl Sampler {
    /// Records that the present holders of the lock have held it since the last call.
    pub(crate) fn sample(&mut self, status: &Status) {
        let now = clock::now();
        let from = self.last.replace(now).unwrap_or(now);
        for session in &status.sessions {
            let who = NAMES.iter().position(|name| *name == session.name);
            let holds = status.gpus.iter().any(|gpu| gpu.holders.contains(&session.session));
            if let (Some(who), true) = (who, holds) {
                self.turns.push(Turn { who, from, to: now });
            }
        }
    }

    /// Returns the timeline of all samples; nothing if no holder was ever seen.
    pub(crate) fn timeline(self) -> Option<Timeline> {
        (!self.turns.is_empty()).then(|| Timeline::new(self.turns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_fills_the_slots_it_covers_by_their_share() {
        let turn = |who, from, to| Turn { who, from: Nanos(from), to: Nanos(to) };
        let timeline = Timeline::new(vec![turn(0, 1_000, 1_015), turn(1, 1_015, 1_040)]);
        let slot = Duration::from_nanos(10);
        assert_eq!(timeline.shares(0, slot, 4), [100, 50, 0, 0]);
        assert_eq!(timeline.shares(1, slot, 4), [0, 50, 100, 100]);
        assert_eq!(timeline.shares(1, slot, 2), [0, 50], "what lies beyond the picture is left out");
    }
}
