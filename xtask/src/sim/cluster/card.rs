//! Model of a card with several pods: at which speed each of them runs.
//!
//! - **Division.** A pod gets the part of the card that it needs, and at most as much as an equal division
//!   leaves: `given = min(need, level)` with `Σ given ≤ 1`.
//! - **Turns.** Where the memory of all does not fit, each turn of a pod begins with a move of its memory of
//!   `move = memory ÷ bandwidth`. The turn of a pod that always computes lasts
//!   `quantum = clamp(move · (1/ε − 1), 20 ms, 30 s)`. The turn of another lasts a burst, or two where it
//!   is behind: the next one is due by then. No turn is longer than the quantum. The pod costs
//!   `(turn + move) ÷ turn` of its work.
//!
//! A move is assumed to keep the card idle and to bring in all of the pod's memory, which is the worst case.

use gpushare_core::Config;
use gpushare_proto::{Bytes, Nanos};

use super::pods::Pod;
use crate::sim::trace::Machine;

/// Remaining work below which a pod is done. Times are whole nanoseconds, so a rest is left by rounding.
const NOTHING: f64 = 1.0;

/// A pod on a card.
#[derive(Clone, Debug)]
struct Resident {
    number: usize,
    pod: Pod,
    /// Remaining work, in nanoseconds of a whole card.
    left: f64,
    /// Work per nanosecond.
    rate: f64,
}

/// A card and its pods.
#[derive(Clone, Debug)]
pub(super) struct Card {
    capacity: Bytes,
    bandwidth: Bytes,
    residents: Vec<Resident>,
    /// Time until which the work is counted.
    since: Nanos,
    /// Number of the planned completion; those with older numbers are void.
    pub(super) plan: u64,
    /// Work of the card until `window`.
    pub(super) done_in_window: f64,
    /// Work of the card, in nanoseconds of a whole card.
    pub(super) done: f64,
    /// Time with at least one pod until `window`.
    pub(super) occupied: Nanos,
    /// Last arrival of the trace.
    window: Nanos,
}

impl Card {
    /// Creates an empty card. Its work is counted as a whole, and until `window`.
    pub(super) fn new(capacity: Bytes, window: Nanos) -> Self {
        Self {
            capacity,
            bandwidth: Machine::of(capacity).bandwidth,
            residents: Vec::new(),
            since: Nanos::ZERO,
            plan: 0,
            done_in_window: 0.0,
            done: 0.0,
            occupied: Nanos::ZERO,
            window,
        }
    }

    /// Returns the number of pods on the card.
    pub(super) fn pods(&self) -> usize {
        self.residents.len()
    }

    /// Returns the memory of all pods on the card.
    pub(super) fn used(&self) -> Bytes {
        self.residents.iter().map(|resident| resident.pod.memory).sum()
    }

    pub(super) fn has_room_for(&self, memory: Bytes) -> bool {
        self.used() + memory <= self.capacity
    }

    /// Starts a pod on the card.
    pub(super) fn start(&mut self, now: Nanos, number: usize, pod: &Pod) {
        self.advance(now);
        self.residents
            .push(Resident { number, pod: pod.clone(), left: pod.work(), rate: 0.0 });
        self.divide();
    }

    /// Removes the pods whose work is done, and returns their numbers.
    pub(super) fn end(&mut self, now: Nanos) -> Vec<usize> {
        self.advance(now);
        let (done, rest) = self
            .residents
            .drain(..)
            .partition(|resident: &Resident| resident.left < NOTHING);
        self.residents = rest;
        self.divide();
        done.iter().map(|resident| resident.number).collect()
    }

    /// Returns the time at which the next pod is done.
    pub(super) fn next_end(&self) -> Option<Nanos> {
        let ends = self
            .residents
            .iter()
            .map(|resident| Nanos((resident.left / resident.rate).ceil() as u64));
        ends.min().map(|span| self.since + span)
    }

    /// Counts the work until now.
    fn advance(&mut self, now: Nanos) {
        let span = (now - self.since).0 as f64;
        let inside = now.min(self.window) - self.since;
        self.since = now;
        if !self.residents.is_empty() {
            self.occupied += inside;
        }
        for resident in &mut self.residents {
            let work = (resident.rate * span).min(resident.left);
            resident.left -= work;
            self.done += work;
            self.done_in_window += (resident.rate * inside.0 as f64).min(work);
        }
    }

    /// Gives each pod its rate.
    fn divide(&mut self) {
        let turns = self.used() > self.capacity;
        let mut behind = vec![false; self.residents.len()];
        loop {
            let pods = self.residents.iter().map(|resident| &resident.pod);
            let costs: Vec<f64> = pods
                .clone()
                .zip(&behind)
                .map(|(pod, behind)| self.cost(pod, turns, *behind))
                .collect();
            let needs: Vec<f64> = pods.zip(&costs).map(|(pod, cost)| pod.demand() * cost).collect();
            let level = level(&needs);
            let late: Vec<bool> = needs
                .iter()
                .zip(&behind)
                .map(|(need, behind)| *behind || *need > level)
                .collect();
            if !turns || late == behind {
                for ((resident, need), cost) in self.residents.iter_mut().zip(&needs).zip(&costs) {
                    resident.rate = need.min(level) / cost;
                }
                return;
            }
            behind = late;
        }
    }

    /// Returns the card's time for a unit of the pod's work. The next burst of a pod that is `behind` is due
    /// at once.
    fn cost(&self, pod: &Pod, turns: bool, behind: bool) -> f64 {
        if !turns {
            return 1.0;
        }
        let config = Config::default();
        let moves = pod.memory.0 as f64 / self.bandwidth.0 as f64 * 1e9;
        let lost = f64::from(config.epsilon.0) / 10_000.0;
        let quantum =
            (moves * (1.0 / lost - 1.0)).clamp(config.quantum_min.0 as f64, config.quantum_max.0 as f64);
        let bursts = if behind { 2.0 } else { 1.0 };
        let turn = if pod.compute < 1000 {
            quantum.min(bursts * pod.burst.0 as f64)
        } else {
            quantum
        };
        (turn + moves) / turn
    }
}

/// Returns the largest part of the card that each pod may get, so that together they get at most the card.
fn level(needs: &[f64]) -> f64 {
    let mut sorted = needs.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut left = 1.0;
    for (nth, need) in sorted.iter().enumerate() {
        let equal = left / (sorted.len() - nth) as f64;
        if *need > equal {
            return equal;
        }
        left -= need;
    }
    1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_need_is_met_and_the_rest_is_divided_equally() {
        assert_eq!(level(&[1.0, 1.0, 0.25, 1.0]), 0.25);
        assert_eq!(level(&[1.0, 0.5, 1.0, 0.0]), 1.0 / 3.0);
        assert_eq!(level(&[0.5, 0.25]), 1.0);
        assert_eq!(level(&[1.0]), 1.0);
    }
}
