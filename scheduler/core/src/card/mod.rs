//! A card: what it can hold, how it is shared, and what was measured on it.

pub(crate) mod budget;
pub(crate) mod census;
pub(crate) mod charge;
pub(crate) mod knobs;
pub(crate) mod mode;
pub(crate) mod quantum;
pub(crate) mod queue;
pub(crate) mod trickle;

use std::collections::VecDeque;

use gpushare_proto::admin::Mode;
use gpushare_proto::{Bytes, Nanos};

use crate::average::Average;
use crate::config::Config;
use crate::session::share::Virtual;
use budget::SwitchBudget;
use census::Census;
use charge::Charge;
use knobs::Knobs;
use mode::{Facts, ModeChoice};
use queue::Room;
use trickle::Trickle;

/// Drains that are kept for people.
const DRAINS: usize = 256;
/// A longer drain counts as this long.
const UNUSUAL: Nanos = Nanos::from_secs(2);
/// A smaller move says more about latency than about bandwidth.
const SUBSTANTIAL_MOVE: Bytes = Bytes::mib(64);
/// A measured bandwidth is believed within this factor of the configured one: it comes from the tenant.
const BELIEF: u64 = 16;
/// So many slices fit into the window over which a compute limit holds, unless the shortest quantum is
/// longer.
const SLICES: u64 = 10;

/// What sessions were told that follows from others on the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// See [`Census::users`].
    pub(crate) users: u32,
    /// See [`Census::line`].
    pub(crate) line: u64,
    /// What one session may have depends on these: the capacity and what never moves of it, the managed limit
    /// and what is taken of it.
    pub(crate) ceilings: [Bytes; 4],
}

/// When the timers of a card are due.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alarms {
    pub(crate) mode: Option<Nanos>,
    pub(crate) trickle: Option<Nanos>,
    pub(crate) places: Option<Nanos>,
    pub(crate) figures: Option<Nanos>,
}

/// One card.
#[derive(Clone, Debug)]
pub(crate) struct Card {
    pub(crate) total: Bytes,
    pub(crate) knobs: Knobs,
    pub(crate) mode: ModeChoice,
    /// Who is here.
    pub(crate) census: Census,
    /// Whether sessions took turns in the mode before.
    pub(crate) took_turns: bool,
    /// What everybody here was told of it.
    pub(crate) told: Told,
    pub(crate) alarms: Alarms,
    pub(crate) handoffs: u64,
    pub(crate) aborted_drops: u64,
    pub(crate) moved: Bytes,
    /// Who pays for its time.
    pub(crate) charge: Charge,
    /// What is left for early switches.
    pub(crate) budget: SwitchBudget,
    /// By class.
    pub(crate) trickles: [Trickle; 3],
    /// The least virtual time of those who wait or hold, by class; it never goes back.
    pub(crate) floors: [Virtual; 3],
    /// When its line last changed.
    pub(crate) moved_up: Nanos,
    /// When the last session that made room here was told to, or did on its own.
    pub(crate) vacated: Nanos,
    /// The moves under way: when the first of them began, and the bytes that have come in since then.
    moves: Option<(Nanos, Bytes)>,
    drains: VecDeque<Nanos>,
    expected_drain: Average,
    bandwidth: Average,
}

impl Card {
    pub(crate) fn new(total: Bytes, knobs: Knobs, config: &Config) -> Self {
        Self {
            total,
            knobs,
            mode: ModeChoice::new(),
            census: Census::default(),
            took_turns: false,
            told: Told::default(),
            alarms: Alarms::default(),
            handoffs: 0,
            aborted_drops: 0,
            moved: Bytes::ZERO,
            charge: Charge::default(),
            budget: SwitchBudget::new(Nanos::ZERO, config.budget_max),
            trickles: [Trickle::default(); 3],
            floors: [Virtual::default(); 3],
            moved_up: Nanos::ZERO,
            vacated: Nanos::ZERO,
            moves: None,
            drains: VecDeque::new(),
            expected_drain: Average::new(config.drain_target.0),
            bandwidth: Average::new(config.bandwidth_per_second.0),
        }
    }

    /// What contexts take, those of the dead included that the card still has.
    pub(crate) fn reserve(&self) -> Bytes {
        self.census.sums.overhead.get()
    }

    /// What never moves, of all sessions.
    pub(crate) fn fixed(&self) -> Bytes {
        self.census.sums.fixed.get()
    }

    /// The working sets of everybody.
    pub(crate) fn needed(&self) -> Bytes {
        self.census.sums.movable.get()
    }

    /// What may be resident together of all that moves.
    pub(crate) fn capacity(&self) -> Bytes {
        self.capacity_beside(Bytes::ZERO)
    }

    /// As [`Self::capacity`], for a session whose own `fixed` bytes take no room away from it.
    pub(crate) fn capacity_beside(&self, fixed: Bytes) -> Bytes {
        self.before_fixed() - (self.fixed() - fixed)
    }

    /// Most bytes that one session may use here, whatever its quota: the capacity beside the fixed bytes of
    /// the others.
    pub(crate) fn ceiling(&self, own_fixed: Bytes, oversubscribe: bool) -> Bytes {
        match oversubscribe {
            true => Bytes::MAX,
            false => self.capacity_beside(own_fixed),
        }
    }

    /// What may be resident together if everything moved.
    pub(crate) fn before_fixed(&self) -> Bytes {
        self.knobs.capacity.unwrap_or(self.total - self.reserve())
    }

    /// What is left for the driver's own memory if everything that can move does.
    pub(crate) fn room_left(&self) -> Bytes {
        self.total - self.reserve() - self.fixed()
    }

    /// The most managed memory of all sessions together; [`Bytes::MAX`] for no limit.
    pub(crate) fn managed_limit(&self) -> Bytes {
        self.knobs.managed_limit.unwrap_or(Bytes::MAX)
    }

    /// Whether all sessions take turns here.
    pub(crate) fn takes_turns(&self) -> bool {
        self.mode.mode() != Mode::Parallel
    }

    /// Whether memory moves when turns change.
    pub(crate) fn moves_memory(&self) -> bool {
        self.mode.mode() == Mode::Serialized
    }

    /// What is taken here by those who take turns. Beside a holder that does not let go and is `passable`
    /// another one has its turn: its seat is in nobody's way, as long as its memory is not.
    pub(crate) fn room(&self, passable: bool) -> Room {
        let seated = self.census.seated(self.takes_turns());
        self.room_beside(self.passed(passable).0).taken(seated, self.census.held())
    }

    /// The same if everybody had let go who does.
    pub(crate) fn room_left_over(&self, passable: bool) -> Room {
        let (stuck, lost) = self.passed(passable);
        self.room_beside(stuck).taken(stuck, lost)
    }

    /// The same if nobody were here.
    pub(crate) fn empty_room(&self) -> Room {
        self.room_beside(0)
    }

    /// Who does not let go, and may be passed: how many there are, and what they have.
    fn passed(&self, passable: bool) -> (usize, Bytes) {
        match passable {
            true => (self.census.stuck(), self.census.lost()),
            false => (0, Bytes::ZERO),
        }
    }

    fn room_beside(&self, stuck: usize) -> Room {
        match self.mode.mode() {
            Mode::Serialized => Room::empty(usize::MAX, self.capacity()),
            Mode::TimeSliced => Room::empty(1 + stuck, self.capacity()),
            // Everybody else is there all the time, and nobody asks for room.
            Mode::Parallel => Room::empty(1 + stuck, Bytes::MAX),
        }
    }

    /// Whether those who take turns and keep the lock may keep it together.
    pub(crate) fn holders_fit(&self) -> bool {
        match self.moves_memory() {
            true => self.census.holders_fit(self.capacity()),
            false => self.census.seated_holding(self.takes_turns()) <= 1,
        }
    }

    /// Chooses the mode, where `others` use so much besides; whether it changed.
    pub(crate) fn choose_mode(&mut self, now: Nanos, others: Bytes, config: &Config) -> bool {
        let facts = Facts {
            needed: self.needed() + others,
            capacity: self.capacity(),
            contention: self.census.contention(),
        };
        self.mode.choose(now, self.knobs.mode, facts, config)
    }

    pub(crate) fn expected_drain(&self) -> Nanos {
        Nanos(self.expected_drain.get())
    }

    /// How long an entrant with `own` bytes needs to bring in what is not there.
    pub(crate) fn expected_move(&self, own: Bytes) -> Nanos {
        quantum::transfer(self.excess(own), Bytes(self.bandwidth.get()))
    }

    /// What an entrant with `own` bytes has to bring in: nothing where memory does not move.
    pub(crate) fn excess(&self, own: Bytes) -> Bytes {
        match self.moves_memory() {
            true => quantum::excess(own, self.needed(), self.capacity()),
            false => Bytes::ZERO,
        }
    }

    /// What a switch to an entrant costs whose move takes `expected_move`: the drain of who lets go, the
    /// move, and what is lost besides.
    pub(crate) fn switch_cost(&self, expected_move: Nanos, config: &Config) -> Nanos {
        self.expected_drain() + expected_move + config.switch_cost
    }

    /// The turn of an entrant whose move takes `expected_move`.
    pub(crate) fn quantum(&self, expected_move: Nanos, config: &Config) -> Nanos {
        if let Some(fixed) = self.knobs.quantum {
            return fixed.max(quantum::SHORTEST);
        }
        let cost = self.switch_cost(expected_move, config);
        quantum::quantum(cost, self.knobs.epsilon, config.quantum_min, config.quantum_max)
    }

    /// What a limited session spends at once where no memory moves: its work ends and begins anew with each
    /// slice, which may cost it no more of its time than any other switch. Its drain is none of that cost, as
    /// it works meanwhile. However little may be lost, a limit is one over a window, with several slices in
    /// each.
    pub(crate) fn limit_slice(&self, config: &Config) -> Nanos {
        let longest = Nanos(config.limit_window.0 / SLICES);
        quantum::quantum(config.switch_cost, self.knobs.epsilon, config.quantum_min, longest)
    }

    /// Whether turns last as long as somebody said.
    pub(crate) const fn has_fixed_quantum(&self) -> bool {
        self.knobs.quantum.is_some()
    }

    /// How long a drain may take before it is unusual.
    pub(crate) fn usual_drain(&self) -> Nanos {
        self.expected_drain().max(self.knobs.window_target)
    }

    /// What may be spent on early switches: nothing where the quantum is fixed, since turns last that long
    /// then.
    pub(crate) fn budget(&mut self, now: Nanos, config: &Config) -> Nanos {
        if self.knobs.quantum.is_some() {
            return Nanos::ZERO;
        }
        self.budget.available(now, self.knobs.epsilon, config.budget_max)
    }

    /// A drop took `drain`; `typical` if the next one may be expected to take as long.
    pub(crate) fn drained(&mut self, drain: Nanos, typical: bool) {
        if typical {
            // A drain of minutes says little about the next, and must not make all turns that long.
            self.expected_drain.add(drain.min(UNUSUAL).0);
        }
        self.drains.push_back(drain);
        if self.drains.len() > DRAINS {
            self.drains.pop_front();
        }
    }

    /// The latest drains, oldest first.
    pub(crate) fn drains(&self) -> Vec<Nanos> {
        self.drains.iter().copied().collect()
    }

    /// A session begins to bring its memory in; `alone` if no other session does so at this time.
    pub(crate) fn begin_move(&mut self, now: Nanos, alone: bool) {
        if alone || self.moves.is_none() {
            self.moves = Some((now, Bytes::ZERO));
        }
    }

    /// A process has brought `bytes` in; `last` if no other process is still moving. Moves that overlap share
    /// the link, so that their bytes are measured together.
    pub(crate) fn end_move(&mut self, now: Nanos, bytes: Bytes, last: bool, config: &Config) {
        let Some((since, moved)) = self.moves else { return };
        self.moves = Some((since, moved + bytes));
        if last {
            self.moves = None;
            self.measure(moved + bytes, now - since, config);
        }
    }

    /// Takes in that `bytes` came to this card in `took`.
    fn measure(&mut self, bytes: Bytes, took: Nanos, config: &Config) {
        if bytes >= SUBSTANTIAL_MOVE {
            let rate = u128::from(bytes.0) * u128::from(Nanos::from_secs(1).0) / u128::from(took.0.max(1));
            let rate = u64::try_from(rate).unwrap_or(u64::MAX);
            let usual = config.bandwidth_per_second.0;
            self.bandwidth.add(rate.max(usual / BELIEF).min(usual.saturating_mul(BELIEF)));
        }
    }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::admin::Knob;

    use super::*;

    fn card() -> Card {
        let config = Config { bandwidth_per_second: Bytes(1_000_000_000), ..Config::default() };
        Card::new(Bytes(10_000_000_000), Knobs::new(&config), &config)
    }

    fn transfer(card: &Card) -> Nanos {
        quantum::transfer(Bytes(8_000_000_000), Bytes(card.bandwidth.get()))
    }

    #[test]
    fn the_first_measured_bandwidth_replaces_the_configured_one() {
        let mut card = card();
        assert_eq!(transfer(&card), Nanos::from_secs(8));
        let config = Config { bandwidth_per_second: Bytes(1_000_000_000), ..Config::default() };
        card.measure(Bytes(4_000_000_000), Nanos::from_secs(1), &config);
        assert_eq!(transfer(&card), Nanos::from_secs(2));
        card.measure(Bytes(1), Nanos::from_secs(1), &config);
        assert_eq!(transfer(&card), Nanos::from_secs(2), "one byte says nothing");
    }

    #[test]
    fn moves_that_overlap_are_measured_together() {
        let mut card = card();
        let config = Config { bandwidth_per_second: Bytes(1_000_000_000), ..Config::default() };
        let half = Bytes(2_000_000_000);
        card.begin_move(Nanos::from_secs(10), true);
        card.begin_move(Nanos::from_secs(11), false);
        card.end_move(Nanos::from_secs(12), half, false, &config);
        card.end_move(Nanos::from_secs(12), half, true, &config);
        assert_eq!(transfer(&card), Nanos::from_secs(4), "4 GB in 2 s");
    }

    #[test]
    fn a_lie_about_bandwidth_is_believed_within_bounds() {
        let mut card = card();
        let config = Config { bandwidth_per_second: Bytes(1_000_000_000), ..Config::default() };
        card.measure(Bytes::gib(1), Nanos::ZERO, &config);
        assert_eq!(card.bandwidth.get(), 16_000_000_000);
        card.measure(Bytes::gib(1), Nanos::MAX, &config);
        assert!(card.bandwidth.get() > 1_000_000_000);
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
        assert_eq!(card.quantum(Nanos::from_secs(100), &Config::default()), Nanos::from_secs(7));
    }
}
