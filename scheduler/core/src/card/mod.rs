//! One card: its capacity, its sharing mode, and the figures that were measured on it.

pub(crate) mod budget;
mod capacity;
pub(crate) mod charge;
pub(crate) mod groups;
pub(crate) mod index;
pub(crate) mod knobs;
pub(crate) mod line;
pub(crate) mod mode;
pub(crate) mod quantum;
pub(crate) mod queue;

use std::collections::VecDeque;

use gpushare_proto::admin::Mode;
use gpushare_proto::{Bytes, Nanos, SessionId};

use crate::config::Config;
use crate::memory::absent::Absent;
use crate::residency::hints::Hints;
use crate::residency::residents::Residents;
use crate::session::on_card::Listing;
use crate::session::share::Class;
use crate::values::average::Average;
use budget::SwitchBudget;
use charge::Charge;
use groups::Groups;
use index::{CardIndex, Turns};
use knobs::Knobs;
use mode::{Facts, ModeChoice};
use queue::{Drains, Occupancy};

/// Number of latest drain durations that are kept for `status` and the metrics.
const DRAINS: usize = 256;
/// Factor by which a measured bandwidth may differ from the configured one, since tenants report it.
const BELIEF: u64 = 16;
/// Number of expected move durations for which a grant waits for the process's report that its memory is in.
const PATIENCE: u64 = 4;
/// Longest such wait, unless twice the expected move is longer.
const LONGEST_PATIENCE: Nanos = Nanos::from_secs(2);
/// Part of a higher class's usual burst for which work of a lower one may be in flight.
const PART_OF_BURST: u64 = 16;
/// Shortest target for the length of work in flight. A thread launches in time for less only if it never sleeps.
const SHORTEST_TARGET: Nanos = Nanos(200_000);
/// Part of the time in which two sessions have work that the card loses, since the driver changes between them:
/// 0.2 ms every 2 ms, measured on an H100.
const PART_LOST: u64 = 10;
/// Number of slices in the window of a compute limit, unless the shortest quantum is longer than a slice.
const SLICES: u64 = 10;

/// Figures of a card when processes were last told memory figures and places in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// Number of sessions with a live context, as [`CardIndex::users`] counts them.
    pub(crate) users: u32,
    /// Change counter of the lock holders and the queue ([`CardIndex::line`]).
    pub(crate) line: u64,
    /// Bytes that bound what one session may use: the capacity before fixed memory, the fixed memory, the
    /// managed limit, and the managed memory in use.
    pub(crate) ceilings: [Bytes; 4],
    /// Targets for the length of work in flight, by class.
    pub(crate) targets: [Nanos; 3],
    /// Whether switches overlap.
    pub(crate) overlaps: bool,
}

/// Points in time at which the timers of a card are due.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alarms {
    pub(crate) mode: Option<Nanos>,
    pub(crate) places: Option<Nanos>,
    pub(crate) figures: Option<Nanos>,
    pub(crate) moves: Option<Nanos>,
}

/// Round in which the sessions on a card are told their memory figures.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FiguresRound {
    /// Session that is told next, while a round is under way.
    pub(crate) next: Option<SessionId>,
    /// Whether figures changed since the round began.
    pub(crate) changed: bool,
}

/// State of one card: memory, mode, index of sessions, measured figures and timers.
#[derive(Clone, Debug)]
pub(crate) struct Card {
    pub(crate) total: Bytes,
    pub(crate) knobs: Knobs,
    pub(crate) mode: ModeChoice,
    /// Index of the sessions on the card.
    pub(crate) index: CardIndex,
    /// Whether all sessions took turns in the mode before the present one.
    pub(crate) took_turns: bool,
    /// Figures of the card when processes were last told them.
    pub(crate) told: Told,
    pub(crate) alarms: Alarms,
    /// Whether NVML says that the card is not in persistence mode.
    pub(crate) lacks_persistence: bool,
    /// Whether the trial of a freeze has failed on the card.
    pub(crate) trial_failed: bool,
    pub(crate) figures: FiguresRound,
    pub(crate) handoffs: u64,
    pub(crate) aborted_drops: u64,
    pub(crate) moved: Bytes,
    /// Remapped memory on the card.
    pub(crate) residents: Residents,
    /// Hints for managed memory on the card.
    pub(crate) hints: Hints,
    /// Charge clock: divides the card's time among the sessions that hold it.
    pub(crate) charge: Charge,
    /// Budget of time that may still be spent on early switches.
    pub(crate) budget: SwitchBudget,
    /// Classes and users of the sessions on the card, with the order of their turns.
    pub(crate) groups: Groups,
    /// Point in time at which the card's lock holders or its queue last changed.
    pub(crate) moved_up: Nanos,
    /// Point in time at which the last session to release the card was asked for it, or released it unasked.
    pub(crate) vacated: Nanos,
    drains: VecDeque<Nanos>,
    usual_drain: Average,
    /// Usual time for which a drain overlaps with the next turn, in nanoseconds.
    usual_overlap: Average,
    /// Usual length of the turns after which a session of each class is idle, in nanoseconds.
    usual_bursts: [Average; 3],
    /// Usual bandwidth of a session's move, in bytes a second.
    usual_bandwidth: Average,
    /// Drain and bandwidth that count before the first ones were measured.
    configured: (Nanos, Bytes),
}

impl Card {
    pub(crate) fn new(total: Bytes, knobs: Knobs, config: &Config) -> Self {
        Self {
            total,
            knobs,
            mode: ModeChoice::new(),
            index: CardIndex::default(),
            took_turns: false,
            told: Told::default(),
            alarms: Alarms::default(),
            lacks_persistence: false,
            trial_failed: false,
            figures: FiguresRound::default(),
            handoffs: 0,
            aborted_drops: 0,
            moved: Bytes::ZERO,
            residents: Residents::default(),
            hints: Hints::default(),
            charge: Charge::default(),
            budget: SwitchBudget::new(Nanos::ZERO, config.budget_max),
            groups: Groups::new(config.trickle),
            moved_up: Nanos::ZERO,
            vacated: Nanos::ZERO,
            drains: VecDeque::new(),
            usual_drain: Average::default(),
            usual_overlap: Average::default(),
            usual_bursts: [Average::default(); 3],
            usual_bandwidth: Average::default(),
            configured: (config.drain_target, config.bandwidth_per_second),
        }
    }

    /// Whether all sessions on the card take turns.
    pub(crate) fn takes_turns(&self) -> bool {
        self.mode.mode() != Mode::Parallel
    }

    /// Whether memory moves on or off the card when turns change.
    pub(crate) fn moves_memory(&self) -> bool {
        self.mode.mode() == Mode::Serialized
    }

    /// Whether a session may begin its turn while the work of the one before ends: all working sets fit the
    /// card, so no memory moves.
    pub(crate) fn overlaps(&self) -> bool {
        !self.moves_memory() && self.hot() <= self.capacity()
    }

    /// Occupancy of the card by the holders that take turns, beside `absent` memory.
    pub(crate) fn occupancy(&self, absent: Absent) -> Occupancy {
        let Turns { holding, dropping, leaving, stuck } = self.index.in_turn(self.takes_turns());
        let [seated, dropping, leaving] = [holding + stuck, dropping, leaving].map(|number| number as usize);
        let seated = seated.saturating_sub(absent.holders);
        let (holders, drains) = match self.overlaps() {
            true => (seated, Drains { dropping, leaving }),
            false => (seated + dropping + leaving, Drains::default()),
        };
        let held = self.index.held() - absent.held;
        self.empty_occupancy().beside(absent).taken(holders, drains, held)
    }

    /// Occupancy of the card while no session holds it.
    pub(crate) fn empty_occupancy(&self) -> Occupancy {
        match self.mode.mode() {
            Mode::Serialized => Occupancy::empty(usize::MAX, self.capacity()),
            Mode::TimeSliced => Occupancy::empty(1, self.capacity()),
            // Only sessions with a compute limit take turns here, and none of them needs memory to move.
            Mode::Parallel => Occupancy::empty(1, Bytes::MAX),
        }
    }

    /// Adds the stuck holders to the `away` bytes of overdue processes: the card's absent memory.
    pub(crate) fn absent(&self, away: Bytes) -> Absent {
        let (held, holders) =
            (self.index.stuck_bytes(), self.index.in_turn(self.takes_turns()).stuck as usize);
        // Where no memory moves, the memory of overdue processes keeps no session out.
        let away = if self.moves_memory() { away } else { Bytes::ZERO };
        Absent { holders, held, bytes: held + away }
    }

    /// Whether all holders that take turns may keep the lock together.
    pub(crate) fn holders_fit(&self) -> bool {
        match self.moves_memory() {
            true => self.index.holders_fit(self.capacity()),
            false => self.index.in_turn(self.takes_turns()).holding <= 1,
        }
    }

    /// Chooses the mode again and returns whether it changed. `others` is memory used outside the sessions.
    pub(crate) fn choose_mode(&mut self, now: Nanos, others: Bytes, config: &Config) -> bool {
        let facts = self.facts(others);
        self.mode.choose(now, self.knobs.mode, facts, config)
    }

    /// Whether the mode was chosen by other facts than those of the present.
    pub(crate) fn is_mode_due(&self, others: Bytes) -> bool {
        self.mode.is_due(self.facts(others))
    }

    fn facts(&self, others: Bytes) -> Facts {
        Facts {
            needed: self.hot() + others,
            capacity: self.capacity(),
            contention: self.index.contention(),
        }
    }

    /// Replaces a session's entry `old` by `new` in the index. Bursts of a class count for as long as it has a
    /// session with a live context.
    pub(crate) fn list(&mut self, id: SessionId, old: &Listing, new: &Listing) {
        self.index.list(id, old, new);
        let class = old.branch.class;
        if old.live && !self.index.has_live(class) {
            self.usual_bursts[class as usize] = Average::default();
        }
    }

    /// Whether sessions get the lock only while they have work, which shows which of them want the card.
    pub(crate) fn runs_on_demand(&self) -> bool {
        self.takes_turns() || self.index.may_contend() || self.is_crowded()
    }

    /// Usual drain on the card: the average of the latest drains.
    pub(crate) fn usual_drain(&self) -> Nanos {
        self.usual_drain.get().map_or(self.configured.0, Nanos)
    }

    /// Expected duration of the move that brings in a newly granted session's missing memory. `own` is the
    /// session's working set.
    pub(crate) fn expected_move(&self, own: Bytes) -> Nanos {
        self.move_time(self.excess(own))
    }

    /// Expected duration of a move of `bytes`. Where memory moves by goals, the rates of those moves count.
    pub(crate) fn move_time(&self, bytes: Bytes) -> Nanos {
        let usual = || self.usual_bandwidth.get().map_or(self.configured.1, Bytes);
        quantum::transfer(bytes, self.residents.rates.of_handoff().unwrap_or_else(usual))
    }

    /// Duration for which a newly granted session may bring its memory in before its quantum begins.
    pub(crate) fn move_patience(&self, own: Bytes) -> Nanos {
        let usual = self.expected_move(own);
        let twice = Nanos(usual.0.saturating_mul(2));
        Nanos(usual.0.saturating_mul(PATIENCE)).min(twice.max(LONGEST_PATIENCE))
    }

    /// Number of bytes that a newly granted session with a working set of `own` bytes must bring in. Zero
    /// where memory does not move.
    pub(crate) fn excess(&self, own: Bytes) -> Bytes {
        match self.moves_memory() {
            true => quantum::excess(own, self.hot(), self.capacity()),
            false => Bytes::ZERO,
        }
    }

    /// Duration of a switch to another session: usual drain, expected move, and a configured rest. A drain
    /// counts up to the duration from which it is late, since the session that drains is charged for it.
    pub(crate) fn switch_time(&self, expected_move: Nanos, config: &Config) -> Nanos {
        let late = self.knobs.window_target.0.saturating_mul(u64::from(config.late_factor.max(1)));
        self.usual_drain().min(Nanos(late)) + expected_move + config.switch_cost
    }

    /// Time that the card loses by a switch to another session, as the switch budget pays for it. Where switches
    /// overlap, the card works during the drain.
    pub(crate) fn switch_cost(&self, expected_move: Nanos, config: &Config) -> Nanos {
        match self.overlaps() {
            true => config.switch_cost.max(self.lost_by_overlap().unwrap_or_default()),
            false => self.switch_time(expected_move, config),
        }
    }

    /// Time that is expected to be lost by the next switch to another session. A switch that overlaps loses a
    /// part of the time for which it does.
    fn expected_loss(&self, expected_move: Nanos, config: &Config) -> Nanos {
        let overlapped = self.lost_by_overlap().filter(|_| self.overlaps());
        overlapped.unwrap_or_else(|| self.switch_cost(expected_move, config))
    }

    fn lost_by_overlap(&self) -> Option<Nanos> {
        self.usual_overlap.get().map(|overlap| Nanos(overlap / PART_LOST))
    }

    /// Quantum of a newly granted session whose memory move takes `expected_move`.
    pub(crate) fn quantum(&self, expected_move: Nanos, config: &Config) -> Nanos {
        if let Some(fixed) = self.knobs.quantum {
            return fixed.max(quantum::SHORTEST);
        }
        let cost = self.expected_loss(expected_move, config);
        quantum::quantum(cost, self.knobs.epsilon, config.quantum_min, config.quantum_max)
    }

    /// Slice of a session under a compute limit, where no memory moves. A slice pays for the restart of the
    /// session's work, as a quantum pays for a switch. The drain is no part of the cost, since the session
    /// works meanwhile. Several slices fit into each window of the limit.
    pub(crate) fn limit_slice(&self, config: &Config) -> Nanos {
        let longest = Nanos(config.limit_window.0 / SLICES);
        quantum::quantum(config.switch_cost, self.knobs.epsilon, config.quantum_min, longest)
    }

    /// Whether the administrator fixed the length of turns on the card.
    pub(crate) const fn has_fixed_quantum(&self) -> bool {
        self.knobs.quantum.is_some()
    }

    /// Returns the time that may be spent on early switches; zero where the administrator fixed the quantum.
    pub(crate) fn budget(&mut self, now: Nanos, config: &Config) -> Nanos {
        if self.knobs.quantum.is_some() {
            return Nanos::ZERO;
        }
        self.budget.available(now, self.knobs.epsilon, config.budget_max)
    }

    /// Records the duration of a completed drain. A `typical` one also enters the average of drains.
    pub(crate) fn drained(&mut self, drain: Nanos, typical: bool) {
        if typical {
            self.usual_drain.add(drain.0);
        }
        self.drains.push_back(drain);
        if self.drains.len() > DRAINS {
            self.drains.pop_front();
        }
    }

    /// Records the time for which a drain overlapped with the next turn, up to the target of the windows. A longer
    /// one comes of a long kernel or of a wrong report, and must not lengthen the turns of others.
    pub(crate) fn overlapped(&mut self, overlap: Nanos) {
        self.usual_overlap.add(overlap.min(self.knobs.window_target).0);
    }

    /// Records the length of a turn after which a session of a class was idle. A longer one than those that
    /// matter may contain the time for which nobody asked whether the session was idle.
    pub(crate) fn bursts_for(&mut self, class: Class, length: Nanos) {
        let length = length.min(Nanos(self.knobs.window_target.0.saturating_mul(PART_OF_BURST)));
        self.usual_bursts[class as usize].add(length.0);
    }

    /// Target for the length of a class's work in flight. While a session of a higher class is on a card where
    /// switches overlap, it is a part of that one's usual burst, since the burst runs beside the work in flight.
    pub(crate) fn drain_target(&self, class: Class) -> Nanos {
        let higher = Class::ALL
            .into_iter()
            .filter(|&higher| higher < class && self.index.has_live(higher));
        let bursts = higher.filter_map(|higher| self.usual_bursts[higher as usize].get());
        // In steps, since each change is told to all processes.
        let shortest = bursts.map(|burst| Nanos(1 << (burst / PART_OF_BURST).max(1).ilog2())).min();
        let target = self.knobs.window_target;
        shortest
            .filter(|_| self.overlaps())
            .map_or(target, |shortest| shortest.max(SHORTEST_TARGET).min(target))
    }

    /// Returns the durations of the latest drains, oldest first.
    pub(crate) fn drains(&self) -> Vec<Nanos> {
        self.drains.iter().copied().collect()
    }

    /// Records the bandwidth of a session's move, within the bounds of what is believed.
    pub(crate) fn moved_at(&mut self, bandwidth: u64, config: &Config) {
        let (least, most) = believed(config);
        self.usual_bandwidth.add(bandwidth.max(least).min(most));
    }
}

/// Least and largest bandwidth that are believed, in bytes a second.
pub(crate) fn believed(config: &Config) -> (u64, u64) {
    let configured = config.bandwidth_per_second.0;
    (configured / BELIEF, configured.saturating_mul(BELIEF))
}

#[cfg(test)]
mod tests {
    use gpushare_proto::admin::Knob;

    use super::*;

    fn card() -> Card {
        let config = Config { bandwidth_per_second: Bytes(1_000_000_000), ..Config::default() };
        Card::new(Bytes(10_000_000_000), Knobs::new(&config), &config)
    }

    #[test]
    fn a_minority_of_lies_about_bandwidth_changes_expected_moves_little() {
        let mut card = card();
        let config = Config { bandwidth_per_second: Bytes(1_000_000_000), ..Config::default() };
        let expected =
            |card: &Card| quantum::transfer(Bytes(8_000_000_000), Bytes(card.usual_bandwidth.get().unwrap()));
        (0..4).for_each(|_| card.moved_at(2_000_000_000, &config));
        assert_eq!(expected(&card), Nanos::from_secs(4));
        for _ in 0..100 {
            card.moved_at(0, &config);
            (0..3).for_each(|_| card.moved_at(2_000_000_000, &config));
        }
        assert!(expected(&card) < Nanos::from_millis(4400), "{}", expected(&card));
    }

    #[test]
    fn the_last_256_drains_are_kept() {
        let mut card = card();
        for n in 0..300 {
            card.drained(Nanos(n), true);
        }
        assert_eq!(card.drains().len(), 256);
        assert_eq!(card.drains()[0], Nanos(44));
    }

    #[test]
    fn a_fixed_quantum_is_taken_as_it_is() {
        let mut card = card();
        card.knobs.set(Knob::Quantum(Some(Nanos::from_secs(7))));
        let long = Nanos::from_secs(100);
        assert_eq!(card.quantum(long, &Config::default()), Nanos::from_secs(7));
    }
}
