//! Memory of dead processes, until the driver has taken it back.
//!
//! ```text
//!   client ends ──▶ orphan ── dead, and NVML is asked ──▶ lists its pid on none of its cards ──▶ gone
//!                     ▲                                     │ lists it
//!                     └────── asked again, ever later ◀─────┘ after a second the log says so
//! ```
//!
//! The kernel says of each thread that it is ending some 60 ms before the driver has let go of the cards: the lock is free with the
//! former, the memory with the latter. As a rule NVML lists a process no more when it is dead. It lists one for longer whose
//! forked child has the card's files open; on an H200 (driver 580.159.04) the card then keeps all of it, managed memory too,
//! of which NVML's own figure knows nothing. So what the books say of it counts for as long as the pid is listed, and while NVML does
//! not answer: whoever can make it fail must win nothing by it.
//!
//! Without NVML, for a card that it does not know or never lists anybody on, and for a process without a pid here, there is nobody to
//! ask: what is dead has nothing.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpushare_core::Event;
use gpushare_proto::audit::Outcome;
use gpushare_proto::explain::OrphanView;
use gpushare_proto::{Bytes, ClientId, GpuUuid, Nanos, SessionId};
use gpushare_sys::{clock, peer};

use super::Shell;
use crate::identity::Watch;
use crate::input::Watched;
use crate::nvml::Usages;
use crate::operation::Operation;
use crate::registry::{CardUse, ClientEntry};

/// How long the first pause between two questions is, and the longest: each is as long as the process is dead by then.
const FIRST_PAUSE: Nanos = Nanos::from_millis(2);
const LONGEST_PAUSE: Nanos = Nanos::from_secs(1);
/// So long after a death its memory is usually back: requests that it leaves no room wait for that (postponed.rs).
const USUAL: Nanos = Nanos::from_millis(100);
/// So long at most they wait for the death of one that is ending.
const MOST_DYING: Nanos = Nanos::from_secs(2);
/// From then on it is no matter of time.
pub(super) const LONG: Nanos = Nanos::from_secs(1);

/// Those whose memory is on a card still.
#[derive(Debug, Default)]
pub(super) struct Orphans(BTreeMap<ClientId, Orphan>);

/// What one process left.
#[derive(Debug)]
struct Orphan {
    entry: ClientEntry,
    ended: Nanos,
    dead: Option<Dead>,
    /// Whether it ended under this daemon, which knew what it had.
    witnessed: bool,
    /// Until it is dead.
    _watch: Watch,
}

/// One that is dead, and about which NVML is asked.
#[derive(Debug)]
struct Dead {
    since: Nanos,
    /// The questions that were asked before: their answers may be older than its death.
    questions: u64,
    next: Nanos,
    /// Whether it was listed since.
    listed: bool,
    /// Whether the log has it.
    told: bool,
}

impl Dead {
    fn new(now: Nanos, questions: u64) -> Self {
        Self { since: now, questions, next: now, listed: false, told: false }
    }

    /// It is listed still, or nobody knows.
    fn wait(&mut self, now: Nanos) {
        self.next = now + (now - self.since).clamp(FIRST_PAUSE, LONGEST_PAUSE);
    }
}

impl Orphan {
    fn uses(&self, card: GpuUuid) -> bool {
        self.entry.cards.iter().any(|of| of.card.uuid == card)
    }

    /// When its memory is not back for more than the usual reasons.
    fn usual_end(&self) -> Nanos {
        self.dead.as_ref().map_or(self.ended + MOST_DYING, |dead| dead.since + USUAL)
    }
}

impl Orphans {
    pub(super) fn entries(&self) -> impl Iterator<Item = &ClientEntry> {
        self.0.values().map(|orphan| &orphan.entry)
    }

    /// When to ask about one of them.
    pub(super) fn due(&self) -> Option<Nanos> {
        self.0.values().filter_map(|orphan| Some(orphan.dead.as_ref()?.next)).min()
    }

    /// Until when memory may well come back to a card, to one session or to anybody, of those that had ended at a time; none if it is
    /// not to be expected.
    pub(super) fn expected_back(
        &self,
        card: GpuUuid,
        of: Option<SessionId>,
        (ended, now): (Nanos, Nanos),
    ) -> Option<Nanos> {
        let there = self.0.values().filter(|orphan| {
            let whose = of.is_none_or(|session| orphan.entry.session == session);
            whose && orphan.ended <= ended && orphan.uses(card)
        });
        there.map(Orphan::usual_end).filter(|&end| end > now).max()
    }

    /// What dead processes of a session have on a card for sure. One that died without a daemon may have freed any of what is
    /// written of it, until NVML lists it.
    pub(super) fn certain_bytes(&self, session: SessionId, card: GpuUuid) -> Bytes {
        let own = self.0.values().filter(|orphan| orphan.entry.session == session);
        let own =
            own.filter(|orphan| orphan.witnessed || orphan.dead.as_ref().is_some_and(|dead| dead.listed));
        let cards = own.flat_map(|orphan| &orphan.entry.cards);
        cards.filter(|of| of.card.uuid == card).map(|of| of.used).sum()
    }

    /// Nobody could be asked now.
    pub(super) fn ask_later(&mut self, now: Nanos) {
        let dead = self.0.values_mut().filter_map(|orphan| orphan.dead.as_mut());
        dead.for_each(|dead| dead.wait(now));
    }

    /// Those of whom an answer to question number `asked` says that no card has anything of theirs. About the others is asked
    /// again later.
    fn unlisted(&mut self, usages: &Usages, asked: u64, now: Nanos) -> Vec<ClientId> {
        let mut unlisted = Vec::new();
        for (&id, Orphan { entry, dead, .. }) in &mut self.0 {
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
                dead.wait(now);
            } else {
                unlisted.push(id);
            }
        }
        unlisted
    }
}

impl Shell {
    /// A process that the core knows has ended, and has this. It is not watched any more where its death is certain.
    pub(super) fn leave_behind(&mut self, entry: ClientEntry, pidfd: Option<Arc<OwnedFd>>, witnessed: bool) {
        let id = entry.client;
        let now = clock::monotonic();
        let alive = pidfd.filter(|pidfd| !peer::is_dead(pidfd));
        let dead = alive.is_none().then(|| Dead::new(now, self.measuring.questions()));
        let watch = alive.map(|pidfd| self.watch(pidfd, Watched::Orphan(id)));
        let orphan = Orphan { entry, ended: now, dead, witnessed, _watch: watch.unwrap_or_default() };
        self.orphans.0.insert(id, orphan);
        if self.measuring.is_off() {
            self.bury(id);
        }
    }

    /// One that was ending is dead.
    pub(super) fn orphan_died(&mut self, id: ClientId) {
        let dead = Dead::new(clock::monotonic(), self.measuring.questions());
        if let Some(orphan) = self.orphans.0.get_mut(&id) {
            orphan.dead = Some(dead);
        }
    }

    /// The answer to question number `asked`.
    pub(super) fn bury_unlisted_orphans(&mut self, usages: &Usages, asked: u64) {
        let now = clock::monotonic();
        let unlisted = self.orphans.unlisted(usages, asked, now);
        unlisted.into_iter().for_each(|id| self.bury(id));
        for orphan in self.orphans.0.values_mut() {
            let Some(dead) = orphan.dead.as_mut() else {
                continue;
            };
            if !dead.told && now - dead.since >= LONG {
                dead.told = true;
                kept(&orphan.entry, &self.sessions.name(orphan.entry.session));
            }
        }
    }

    /// There is nobody who could be asked about them.
    pub(super) fn bury_all_orphans(&mut self) {
        let all: Vec<ClientId> = self.orphans.0.keys().copied().collect();
        all.into_iter().for_each(|id| self.bury(id));
    }

    fn bury(&mut self, id: ClientId) {
        let Some(Orphan { entry, dead, .. }) = self.orphans.0.remove(&id) else {
            return;
        };
        if dead.is_some_and(|dead| dead.told) {
            let name = self.sessions.name(entry.session);
            Operation::done("memory.return")
                .of(entry.session, &name)
                .process(entry.process.pid)
                .info(format_args!(
                    "the driver has taken back what pid {} of {name} left",
                    entry.process.pid
                ));
        }
        self.feed(Event::ClientGone { client: id });
        self.leave(entry.session);
    }

    /// What dead processes of a session have on cards still.
    pub(super) fn orphaned(&self, session: SessionId, now: Nanos) -> Vec<OrphanView> {
        let own = self.orphans.0.values().filter(|orphan| orphan.entry.session == session);
        let cards = own.flat_map(|orphan| orphan.entry.cards.iter().map(move |of| (orphan, of)));
        cards
            .filter_map(|(orphan, of)| {
                Some(OrphanView {
                    pid: orphan.entry.process.pid,
                    gpu: self.cards.by_uuid(of.card.uuid)?,
                    bytes: of.used,
                    ago_ns: now - orphan.ended,
                })
            })
            .collect()
    }
}

/// Says that a card keeps what a dead process had.
fn kept(entry: &ClientEntry, name: &str) {
    let pid = entry.process.pid;
    let cards: Vec<String> = entry
        .cards
        .iter()
        .map(|of| format!("{} on {}", of.used, of.card.uuid))
        .collect();
    Operation::done("memory.return")
        .of(entry.session, name)
        .process(pid)
        .failed(Outcome::Failed, "kept")
        .warn(format_args!(
            "pid {pid} of {name} is dead and the card keeps its memory ({}): a process that it forked has the card's files open. \
             It counts as the session's until that one ends; `fuser -v /dev/nvidia*` names it",
            cards.join(", ")
        ));
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
        };
        let orphan = Orphan {
            entry,
            ended: NOW,
            dead: Some(Dead::new(NOW, questions)),
            witnessed: false,
            _watch: Watch::default(),
        };
        Orphans(BTreeMap::from([(ClientId(1), orphan)]))
    }

    fn is_over(orphans: &mut Orphans, usages: [Option<Vec<u32>>; 2], asked: u64) -> bool {
        let list = |pids: Vec<u32>| pids.into_iter().map(|pid| (pid, None)).collect();
        let usages = usages.map(|pids| pids.map(list));
        let usages = [CARD, OTHER].into_iter().zip(usages).collect();
        !orphans.unlisted(&usages, asked, NOW).is_empty()
    }

    #[test]
    fn whoever_is_listed_on_no_card_has_nothing_there() {
        let mut orphans = dead_after(0);
        assert!(!is_over(&mut orphans, [Some(vec![PID]), Some(vec![])], 1));
        assert!(!is_over(&mut orphans, [Some(vec![]), Some(vec![5, PID])], 2));
        assert!(is_over(&mut orphans, [Some(vec![]), Some(vec![5])], 3));
    }

    #[test]
    fn a_card_that_fails_to_say_who_is_there_frees_nothing() {
        let mut orphans = dead_after(0);
        assert!(!is_over(&mut orphans, [Some(vec![]), None], 1));
        assert!(is_over(&mut orphans, [Some(vec![]), Some(vec![])], 2));
    }

    #[test]
    fn a_card_that_nvml_does_not_know_keeps_nothing() {
        assert_eq!(dead_after(0).unlisted(&Usages::new(), 1, NOW), [ClientId(1)]);
    }

    #[test]
    fn an_answer_to_a_question_from_before_the_death_says_nothing() {
        let mut orphans = dead_after(3);
        assert!(!is_over(&mut orphans, [Some(vec![]), Some(vec![])], 3));
        assert!(is_over(&mut orphans, [Some(vec![]), Some(vec![])], 4));
    }

    #[test]
    fn the_longer_one_is_dead_the_less_often_it_is_asked_about() {
        let mut dead = Dead::new(NOW, 0);
        let pauses: BTreeSet<u64> = [0, 30, 5_000]
            .map(|ms| {
                let now = NOW + Nanos::from_millis(ms);
                dead.wait(now);
                (dead.next - now).0 / 1_000_000
            })
            .into();
        assert_eq!(pauses, [2, 30, 1_000].into());
    }

    #[test]
    fn a_request_waits_for_those_only_that_ended_before_it_on_its_card() {
        let orphans = dead_after(0);
        let back = |card, of, ended| orphans.expected_back(card, of, (ended, NOW));
        assert_eq!(back(CARD, None, NOW), Some(NOW + USUAL));
        assert_eq!(back(CARD, Some(SessionId(1)), NOW), Some(NOW + USUAL));
        assert_eq!(back(CARD, Some(SessionId(2)), NOW), None);
        assert_eq!(back(CARD, None, Nanos(NOW.0 - 1)), None);
        assert_eq!(back(GpuUuid::gpu([3; 16]), None, NOW), None);
        assert_eq!(orphans.expected_back(CARD, None, (NOW, NOW + USUAL)), None);
    }

    #[test]
    fn what_is_written_of_one_that_died_without_a_daemon_is_certain_once_it_is_listed() {
        let mut orphans = dead_after(0);
        let certain = |orphans: &Orphans, session| orphans.certain_bytes(SessionId(session), CARD);
        assert_eq!(certain(&orphans, 1), Bytes::ZERO);
        assert!(!is_over(&mut orphans, [None, None], 1));
        assert_eq!(certain(&orphans, 1), Bytes::ZERO);
        assert!(!is_over(&mut orphans, [Some(vec![]), Some(vec![PID])], 2));
        assert_eq!((certain(&orphans, 1), certain(&orphans, 2)), (Bytes::mib(40), Bytes::ZERO));
    }
}
