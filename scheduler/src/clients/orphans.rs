//! Orphans: dead processes whose memory counts until the driver has freed it.
//!
//! ```text
//!   client ends ──▶ orphan ── dead, and NVML is asked ──▶ its pid is on none of its cards ──▶ gone
//!                     ▲                                     │ its pid is listed
//!                     └────── asked again, ever later ◀─────┘ after a second the log says so
//! ```
//!
//! The kernel reports that every thread of a process is ending some 60 ms before the driver has released the
//! cards. The first event frees the lock, the second one the memory. NVML usually omits a dead process. It
//! lists the process for longer if a forked child has the card's files open. On an H200 (driver 580.159.04)
//! the card then keeps all memory. NVML's own figure omits the managed part of it. So the booked bytes of a
//! dead process count while NVML lists its pid, and while NVML does not answer: making NVML fail gains a
//! tenant nothing.
//!
//! A dead process counts for nothing if NVML cannot be asked about it. This holds without NVML, for a card on
//! which NVML never lists processes, and for a process without a pid in the daemon's namespace.

use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::explain::OrphanView;
use gpushare_proto::{Bytes, ClientId, GpuUuid, Nanos, SessionId};

use crate::cards::Cards;
use crate::identity::Watch;
use crate::nvml::Usages;
use crate::registry::{CardUse, ClientEntry};

/// Shortest pause between two questions to NVML about a dead process. A pause is a quarter as long as the
/// process has been dead, within bounds.
const FIRST_PAUSE: Nanos = Nanos::from_millis(2);
const LONGEST_PAUSE: Nanos = Nanos::from_secs(1);
/// Longest duration for which requests without room wait for the death of an ending process.
const MOST_DYING: Nanos = Nanos::from_secs(2);
/// Duration after a death beyond which the memory is not expected to become free by itself. A request without
/// room waits until then. The memory is usually free after 60 ms, and later on a busy machine.
pub(crate) const LONG: Nanos = Nanos::from_secs(1);

/// Ended processes whose memory is still on a card, by client number.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    all: BTreeMap<ClientId, Orphan>,
    /// Points in time of the next questions to NVML about dead processes.
    due: BTreeSet<(Nanos, ClientId)>,
    /// Points in time from which on memory is late.
    usual_ends: BTreeSet<(Nanos, ClientId)>,
}

#[derive(Debug)]
struct Orphan {
    entry: ClientEntry,
    ended: Nanos,
    /// State after the death; none while the process is ending and not dead.
    dead: Option<Dead>,
    /// Whether the process ended under this daemon, so that the booked bytes are exact.
    witnessed: bool,
    _watch: Watch,
}

/// State of the questions to NVML about one dead process.
#[derive(Debug)]
struct Dead {
    since: Nanos,
    /// Number of questions to NVML asked before the death. Their answers say nothing about the dead process.
    questions: u64,
    next: Nanos,
    /// Whether NVML listed the process after its death.
    listed: bool,
    /// Whether the log already says that the card keeps the memory.
    logged: bool,
}

impl Dead {
    fn new(now: Nanos, questions: u64) -> Self {
        Self { since: now, questions, next: now, listed: false, logged: false }
    }

    /// Postpones the next question to NVML, because the process is still listed or NVML did not answer.
    fn wait(&mut self, now: Nanos) {
        self.next = now + Nanos((now - self.since).0 / 4).clamp(FIRST_PAUSE, LONGEST_PAUSE);
    }
}

impl Orphan {
    fn uses(&self, card: GpuUuid) -> bool {
        self.entry.cards.iter().any(|of| of.card.uuid == card)
    }

    /// Returns the point in monotonic time from which on the memory is late.
    fn usual_end(&self) -> Nanos {
        self.dead.as_ref().map_or(self.ended + MOST_DYING, |dead| dead.since + LONG)
    }
}

impl Orphans {
    /// Adds an ended process. It is dead, unless `alive` watches for its death. `questions` is the number of
    /// questions that NVML was asked so far.
    pub(crate) fn add(
        &mut self,
        entry: ClientEntry,
        alive: Option<Watch>,
        witnessed: bool,
        now: Nanos,
        questions: u64,
    ) {
        let dead = alive.is_none().then(|| Dead::new(now, questions));
        let orphan = Orphan { ended: now, dead, witnessed, _watch: alive.unwrap_or_default(), entry };
        self.insert(orphan);
    }

    fn insert(&mut self, orphan: Orphan) {
        let id = orphan.entry.client;
        self.usual_ends.insert((orphan.usual_end(), id));
        self.due.extend(orphan.dead.as_ref().map(|dead| (dead.next, id)));
        self.all.insert(id, orphan);
    }

    fn take(&mut self, id: ClientId) -> Option<Orphan> {
        let orphan = self.all.remove(&id)?;
        self.usual_ends.remove(&(orphan.usual_end(), id));
        if let Some(dead) = &orphan.dead {
            self.due.remove(&(dead.next, id));
        }
        Some(orphan)
    }

    pub(crate) fn died(&mut self, id: ClientId, now: Nanos, questions: u64) {
        if let Some(orphan) = self.take(id) {
            self.insert(Orphan { dead: Some(Dead::new(now, questions)), ..orphan });
        }
    }

    /// Removes an orphan. Returns its registry entry, and whether the log reported its memory as late.
    pub(crate) fn remove(&mut self, id: ClientId) -> Option<(ClientEntry, bool)> {
        let Orphan { entry, dead, .. } = self.take(id)?;
        Some((entry, dead.is_some_and(|dead| dead.logged)))
    }

    pub(crate) fn ids(&self) -> Vec<ClientId> {
        self.all.keys().copied().collect()
    }

    pub(crate) fn entry(&self, id: ClientId) -> Option<&ClientEntry> {
        self.all.get(&id).map(|orphan| &orphan.entry)
    }

    pub(crate) fn due(&self) -> Option<Nanos> {
        self.due.first().map(|&(next, _)| next)
    }

    /// Returns the point in time until which memory of a card may be freed, of one session or of all. Only
    /// processes that had ended at the time `ended` count. Returns none if no memory is expected.
    pub(crate) fn expected_back(
        &self,
        card: GpuUuid,
        of: Option<SessionId>,
        (ended, now): (Nanos, Nanos),
    ) -> Option<Nanos> {
        let counts = |orphan: &Orphan| {
            let counts = of.is_none_or(|session| orphan.entry.session == session);
            counts && orphan.ended <= ended && orphan.uses(card)
        };
        let later = self.usual_ends.range((now, ClientId(u64::MAX))..).rev();
        let mut later = later.filter(|(_, id)| self.all.get(id).is_some_and(counts));
        later.next().map(|&(end, _)| end).filter(|&end| end > now)
    }

    /// Returns the bytes that dead processes of a session certainly have on a card. A process that died
    /// without a daemon may have freed some of its booked bytes, so it counts only once NVML has listed it.
    pub(crate) fn certain_bytes(&self, session: SessionId, card: GpuUuid) -> Bytes {
        let listed = |orphan: &Orphan| orphan.dead.as_ref().is_some_and(|dead| dead.listed);
        let own = self.all.values().filter(|orphan| orphan.entry.session == session);
        let certain = own.filter(|orphan| orphan.witnessed || listed(orphan));
        let cards = certain.flat_map(|orphan| &orphan.entry.cards);
        cards.filter(|of| of.card.uuid == card).map(|of| of.used).sum()
    }

    /// Postpones all questions about dead processes, because NVML cannot be asked now.
    pub(crate) fn ask_later(&mut self, now: Nanos) {
        self.due.clear();
        for (&id, orphan) in &mut self.all {
            if let Some(dead) = &mut orphan.dead {
                dead.wait(now);
                self.due.insert((dead.next, id));
            }
        }
    }

    /// Evaluates the answer to question number `asked`. Returns the processes that are listed on none of
    /// their cards; NVML is asked about the others again later.
    pub(crate) fn unlisted(&mut self, usages: &Usages, asked: u64, now: Nanos) -> Vec<ClientId> {
        let mut unlisted = Vec::new();
        for (&id, Orphan { entry, dead, .. }) in &mut self.all {
            let Some(dead) = dead.as_mut().filter(|dead| dead.questions < asked) else {
                continue;
            };
            let on = |of: &CardUse| match usages.get(&of.card.uuid) {
                Some(Some(listed)) => Some(listed.contains_key(&entry.process.pid)),
                Some(None) => None,
                None => Some(false),
            };
            dead.listed |= entry.cards.iter().any(|of| on(of) == Some(true));
            if entry.cards.iter().any(|of| on(of) != Some(false)) {
                self.due.remove(&(dead.next, id));
                dead.wait(now);
                self.due.insert((dead.next, id));
            } else {
                unlisted.push(id);
            }
        }
        unlisted
    }

    /// Returns the processes whose memory became late since the last call: a card has kept it for a second.
    pub(crate) fn newly_late(&mut self, now: Nanos) -> Vec<&ClientEntry> {
        let late = |orphan: &mut Orphan| {
            let dead = orphan.dead.as_mut();
            let dead = dead.filter(|dead| !dead.logged && now - dead.since >= LONG);
            dead.map(|dead| dead.logged = true).is_some()
        };
        let all = self.all.values_mut();
        all.filter_map(|orphan| late(orphan).then_some(&orphan.entry)).collect()
    }

    /// Returns the memory of a session's dead processes, for `gpushare-ctl explain`.
    pub(crate) fn views(&self, session: SessionId, now: Nanos, cards: &Cards) -> Vec<OrphanView> {
        let own = self.all.values().filter(|orphan| orphan.entry.session == session);
        let on_cards = own.flat_map(|orphan| orphan.entry.cards.iter().map(move |of| (orphan, of)));
        let view = |(orphan, of): (&Orphan, &CardUse)| {
            Some(OrphanView {
                pid: orphan.entry.process.pid,
                gpu: cards.by_uuid(of.card.uuid)?,
                bytes: of.used,
                ago_ns: now - orphan.ended,
            })
        };
        on_cards.filter_map(view).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use gpushare_proto::tenant::GpuInfo;

    use super::*;
    use crate::identity::ProcessId;

    const CARD: GpuUuid = GpuUuid::gpu([1; 16]);
    const OTHER: GpuUuid = GpuUuid::gpu([2; 16]);
    const PID: u32 = 7;
    const NOW: Nanos = Nanos::from_secs(9);

    /// One process that used both cards, and died after a number of questions.
    fn dead_after(questions: u64) -> Orphans {
        let used = |uuid| CardUse {
            card: GpuInfo { uuid, name: "card".into(), total: Bytes::gib(1) },
            used: Bytes::mib(40),
        };
        let entry = ClientEntry {
            client: ClientId(1),
            session: SessionId(1),
            process: ProcessId { pid: PID, start: 70 },
            cards: [CARD, OTHER].map(used).to_vec(),
            remaps: false,
            frozen: false,
        };
        let orphan = Orphan {
            entry,
            ended: NOW,
            dead: Some(Dead::new(NOW, questions)),
            witnessed: false,
            _watch: Watch::default(),
        };
        let mut orphans = Orphans::default();
        orphans.insert(orphan);
        orphans
    }

    fn is_over(orphans: &mut Orphans, usages: [Option<Vec<u32>>; 2], asked: u64) -> bool {
        let list = |pids: Vec<u32>| pids.into_iter().map(|pid| (pid, None)).collect();
        let usages = usages.map(|pids| pids.map(list));
        let usages = [CARD, OTHER].into_iter().zip(usages).collect();
        !orphans.unlisted(&usages, asked, NOW).is_empty()
    }

    #[test]
    fn a_process_listed_on_no_card_is_released() {
        let mut orphans = dead_after(0);
        assert!(!is_over(&mut orphans, [Some(vec![PID]), Some(vec![])], 1));
        assert!(!is_over(&mut orphans, [Some(vec![]), Some(vec![5, PID])], 2));
        assert!(is_over(&mut orphans, [Some(vec![]), Some(vec![5])], 3));
    }

    #[test]
    fn a_card_without_an_answer_frees_nothing() {
        let mut orphans = dead_after(0);
        assert!(!is_over(&mut orphans, [Some(vec![]), None], 1));
        assert!(is_over(&mut orphans, [Some(vec![]), Some(vec![])], 2));
    }

    #[test]
    fn a_card_that_nvml_does_not_know_keeps_nothing() {
        assert_eq!(dead_after(0).unlisted(&Usages::new(), 1, NOW), [ClientId(1)]);
    }

    #[test]
    fn an_answer_to_a_question_before_the_death_is_ignored() {
        let mut orphans = dead_after(3);
        assert!(!is_over(&mut orphans, [Some(vec![]), Some(vec![])], 3));
        assert!(is_over(&mut orphans, [Some(vec![]), Some(vec![])], 4));
    }

    #[test]
    fn questions_about_a_dead_process_become_rarer() {
        let mut dead = Dead::new(NOW, 0);
        let pauses: BTreeSet<u64> = [0, 30, 5_000]
            .map(|ms| {
                let now = NOW + Nanos::from_millis(ms);
                dead.wait(now);
                (dead.next - now).0 / 1_000_000
            })
            .into();
        assert_eq!(pauses, [2, 7, 1_000].into());
    }

    #[test]
    fn a_request_waits_only_for_earlier_deaths_on_its_card() {
        let orphans = dead_after(0);
        let back = |card, of, ended| orphans.expected_back(card, of, (ended, NOW));
        assert_eq!(back(CARD, None, NOW), Some(NOW + LONG));
        assert_eq!(back(CARD, Some(SessionId(1)), NOW), Some(NOW + LONG));
        assert_eq!(back(CARD, Some(SessionId(2)), NOW), None);
        assert_eq!(back(CARD, None, Nanos(NOW.0 - 1)), None);
        assert_eq!(back(GpuUuid::gpu([3; 16]), None, NOW), None);
        assert_eq!(orphans.expected_back(CARD, None, (NOW, NOW + LONG)), None);
    }

    #[test]
    fn the_next_question_is_that_of_the_process_that_waits_shortest() {
        let mut orphans = dead_after(0);
        assert_eq!(orphans.due(), Some(NOW));
        assert!(!is_over(&mut orphans, [None, None], 1));
        assert_eq!(orphans.due(), Some(NOW + FIRST_PAUSE));
        orphans.died(ClientId(1), NOW + LONG, 1);
        assert_eq!(orphans.due(), Some(NOW + LONG));
        orphans.ask_later(NOW + LONG);
        assert_eq!(orphans.due(), Some(NOW + LONG + FIRST_PAUSE));
        assert!(orphans.remove(ClientId(1)).is_some());
        assert_eq!((orphans.due(), orphans.usual_ends.len()), (None, 0));
    }

    #[test]
    fn a_process_that_died_unwitnessed_counts_once_it_is_listed() {
        let mut orphans = dead_after(0);
        let certain = |orphans: &Orphans, session| orphans.certain_bytes(SessionId(session), CARD);
        assert_eq!(certain(&orphans, 1), Bytes::ZERO);
        assert!(!is_over(&mut orphans, [None, None], 1));
        assert_eq!(certain(&orphans, 1), Bytes::ZERO);
        assert!(!is_over(&mut orphans, [Some(vec![]), Some(vec![PID])], 2));
        assert_eq!((certain(&orphans, 1), certain(&orphans, 2)), (Bytes::mib(40), Bytes::ZERO));
    }
}
