//! Account of the handoffs of one card: which bytes left it and came in, and in which time.
//!
//! ```text
//!   goals followed: something has to move ─▶ begins
//!   Resides ─▶ bytes of a session ─────────▶ first and last time of its direction
//!   goals followed: nothing has to move,
//!                   no entrant waits ──────▶ ends: a notice, and what `status` shows
//! ```
//!
//! A process says that memory is resident when it creates it, and copies into it afterwards. So the way in lasts
//! until the gates of the entrants are open, which is the end of the handoff.

use gpushare_proto::handoff::{CardHandoffs, Direction, EndedHandoff, Handoff, SessionMove};
use gpushare_proto::{Bytes, GpuId, Nanos, Percent, SessionId};
use smallvec::SmallVec;

use crate::residency::rates::per_second;
use crate::residency::transfer::Way;

/// Running and last handoff of one card.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handoffs {
    running: Option<Account>,
    /// Last handoff, with the point in time of its end.
    last: Option<(Nanos, Handoff)>,
}

/// Account of a running handoff: the bytes that have moved.
#[derive(Clone, Debug)]
struct Account {
    began: Nanos,
    out: Moves,
    /// Bytes that were copied out.
    copied_out: Bytes,
    into: Moves,
}

/// Bytes that have moved in one direction, by session.
#[derive(Clone, Debug, Default)]
struct Moves {
    sessions: SmallVec<[(SessionId, Bytes); 2]>,
    /// Points in time of the first byte and of the last one so far.
    span: Option<(Nanos, Nanos)>,
}

/// Bytes that have to move yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rest {
    pub(crate) out: Bytes,
    pub(crate) into: Bytes,
}

impl Handoffs {
    /// Begins a handoff, unless one is running.
    pub(crate) fn begin(&mut self, now: Nanos) {
        let new = || Account {
            began: now,
            out: Moves::default(),
            copied_out: Bytes::ZERO,
            into: Moves::default(),
        };
        self.running.get_or_insert_with(new);
    }

    /// Notes bytes of a session that have moved since the point in time `since`.
    pub(crate) fn note(&mut self, now: Nanos, since: Nanos, way: Way, session: SessionId, bytes: Bytes) {
        self.begin(since);
        if let Some(account) = &mut self.running {
            match way {
                Way::Out => account.out.add(now, since, session, bytes),
                Way::In => account.into.add(now, since, session, bytes),
            }
        }
    }

    /// Notes bytes that were copied out.
    pub(crate) fn note_copied(&mut self, bytes: Bytes) {
        if let Some(account) = &mut self.running {
            account.copied_out += bytes;
        }
    }

    /// Point in time at which the running handoff began.
    pub(crate) fn began(&self) -> Option<Nanos> {
        self.running.as_ref().map(|account| account.began)
    }

    /// Ends the running handoff, and returns it if anything has moved.
    pub(crate) fn end(&mut self, now: Nanos, gpu: GpuId) -> Option<Handoff> {
        let account = self.running.take()?;
        if account.out.span.is_none() && account.into.span.is_none() {
            return None;
        }
        let handoff = account.handoff(now, gpu, Rest::default());
        self.last = Some((now, handoff.clone()));
        Some(handoff)
    }

    /// Running handoff as it stands, with the bytes that have to move yet.
    pub(crate) fn running(&self, now: Nanos, gpu: GpuId, rest: Rest) -> Option<Handoff> {
        self.running.as_ref().map(|account| account.handoff(now, gpu, rest))
    }

    /// Running and last handoff of the card; `None` if it had none.
    pub(crate) fn view(&self, now: Nanos, gpu: GpuId, rest: Rest) -> Option<CardHandoffs> {
        let running = self.running(now, gpu, rest);
        let ended =
            |(at, handoff): &(Nanos, Handoff)| EndedHandoff { ago_ns: now - *at, handoff: handoff.clone() };
        let last = self.last.as_ref().map(ended);
        (running.is_some() || last.is_some()).then_some(CardHandoffs { gpu, running, last })
    }
}

impl Account {
    fn handoff(&self, now: Nanos, gpu: GpuId, rest: Rest) -> Handoff {
        let took_ns = now - self.began;
        let out = if rest.out.is_zero() { self.out.span } else { self.out.until(now) };
        let into = self.into.until(now);
        let both = |((begin, end), (other_begin, other_end)): ((Nanos, Nanos), (Nanos, Nanos))| {
            end.min(other_end) - begin.max(other_begin)
        };
        let both_ns = out.zip(into).map(both).unwrap_or_default();
        let out = self.out.direction(out, rest.out);
        Handoff {
            gpu,
            took_ns,
            copied_out_bytes: self.copied_out.min(out.bytes),
            out,
            into: self.into.direction(into, rest.into),
            both_ns,
            overlap: part(both_ns, took_ns),
        }
    }
}

impl Moves {
    fn add(&mut self, now: Nanos, since: Nanos, session: SessionId, bytes: Bytes) {
        match self.sessions.iter_mut().find(|(id, _)| *id == session) {
            Some((_, sum)) => *sum += bytes,
            None => self.sessions.push((session, bytes)),
        }
        let (begin, _) = self.span.unwrap_or((since, now));
        self.span = Some((begin.min(since), now));
    }

    /// First and last time if the direction moves until `now`.
    fn until(&self, now: Nanos) -> Option<(Nanos, Nanos)> {
        self.span.map(|(begin, _)| (begin, now))
    }

    fn direction(&self, span: Option<(Nanos, Nanos)>, rest_bytes: Bytes) -> Direction {
        let bytes = self.sessions.iter().map(|&(_, bytes)| bytes).sum();
        let took_ns = span.map_or(Nanos::ZERO, |(begin, end)| end - begin);
        let sessions = self.sessions.iter();
        Direction {
            sessions: sessions.map(|&(session, bytes)| SessionMove { session, bytes }).collect(),
            bytes,
            rest_bytes,
            took_ns,
            bytes_per_second: per_second(bytes, took_ns),
        }
    }
}

/// Part of a duration.
fn part(of: Nanos, whole: Nanos) -> Percent {
    let hundredths = u128::from(of.0) * 10_000 / u128::from(whole.0.max(1));
    Percent(u32::try_from(hundredths).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: GpuId = GpuId(0);
    const LEAVER: SessionId = SessionId(1);
    const ENTRANT: SessionId = SessionId(2);

    const fn ms(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    /// Handoff of 4 GiB each way: the way out takes 80 ms, the way in begins 20 ms later and ends after 100 ms.
    fn running() -> Handoffs {
        let mut handoffs = Handoffs::default();
        handoffs.begin(ms(0));
        for at in [20, 40, 60, 80] {
            handoffs.note(ms(at), ms(0), Way::Out, LEAVER, Bytes::gib(1));
            handoffs.note(ms(at + 1), ms(20), Way::In, ENTRANT, Bytes::gib(1));
        }
        handoffs
    }

    #[test]
    fn a_handoff_tells_bytes_times_rates_and_overlap() {
        let mut handoffs = running();
        let handoff = handoffs.end(ms(100), GPU).unwrap();
        let of = |session| vec![SessionMove { session, bytes: Bytes::gib(4) }];
        assert_eq!((handoff.took_ns, handoff.both_ns), (ms(100), ms(60)));
        assert_eq!(handoff.overlap, Percent(6000));
        let expected = Direction {
            sessions: of(LEAVER),
            bytes: Bytes::gib(4),
            rest_bytes: Bytes::ZERO,
            took_ns: ms(80),
            bytes_per_second: Bytes::gib(50),
        };
        assert_eq!(handoff.out, expected);
        assert_eq!(handoff.into, Direction { sessions: of(ENTRANT), ..expected });
        assert_eq!(handoffs.began(), None);
        let view = handoffs.view(ms(130), GPU, Rest::default()).unwrap();
        assert_eq!(
            view,
            CardHandoffs { gpu: GPU, running: None, last: Some(EndedHandoff { ago_ns: ms(30), handoff }) }
        );
    }

    #[test]
    fn a_running_handoff_moves_until_now_and_says_what_is_left() {
        let handoffs = running();
        let rest = Rest { out: Bytes::gib(1), into: Bytes::gib(2) };
        let handoff = handoffs.running(ms(100), GPU, rest).unwrap();
        assert_eq!((handoff.out.rest_bytes, handoff.into.rest_bytes), (rest.out, rest.into));
        assert_eq!((handoff.out.took_ns, handoff.both_ns), (ms(100), ms(80)));
    }

    #[test]
    fn one_direction_overlaps_with_nothing_and_an_empty_handoff_is_none() {
        let mut handoffs = Handoffs::default();
        assert_eq!(handoffs.view(ms(0), GPU, Rest::default()), None);
        handoffs.begin(ms(0));
        assert_eq!(handoffs.end(ms(5), GPU), None);
        handoffs.note(ms(9), ms(5), Way::Out, LEAVER, Bytes::gib(1));
        let handoff = handoffs.end(ms(9), GPU).unwrap();
        assert_eq!((handoff.took_ns, handoff.both_ns, handoff.overlap), (ms(4), ms(0), Percent(0)));
        assert_eq!(handoff.into, Direction::default());
    }

    #[test]
    fn a_lie_about_bytes_and_no_time_at_all_are_no_panic() {
        let mut handoffs = Handoffs::default();
        for _ in 0..2 {
            handoffs.note(ms(1), ms(1), Way::In, ENTRANT, Bytes::MAX);
        }
        let handoff = handoffs.end(ms(1), GPU).unwrap();
        assert_eq!((handoff.into.bytes, handoff.into.bytes_per_second), (Bytes::MAX, Bytes::MAX));
    }
}
