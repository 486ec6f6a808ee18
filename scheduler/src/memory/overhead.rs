//! Driver overhead of one process on one card: memory of contexts, kernels and stacks, by NVML's figures.
//!
//! NVML's figure of a process is its contexts and its memory that cannot move. No figure contains managed
//! memory (docs/results/real-card-suite.md). So `overhead = used − fixed`, where `fixed` is booked.
//!
//! Memory may come and go between question and answer. So the smallest possible overhead counts: with the
//! greater of the fixed bytes before and after, and as the smaller of two consecutive answers.
//!
//! Remapped memory leaves and comes in by gigabytes, and its reports are a little late. So an answer says nothing of a
//! process if any of it moved between question and answer.

use gpushare_proto::Bytes;

#[derive(Debug, Default)]
pub(crate) struct Overhead {
    /// Overhead in bytes by NVML's latest answer.
    last: Option<Bytes>,
    /// Overhead in bytes that the decision machine was told last.
    sent: Option<Bytes>,
    /// Bytes of remapped memory at the latest question; `None` if they moved.
    rested: Option<Bytes>,
    /// Whether NVML has ever listed the process on the card.
    pub(crate) listed: bool,
}

impl Overhead {
    /// Notes the bytes of remapped memory when NVML is asked; `None` if they move.
    pub(crate) fn ask(&mut self, resting: Option<Bytes>) {
        self.rested = resting;
    }

    /// Whether remapped memory, of which so many bytes rest at the answer, has rested since the question.
    pub(crate) fn has_rested(&self, resting: Option<Bytes>) -> bool {
        resting.is_some() && self.rested == resting
    }

    /// Evaluates an answer of NVML. Returns the overhead if it changed; `Some(None)` means "not known".
    pub(crate) fn read(&mut self, used: Option<Bytes>, fixed: Bytes) -> Option<Option<Bytes>> {
        let now = used.map(|used| used - fixed);
        let before = std::mem::replace(&mut self.last, now);
        let least = now.map(|now| now.min(before.unwrap_or(now)));
        (std::mem::replace(&mut self.sent, least) != least).then_some(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: fn(u64) -> Bytes = Bytes::mib;

    #[test]
    fn overhead_is_used_less_fixed_bytes_and_sent_once() {
        let mut overhead = Overhead::default();
        assert_eq!(overhead.read(Some(MIB(518)), Bytes::ZERO), Some(Some(MIB(518))));
        assert_eq!(overhead.read(Some(MIB(1542)), MIB(1024)), None);
    }

    #[test]
    fn a_rise_counts_when_seen_twice_and_a_fall_at_once() {
        let mut overhead = Overhead::default();
        overhead.read(Some(MIB(518)), Bytes::ZERO);
        assert_eq!(overhead.read(Some(MIB(2566)), Bytes::ZERO), None, "perhaps not booked yet");
        assert_eq!(overhead.read(Some(MIB(2566)), MIB(2048)), None);
        assert_eq!(overhead.read(Some(MIB(900)), Bytes::ZERO), None);
        assert_eq!(overhead.read(Some(MIB(901)), Bytes::ZERO), Some(Some(MIB(900))));
        assert_eq!(overhead.read(Some(MIB(400)), Bytes::ZERO), Some(Some(MIB(400))));
    }

    #[test]
    fn an_answer_counts_only_if_no_remapped_memory_moved_meanwhile() {
        let mut overhead = Overhead::default();
        assert!(!overhead.has_rested(Some(MIB(8))), "NVML was not asked yet");
        overhead.ask(Some(MIB(8)));
        assert!(overhead.has_rested(Some(MIB(8))));
        assert!(!overhead.has_rested(Some(MIB(4))), "half of it has left");
        assert!(!overhead.has_rested(None), "it moves");
        overhead.ask(None);
        assert!(!overhead.has_rested(None) && !overhead.has_rested(Some(MIB(8))), "it moved");
    }

    #[test]
    fn fixed_bytes_above_the_figure_of_nvml_give_zero() {
        assert_eq!(Overhead::default().read(Some(MIB(5)), MIB(9)), Some(Some(Bytes::ZERO)));
    }

    #[test]
    fn without_a_figure_the_assumption_returns() {
        let mut overhead = Overhead::default();
        assert_eq!(overhead.read(None, Bytes::ZERO), None, "nothing was told");
        overhead.read(Some(MIB(518)), Bytes::ZERO);
        assert_eq!(overhead.read(None, Bytes::ZERO), Some(None));
        assert_eq!(overhead.read(Some(MIB(600)), Bytes::ZERO), Some(Some(MIB(600))));
    }
}
