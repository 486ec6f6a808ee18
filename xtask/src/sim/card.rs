//! A card in virtual time: who works on it how fast, whose memory is there, and what its link carries.
//!
//! - **Work.** Each session with work in flight has an equal share of the card. So one number, the work that
//!   each of them was given so far, says when a session is done: at a fixed value of it. Where the sessions
//!   that run at once do not fit the card, all of it takes longer.
//! - **Memory.** A session's memory comes in before it runs. What ran least recently goes out for it, at the
//!   same time over the other half of the link; only what comes in is counted.
//! - **Link.** One after the other.

use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::{Bytes, Nanos};

use super::policy::Who;
use super::trace::Machine;

/// Work on a card, in nanoseconds of the whole card.
pub(super) type Work = f64;

/// A remainder below this is none: times are whole nanoseconds, work is not.
const NOTHING: Work = 0.5;

/// One card.
#[derive(Debug)]
pub(super) struct Card {
    capacity: Bytes,
    bandwidth: Bytes,
    thrashing: f64,
    slicing: f64,
    /// Work that each working session was given so far, up to `since`.
    given: Work,
    since: Nanos,
    jobs: BTreeMap<Who, Job>,
    /// By what must have been given; non-negative floats are in the order of their bits.
    ends: BTreeSet<(u64, Who)>,
    /// Of those who work.
    working_set: Bytes,
    resident: BTreeMap<Who, Residence>,
    by_age: BTreeSet<(Nanos, Who)>,
    free: Bytes,
    link_free: Nanos,
    /// To the card so far.
    pub(super) moved: Bytes,
    /// Whether somebody else moves memory, so that what a session needs is there when it works.
    pub(super) holds_all: bool,
}

#[derive(Clone, Copy, Debug)]
struct Job {
    begin: Work,
    end: Work,
    memory: Bytes,
}

#[derive(Clone, Copy, Debug)]
struct Residence {
    bytes: Bytes,
    used: Nanos,
}

impl Card {
    pub(super) fn new(machine: &Machine) -> Self {
        Self {
            capacity: machine.capacity,
            bandwidth: machine.bandwidth,
            thrashing: machine.thrashing,
            slicing: machine.slicing,
            given: 0.0,
            since: Nanos::ZERO,
            jobs: BTreeMap::new(),
            ends: BTreeSet::new(),
            working_set: Bytes::ZERO,
            resident: BTreeMap::new(),
            by_age: BTreeSet::new(),
            free: machine.capacity,
            link_free: Nanos::ZERO,
            moved: Bytes::ZERO,
            holds_all: false,
        }
    }

    /// How long a nanosecond of work takes each of those who work.
    fn slowness(&self) -> f64 {
        let thrashes = self.working_set > self.capacity;
        let several = self.jobs.len() as f64 * if self.jobs.len() > 1 { self.slicing } else { 1.0 };
        several * if thrashes { self.thrashing } else { 1.0 }
    }

    /// Gives work up to `now`.
    fn advance(&mut self, now: Nanos) {
        if !self.jobs.is_empty() {
            self.given += (now - self.since).0 as f64 / self.slowness();
        }
        self.since = now;
    }

    /// `who` works on `work` from now on.
    pub(super) fn start(&mut self, now: Nanos, who: Who, work: Work, memory: Bytes) {
        self.advance(now);
        let (begin, end) = (self.given, self.given + work);
        self.jobs.insert(who, Job { begin, end, memory });
        self.ends.insert((end.to_bits(), who));
        self.working_set += memory;
        self.touch(now, who);
    }

    /// `who` has at most `window` in flight and starts no more.
    pub(super) fn shorten(&mut self, now: Nanos, who: Who, window: Work) {
        self.advance(now);
        if let Some(job) = self.jobs.get_mut(&who) {
            let end = job.end.min(self.given + window);
            self.ends.remove(&(job.end.to_bits(), who));
            self.ends.insert((end.to_bits(), who));
            job.end = end;
        }
    }

    /// `who` works no more; what it has done.
    pub(super) fn stop(&mut self, now: Nanos, who: Who) -> Work {
        self.advance(now);
        let Some(job) = self.jobs.remove(&who) else {
            return 0.0;
        };
        self.ends.remove(&(job.end.to_bits(), who));
        self.working_set -= job.memory;
        self.touch(now, who);
        match job.end - self.given {
            left if left < NOTHING => job.end - job.begin,
            _ => self.given - job.begin,
        }
    }

    /// When the next of those who work is done, if nothing changes.
    pub(super) fn next_end(&self) -> Option<Nanos> {
        let (end, _) = self.ends.first()?;
        Some(self.time_of(f64::from_bits(*end)))
    }

    /// When `who` is done, if nothing changes.
    pub(super) fn end_of(&self, who: Who) -> Option<Nanos> {
        Some(self.time_of(self.jobs.get(&who)?.end))
    }

    fn time_of(&self, end: Work) -> Nanos {
        let left = (end - self.given).max(0.0);
        // Casts of floats saturate.
        self.since + Nanos((left * self.slowness()).ceil() as u64)
    }

    /// Sessions whose work is done by `now`.
    pub(super) fn done(&mut self, now: Nanos) -> Vec<Who> {
        self.advance(now);
        let done = self
            .ends
            .iter()
            .take_while(|(end, _)| f64::from_bits(*end) < self.given + NOTHING);
        done.map(|(_, who)| *who).collect()
    }

    /// Whether so much fits beside those who work.
    pub(super) fn has_room_beside(&self, memory: Bytes) -> bool {
        self.working_set + memory <= self.capacity
    }

    /// Bytes of the session's memory that must come in.
    pub(super) fn missing(&self, who: Who, memory: Bytes) -> Bytes {
        if self.holds_all {
            return Bytes::ZERO;
        }
        memory.min(self.capacity) - self.resident.get(&who).map_or(Bytes::ZERO, |there| there.bytes)
    }

    /// Brings in what is missing, as far as there is room beside those who work: how much, and when it is
    /// there.
    pub(super) fn bring_in(&mut self, now: Nanos, who: Who, memory: Bytes) -> (Bytes, Nanos) {
        self.make_room(who, memory);
        let bytes = self.missing(who, memory).min(self.free);
        if bytes.is_zero() {
            return (bytes, now);
        }
        self.free -= bytes;
        self.touch(now, who);
        self.resident
            .entry(who)
            .or_insert(Residence { bytes: Bytes::ZERO, used: now })
            .bytes += bytes;
        self.by_age.insert((now, who));
        self.moved += bytes;
        let nanos = u128::from(bytes.0) * 1_000_000_000 / u128::from(self.bandwidth.0);
        self.link_free = self.link_free.max(now) + Nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        (bytes, self.link_free)
    }

    /// Moves memory out, least recently used first, until the entrant's missing memory has room. The
    /// entrant's own memory is moved out like any other: where it is the oldest, it is missing afterwards.
    fn make_room(&mut self, entrant: Who, memory: Bytes) {
        let (mut missing, mut out) = (self.missing(entrant, memory), Vec::new());
        for &(used, who) in &self.by_age {
            if self.free >= missing {
                break;
            }
            if self.jobs.contains_key(&who) {
                continue;
            }
            let Some(there) = self.resident.get_mut(&who) else {
                continue;
            };
            let goes = there.bytes.min(missing - self.free);
            there.bytes -= goes;
            self.free += goes;
            if who == entrant {
                missing += goes;
            }
            if there.bytes.is_zero() {
                out.push((used, who));
            }
        }
        for place in out {
            self.resident.remove(&place.1);
            self.by_age.remove(&place);
        }
    }

    fn touch(&mut self, now: Nanos, who: Who) {
        if let Some(there) = self.resident.get_mut(&who) {
            self.by_age.remove(&(there.used, who));
            there.used = now;
            self.by_age.insert((now, who));
        }
    }

    /// `who` has ended and its memory is free.
    pub(super) fn forget(&mut self, who: Who) {
        if let Some(there) = self.resident.remove(&who) {
            self.by_age.remove(&(there.used, who));
            self.free += there.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Nanos {
        Nanos::from_millis(n)
    }

    /// 10 GB at 10 GB a second, three times slower where it thrashes.
    fn card() -> Card {
        Card::new(&Machine {
            gpus: 1,
            capacity: Bytes(10_000_000_000),
            bandwidth: Bytes(10_000_000_000),
            window: ms(10),
            thrashing: 3.0,
            slicing: 1.0,
        })
    }

    const GB: Bytes = Bytes(1_000_000_000);
    const WORK: Work = 30e6;

    #[test]
    fn two_who_work_at_once_have_half_each() {
        let mut card = card();
        card.start(ms(0), 1, WORK, GB);
        assert_eq!(card.next_end(), Some(ms(30)));
        card.start(ms(10), 2, WORK, GB);
        assert_eq!(card.next_end(), Some(ms(50)), "20 ms are left of the first, at half the speed");
        assert_eq!(card.done(ms(50)), [1]);
        assert_eq!(card.stop(ms(50), 1), WORK);
        assert_eq!(card.next_end(), Some(ms(60)));
        assert_eq!(card.stop(ms(55), 2), 25e6);
        assert_eq!(card.next_end(), None);
    }

    #[test]
    fn changes_between_two_who_work_at_once_take_time_too() {
        let mut card = card();
        card.slicing = 1.5;
        card.start(ms(0), 1, WORK, GB);
        card.start(ms(10), 2, WORK, GB);
        assert_eq!(card.next_end(), Some(ms(70)), "20 ms are left of the first, at a third of the speed");
        card.stop(ms(40), 2);
        assert_eq!(card.next_end(), Some(ms(50)));
    }

    #[test]
    fn what_does_not_fit_at_once_takes_three_times_as_long() {
        let mut card = card();
        card.start(ms(0), 1, WORK, Bytes(6_000_000_000));
        card.start(ms(0), 2, WORK, Bytes(6_000_000_000));
        assert_eq!(card.next_end(), Some(ms(180)));
    }

    #[test]
    fn a_closed_gate_leaves_what_is_in_flight() {
        let mut card = card();
        card.start(ms(0), 1, WORK, GB);
        card.shorten(ms(5), 1, 10e6);
        assert_eq!(card.next_end(), Some(ms(15)));
        assert_eq!(card.done(ms(15)), [1]);
        assert_eq!(card.stop(ms(15), 1), 15e6);
    }

    #[test]
    fn what_ran_least_recently_makes_room_and_no_more_than_needed() {
        let mut card = card();
        let six = Bytes(6_000_000_000);
        assert_eq!(card.bring_in(ms(0), 1, six), (six, ms(600)));
        assert_eq!(
            card.bring_in(ms(0), 2, Bytes(3_000_000_000)),
            (Bytes(3_000_000_000), ms(900)),
            "one after the other"
        );
        card.start(ms(1000), 1, WORK, six);
        card.stop(ms(1030), 1);
        assert_eq!(card.bring_in(ms(2000), 3, Bytes(5_000_000_000)), (Bytes(5_000_000_000), ms(2500)));
        assert_eq!(card.missing(2, Bytes(3_000_000_000)), Bytes(3_000_000_000), "it never ran");
        assert_eq!(card.missing(1, six), GB, "the rest of the room is its");
        card.forget(3);
        assert_eq!(card.bring_in(ms(3000), 1, six), (GB, ms(3100)));
    }

    #[test]
    fn what_the_entrant_kept_is_the_oldest_and_comes_in_again() {
        let (mut card, eight) = (card(), Bytes(8_000_000_000));
        card.bring_in(ms(0), 1, eight);
        card.bring_in(ms(1000), 2, eight);
        assert_eq!(card.missing(1, eight), Bytes(6_000_000_000));
        assert_eq!(card.bring_in(ms(2000), 1, eight), (eight, ms(2800)), "and not 6 GB of it");
        assert_eq!(card.missing(2, eight), Bytes(6_000_000_000));
        // One that ran less recently than the entrant goes first.
        let mut card = self::card();
        for (at, who, gb) in [(0, 1, 5), (1000, 2, 3), (2000, 3, 2)] {
            card.bring_in(ms(at), who, Bytes(gb * GB.0));
        }
        assert_eq!(card.bring_in(ms(3000), 2, Bytes(4 * GB.0)).0, GB);
        assert_eq!(card.missing(1, Bytes(5 * GB.0)), GB);
    }

    #[test]
    fn memory_of_who_works_stays() {
        let mut card = card();
        let eight = Bytes(8_000_000_000);
        card.bring_in(ms(0), 1, eight);
        card.start(ms(800), 1, WORK, eight);
        assert_eq!(card.bring_in(ms(800), 2, eight).0, Bytes(2_000_000_000));
    }
}
