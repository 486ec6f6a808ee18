//! Facts about the memory of one process on one card: where its bytes are, and the goals that it was given.
//!
//! ```text
//!   Resides ──▶ say ─────┐
//!   Measured ─▶ measure ─┼─▶ Facts ── figures(book) ─▶ Figures, which the plan reads
//!   plan ─────▶ order ───┘
//! ```
//!
//! A process is believed up to the chunks in its memory book, and NVML's figure is the least that counts.
//! Goals stay in the list until the process acknowledges a later one, since it may still create memory under them.

use gpushare_proto::Bytes;
use gpushare_proto::page::GoalNumber;
use gpushare_proto::tenant::Residence;
use smallvec::SmallVec;

use crate::memory::book::Book;
use crate::residency::CHUNK;
use crate::residency::transfer::Mark;

/// Largest number of goals that are kept apart while none is acknowledged.
const KEPT: usize = 8;
/// Multiple of a process's chunks in which it is believed to have regions beside those that its slots fill.
const REGIONS: u64 = 16;

/// Facts about the remapped memory of one process on one card.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// Last report; `None` before the first one.
    report: Option<Residence>,
    /// Least number of bytes on the card, by NVML's figure for the process.
    measured: Bytes,
    goals: Goals,
}

/// Goals that a process may still act on.
#[derive(Clone, Debug, Default)]
struct Goals {
    /// Goals with their numbers, by falling bytes: an earlier one that is not above a later one says nothing.
    open: SmallVec<[(GoalNumber, Bytes); 2]>,
    last: GoalNumber,
}

/// Figures of one process on one card, believed as far as they can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Bytes that the process uses.
    pub(crate) used: Bytes,
    /// Bytes that the process may use without a message.
    pub(crate) leased: Bytes,
    /// Bytes on the card.
    pub(crate) resident: Bytes,
    /// Bytes that live in host memory. Used bytes that the process does not account for count, too.
    pub(crate) hosted: Bytes,
    /// Part of these that the process reports. The rest may be nowhere yet.
    pub(crate) reported: Bytes,
    /// Bytes without any memory so far.
    pub(crate) unbacked: Bytes,
    /// Resident bytes that must not move now.
    pub(crate) pinned: Bytes,
    /// Bytes of host memory that are kept for the next eviction.
    pub(crate) prepared: Bytes,
    /// Hosted bytes that are mapped from the host, where work reaches them.
    pub(crate) mapped: Bytes,
    /// Bytes that must be on the card when the process runs, or be mapped from the host.
    pub(crate) whole: Bytes,
    /// Whether the process has ever said where its memory is. One without remapped memory so far says nothing, and
    /// acknowledges no goal.
    pub(crate) reports: bool,
    /// Latest goal, if there is any.
    pub(crate) goal: Option<Bytes>,
    /// Most bytes that the process may have on the card by now.
    pub(crate) claim: Bytes,
}

/// Remapped memory of one process on one card by its reports and goals alone, without NVML's figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// Bytes on the card.
    pub resident: Bytes,
    /// Most bytes that the process may have on the card: an honest one never has more.
    pub claim: Bytes,
    /// Bytes of all its remapped memory, wherever it is.
    pub whole: Bytes,
}

impl Figures {
    /// Bytes that the process lacks for its turn. If it `overflows` the card, it needs those that are mapped from the
    /// host nowhere else.
    pub(crate) fn missing(&self, overflows: bool) -> Bytes {
        self.whole - (self.resident + if overflows { self.mapped } else { Bytes::ZERO })
    }

    /// Figures that show the progress of a move.
    pub(crate) fn mark(&self) -> Mark {
        Mark { resident: self.resident, mapped: self.mapped, claim: self.claim }
    }
}

/// Most bytes of registered host memory in which a process is believed: its chunks, an eighth that their slots leave
/// unused in regions, and two regions of the size of a chunk. One with few chunks has fewer regions beside them.
fn most_slots(book: &Book) -> Bytes {
    let chunks = book.most_chunks().max(book.chunks);
    let regions = (CHUNK + CHUNK).min(Bytes(chunks.0.saturating_mul(REGIONS)));
    chunks + Bytes(chunks.0 / 8) + regions
}

impl Goals {
    fn most(&self) -> Option<Bytes> {
        self.open.first().map(|&(_, bytes)| bytes)
    }

    fn latest(&self) -> Option<Bytes> {
        self.open.last().map(|&(_, bytes)| bytes)
    }

    fn add(&mut self, bytes: Bytes) -> GoalNumber {
        self.last = self.last.next();
        while self.latest().is_some_and(|before| before <= bytes) {
            self.open.pop();
        }
        if self.open.len() == KEPT {
            // The larger bytes under the later number: the claim is never too small.
            let (_, bytes) = self.open.remove(0);
            self.open[0].1 = bytes;
        }
        self.open.push((self.last, bytes));
        self.last
    }

    /// Notes that the process creates nothing more under goals before `seen`. Returns whether any was dropped.
    fn acknowledge(&mut self, seen: GoalNumber) -> bool {
        let before = self.open.len();
        // A process may say any number; the latest goal always stays.
        let seen = seen.min(self.last);
        self.open.retain(|&mut (number, _)| number >= seen);
        self.open.len() < before
    }
}

impl Facts {
    /// Notes a report. Returns whether an earlier goal was acknowledged as gone.
    pub(crate) fn say(&mut self, seen: GoalNumber, report: Residence) -> bool {
        self.report = Some(report);
        self.goals.acknowledge(seen)
    }

    /// Bytes that the process has copied out so far, by its own word.
    pub(crate) fn copied_out(&self) -> Bytes {
        self.report.map_or(Bytes::ZERO, |report| report.copied_out)
    }

    /// Notes the least number of bytes on the card, by NVML's figure for the process. Returns whether it fell.
    pub(crate) fn measure(&mut self, bytes: Bytes) -> bool {
        std::mem::replace(&mut self.measured, bytes) > bytes
    }

    /// Bytes on the card by the process's own word, at most its believed chunks.
    pub(crate) fn said_resident(&self, book: &Book) -> Bytes {
        self.report
            .map_or(book.remapped_used(), |report| report.resident.min(book.chunks))
    }

    /// Figures of the process by its reports and goals alone.
    pub(crate) fn reported(&self, book: &Book) -> Reported {
        let resident = self.said_resident(book);
        let claim = self.goal_that_counts().unwrap_or_default().max(resident);
        Reported { resident, claim, whole: book.whole() }
    }

    /// Gives the process a new goal.
    pub(crate) fn order(&mut self, bytes: Bytes) -> GoalNumber {
        self.goals.add(bytes)
    }

    /// Number of the latest goal.
    pub(crate) fn last(&self) -> GoalNumber {
        self.goals.last
    }

    /// Whether no goal before the latest one counts any more.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.goals.open.len() <= 1
    }

    /// Largest goal under which the process may still create memory. One that has never reported has no remapped memory,
    /// so that it acknowledges nothing: of its goals only the latest counts.
    fn goal_that_counts(&self) -> Option<Bytes> {
        match self.report {
            Some(_) => self.goals.most(),
            None => self.goals.latest(),
        }
    }

    /// Figures of the process, whose memory book is `book`.
    pub(crate) fn figures(&self, book: &Book) -> Figures {
        let (used, leased) = (book.remapped_used(), book.remapped());
        let most = book.chunks;
        let report = self.report.unwrap_or(Residence { resident: used, ..Residence::default() });
        let resident = self.said_resident(book).max(self.measured);
        let said = report.hosted.min(most);
        let unbacked = report.unbacked.min(most - said);
        Figures {
            used,
            leased,
            resident,
            hosted: said.max(used - (resident + unbacked)),
            reported: said,
            unbacked,
            pinned: book.pinned.min(resident),
            prepared: report.prepared.min(most_slots(book) - said),
            mapped: report.mapped.min(said),
            whole: book.whole().max(resident),
            reports: self.report.is_some(),
            goal: self.goals.latest(),
            claim: self.goal_that_counts().unwrap_or_default().max(resident),
        }
    }
}

#[cfg(test)]
impl Figures {
    /// Figures of a process that uses so much, of which `resident` is on the card under a goal of the same size.
    pub(crate) fn of_used(used: Bytes, resident: Bytes) -> Self {
        Self {
            used,
            leased: used,
            resident,
            hosted: used - resident,
            reported: used - resident,
            unbacked: Bytes::ZERO,
            pinned: Bytes::ZERO,
            prepared: Bytes::ZERO,
            mapped: Bytes::ZERO,
            whole: used,
            reports: true,
            goal: Some(resident),
            claim: resident,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Book of a process that is believed in chunks of 1 GiB more than its lease.
    fn book(leased: Bytes) -> Book {
        Book { leased, is_remapped: true, chunks: leased + Bytes::gib(1), ..Book::default() }
    }

    fn report(resident: Bytes, hosted: Bytes) -> Residence {
        Residence { resident, hosted, ..Residence::default() }
    }

    #[test]
    fn a_process_is_believed_between_nvml_and_its_chunks() {
        let mut facts = Facts::default();
        let book = book(Bytes::gib(4));
        assert_eq!(
            facts.figures(&book).resident,
            Bytes::gib(4),
            "before the first report all counts that it uses"
        );
        let unused = Book { free: Bytes::gib(3), ..book };
        assert_eq!(
            facts.figures(&unused).resident,
            Bytes::gib(1),
            "one without remapped memory never says a word"
        );
        facts.say(GoalNumber(0), report(Bytes::gib(1), Bytes::gib(3)));
        assert_eq!(
            (facts.figures(&book).resident, facts.figures(&book).hosted),
            (Bytes::gib(1), Bytes::gib(3))
        );
        facts.measure(Bytes::gib(2));
        assert_eq!(facts.figures(&book).resident, Bytes::gib(2), "NVML sees more");
        facts.say(GoalNumber(0), report(Bytes::MAX, Bytes::MAX));
        let most = book.chunks;
        let figures = facts.figures(&book);
        assert_eq!((figures.resident, figures.hosted, figures.whole), (most, most, most));
        facts.say(GoalNumber(0), Residence { prepared: Bytes::MAX, ..report(Bytes::ZERO, Bytes::gib(1)) });
        assert_eq!(
            facts.figures(&book).prepared,
            most_slots(&book) - Bytes::gib(1),
            "slots for more than the lease takes are not believed"
        );
        facts.say(GoalNumber(0), report(Bytes::ZERO, Bytes::ZERO));
        facts.measure(Bytes::ZERO);
        assert_eq!(facts.figures(&book).hosted, Bytes::gib(4), "what is nowhere needs a place");
        let born = Residence { unbacked: Bytes::gib(4), ..report(Bytes::gib(1), Bytes::ZERO) };
        facts.say(GoalNumber(0), born);
        let figures = facts.figures(&book);
        assert_eq!((figures.hosted, figures.whole), (Bytes::ZERO, most), "and whole chunks are needed");
        facts.say(GoalNumber(0), Residence { mapped: Bytes::gib(3), ..report(Bytes::gib(1), Bytes::gib(2)) });
        let figures = facts.figures(&book);
        assert_eq!(figures.mapped, Bytes::gib(2), "a part of the hosted");
        let missing = [false, true].map(|overflows| figures.missing(overflows));
        assert_eq!(missing, [Bytes::gib(4), Bytes::gib(2)]);
    }

    #[test]
    fn a_claim_falls_when_the_lower_goal_is_acknowledged() {
        let mut facts = Facts::default();
        let book = book(Bytes::gib(9));
        let claim = |facts: &Facts| facts.figures(&book).claim;
        facts.say(GoalNumber(0), Residence::default());
        let high = facts.order(Bytes::gib(8));
        let low = facts.order(Bytes::gib(2));
        let mid = facts.order(Bytes::gib(5));
        facts.say(high, Residence::default());
        assert_eq!(claim(&facts), Bytes::gib(8));
        facts.say(low, Residence::default());
        assert_eq!(claim(&facts), Bytes::gib(5), "the later goal is above the acknowledged one");
        facts.say(mid, report(Bytes::gib(6), Bytes::ZERO));
        assert_eq!(claim(&facts), Bytes::gib(6), "more is resident than the goal allows");
        facts.say(high, report(Bytes::gib(1), Bytes::ZERO));
        assert_eq!(claim(&facts), Bytes::gib(5), "an old acknowledgement changes nothing");
        facts.say(GoalNumber(u64::MAX), report(Bytes::gib(1), Bytes::ZERO));
        assert_eq!((claim(&facts), facts.figures(&book).goal), (Bytes::gib(5), Some(Bytes::gib(5))));
    }

    #[test]
    fn a_process_without_remapped_memory_keeps_no_room_by_goals_that_it_never_acknowledges() {
        let mut facts = Facts::default();
        let book = Book { is_remapped: true, ..Book::default() };
        facts.order(Bytes::gib(8));
        assert_eq!(facts.figures(&book).claim, Bytes::gib(8), "it may begin to");
        facts.order(Bytes::ZERO);
        assert_eq!(facts.figures(&book).claim, Bytes::ZERO);
    }

    #[test]
    fn many_goals_without_an_answer_take_no_room_and_keep_the_claim() {
        let mut facts = Facts::default();
        facts.say(GoalNumber(0), Residence::default());
        (0..100).for_each(|n| _ = facts.order(Bytes::gib(100 - n)));
        assert_eq!(facts.figures(&book(Bytes::gib(200))).claim, Bytes::gib(100));
        assert_eq!(facts.goals.open.len(), KEPT);
        facts.say(facts.last(), Residence::default());
        assert_eq!(facts.figures(&book(Bytes::gib(200))).claim, Bytes::gib(1));
    }
}
