//! A simulated session: what it has, what it was promised, and what it does with a card. What a scheduler
//! is told of it is said in one place, [`Tenant::introduction`].

use gpushare_core::Event;
use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos, Percent, SessionId};
use gpushare_tests::dice::Dice;
use serde::Deserialize;

use super::between::Between;

/// The weight of a session that was given none.
pub(super) const WEIGHT: u32 = 100;

/// Program of a session.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Program {
    /// Program that always has work.
    Hog,
    /// A burst of work, and the next one so long after it began, or at once if it took longer.
    Bursts {
        /// The card's time for one, alone.
        work: Between<Nanos>,
        /// From one to the next.
        every: Between<Nanos>,
    },
    /// Steps, and so much on the host after each.
    Steps {
        /// The card's time for one, alone.
        work: Between<Nanos>,
        /// The host's time after it.
        host: Between<Nanos>,
    },
    /// These, and then it ends.
    #[serde(skip)]
    Recorded(Vec<Piece>),
}

/// Work of a recorded session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Since the end of the last.
    pub(super) pause: Nanos,
    /// The card's time, alone.
    pub(super) work: Nanos,
}

/// One session of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tenant {
    pub(super) name: String,
    pub(super) arrives: Nanos,
    /// All of them at once, in order.
    pub(super) gpus: Vec<GpuId>,
    /// Its working set on each of them.
    pub(super) memory: Bytes,
    pub(super) weight: u32,
    pub(super) priority: Priority,
    /// The most that it may have of a card.
    pub(super) compute: Percent,
    pub(super) program: Program,
    /// Work on each card after which the session ends; without it the session never ends.
    pub(super) work: Option<Nanos>,
    /// Random numbers of the session alone, so that they do not depend on the scheduler.
    pub(super) seed: u64,
}

impl Tenant {
    /// Events that gpushare's core gets when session and process `number` arrive.
    pub(super) fn introduction(&self, number: u64, capacity: Bytes) -> Vec<Event> {
        let (session, client) = (SessionId(number), ClientId(number));
        let mut events = vec![
            Event::SessionOpened { session, limit: None, oversubscribe: self.memory > capacity },
            Event::Share { session, weight: self.weight, priority: self.priority },
            Event::ClientJoined { client, session, holding: None },
        ];
        for &gpu in &self.gpus {
            let limit = Some(self.compute).filter(|limit| limit.0 < 10_000);
            events.push(Event::Compute { session, gpu, limit });
            let used = self.memory;
            events.push(Event::Attached { client, gpu, used });
            events.push(Event::Contexts { client, gpu, live: 1 });
        }
        events
    }

    /// Work of the session from its arrival on.
    pub(super) fn phases(&self) -> Phases<'_> {
        Phases { tenant: self, dice: Dice::new(self.seed), given: Nanos::ZERO, count: 0 }
    }
}

/// A stretch of work that a session asks for at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    /// When it begins, if the last one began then and ended then.
    pub(super) begins: Nanos,
    /// On each card, alone.
    pub(super) work: Nanos,
}

/// The work of a session, piece by piece.
#[derive(Debug)]
pub(super) struct Phases<'a> {
    tenant: &'a Tenant,
    dice: Dice,
    /// Work so far.
    given: Nanos,
    count: usize,
}

impl Phases<'_> {
    /// The next one, after one that began and ended then; none when the session is done.
    pub(super) fn next(&mut self, began: Nanos, ended: Nanos) -> Option<Phase> {
        let left = self.tenant.work.map_or(Nanos::MAX, |work| work - self.given);
        let first = self.count == 0;
        let (begins, work) = match &self.tenant.program {
            Program::Hog => (ended, Nanos::MAX),
            Program::Bursts { work, every } => {
                let (work, every) = (work.draw(&mut self.dice), every.draw(&mut self.dice));
                let begins = if first { ended } else { ended.max(began + every) };
                (begins, work)
            }
            Program::Steps { work, host } => {
                let (work, host) = (work.draw(&mut self.dice), host.draw(&mut self.dice));
                (if first { ended } else { ended + host }, work)
            }
            Program::Recorded(pieces) => {
                let piece = pieces.get(self.count)?;
                (ended + piece.pause, piece.work)
            }
        };
        let work = work.min(left);
        if work.is_zero() {
            return None;
        }
        self.count += 1;
        self.given += work;
        Some(Phase { begins, work })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Nanos {
        Nanos::from_millis(n)
    }

    fn tenant(program: Program, work: Option<Nanos>) -> Tenant {
        Tenant {
            name: "a".to_owned(),
            arrives: Nanos::ZERO,
            gpus: vec![GpuId(0)],
            memory: Bytes::gib(1),
            weight: WEIGHT,
            priority: Priority::Normal,
            compute: Percent(10_000),
            program,
            work,
            seed: 1,
        }
    }

    #[test]
    fn a_hog_asks_for_all_of_its_work_at_once() {
        let hog = tenant(Program::Hog, Some(ms(70)));
        let mut phases = hog.phases();
        let phase = Phase { begins: ms(3), work: ms(70) };
        assert_eq!(phases.next(ms(3), ms(3)), Some(phase));
        assert_eq!(phases.next(ms(3), ms(90)), None);
    }

    #[test]
    fn a_late_burst_is_followed_at_once_and_the_last_one_is_what_is_left() {
        let every = Between::exactly(ms(100));
        let work = Between::exactly(ms(10));
        let bursts = tenant(Program::Bursts { work, every }, Some(ms(25)));
        let mut phases = bursts.phases();
        let begins = |phase: Option<Phase>| phase.map(|phase| (phase.begins, phase.work));
        assert_eq!(begins(phases.next(ms(0), ms(0))), Some((ms(0), ms(10))));
        assert_eq!(begins(phases.next(ms(0), ms(20))), Some((ms(100), ms(10))));
        assert_eq!(begins(phases.next(ms(100), ms(250))), Some((ms(250), ms(5))));
        assert_eq!(begins(phases.next(ms(250), ms(260))), None);
    }

    #[test]
    fn the_host_has_its_time_after_each_step() {
        let (work, host) = (Between::exactly(ms(10)), Between::exactly(ms(4)));
        let steps = tenant(Program::Steps { work, host }, None);
        let mut phases = steps.phases();
        assert_eq!(phases.next(ms(0), ms(0)).unwrap().begins, ms(0));
        assert_eq!(phases.next(ms(0), ms(10)).unwrap().begins, ms(14));
    }
}
