//! Recovery after a restart: grants wait for the processes of the last daemon.
//!
//! Processes of the last daemon may still run under its grants. Until each of them is back or dead, a new
//! grant could let two sessions run on one card.
//!
//! ```text
//!   start ──────── 1 s ─────────── stuck_after ──────────────────▶
//!   nothing is granted │ no grants on the cards of │ processes still away are reported; by `stuck_policy`:
//!                      │ processes that are away   │   wait        their cards stay as they are
//!                      │                           │   run_others  sessions run that fit beside the memory
//!                      │                           │               that they were known to use
//!                      │                           │   kill        they are killed, apart from those that the
//!                      │                           │               last daemon had frozen once
//! ```
//!
//! A process on no recorded card may have announced one just before the end. So it holds up all cards, until it
//! is overdue: whatever the policy, it then holds up none. Any tenant can leave such a process behind.
//!
//! The first second is for processes that joined just before the end and are not recorded in the registry file.

use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::{Bytes, ClientId, GpuId, Nanos};

use crate::config::{Config, StuckPolicy};
use crate::values::gpu_set::GpuSet;
use crate::values::small_map::ByGpu;

/// Duration within which a returned process must announce its cards after it joined.
const ANNOUNCEMENT: Nanos = Nanos::from_millis(50);

/// State of a process that the last daemon knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whereabouts {
    Away,
    /// The process has been away for so long that the policy for stuck processes applies.
    Overdue,
    /// The process is back, and may announce its cards until this point in time.
    Back {
        until: Nanos,
    },
}

#[derive(Clone, Debug)]
struct Awaited {
    is: Whereabouts,
    /// Number of bytes that the process used on each card, as the last daemon recorded.
    cards: ByGpu<Bytes>,
    /// Whether the process must not be killed, since the driver may have restored it.
    is_spared: bool,
}

impl Awaited {
    fn is_away(&self) -> bool {
        !matches!(self.is, Whereabouts::Back { .. })
    }

    fn may_use(&self, gpu: GpuId) -> bool {
        let announces = self.cards.is_empty() && self.is != Whereabouts::Overdue;
        announces || self.cards.contains(gpu)
    }

    /// Whether other sessions may run beside the process before it is back.
    fn is_passable(&self, policy: StuckPolicy) -> bool {
        self.is == Whereabouts::Overdue && (policy == StuckPolicy::RunOthers || self.cards.is_empty())
    }
}

/// Processes that the last daemon knew, and the state of the recovery after the restart.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    awaited: BTreeMap<ClientId, Awaited>,
    started: Nanos,
    not_before: Nanos,
    overdue_at: Nanos,
    policy: StuckPolicy,
    /// Counter that grows whenever the expected processes or their cards change.
    changes: u64,
    /// Whether the shortest duration of a recovery is not over.
    early: bool,
    over: bool,
}

impl Recovery {
    /// Waits for the processes `expected`, and if there are any, at least for `recovery_min`.
    pub(crate) fn new(expected: BTreeSet<ClientId>, started: Nanos, config: &Config) -> Self {
        let away = |client| {
            let is = Whereabouts::Away;
            let cards = ByGpu::default();
            (client, Awaited { is, cards, is_spared: false })
        };
        Self {
            over: expected.is_empty(),
            early: !expected.is_empty(),
            awaited: expected.into_iter().map(away).collect(),
            started,
            not_before: started + config.recovery_min,
            overdue_at: started + config.recovery_min.max(config.stuck_after),
            policy: config.stuck_policy,
            changes: 0,
        }
    }

    /// Changes the policy for processes that have been away for too long.
    pub(crate) fn follow(&mut self, policy: StuckPolicy) {
        self.policy = policy;
    }

    /// Waits at least for `recovery_min`, for processes that are in no registry file.
    pub(crate) fn expect_others(&mut self) {
        (self.over, self.early) = (false, true);
    }

    /// Notes the memory that an expected process used on a card.
    pub(crate) fn uses(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        if let Some(awaited) = self.awaited.get_mut(&client).filter(|awaited| awaited.is_away()) {
            awaited.cards.insert(gpu, bytes);
            self.changes += 1;
        }
    }

    /// Notes that an expected process must not be killed.
    pub(crate) fn spare(&mut self, client: ClientId) {
        if let Some(awaited) = self.awaited.get_mut(&client) {
            awaited.is_spared = true;
        }
    }

    /// Whether an expected process must not be killed.
    pub(crate) fn spares(&self, client: ClientId) -> bool {
        self.awaited.get(&client).is_some_and(|awaited| awaited.is_spared)
    }

    /// Whether processes may still return that are not recorded in the registry.
    pub(crate) fn is_early(&self) -> bool {
        self.early
    }

    /// Whether grants must wait on at least one card.
    pub(crate) fn is_running(&self) -> bool {
        self.early || self.awaited.values().any(|client| !client.is_passable(self.policy))
    }

    /// Whether grants must wait on any of the cards `cards`.
    pub(crate) fn holds_up(&self, cards: GpuSet) -> bool {
        let bars = |gpu| {
            let mut barring = self.awaited.values().filter(|client| !client.is_passable(self.policy));
            barring.any(|client| client.may_use(gpu))
        };
        !self.over && (self.early || cards.into_iter().any(bars))
    }

    /// Whether processes of the last daemon are about to return to a card and are not overdue.
    pub(crate) fn returns_to(&self, gpu: GpuId) -> bool {
        let in_time = |client: &Awaited| match client.is {
            Whereabouts::Away => true,
            Whereabouts::Overdue => false,
            Whereabouts::Back { until } => until <= self.overdue_at + ANNOUNCEMENT,
        };
        let returns = |client: &Awaited| in_time(client) && client.may_use(gpu);
        !self.over && (self.early || self.awaited.values().any(returns))
    }

    /// Number of processes of the last daemon that are neither back nor dead.
    pub(crate) fn awaited(&self) -> u32 {
        count(self.awaited.values().filter(|client| client.is_away()))
    }

    /// Processes that are away and may use any of `cards`; all that are away if `cards` is empty.
    pub(crate) fn away_from(&self, cards: GpuSet) -> impl Iterator<Item = ClientId> {
        let here =
            move |client: &Awaited| cards.is_empty() || cards.into_iter().any(|gpu| client.may_use(gpu));
        let away = self.awaited.iter().filter(|(_, client)| client.is_away());
        away.filter(move |(_, client)| here(client)).map(|(&id, _)| id)
    }

    /// Bytes that processes that are away use on a card.
    pub(crate) fn used(&self, gpu: GpuId) -> Bytes {
        if self.over {
            return Bytes::ZERO;
        }
        let away = self.awaited.values().filter(|client| client.is_away());
        away.filter_map(|client| client.cards.get(gpu)).copied().sum()
    }

    /// Bytes on a card of overdue processes beside which others may run.
    pub(crate) fn overdue(&self, gpu: GpuId) -> Bytes {
        if self.over {
            return Bytes::ZERO;
        }
        let passable = self.awaited.values().filter(|client| client.is_passable(self.policy));
        passable.filter_map(|client| client.cards.get(gpu)).copied().sum()
    }

    /// Whether the last daemon knew the process and it is neither back nor dead.
    pub(crate) fn is_awaited(&self, client: ClientId) -> bool {
        self.awaited.get(&client).is_some_and(Awaited::is_away)
    }

    /// Notes that a process joined, and returns whether it was expected.
    pub(crate) fn returned(&mut self, client: ClientId, now: Nanos) -> bool {
        let Some(awaited) = self.awaited.get_mut(&client).filter(|awaited| awaited.is_away()) else {
            return false;
        };
        if awaited.is == Whereabouts::Overdue && awaited.cards.is_empty() {
            // Nothing waited for it any more, and nothing does again.
            self.awaited.remove(&client);
        } else {
            awaited.is = Whereabouts::Back { until: now + ANNOUNCEMENT };
        }
        self.changes += 1;
        true
    }

    /// Notes that a process is dead.
    pub(crate) fn gone(&mut self, client: ClientId) {
        self.changes += u64::from(self.awaited.remove(&client).is_some());
    }

    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether no process is awaited any more.
    pub(crate) const fn is_over(&self) -> bool {
        self.over
    }

    /// Duration since the start of the daemon.
    pub(crate) fn waited(&self, now: Nanos) -> Nanos {
        now - self.started
    }

    /// Advances the recovery to the time `now`. Returns the processes that became overdue, and the duration
    /// of the recovery if it ended.
    pub(crate) fn advance(&mut self, now: Nanos) -> (Vec<ClientId>, Option<Nanos>) {
        if self.over {
            return (Vec::new(), None);
        }
        self.early &= now < self.not_before;
        self.awaited
            .retain(|_, client| !matches!(client.is, Whereabouts::Back { until } if until <= now));
        let mut overdue = Vec::new();
        if now >= self.overdue_at {
            for (&id, client) in &mut self.awaited {
                if client.is == Whereabouts::Away {
                    client.is = Whereabouts::Overdue;
                    overdue.push(id);
                }
            }
        }
        self.over = !self.early && self.awaited.is_empty();
        (overdue, self.over.then(|| now - self.started))
    }

    /// Point in time at which `advance` changes something.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        if self.over {
            return None;
        }
        let early = self.early.then_some(self.not_before);
        let next = self.awaited.values().filter_map(|client| match client.is {
            Whereabouts::Away => Some(self.overdue_at),
            Whereabouts::Back { until } => Some(until),
            Whereabouts::Overdue => None,
        });
        early.into_iter().chain(next).min()
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    fn after(expected: impl Into<BTreeSet<ClientId>>) -> Recovery {
        Recovery::new(expected.into(), Nanos(0), &Config::default())
    }

    #[test]
    fn a_first_daemon_waits_for_no_process() {
        let first = after([]);
        assert!(!first.is_running() && !first.holds_up(GpuId(0).into()));
        assert_eq!(first.deadline(), None);
    }

    #[test]
    fn a_process_in_no_registry_has_a_second() {
        let mut recovery = after([]);
        recovery.expect_others();
        assert!(recovery.is_running());
        assert_eq!(recovery.deadline(), Some(SECOND));
        assert_eq!(recovery.advance(SECOND), (vec![], Some(SECOND)));
        assert!(!recovery.is_running());
    }

    #[test]
    fn the_last_process_back_has_time_to_announce_its_cards() {
        let mut recovery = after([ClientId(1), ClientId(2)]);
        recovery.uses(ClientId(1), GpuId(0), Bytes(1));
        recovery.gone(ClientId(2));
        assert_eq!(recovery.advance(SECOND), (vec![], None), "client 1 is awaited");
        assert_eq!(recovery.deadline(), Some(Nanos::from_secs(5)), "it is overdue then");
        let late = Nanos::from_secs(9);
        assert_eq!(recovery.advance(late), (vec![ClientId(1)], None));
        assert_eq!(recovery.deadline(), None);
        assert!(recovery.returned(ClientId(1), late));
        assert!(!recovery.returned(ClientId(1), late));
        assert_eq!(recovery.advance(late), (vec![], None));
        assert_eq!(recovery.deadline(), Some(late + ANNOUNCEMENT));
        let end = late + ANNOUNCEMENT;
        assert_eq!(recovery.advance(end), (vec![], Some(end)));
        assert!(!recovery.is_running());
    }
}
