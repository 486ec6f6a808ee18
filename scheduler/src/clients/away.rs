//! State of a client that outlives its connection: recent answers, which may be lost, and a watch over the
//! client's process.
//!
//! An answer may be lost with the connection. So the daemon remembers the latest answers. On its next
//! connection the library repeats its requests under the same numbers. It gets the same answers, and no bytes
//! are booked twice. The library reports when it has repeated all of them. Bytes booked beyond these requests
//! are then free: the process had returned them on the lost connection.

use std::collections::{BTreeMap, VecDeque};

use gpushare_proto::{Bytes, GpuId, RequestId};

use crate::identity::Watch;

/// Number of answers remembered for each client: about one for each waiting thread.
const ANSWERS: usize = 64;
/// Number of consecutive NVML lists without the process which prove that it now runs another program.
const UNLISTED: u32 = 2;

type Answer = (RequestId, GpuId, Bytes);

#[derive(Debug, Default)]
pub(crate) struct Away {
    /// Latest answers on the present connection.
    answers: VecDeque<Answer>,
    /// Answers on earlier connections whose requests the client may repeat.
    repeats: VecDeque<Answer>,
    /// Bytes booked, by card, that a returned client neither claimed nor requested again so far.
    pub(super) surplus: BTreeMap<GpuId, Bytes>,
    pub(super) watch: Option<Watch>,
    /// Number of consecutive NVML answers that did not list the process.
    unlisted: u32,
}

impl Away {
    pub(crate) fn answered(&mut self, answer: Answer) {
        if self.answers.len() == ANSWERS {
            self.answers.pop_front();
        }
        self.answers.push_back(answer);
    }

    /// Ends the connection. The client may repeat its requests on the next one, and older requests too.
    pub(crate) fn disconnected(&mut self) {
        self.repeats.append(&mut self.answers);
        let forgotten = self.repeats.len().saturating_sub(ANSWERS);
        self.repeats.drain(..forgotten);
        self.unlisted = 0;
    }

    /// Notes whether NVML listed the process. Returns whether the process now runs another program.
    pub(crate) fn is_over(&mut self, unlisted: bool) -> bool {
        self.unlisted = if unlisted { self.unlisted + 1 } else { 0 };
        self.unlisted >= UNLISTED
    }

    /// Returns whether a request was answered on an earlier connection. Each answer is repeated at most once.
    pub(crate) fn repeats(&mut self, answer: Answer) -> bool {
        let found = self.repeats.iter().position(|of| *of == answer);
        let repeated = found.and_then(|at| self.repeats.remove(at)).is_some();
        if repeated && let Some(surplus) = self.surplus.get_mut(&answer.1) {
            *surplus -= answer.2;
        }
        repeated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_repeated_once_and_on_a_later_connection() {
        let answer = (RequestId(7), GpuId(0), Bytes(5));
        let mut away = Away::default();
        away.answered(answer);
        assert!(!away.repeats(answer), "the connection is still open");
        away.disconnected();
        assert!(!away.repeats((RequestId(7), GpuId(0), Bytes(6))));
        assert!(away.repeats(answer));
        assert!(!away.repeats(answer));
    }

    #[test]
    fn an_answer_survives_a_second_hangup() {
        let answer = (RequestId(7), GpuId(0), Bytes(5));
        let mut away = Away::default();
        away.answered(answer);
        away.disconnected();
        away.disconnected();
        assert!(away.repeats(answer));
        assert!(!away.repeats(answer));
    }

    #[test]
    fn two_answers_without_the_process_end_its_program() {
        let mut away = Away::default();
        let over = [true, false, true, true].map(|unlisted| away.is_over(unlisted));
        assert_eq!(over, [false, false, false, true]);
        away.disconnected();
        assert!(!away.is_over(true), "it was back, and is away anew");
    }

    #[test]
    fn the_latest_answers_are_remembered() {
        let mut away = Away::default();
        let answer = |n| (RequestId(n), GpuId(0), Bytes(n));
        (0..=ANSWERS as u64).for_each(|n| away.answered(answer(n)));
        away.disconnected();
        assert!(!away.repeats(answer(0)));
        assert!(away.repeats(answer(1)) && away.repeats(answer(ANSWERS as u64)));
    }
}
