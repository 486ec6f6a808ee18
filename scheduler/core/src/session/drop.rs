//! Drop of a lock (request to give it back): closes a session's gates and waits for its drain. A drop adds no
//! wait that the program would not have natively.
//!
//! ```text
//!   close ──▶ Closed ──late, a thread sleeps at the gate──▶ Reopened ──pause over──▶ close, more patient
//!               │ ╲──late, no thread at the gate──▶ stays closed until a thread comes or the work ends
//!               ▼
//!            released
//! ```
//!
//! Work in flight may wait for the very thread that sleeps at the gate: a collective's proxy, a host
//! function, a kernel that spins on a flag. That looks like work that is merely long, so a late drop with a
//! sleeping thread is undone and tried again. Each try is twice as patient as the one before, up to the
//! longest quantum. So a program that runs a second ahead is drained after a few tries, and one that needs
//! its thread waits no longer than another session's turn.
//!
//! A thread undoes a drop only after it has slept for the drain target. A program that waits for its work and
//! then launches more may reach the gate before the end of its drain is reported.
//!
//! Where no memory moves, the drop gives way before the drain has ended: the next session begins when the
//! processes report that their work is about to end, so that the card does not run dry. Processes without
//! such a report give way when the drain has taken as long as expected. If drains usually take less than
//! [`LEAD`], the gates stay open for the rest of it.
//!
//! ```text
//!   usual drain 4 ms    gates closed ────── nearly drained ─▶ drained    0.3 ms    gates open ───▶ drained
//!                                    next begins ─▶                            next begins ─▶
//! ```

use gpushare_proto::Nanos;

use crate::config::{Config, StuckPolicy};

/// Duration before the expected end of a drain at which the next session may begin where no memory moves. A
/// shorter one lets the card run dry, since a thread has to wake up and launch. In a longer one the driver
/// changes between the two contexts more often, and each change costs time.
pub(crate) const LEAD: Nanos = Nanos::from_millis(1);

/// Longest time from a drop's beginning for which a thaw keeps its session from counting as stuck.
const LONGEST_THAW: Nanos = Nanos::from_secs(60);

/// Action that a drop asks the decision machine for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Opens the session's gates again under the same epoch.
    Reopen,
    /// Closes the session's gates.
    Close,
    /// Lets another session begin beside the drain.
    GiveWay,
    /// Reports that the session does not give the lock back, with the reason.
    Report(String),
    /// Kills the session's processes, apart from those that are spared (`frost.rs`).
    Kill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Closed { since: Nanos, late_at: Nanos },
    Reopened { until: Nanos },
}

/// Drop (request to give the lock back) that is not complete.
#[derive(Clone, Debug)]
pub(crate) struct PendingDrop {
    since: Nanos,
    patience: Nanos,
    tries: u32,
    phase: Phase,
    /// Point in time since which a thread sleeps at the closed gate.
    sleeper: Option<Nanos>,
    /// Time and number of tries from which on the session may count as stuck.
    patient_until: (Nanos, u32),
    /// Whether the session comes back from a freeze.
    comes_back: bool,
    stuck: Option<String>,
    killed: bool,
    drain: Nanos,
    /// Point in time from which another session may begin beside the drain in any case; `None` where memory
    /// moves.
    gives_way_at: Option<Nanos>,
    gives_way: bool,
}

impl PendingDrop {
    /// Creates a drop whose gates were closed at the time `now`, with the expected duration of its drain.
    pub(crate) fn new(now: Nanos, expected_drain: Nanos, config: &Config) -> Self {
        let usual = config.drain_target.max(expected_drain).max(Nanos(1));
        let patience = Nanos(usual.0.saturating_mul(u64::from(config.late_factor.max(1))));
        Self {
            since: now,
            patience,
            tries: 0,
            phase: Phase::Closed { since: now, late_at: now + patience },
            sleeper: None,
            patient_until: (now, 0),
            comes_back: false,
            stuck: None,
            killed: false,
            drain: Nanos::ZERO,
            gives_way_at: None,
            gives_way: false,
        }
    }

    /// Lets another session begin beside the drain once that is about to end, at the latest after the time
    /// `longest`. If drains `usually` take less than [`LEAD`], the other one may begin at once. Then the gates stay
    /// open for the rest of it, unless the drop is `pressing`.
    #[must_use]
    pub(crate) fn overlapping(mut self, usually: Nanos, longest: Nanos, pressing: bool) -> Self {
        (self.gives_way_at, self.gives_way) = (Some(self.since + longest), usually < LEAD);
        if !pressing && usually < LEAD {
            self.phase = Phase::Reopened { until: self.since + (LEAD - usually) };
        }
        self
    }

    /// Whether another session may begin beside the drain. A late one keeps its room.
    pub(crate) const fn gives_way(&self) -> bool {
        self.gives_way && self.tries == 0
    }

    /// Point in time at which the session was asked to give the lock back.
    pub(crate) const fn since(&self) -> Nanos {
        self.since
    }

    pub(crate) const fn tries(&self) -> u32 {
        self.tries
    }

    /// Whether the session's gates are open: between two tries, or for the next session to begin beside it.
    pub(crate) const fn is_reopened(&self) -> bool {
        matches!(self.phase, Phase::Reopened { .. })
    }

    /// Whether the session's gates were closed, however briefly.
    pub(crate) const fn was_closed(&self) -> bool {
        self.tries > 0 || !self.is_reopened()
    }

    /// Reason why the session does not give the lock back, if it is stuck.
    pub(crate) fn stuck(&self) -> Option<&str> {
        self.stuck.as_deref()
    }

    /// Adds to the reason that a process of the session is not killed.
    pub(crate) fn spare(&mut self) {
        if let Some(reason) = &mut self.stuck {
            reason.push_str("; it is not killed, because the driver has frozen it before or does so now");
        }
    }

    /// Longest drain duration of the session's processes.
    pub(crate) const fn drain(&self) -> Nanos {
        self.drain
    }

    /// Notes the drain duration that a process claims, at most the time for which its gate was closed.
    pub(crate) fn drained(&mut self, now: Nanos, claimed: Nanos) {
        if let Phase::Closed { since, .. } = self.phase {
            self.drain = self.drain.max(claimed.min(now - since));
        }
    }

    /// Notes whether the session comes back from a freeze, so that it cannot drain now. Only what comes afterwards
    /// makes it stuck. A process may hold up its own thaw, so a drop is excused for [`LONGEST_THAW`] at most.
    pub(crate) fn excuse(&mut self, now: Nanos, comes_back: bool) {
        if self.comes_back && !comes_back {
            self.patient_until = (now.min(self.since + LONGEST_THAW), self.tries);
        }
        self.comes_back = comes_back;
    }

    /// Advances the drop to the time `now`, and returns the actions. `sleeper` says whether a thread of the
    /// session sleeps at a gate, and `ends_soon` whether its processes expect the end of their drains.
    pub(crate) fn advance(
        &mut self,
        now: Nanos,
        sleeper: bool,
        ends_soon: bool,
        config: &Config,
    ) -> Vec<Step> {
        self.sleeper = sleeper.then(|| self.sleeper.unwrap_or(now));
        let steps = [
            self.turn(now, config),
            self.give_way(now, ends_soon),
            self.report(now, sleeper, config),
            self.kill(now, config),
        ];
        steps.into_iter().flatten().collect()
    }

    fn give_way(&mut self, now: Nanos, ends_soon: bool) -> Option<Step> {
        let due = !self.gives_way && self.gives_way_at.is_some_and(|at| ends_soon || now >= at);
        self.gives_way |= due;
        due.then_some(Step::GiveWay)
    }

    fn turn(&mut self, now: Nanos, config: &Config) -> Option<Step> {
        match self.phase {
            Phase::Closed { late_at, .. } if self.undo_at(late_at, config).is_some_and(|at| now >= at) => {
                self.tries = self.tries.saturating_add(1);
                let pause = doubled(config.drain_target, self.tries).min(config.retry_max);
                self.phase = Phase::Reopened { until: now + pause.max(Nanos(1)) };
                Some(Step::Reopen)
            }
            Phase::Reopened { until } if now >= until => {
                let longest = config.quantum_max.max(self.patience);
                self.phase = Phase::Closed {
                    since: now,
                    late_at: now + doubled(self.patience, self.tries).min(longest),
                };
                Some(Step::Close)
            }
            _ => None,
        }
    }

    /// Point in time at which a drop that is late at `late_at` is undone if a thread sleeps at the gate.
    fn undo_at(&self, late_at: Nanos, config: &Config) -> Option<Nanos> {
        Some(late_at.max(self.sleeper? + config.drain_target))
    }

    fn report(&mut self, now: Nanos, sleeper: bool, config: &Config) -> Option<Step> {
        if self.stuck.is_some() {
            return None;
        }
        let has_tried = !self.comes_back && self.tries - self.patient_until.1 >= config.stuck_tries;
        if !has_tried && now < self.stuck_at(config) {
            return None;
        }
        let closed = now - self.since;
        self.stuck = Some(match sleeper {
            false => format!(
                "its work in flight has not ended after {closed}, and none of its threads waits at the gate"
            ),
            true => format!(
                "it has not drained after {closed} and {} tries, each undone because a thread waited at its gate",
                self.tries
            ),
        });
        self.stuck.clone().map(Step::Report)
    }

    /// Point in time from which the session counts as stuck, however often the drop was tried.
    fn stuck_at(&self, config: &Config) -> Nanos {
        match self.comes_back {
            true => self.since + LONGEST_THAW.max(config.stuck_after),
            false => self.patient_until.0 + config.stuck_after,
        }
    }

    /// Kills only after `stuck_after`, not after a number of tries: a program that runs far ahead must not be
    /// killed.
    fn kill(&mut self, now: Nanos, config: &Config) -> Option<Step> {
        let due = self.stuck.is_some()
            && !self.killed
            && config.stuck_policy == StuckPolicy::Kill
            && now >= self.stuck_at(config);
        self.killed |= due;
        due.then_some(Step::Kill)
    }

    /// Point in time at which `advance` does something if no event comes before.
    pub(crate) fn deadline(&self, now: Nanos, config: &Config) -> Option<Nanos> {
        let phase = match self.phase {
            Phase::Closed { late_at, .. } => self.undo_at(late_at, config).unwrap_or(late_at),
            Phase::Reopened { until } => until,
        };
        let kill = config.stuck_policy == StuckPolicy::Kill && !self.killed;
        let stuck = (self.stuck.is_none() || kill).then(|| self.stuck_at(config));
        [Some(phase), stuck, self.gives_way_at]
            .into_iter()
            .flatten()
            .filter(|&at| at > now)
            .min()
    }
}

/// Returns `span × 2^times`.
fn doubled(span: Nanos, times: u32) -> Nanos {
    Nanos(span.0.saturating_mul(1 << times.min(32)))
}
