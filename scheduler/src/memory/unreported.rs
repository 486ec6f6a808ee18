//! Remapped memory that one process has on one card and does not report, by NVML's figures.
//!
//! A figure of NVML is some milliseconds old when it comes, and the next one comes seconds later. Meanwhile an honest
//! process may have moved all its memory. So a figure never replaces a report. It counts only if it contradicts all
//! that the process has said:
//!
//! ```text
//!   question ──────── question ~~~~~ answer          question ~~~~~ answer
//!      └── most that it may have by its word ──┘  ◀─ the same for the next one ─▶
//!
//!   remapped = min(figure − fixed − driver, whole)         driver = max(1 GiB, figure − fixed − whole of any answer)
//!   an answer contradicts if remapped > most + margin      two in a row: the smaller one counts
//! ```
//!
//! An honest process never has more on a card than the largest of its reports and of the goals that it may follow. It
//! reports memory before it uses it, and after it has released it. Memory beyond that is the driver's own, up to the
//! margin, which is an eighth of the card.
//!
//! Once a figure counts, only the process's reports end it. Goals do not, since it has gone beyond them before.

use gpushare_proto::Bytes;

/// Memory of contexts, kernels and libraries that the driver may have for a process.
const DRIVER: Bytes = Bytes::gib(1);

/// State of one process on one card.
#[derive(Debug, Default)]
pub(crate) struct Unreported {
    /// Largest claims by the process's word: between the last two questions to NVML, and since the last one.
    most: [Bytes; 2],
    /// Fixed bytes at the last question.
    fixed: Bytes,
    /// Bytes of the driver's own that cannot have been remapped memory, the most of all answers.
    driver: Bytes,
    /// Remapped bytes of the last answer if it contradicted the process, else zero.
    last: Bytes,
    /// Bytes that the decision machine was told last.
    told: Bytes,
}

/// NVML's figure of one process on one card, with all that explains it. A process that is several clients has the sums
/// of all of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reading {
    /// Bytes that NVML shows, less the fixed ones.
    pub(crate) beside_fixed: Bytes,
    /// Resident bytes by the last reports.
    pub(crate) resident: Bytes,
    /// Most bytes by reports and goals, since the question before the one that was answered.
    pub(crate) claim: Bytes,
    /// Part of `claim` of other clients that are the same process.
    pub(crate) of_others: Bytes,
    /// Bytes of all remapped memory, wherever it is.
    pub(crate) whole: Bytes,
    /// Bytes by which the figure must be above what explains it.
    pub(crate) margin: Bytes,
}

impl Unreported {
    /// Notes a claim of the process by its reports and goals, before it may fall.
    pub(crate) fn note(&mut self, claim: Bytes) {
        let [_, since] = &mut self.most;
        *since = claim.max(*since);
    }

    /// Notes a question to NVML, with the present claim and fixed bytes.
    pub(crate) fn ask(&mut self, claim: Bytes, fixed: Bytes) {
        self.note(claim);
        let [_, before] = self.most;
        self.most = [before, claim];
        self.fixed = fixed;
    }

    /// Largest claim since the question before the last one.
    pub(crate) fn most(&self) -> Bytes {
        let [before, since] = self.most;
        before.max(since)
    }

    /// Fixed bytes at the last question.
    pub(crate) fn fixed(&self) -> Bytes {
        self.fixed
    }

    /// Evaluates an answer of NVML; `None` if it has no figure. Returns the least number of remapped bytes on the card
    /// if it changed. Zero says nothing against the reports.
    pub(crate) fn read(&mut self, reading: Option<Reading>) -> Option<Bytes> {
        let now = reading.map_or(Bytes::ZERO, |reading| self.contradiction(reading));
        let least = std::mem::replace(&mut self.last, now).min(now);
        (std::mem::replace(&mut self.told, least) != least).then_some(least)
    }

    fn contradiction(&mut self, reading: Reading) -> Bytes {
        let Reading { beside_fixed, resident, claim, of_others, whole, margin } = reading;
        self.driver = self.driver.max(beside_fixed - whole);
        let remapped = (beside_fixed - self.driver.max(DRIVER)).min(whole);
        let explained = if self.told.is_zero() { claim } else { resident };
        if remapped > explained + margin { remapped - of_others } else { Bytes::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: fn(u64) -> Bytes = Bytes::gib;

    /// Process with 40 GiB of remapped memory on a card of 80 GiB.
    #[derive(Default)]
    struct Process {
        state: Unreported,
        resident: Bytes,
        goal: Bytes,
    }

    impl Process {
        fn claim(&self) -> Bytes {
            self.resident.max(self.goal)
        }

        /// Lets the process report, and acknowledge a goal.
        fn reports(&mut self, resident: Bytes, goal: Bytes) {
            self.state.note(self.claim());
            (self.resident, self.goal) = (resident, goal);
        }

        fn ask(&mut self) {
            self.state.ask(self.claim(), Bytes::ZERO);
        }

        fn answer(&mut self, used: Bytes) -> Option<Bytes> {
            let claim = self.state.most().max(self.claim());
            let (resident, margin) = (self.resident, GIB(10));
            let reading = Reading {
                beside_fixed: used,
                resident,
                claim,
                of_others: Bytes::ZERO,
                whole: GIB(40),
                margin,
            };
            self.state.read(Some(reading))
        }

        fn measure(&mut self, used: Bytes) -> Option<Bytes> {
            self.ask();
            self.answer(used)
        }
    }

    #[test]
    fn who_says_that_nothing_is_resident_counts_with_what_nvml_shows_twice() {
        let mut process = Process::default();
        assert_eq!(process.measure(GIB(41)), None, "once");
        assert_eq!(process.measure(GIB(39)), Some(GIB(38)), "the smaller of two, less the driver's");
        assert_eq!(process.measure(GIB(41)), None, "still the smaller one");
        assert_eq!(process.measure(GIB(41)), Some(GIB(40)));
        process.goal = GIB(40);
        assert_eq!(process.measure(GIB(41)), None, "a goal is no report");
        assert_eq!(process.measure(GIB(1)), Some(Bytes::ZERO), "a fall counts at once");
    }

    #[test]
    fn who_reports_what_it_has_counts_by_its_word_again() {
        let mut process = Process::default();
        process.measure(GIB(41));
        assert_eq!(process.measure(GIB(41)), Some(GIB(40)));
        process.reports(GIB(40), Bytes::ZERO);
        assert_eq!(process.measure(GIB(41)), Some(Bytes::ZERO));
    }

    #[test]
    fn an_honest_process_that_moves_between_all_questions_and_answers_is_believed() {
        let mut process = Process::default();
        for _ in 0..5 {
            process.reports(Bytes::ZERO, GIB(40));
            process.reports(GIB(40), GIB(40));
            process.ask();
            process.reports(GIB(20), Bytes::ZERO);
            process.reports(Bytes::ZERO, Bytes::ZERO);
            assert_eq!(process.answer(GIB(41)), None, "the sample is from before the move");
        }
        assert_eq!(process.measure(GIB(41)), None, "the driver takes its time");
        assert_eq!(process.measure(GIB(1)), None);
    }

    #[test]
    fn an_honest_process_on_its_way_in_is_believed_before_it_reports() {
        let mut process = Process { goal: GIB(40), ..Process::default() };
        assert_eq!([GIB(41); 3].map(|used| process.measure(used)), [None; 3]);
    }

    #[test]
    fn a_move_while_nvml_takes_long_to_answer_is_no_contradiction() {
        let mut process = Process::default();
        for _ in 0..3 {
            process.ask();
            process.reports(Bytes::ZERO, GIB(40));
            process.reports(GIB(40), GIB(40));
            process.reports(Bytes::ZERO, Bytes::ZERO);
            assert_eq!(process.answer(GIB(41)), None);
        }
    }

    #[test]
    fn deep_stacks_are_the_drivers_memory_and_stay_so_when_the_rest_has_left() {
        let mut process = Process { resident: GIB(40), ..Process::default() };
        assert_eq!(process.measure(GIB(60)), None);
        process.reports(Bytes::ZERO, Bytes::ZERO);
        assert_eq!([GIB(20); 3].map(|used| process.measure(used)), [None; 3]);
        assert_eq!(process.measure(GIB(60)), None);
        assert_eq!(process.measure(GIB(60)), Some(GIB(40)), "all beside them");
    }

    #[test]
    fn some_memory_that_nobody_explains_is_the_drivers() {
        let mut process = Process::default();
        assert_eq!([GIB(11); 3].map(|used| process.measure(used)), [None; 3]);
    }

    #[test]
    fn a_process_that_nvml_does_not_list_counts_by_its_word() {
        let mut process = Process::default();
        process.measure(GIB(41));
        assert_eq!(process.measure(GIB(41)), Some(GIB(40)));
        assert_eq!(process.state.read(None), Some(Bytes::ZERO));
        assert_eq!(process.measure(GIB(41)), None, "and two answers are needed again");
    }

    #[test]
    fn memory_of_other_clients_of_the_process_is_theirs() {
        let mut state = Unreported::default();
        let reading = Reading {
            beside_fixed: GIB(41),
            claim: GIB(10),
            of_others: GIB(10),
            whole: GIB(60),
            margin: GIB(10),
            ..Reading::default()
        };
        assert_eq!([(); 2].map(|()| state.read(Some(reading))), [None, Some(GIB(30))]);
    }
}
