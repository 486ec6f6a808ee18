//! Turns of a phase, as the sessions saw them: waits, gaps between turns, and the time that each side had.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use gpushare_proto::Nanos;

/// Change of a session that wants the card.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) client: usize,
    /// Time on the monotonic clock, which all processes share.
    pub(super) at: Nanos,
    pub(super) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Waits,
    Granted,
    Freed,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            What::Waits => "waits",
            What::Granted => "granted",
            What::Freed => "freed",
        };
        write!(f, "{} {} {what}", self.client, self.at.0)
    }
}

impl FromStr for Moment {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        let mut words = line.split(' ');
        let mut word = || words.next().context("too short");
        let (client, at) = (word()?.parse()?, Nanos(word()?.parse()?));
        let what = match word()? {
            "waits" => What::Waits,
            "granted" => What::Granted,
            "freed" => What::Freed,
            other => anyhow::bail!("{other} is nothing that happens"),
        };
        Ok(Self { client, at, what })
    }
}

/// Turns of the well-behaved sessions and of the attackers' user.
pub(super) struct Timeline {
    /// Everything that happened, in order; `true` of the attackers' user.
    moments: Vec<(Moment, bool)>,
    /// Period that counts.
    from: Nanos,
    to: Nanos,
}

impl Timeline {
    pub(super) fn new(good: &[Moment], rival: &[Moment], counted: RangeInclusive<Nanos>) -> Self {
        let good = good.iter().map(|&moment| (moment, false));
        let mut moments: Vec<_> = good.chain(rival.iter().map(|&moment| (moment, true))).collect();
        moments.sort_by_key(|(moment, _)| moment.at);
        Self { moments, from: *counted.start(), to: *counted.end() }
    }

    /// Waits of the well-behaved sessions, those included that have no end.
    pub(super) fn waits(&self) -> Vec<Duration> {
        let mut waits = Vec::new();
        let mut since = BTreeMap::new();
        for (moment, _) in self.moments.iter().filter(|(moment, rival)| !rival && moment.at <= self.to) {
            match moment.what {
                What::Waits => drop(since.insert(moment.client, moment.at)),
                What::Granted => {
                    let began = since.remove(&moment.client);
                    waits.extend(began.filter(|_| moment.at >= self.from).map(|began| moment.at - began));
                }
                What::Freed => {}
            }
        }
        // A session that still waits counts if it has waited for most of the phase.
        let long = Nanos((self.to - self.from).0 / 2);
        waits.extend(since.into_values().map(|began| self.to - began).filter(|wait| *wait >= long));
        waits.into_iter().map(Duration::from).collect()
    }

    /// Times from the end of a well-behaved session's turn to the next turn, if that is a well-behaved
    /// session's too.
    pub(super) fn handovers(&self) -> Vec<Duration> {
        let turns = self.moments.iter().filter(|(moment, _)| moment.what != What::Waits);
        let turns: Vec<_> = turns.collect();
        let pairs = turns.windows(2).filter_map(|pair| match pair {
            [(freed, false), (granted, false)] if freed.what == What::Freed => {
                Some((granted.at, granted.at - freed.at))
            }
            _ => None,
        });
        let inside = pairs.filter(|(at, _)| (self.from..=self.to).contains(at));
        inside.map(|(_, took)| took.into()).collect()
    }

    /// Number of well-behaved sessions that had a turn.
    pub(super) fn granted(&self) -> usize {
        let turns = self.moments.iter().filter(|(moment, rival)| {
            !rival && moment.what == What::Granted && (self.from..=self.to).contains(&moment.at)
        });
        turns.map(|(moment, _)| moment.client).collect::<BTreeSet<_>>().len()
    }

    /// Seconds for which the attackers' user had the card, and for which anybody had it.
    ///
    /// Both are from the user's first grant to its last one, so that the share is one of whole rounds.
    pub(super) fn held(&self) -> (f64, f64) {
        let grants = self.moments.iter().filter(|(moment, rival)| {
            *rival && moment.what == What::Granted && (self.from..=self.to).contains(&moment.at)
        });
        let grants: Vec<Nanos> = grants.map(|(moment, _)| moment.at).collect();
        let (from, to) = match grants[..] {
            [first, .., last] => (first, last),
            _ => (self.from, self.to),
        };
        let (mut rival, mut all) = (0.0, 0.0);
        let mut count = |is_rival, began: Nanos, ended: Nanos| {
            let held = seconds(began.max(from), ended.min(to));
            all += held;
            rival += if is_rival { held } else { 0.0 };
        };
        let mut since = BTreeMap::new();
        for &(moment, is_rival) in &self.moments {
            let session = (moment.client, is_rival);
            match moment.what {
                What::Granted => drop(since.insert(session, moment.at)),
                What::Freed => {
                    if let Some(began) = since.remove(&session) {
                        count(is_rival, began, moment.at);
                    }
                }
                What::Waits => {}
            }
        }
        for ((_, is_rival), began) in since {
            count(is_rival, began, to);
        }
        (rival, all)
    }
}

/// Length of a period in seconds; 0 if it ends before it begins.
fn seconds(from: Nanos, to: Nanos) -> f64 {
    if to > from { Duration::from(to - from).as_secs_f64() } else { 0.0 }
}
