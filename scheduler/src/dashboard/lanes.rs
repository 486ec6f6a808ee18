//! Timeline of a session: the shares of each tick in which it held a card, changed turns, and waited.
//!
//! ```text
//!   events   ──hold──╮wait────────────────╭─hold──────
//!   ticks    |100% hold|60% hold 40% wait|100% wait|…      a run is kept only where the shares change
//! ```
//!
//! Ticks bound what is kept and sent, however short the turns are.

use std::collections::VecDeque;

use gpushare_proto::Nanos;
use gpushare_proto::admin::Activity;
use serde::Serialize;

/// Length of a tick, the resolution of the timeline.
pub(super) const TICK: Nanos = Nanos::from_millis(250);
/// Number of ticks that the timeline shows: a minute.
pub(super) const WINDOW: u64 = 240;

/// Activity of a session, without its reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    #[default]
    Idle,
    Waiting,
    /// The session moves its memory in.
    Moving,
    Holding,
    /// The session's work in flight ends.
    Dropping,
}

impl From<&Activity> for State {
    fn from(activity: &Activity) -> Self {
        match activity {
            Activity::Idle => Self::Idle,
            Activity::Waiting { .. } => Self::Waiting,
            Activity::Moving => Self::Moving,
            Activity::Holding => Self::Holding,
            Activity::Dropping => Self::Dropping,
        }
    }
}

/// Shares of a tick in percent: held a card, moved memory or drained, and waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Shares(pub(super) u8, pub(super) u8, pub(super) u8);

/// Tick from which on a session had these shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Run(pub(super) u64, pub(super) Shares);

/// Timeline of one session.
#[derive(Debug, Default)]
pub(super) struct Lane {
    state: State,
    /// End of the time that `spent` contains.
    since: Nanos,
    /// Time of the present tick that was held, in between, and waited.
    spent: [Nanos; 3],
    runs: VecDeque<Run>,
}

impl Lane {
    pub(super) fn state(&self) -> State {
        self.state
    }

    /// Notes a new state from `at` on, in the tick that begins at `begin`.
    pub(super) fn turn(&mut self, at: Nanos, begin: Nanos, to: State) {
        self.spend(at.max(begin), begin);
        self.state = to;
    }

    /// Ends a tick. Returns the run that begins with it, if one does.
    pub(super) fn close(&mut self, tick: u64) -> Option<Run> {
        let begin = Nanos(tick * TICK.0);
        self.spend(begin + TICK, begin);
        let [held, between, waited] = std::mem::take(&mut self.spent);
        let percent = |time: Nanos| u8::try_from((time.0 * 100 + TICK.0 / 2) / TICK.0).unwrap_or(100);
        let shares = Shares(percent(held), percent(between), percent(waited));
        let last = self.runs.back().map(|run| run.1).unwrap_or_default();
        let run = (shares != last).then_some(Run(tick, shares));
        self.runs.extend(run);
        while self.runs.get(1).is_some_and(|next| next.0 + WINDOW <= tick) {
            self.runs.pop_front();
        }
        run
    }

    /// Whether the next tick has other shares than the last one even without an event.
    pub(super) fn is_mixed(&self) -> bool {
        let shares = self.runs.back().map(|run| run.1).unwrap_or_default();
        let pure = match self.state {
            State::Idle => Shares(0, 0, 0),
            State::Waiting => Shares(0, 0, 100),
            State::Moving | State::Dropping => Shares(0, 100, 0),
            State::Holding => Shares(100, 0, 0),
        };
        shares != pure
    }

    /// Returns the runs of the window. The first one may have begun before it.
    pub(super) fn runs(&self) -> Vec<Run> {
        self.runs.iter().copied().collect()
    }

    fn spend(&mut self, until: Nanos, begin: Nanos) {
        let time = until - self.since.max(begin);
        match self.state {
            State::Holding => self.spent[0] += time,
            State::Moving | State::Dropping => self.spent[1] += time,
            State::Waiting => self.spent[2] += time,
            State::Idle => {}
        }
        self.since = until.max(self.since);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ticks: u64, percent: u64) -> Nanos {
        Nanos((ticks * 100 + percent) * TICK.0 / 100)
    }

    #[test]
    fn a_tick_has_the_shares_of_its_states() {
        let mut lane = Lane::default();
        lane.turn(at(4, 20), at(4, 0), State::Waiting);
        lane.turn(at(4, 50), at(4, 0), State::Moving);
        lane.turn(at(4, 60), at(4, 0), State::Holding);
        assert_eq!(lane.close(4), Some(Run(4, Shares(40, 10, 30))));
        assert!(lane.is_mixed());
        assert_eq!(lane.close(5), Some(Run(5, Shares(100, 0, 0))));
        assert!(!lane.is_mixed());
        // Ticks without an event need not be closed.
        lane.turn(at(9, 50), at(9, 0), State::Dropping);
        assert_eq!(lane.close(9), Some(Run(9, Shares(50, 50, 0))));
    }

    #[test]
    fn equal_ticks_are_one_run_and_old_runs_are_forgotten() {
        let mut lane = Lane::default();
        lane.turn(at(0, 0), at(0, 0), State::Holding);
        assert_eq!((lane.close(0), lane.close(1)), (Some(Run(0, Shares(100, 0, 0))), None));
        for tick in 2..2 + 2 * WINDOW {
            let to = if tick % 2 == 0 { State::Idle } else { State::Holding };
            lane.turn(at(tick, 0), at(tick, 0), to);
            lane.close(tick);
        }
        // Those of the window, and the one in which it begins.
        assert_eq!(lane.runs().len() as u64, WINDOW + 1);
    }

    #[test]
    fn an_event_that_comes_late_counts_from_the_present_tick_on() {
        let mut lane = Lane::default();
        lane.turn(at(3, 90), at(4, 0), State::Holding);
        assert_eq!(lane.close(4), Some(Run(4, Shares(100, 0, 0))));
    }
}
