//! State of the daemon that increments describe, with short histories of the cards.
//!
//! ```text
//!   Increments ─▶ apply ─▶ cards and sessions as the daemon has them
//!                     └──▶ derived: share of time of each session, histories of each card
//! ```

use std::collections::{BTreeMap, VecDeque};

use gpushare_proto::admin::ResidenceView;
use gpushare_proto::follow::{
    CardFacts, CardFigures, CardHandoff, CardResidence, DaemonFacts, Increment, Increments, LockState,
    MAX_WAITS, Sensors, SessionFacts, SessionFigures,
};
use gpushare_proto::session::SessionPhase;
use gpushare_proto::{Bytes, GpuId, Nanos, SessionId};

/// Number of the latest values that a history keeps; the daemon sends one a second.
pub(super) const HISTORY: usize = 120;

/// State of one daemon.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) daemon: DaemonFacts,
    /// Duration from the daemon's start to the last message.
    pub(super) at: Nanos,
    pub(super) cards: BTreeMap<GpuId, Card>,
    pub(super) sessions: BTreeMap<SessionId, Session>,
}

/// Card with its latest figures.
#[derive(Clone, Debug)]
pub(super) struct Card {
    pub(super) facts: CardFacts,
    pub(super) figures: Option<CardFigures>,
    pub(super) sensors: Option<Sensors>,
    /// Places of remapped memory; none on a card that never had such memory.
    pub(super) residence: Option<CardResidence>,
    /// Running handoff of remapped memory, or else the last one; none before the first one.
    pub(super) handoff: Option<CardHandoff>,
    /// Utilization in percent, oldest first; none where no sensor answered.
    pub(super) busy: VecDeque<Option<u8>>,
    /// Allocated part of the capacity in percent, oldest first.
    pub(super) allocated: VecDeque<Option<u8>>,
}

/// Session with its latest figures.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) facts: SessionFacts,
    pub(super) figures: Option<SessionFigures>,
    /// Places of remapped memory on each card; empty without such memory.
    pub(super) places: Vec<ResidenceView>,
    /// Latest waits for a turn, oldest first.
    pub(super) waits: VecDeque<Nanos>,
    /// Length of the turn of the last grant.
    pub(super) quantum: Option<Nanos>,
    /// Part of the time between the last two messages in which the session could submit work, in hundredths
    /// of a percent of one card; none after the first message.
    pub(super) share: Option<u32>,
}

impl Model {
    /// Takes the increments of one message.
    pub(super) fn apply(&mut self, increments: Increments) {
        let Increments { at_ns, whole, changes } = increments;
        let pid = |change: &Increment| match change {
            Increment::Daemon(facts) => Some(facts.pid),
            _ => None,
        };
        let is_another = whole && changes.iter().find_map(pid).is_some_and(|pid| pid != self.daemon.pid);
        if is_another || at_ns < self.at {
            *self = Self::default();
        }
        let elapsed = at_ns - self.at;
        let before: BTreeMap<SessionId, Nanos> = match self.at {
            Nanos::ZERO => BTreeMap::new(),
            _ => self.sessions.iter().map(|(&id, session)| (id, session.gpu_time())).collect(),
        };
        if whole {
            self.forget_what_is_not_in(&changes);
        }
        changes.into_iter().for_each(|change| self.take(change));
        for (id, session) in &mut self.sessions {
            session.share = before.get(id).map(|&before| share(session.gpu_time() - before, elapsed));
        }
        for card in self.cards.values_mut() {
            card.remember();
        }
        self.at = at_ns;
    }

    fn forget_what_is_not_in(&mut self, changes: &[Increment]) {
        let has_card = |gpu| {
            changes
                .iter()
                .any(|change| matches!(change, Increment::Card(card) if card.gpu == gpu))
        };
        self.cards.retain(|&gpu, _| has_card(gpu));
        let named = |change: &Increment| match change {
            Increment::Session(facts) => Some(facts.session),
            _ => None,
        };
        let named: std::collections::BTreeSet<SessionId> = changes.iter().filter_map(named).collect();
        self.sessions.retain(|id, _| named.contains(id));
        for session in self.sessions.values_mut() {
            session.waits.clear();
            session.places.clear();
        }
        self.cards
            .values_mut()
            .for_each(|card| (card.residence, card.handoff) = (None, None));
    }

    fn take(&mut self, change: Increment) {
        match change {
            Increment::Daemon(facts) => self.daemon = facts,
            Increment::Card(facts) => match self.cards.get_mut(&facts.gpu) {
                Some(card) => card.facts = facts,
                None => {
                    self.cards.insert(facts.gpu, Card::new(facts));
                }
            },
            Increment::CardFigures(figures) => {
                if let Some(card) = self.cards.get_mut(&figures.gpu) {
                    card.figures = Some(figures);
                }
            }
            Increment::Sensors(sensors) => {
                if let Some(card) = self.cards.get_mut(&sensors.gpu) {
                    card.sensors = Some(sensors);
                }
            }
            Increment::Session(facts) => match self.sessions.get_mut(&facts.session) {
                Some(session) => session.facts = facts,
                None => {
                    self.sessions.insert(facts.session, Session::new(facts));
                }
            },
            Increment::SessionFigures(figures) => {
                if let Some(session) = self.sessions.get_mut(&figures.session) {
                    session.figures = Some(figures);
                }
            }
            Increment::Granted { session, waits_ns, quantum_ns } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.quantum = Some(quantum_ns);
                    session.waits.extend(waits_ns);
                    let surplus = session.waits.len().saturating_sub(MAX_WAITS);
                    session.waits.drain(..surplus);
                }
            }
            Increment::SessionEnded { session } => {
                self.sessions.remove(&session);
            }
            Increment::CardResidence(residence) => {
                if let Some(card) = self.cards.get_mut(&residence.gpu) {
                    card.residence = Some(residence);
                }
            }
            Increment::CardHandoff(handoff) => {
                if let Some(card) = self.cards.get_mut(&handoff.gpu) {
                    card.handoff = Some(handoff);
                }
            }
            Increment::Residence { session, places } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.places = places;
                }
            }
        }
    }

    /// Returns the place of a session in the queue of a card, from 1 on.
    pub(super) fn place(&self, id: SessionId) -> Option<usize> {
        let queues = self.cards.values().filter_map(|card| Some(&card.figures.as_ref()?.queue));
        queues
            .filter_map(|queue| queue.iter().position(|&other| other == id))
            .max()
            .map(|at| at + 1)
    }

    /// Returns the sessions that hold a card or wait for one and about which nothing else is known.
    pub(super) fn strangers(&self) -> BTreeMap<SessionId, LockState> {
        let mut all = BTreeMap::new();
        for figures in self.cards.values().filter_map(|card| card.figures.as_ref()) {
            all.extend(figures.queue.iter().map(|&id| (id, LockState::Waiting)));
            all.extend(figures.holders.iter().map(|&id| (id, LockState::Holding)));
        }
        all.retain(|id, _| !self.sessions.contains_key(id));
        all
    }

    /// Returns the name of a session, or the number if the name is not known.
    pub(super) fn name(&self, id: SessionId) -> String {
        self.sessions
            .get(&id)
            .map_or_else(|| id.to_string(), |session| session.facts.name.clone())
    }
}

impl Card {
    fn new(facts: CardFacts) -> Self {
        let (busy, allocated) = (VecDeque::new(), VecDeque::new());
        Self {
            facts,
            figures: None,
            sensors: None,
            residence: None,
            handoff: None,
            busy,
            allocated,
        }
    }

    fn remember(&mut self) {
        let busy = self.sensors.and_then(|sensors| sensors.busy_percent);
        let busy = busy.map(|percent| u8::try_from(percent).unwrap_or(100));
        let allocated = self.figures.as_ref().map(|figures| {
            let percent =
                u128::from(figures.allocated_bytes.0) * 100 / u128::from(figures.capacity_bytes.0.max(1));
            u8::try_from(percent.min(100)).unwrap_or(100)
        });
        for (history, value) in [(&mut self.busy, busy), (&mut self.allocated, allocated)] {
            if history.len() == HISTORY {
                history.pop_front();
            }
            history.push_back(value);
        }
    }

    /// Returns the rest of the first holder's quantum at a time since the daemon's start, while others wait.
    pub(super) fn left(&self, at: Nanos) -> Option<Nanos> {
        let figures = self.figures.as_ref().filter(|figures| figures.waiting > 0)?;
        Some(figures.turn_ends_ns? - at)
    }
}

impl Session {
    fn new(facts: SessionFacts) -> Self {
        Self {
            facts,
            figures: None,
            places: Vec::new(),
            waits: VecDeque::new(),
            quantum: None,
            share: None,
        }
    }

    fn gpu_time(&self) -> Nanos {
        self.figures.as_ref().map_or(Nanos::ZERO, |figures| figures.gpu_time_ns)
    }

    pub(super) fn lock(&self) -> LockState {
        self.figures.as_ref().map_or(LockState::Idle, |figures| figures.lock)
    }

    /// Returns the state of the session in one word.
    pub(super) fn state(&self) -> &'static str {
        let lock = self.lock();
        let has_no_lock = matches!(lock, LockState::Idle | LockState::Waiting | LockState::Frozen);
        match self.facts.phase {
            SessionPhase::Paused if has_no_lock => "paused",
            SessionPhase::Expired if has_no_lock => "expired",
            SessionPhase::Revoked if has_no_lock => "revoked",
            _ => word(lock),
        }
    }

    /// Returns the bytes that the session has allocated on all cards.
    pub(super) fn allocated(&self) -> Bytes {
        let on_cards = self.figures.iter().flat_map(|figures| &figures.memory);
        on_cards.map(|on| on.allocated_bytes).sum()
    }

    /// Returns the remapped bytes that are on a card, and those that move; none without remapped memory.
    pub(super) fn resident(&self) -> Option<(Bytes, Bytes)> {
        let sum = |of: fn(&ResidenceView) -> Bytes| self.places.iter().map(of).sum();
        (!self.places.is_empty())
            .then(|| (sum(|place| place.resident_bytes), sum(|place| place.moving_bytes)))
    }

    /// Returns the sum of the session's quotas on the cards that it uses; none without a limit.
    pub(super) fn limit(&self) -> Option<Bytes> {
        let on_cards = &self.figures.as_ref()?.memory;
        let limits: Option<Vec<Bytes>> = on_cards.iter().map(|on| on.limit_bytes).collect();
        limits
            .filter(|limits| !limits.is_empty())
            .map(|limits| limits.into_iter().sum())
    }

    /// Returns the wait below which this part of the latest waits lies, in percent, by nearest rank.
    pub(super) fn wait(&self, percent: usize) -> Option<Nanos> {
        let mut waits: Vec<Nanos> = self.waits.iter().copied().collect();
        waits.sort_unstable();
        let rank = (waits.len() * percent).div_ceil(100);
        waits.get(rank.max(1) - 1).copied()
    }
}

/// Returns the word for a state of the lock.
pub(super) fn word(lock: LockState) -> &'static str {
    match lock {
        LockState::Idle => "idle",
        LockState::Waiting => "waiting",
        LockState::Moving => "moving",
        LockState::Holding => "holding",
        LockState::Dropping => "dropping",
        LockState::Stuck => "stuck",
        LockState::Frozen => "frozen",
    }
}

/// Returns a part of a duration in hundredths of a percent.
fn share(part: Nanos, whole: Nanos) -> u32 {
    let share = u128::from(part.0) * 10_000 / u128::from(whole.0.max(1));
    u32::try_from(share).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn ids(model: &Model) -> Vec<u64> {
        model.sessions.keys().map(|id| id.0).collect()
    }

    #[test]
    fn increments_change_only_what_they_name() {
        let mut model = sample::model();
        let before = model.sessions[&SessionId(4)].clone();
        let mut figures = model.sessions[&SessionId(3)].figures.clone().unwrap();
        figures.gpu_time_ns += Nanos::from_millis(250);
        let changes =
            vec![Increment::SessionFigures(figures), Increment::SessionEnded { session: SessionId(5) }];
        let at_ns = model.at + Nanos::from_secs(1);
        model.apply(Increments { at_ns, whole: false, changes });
        assert_eq!(ids(&model), [3, 4, 6]);
        assert_eq!(model.sessions[&SessionId(3)].share, Some(2_500));
        assert_eq!(model.sessions[&SessionId(4)].share, Some(0));
        assert_eq!(model.sessions[&SessionId(4)].figures, before.figures);
        assert_eq!(model.at, at_ns);
    }

    #[test]
    fn a_whole_state_replaces_what_was_known() {
        let mut model = sample::model();
        let busy = model.cards[&GpuId(0)].busy.len();
        let mut again = sample::whole();
        again.at_ns = model.at + Nanos::from_secs(1);
        again
            .changes
            .retain(|change| !matches!(change, Increment::Session(facts) if facts.session.0 == 3));
        model.apply(again);
        assert_eq!(ids(&model), [4, 5, 6]);
        assert_eq!(model.cards[&GpuId(0)].busy.len(), busy + 1, "a card keeps its history");
        assert_eq!(model.sessions[&SessionId(4)].waits.len(), 3);
    }

    #[test]
    fn a_daemon_that_is_younger_is_another_one() {
        let mut model = sample::model();
        model.apply(Increments { at_ns: Nanos::from_secs(1), whole: true, changes: Vec::new() });
        assert!(model.cards.is_empty() && model.sessions.is_empty());
        assert_eq!(model.at, Nanos::from_secs(1));
    }

    #[test]
    fn percentiles_of_waits_are_by_nearest_rank() {
        let mut session = sample::model().sessions[&SessionId(4)].clone();
        session.waits = (1..=50).map(Nanos::from_millis).collect();
        assert_eq!(session.wait(50), Some(Nanos::from_millis(25)));
        assert_eq!(session.wait(99), Some(Nanos::from_millis(50)));
        session.waits.truncate(1);
        assert_eq!((session.wait(50), session.wait(99)), (Some(Nanos::from_millis(1)), session.wait(50)));
        session.waits.clear();
        assert_eq!(session.wait(99), None);
    }

    #[test]
    fn sessions_that_only_a_card_names_are_strangers() {
        let mut model = sample::model();
        assert!(model.strangers().is_empty());
        model.sessions.remove(&SessionId(3));
        model.sessions.remove(&SessionId(4));
        let strangers: Vec<_> = model.strangers().into_iter().collect();
        assert_eq!(strangers, [(SessionId(3), LockState::Holding), (SessionId(4), LockState::Waiting)]);
        assert_eq!(model.name(SessionId(3)), "s3");
    }

    #[test]
    fn places_of_memory_are_those_of_the_last_message_about_them() {
        let mut model = sample::model();
        assert_eq!(model.sessions[&SessionId(4)].resident(), Some((Bytes::gib(19), Bytes::gib(3))));
        assert_eq!(model.sessions[&SessionId(5)].resident(), None);
        let gone = Increment::Residence { session: SessionId(4), places: Vec::new() };
        let at_ns = model.at + Nanos::from_secs(1);
        model.apply(Increments { at_ns, whole: false, changes: vec![gone] });
        assert_eq!(model.sessions[&SessionId(4)].resident(), None);
        let mut again = sample::whole();
        again.at_ns = at_ns;
        again.changes.retain(|change| !matches!(change, Increment::CardResidence(_)));
        model.apply(again);
        assert_eq!(model.cards[&GpuId(0)].residence, None, "a whole state without it has none");
    }
}
