//! Followers: tools that get the state of the daemon once, and then its increments once a second.
//!
//! ```text
//!   every second ─▶ pass ── a slice of sessions at a time, inputs in between ──▶ compared with `known`
//!                                                                                     │
//!   sensors ─▶ answers of NVML ──┐                                                    ▼
//!   grants ──────────────────────┴──────────────▶ end of the pass ─▶ increments ─▶ followers
//!                                                                └─▶ whole state ─▶ new followers
//! ```
//!
//! Unlike watchers, followers get no events. So a pass costs the same however often the lock changes hands,
//! and it costs nothing for each follower but the sending. Nothing is done while nobody follows, except that
//! the latest grants of each session are kept.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;

use gpushare_proto::admin::{AdminReply, ResidenceView};
use gpushare_proto::follow::{
    CardFacts, CardFigures, CardHandoff, CardResidence, DaemonFacts, Increment, Increments, MAX_WAITS,
    Sensors, SessionFacts, SessionFigures,
};
use gpushare_proto::{Bytes, GpuId, Nanos, SessionId};
use gpushare_sys::clock;
use tokio::sync::mpsc;

use crate::connections::ConnectionId;
use crate::input::Input;
use crate::nvml::{self, Reader, Readings};
use crate::peers::Peers;

/// Interval between the begins of two passes.
const PERIOD: Nanos = Nanos::from_secs(1);
/// Age from which the values of sensors are not shown.
const STALE: Nanos = Nanos::from_secs(10);

/// Tools that follow the daemon, and the state that they know.
#[derive(Debug, Default)]
pub(crate) struct Followers {
    /// Followers that got the whole state.
    informed: BTreeSet<ConnectionId>,
    /// Followers that get the whole state at the end of the next pass.
    new: BTreeSet<ConnectionId>,
    known: Known,
    pass: Option<Pass>,
    /// Point in monotonic time of the next pass.
    next: Nanos,
    grants: Grants,
    gauges: Gauges,
}

/// State that the informed followers know.
#[derive(Debug, Default)]
struct Known {
    daemon: Option<DaemonFacts>,
    cards: BTreeMap<GpuId, KnownCard>,
    sessions: BTreeMap<SessionId, KnownSession>,
}

#[derive(Debug, Default)]
struct KnownCard {
    facts: Option<CardFacts>,
    figures: Option<CardFigures>,
    sensors: Option<Sensors>,
    residence: Option<CardResidence>,
    handoff: Option<CardHandoff>,
}

#[derive(Debug, Default)]
struct KnownSession {
    facts: Option<SessionFacts>,
    figures: Option<SessionFigures>,
    /// Places of its remapped memory; none for a session without such memory.
    places: Vec<ResidenceView>,
}

/// Unfinished comparison of the state with what followers know.
#[derive(Debug)]
pub(super) struct Pass {
    /// Number from which on sessions are missing.
    pub(super) next: SessionId,
    /// Bytes that the sessions so far have allocated on each card.
    pub(super) allocated: BTreeMap<GpuId, Bytes>,
    changes: Vec<Increment>,
}

impl Followers {
    pub(crate) fn is_empty(&self) -> bool {
        self.informed.is_empty() && self.new.is_empty()
    }

    /// Adds a follower, who gets the whole state at the end of a pass that begins now or has begun.
    pub(crate) fn add(&mut self, connection: ConnectionId) {
        if self.informed.contains(&connection) {
            return;
        }
        self.new.insert(connection);
        self.next = Nanos::ZERO;
    }

    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        self.informed.remove(&connection);
        self.new.remove(&connection);
        if self.is_empty() {
            (self.pass, self.known) = (None, Known::default());
            self.grants.flush();
        }
    }

    /// Returns the point in monotonic time of the next pass.
    pub(crate) fn due(&self) -> Option<Nanos> {
        (!self.is_empty() && self.pass.is_none()).then_some(self.next)
    }

    /// Begins a pass if that is due, and asks for the values of the sensors.
    pub(crate) fn begin_if_due(&mut self, now: Nanos, inputs: &mpsc::Sender<Input>) -> io::Result<()> {
        if self.due().is_none_or(|due| due > now) {
            return Ok(());
        }
        self.next = now + PERIOD;
        self.pass = Some(Pass { next: SessionId(0), allocated: BTreeMap::new(), changes: Vec::new() });
        self.gauges.ask(inputs)
    }

    /// Returns whether a pass is unfinished.
    pub(crate) fn has_pass(&self) -> bool {
        self.pass.is_some()
    }

    pub(super) fn take_pass(&mut self) -> Option<Pass> {
        self.pass.take()
    }

    pub(super) fn go_on(&mut self, pass: Pass) {
        self.pass = Some(pass);
    }

    /// Takes the answer of NVML; none if there is no NVML.
    pub(crate) fn sensed(&mut self, readings: Option<Readings>) {
        self.gauges.answered(readings);
    }

    /// Notes the wait of a session that got the lock, and the length of its turn.
    pub(crate) fn note_grant(&mut self, session: SessionId, waited: Nanos, quantum: Nanos) {
        let is_followed = !self.is_empty();
        self.grants.note(session, (waited, quantum), is_followed);
    }

    pub(crate) fn forget_session(&mut self, session: SessionId) {
        self.grants.forget(session);
    }

    /// Returns the latest grants of a session.
    pub(super) fn grants_of(&self, session: SessionId) -> Option<Increment> {
        self.grants.of(session)
    }

    pub(super) fn compare_session(&mut self, pass: &mut Pass, facts: SessionFacts, figures: SessionFigures) {
        let known = self.known.sessions.entry(facts.session).or_default();
        replace(&mut known.facts, facts, Increment::Session, &mut pass.changes);
        replace(&mut known.figures, figures, Increment::SessionFigures, &mut pass.changes);
    }

    pub(super) fn compare_card(&mut self, pass: &mut Pass, facts: CardFacts, figures: CardFigures) {
        let sensors = self.gauges.of(&facts, clock::monotonic());
        let known = self.known.cards.entry(facts.gpu).or_default();
        replace(&mut known.facts, facts, Increment::Card, &mut pass.changes);
        replace(&mut known.figures, figures, Increment::CardFigures, &mut pass.changes);
        replace(&mut known.sensors, sensors, Increment::Sensors, &mut pass.changes);
    }

    /// Compares the places of remapped memory on a card; `None` for a card without such memory.
    pub(super) fn compare_residence(&mut self, pass: &mut Pass, gpu: GpuId, now: Option<CardResidence>) {
        let known = self.known.cards.entry(gpu).or_default();
        // A card that had remapped memory has none any more.
        let nothing = || known.residence.map(|_| CardResidence::none_on(gpu));
        if let Some(now) = now.or_else(nothing) {
            replace(&mut known.residence, now, Increment::CardResidence, &mut pass.changes);
        }
    }

    /// Compares the running or the last handoff of a card.
    pub(super) fn compare_handoff(&mut self, pass: &mut Pass, now: CardHandoff) {
        let known = self.known.cards.entry(now.gpu).or_default();
        replace(&mut known.handoff, now, Increment::CardHandoff, &mut pass.changes);
    }

    /// Compares the places of the remapped memory of all sessions.
    pub(super) fn compare_places(&mut self, pass: &mut Pass, places: Vec<ResidenceView>) {
        let mut now = BTreeMap::<SessionId, Vec<ResidenceView>>::new();
        places
            .into_iter()
            .for_each(|place| now.entry(place.session).or_default().push(place));
        for (&session, known) in &mut self.known.sessions {
            let places = now.remove(&session).unwrap_or_default();
            if known.places != places {
                known.places.clone_from(&places);
                pass.changes.push(Increment::Residence { session, places });
            }
        }
    }

    /// Ends a pass: sends the changes to the informed followers, and the whole state to the new ones.
    pub(super) fn finish(
        &mut self,
        mut pass: Pass,
        daemon: DaemonFacts,
        lives: impl Fn(SessionId) -> bool,
        (at_ns, peers): (Nanos, &mut Peers),
    ) {
        replace(&mut self.known.daemon, daemon, Increment::Daemon, &mut pass.changes);
        let ended: Vec<SessionId> = self.known.sessions.keys().copied().filter(|id| !lives(*id)).collect();
        for session in ended {
            self.known.sessions.remove(&session);
            pass.changes.push(Increment::SessionEnded { session });
        }
        pass.changes.extend(self.grants.flush());
        let changes = Increments { at_ns, whole: false, changes: pass.changes };
        peers.reply_to_all(&self.informed, &AdminReply::Increments(Box::new(changes)));
        if !self.new.is_empty() {
            let all = Increments { at_ns, whole: true, changes: self.whole() };
            peers.reply_to_all(&self.new, &AdminReply::Increments(Box::new(all)));
            self.informed.append(&mut self.new);
        }
    }

    fn whole(&self) -> Vec<Increment> {
        let Known { daemon, cards, sessions } = &self.known;
        let mut all: Vec<Increment> = daemon.iter().cloned().map(Increment::Daemon).collect();
        for card in cards.values() {
            all.extend(card.facts.clone().map(Increment::Card));
            all.extend(card.figures.clone().map(Increment::CardFigures));
            all.extend(card.sensors.map(Increment::Sensors));
            all.extend(card.residence.map(Increment::CardResidence));
            all.extend(card.handoff.map(Increment::CardHandoff));
        }
        for (&id, session) in sessions {
            all.extend(session.facts.clone().map(Increment::Session));
            all.extend(session.figures.clone().map(Increment::SessionFigures));
            if !session.places.is_empty() {
                all.push(Increment::Residence { session: id, places: session.places.clone() });
            }
            all.extend(self.grants.of(id));
        }
        all
    }
}

/// Replaces what followers know, and adds the increment if it changed.
fn replace<T: Clone + PartialEq>(
    known: &mut Option<T>,
    now: T,
    increment: fn(T) -> Increment,
    changes: &mut Vec<Increment>,
) {
    if known.as_ref() != Some(&now) {
        *known = Some(now.clone());
        changes.push(increment(now));
    }
}

/// Latest grants of each session, and those that followers do not know yet.
#[derive(Debug, Default)]
struct Grants {
    known: BTreeMap<SessionId, Latest>,
    fresh: BTreeMap<SessionId, Latest>,
}

/// Latest grants of one session.
#[derive(Debug, Default)]
struct Latest {
    /// Waits for the grants, oldest first.
    waits: VecDeque<Nanos>,
    /// Length of the turn of the last grant.
    quantum: Nanos,
}

impl Grants {
    fn note(&mut self, session: SessionId, (waited, quantum): (Nanos, Nanos), is_followed: bool) {
        let grants = if is_followed { &mut self.fresh } else { &mut self.known };
        grants.entry(session).or_default().push(waited, quantum);
    }

    fn forget(&mut self, session: SessionId) {
        self.known.remove(&session);
        self.fresh.remove(&session);
    }

    /// Moves the fresh grants to the known ones, and returns the increments of those.
    fn flush(&mut self) -> Vec<Increment> {
        let fresh = std::mem::take(&mut self.fresh);
        for (&session, latest) in &fresh {
            let known = self.known.entry(session).or_default();
            latest.waits.iter().for_each(|&wait| known.push(wait, latest.quantum));
        }
        fresh.iter().map(|(&session, latest)| latest.increment(session)).collect()
    }

    fn of(&self, session: SessionId) -> Option<Increment> {
        self.known.get(&session).map(|latest| latest.increment(session))
    }
}

impl Latest {
    fn push(&mut self, wait: Nanos, quantum: Nanos) {
        if self.waits.len() == MAX_WAITS {
            self.waits.pop_front();
        }
        self.waits.push_back(wait);
        self.quantum = quantum;
    }

    fn increment(&self, session: SessionId) -> Increment {
        let waits_ns = self.waits.iter().copied().collect();
        Increment::Granted { session, waits_ns, quantum_ns: self.quantum }
    }
}

/// Latest values of the cards' sensors. NVML is asked once a second while somebody follows.
#[derive(Debug, Default)]
struct Gauges {
    latest: Readings,
    /// Point in monotonic time of the latest answer.
    at: Nanos,
    reader: Option<Reader>,
    /// Whether NVML has not answered the last question yet.
    is_asked: bool,
    /// Whether no NVML exists to ask.
    off: bool,
}

impl Gauges {
    fn ask(&mut self, inputs: &mpsc::Sender<Input>) -> io::Result<()> {
        if self.off || self.is_asked {
            return Ok(());
        }
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => {
                let inputs = inputs.clone();
                let deliver = move |readings| inputs.blocking_send(Input::Sensed(readings)).is_ok();
                Reader::start("gauges", |nvml, ()| nvml::readings(nvml), deliver)?
            }
        };
        self.is_asked = self.reader.insert(reader).ask(());
        Ok(())
    }

    fn answered(&mut self, readings: Option<Readings>) {
        self.is_asked = false;
        self.off = readings.is_none();
        self.latest = readings.unwrap_or_default();
        self.at = clock::monotonic();
    }

    fn of(&self, card: &CardFacts, now: Nanos) -> Sensors {
        let reading = self.latest.get(&card.uuid).filter(|_| now - self.at < STALE);
        let reading = reading.copied().unwrap_or_default();
        Sensors {
            gpu: card.gpu,
            busy_percent: reading.busy_percent,
            used_bytes: reading.used,
            celsius: reading.celsius,
            milliwatts: reading.milliwatts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId(7);

    fn waits(increment: Option<&Increment>) -> Vec<u64> {
        match increment {
            Some(Increment::Granted { waits_ns, .. }) => waits_ns.iter().map(|wait| wait.0).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn the_latest_waits_are_kept_and_each_is_sent_once() {
        let mut grants = Grants::default();
        (0..100).for_each(|wait| grants.note(SESSION, (Nanos(wait), Nanos(5)), false));
        assert_eq!(waits(grants.of(SESSION).as_ref()), (36..100).collect::<Vec<u64>>());
        assert!(grants.flush().is_empty(), "nobody followed");
        grants.note(SESSION, (Nanos(100), Nanos(6)), true);
        let sent = grants.flush();
        assert_eq!(waits(sent.first()), [100]);
        assert!(grants.flush().is_empty());
        let known = grants.of(SESSION);
        assert_eq!(waits(known.as_ref()), (37..101).collect::<Vec<u64>>());
        assert!(matches!(known, Some(Increment::Granted { quantum_ns: Nanos(6), .. })));
        grants.forget(SESSION);
        assert_eq!(grants.of(SESSION), None);
    }

    fn place(session: SessionId, resident_bytes: Bytes) -> ResidenceView {
        ResidenceView {
            session,
            gpu: GpuId(0),
            resident_bytes,
            hosted_bytes: Bytes(1),
            mapped_bytes: Bytes::ZERO,
            moving_bytes: Bytes::ZERO,
        }
    }

    #[test]
    fn places_of_memory_are_told_when_they_change_and_when_they_are_gone() {
        let mut followers = Followers::default();
        followers.known.sessions.entry(SESSION).or_default();
        let mut told = |places: &[ResidenceView]| {
            let mut pass = Pass { next: SessionId(0), allocated: BTreeMap::new(), changes: Vec::new() };
            followers.compare_places(&mut pass, places.to_vec());
            pass.changes
        };
        let other = place(SessionId(8), Bytes(5));
        assert_eq!(told(std::slice::from_ref(&other)), [], "of an unknown session and of one without memory");
        let places = vec![place(SESSION, Bytes(5))];
        let increment =
            |places: &[ResidenceView]| Increment::Residence { session: SESSION, places: places.to_vec() };
        assert_eq!(told(&[places[0].clone(), other]), [increment(&places)]);
        assert_eq!(told(&places), []);
        assert_eq!(told(&[]), [increment(&[])]);
        assert_eq!(told(&[]), []);
    }

    #[test]
    fn a_card_without_remapped_memory_is_told_only_if_it_had_some() {
        let mut followers = Followers::default();
        let mut told = |now: Option<CardResidence>| {
            let mut pass = Pass { next: SessionId(0), allocated: BTreeMap::new(), changes: Vec::new() };
            followers.compare_residence(&mut pass, GpuId(0), now);
            pass.changes
        };
        let none = CardResidence::none_on(GpuId(0));
        let some = CardResidence { resident_bytes: Bytes(5), ..none };
        assert_eq!(told(None), []);
        assert_eq!(told(Some(some)), [Increment::CardResidence(some)]);
        assert_eq!(told(None), [Increment::CardResidence(none)]);
        assert_eq!(told(None), []);
    }
}
