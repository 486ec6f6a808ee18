//! Frost of one process: its way into a checkpoint of the driver, and back.
//!
//! ```text
//!         wish, drained, memory away        no call in the driver       room on the host
//!   Warm ───────────────────────────▶ Parking ────────────▶ Parked ─────────────────────▶ Freezing
//!    ▲ ▲                                 │ wish over, late     │ wish over                  │ done
//!    │ └─────────────────────────────────┴─────────────────────┘                            ▼
//!    │ done                      room on the cards                   wish over            Frozen
//!   Thawing ◀───────────────────────── Due ◀────────────── Queued ◀─────────────────────────┘
//!      │ broke off: Due again after a pause ▲  its bytes fit beside what stays on the cards
//!      ▼ the driver refused                 │ the freeze broke off
//!     Lost: nothing of it is on a card
//! ```
//!
//! From *Parking* on, the process's library holds every call of the driver back. From *Due* on, the bytes of the
//! process count as on its cards.

use gpushare_proto::{Bytes, Nanos};

use crate::events::{FreezeEnd, Obstacle, ThawEnd, ThawWait};

/// Longest time in which a process proves that no thread of it is in the driver.
pub(crate) const PARKING: Nanos = Nanos::from_secs(5);
/// Pause after a thaw that broke off or had no room.
const PAUSE: Nanos = Nanos::from_secs(1);

/// Stage of a process on its way into a checkpoint and back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Calls of the driver run.
    #[default]
    Warm,
    /// New calls wait. The process is to prove until this time that none is under way.
    Parking(Nanos),
    /// No call is under way.
    Parked,
    /// The driver moves all that the process has into host memory.
    Freezing,
    /// Nothing of the process is on its cards but a few bytes.
    Frozen,
    /// The process is to be thawed, in the order of these numbers. It still has nothing on its cards, and waits until
    /// its bytes fit beside those that do not leave.
    Queued(u64),
    /// The process is to be thawed, in the order of these numbers, and not before this time. Its bytes count as on its
    /// cards, so that memory that can leave makes room.
    Due(u64, Nanos),
    /// The driver moves everything back. The process keeps its number, in case the card lacks memory.
    Thawing(u64),
    /// The driver has given the process up.
    Lost,
}

/// Frost of one process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frost {
    stage: Stage,
    /// Obstacle that the process reports of itself.
    own: Option<Obstacle>,
    /// Obstacle that the daemon found when the driver moved the process. No report of the process removes it.
    found: Option<Obstacle>,
    /// Whether a thread of the process waits with a call of the driver.
    called: bool,
    /// Whether the card had no memory for the process at the last attempt to thaw it.
    lacks_memory: bool,
    /// Whether the thaw of the process is due, and memory that others could move is in its way.
    lacks_room: bool,
    /// Whether an attempt of the driver broke off, so that nobody knows what of the process is on its cards. All its bytes
    /// count.
    broke_off: bool,
    /// Whether the process may be on its cards as before: an attempt broke off, or the last daemon had begun to freeze it.
    may_be_here: bool,
    /// Whether the driver has restored the process at least once, or tried to. Of a process of the last daemon: whether
    /// it may have done so.
    restored: bool,
    /// Bytes of host memory that the checkpoint takes, from the beginning of the freeze to the end of the thaw.
    bytes: Bytes,
}

impl Frost {
    /// Frost of a process that nobody has examined yet.
    pub(crate) const fn new() -> Self {
        Self {
            stage: Stage::Warm,
            own: Some(Obstacle::Unexamined),
            found: None,
            called: false,
            lacks_memory: false,
            lacks_room: false,
            broke_off: false,
            may_be_here: false,
            restored: false,
            bytes: Bytes::ZERO,
        }
    }

    pub(crate) const fn stage(&self) -> Stage {
        self.stage
    }

    /// Reason why the process cannot be frozen.
    pub(crate) fn obstacle(&self) -> Option<Obstacle> {
        self.found.or(self.own)
    }

    /// Whether a thread of the process waits with a call of the driver.
    pub(crate) const fn is_called(&self) -> bool {
        self.called
    }

    /// Whether a card had no memory for the process at the last attempt to thaw it.
    pub(crate) const fn lacks_memory(&self) -> bool {
        self.lacks_memory
    }

    /// Whether nobody knows what of the process is on its cards, since an attempt of the driver broke off.
    pub(crate) const fn broke_off(&self) -> bool {
        self.broke_off
    }

    /// Whether the process may be on its cards as before, so that its thaw may need no memory.
    pub(crate) const fn may_be_here(&self) -> bool {
        self.may_be_here
    }

    /// Whether the process could come back at once if others made room for it.
    pub(crate) const fn lacks_room(&self) -> bool {
        self.lacks_room
    }

    /// Bytes of host memory that the checkpoint takes.
    pub(crate) const fn host_bytes(&self) -> Bytes {
        self.bytes
    }

    /// Whether calls of the driver wait.
    pub(crate) const fn is_cold(&self) -> bool {
        !matches!(self.stage, Stage::Warm | Stage::Lost)
    }

    /// Whether the process must not have a turn. One whose thaw is due may have one: the thaw is the first part of its
    /// way in.
    pub(crate) const fn bars(&self) -> bool {
        use Stage::{Freezing, Frozen, Parked, Parking, Queued};
        matches!(self.stage, Parking(_) | Parked | Freezing | Frozen | Queued(_))
    }

    /// Whether the process waits until its bytes fit.
    pub(crate) const fn is_queued(&self) -> bool {
        matches!(self.stage, Stage::Queued(_))
    }

    /// Place among those that are to come back.
    pub(crate) const fn ticket(&self) -> Option<u64> {
        match self.stage {
            Stage::Queued(ticket) | Stage::Due(ticket, _) | Stage::Thawing(ticket) => Some(ticket),
            _ => None,
        }
    }

    /// Whether the process is about to come back.
    pub(crate) const fn returns(&self) -> bool {
        matches!(self.stage, Stage::Queued(_) | Stage::Due(..) | Stage::Thawing(_))
    }

    /// Reason why the process has to wait, if it is about to come back.
    pub(crate) const fn waits_for(&self) -> Option<ThawWait> {
        match self.stage {
            Stage::Due(..) | Stage::Thawing(_) if self.lacks_memory => Some(ThawWait::FreeMemory),
            Stage::Queued(_) | Stage::Due(..) => Some(ThawWait::Room),
            Stage::Thawing(_) => Some(ThawWait::Driver),
            _ => None,
        }
    }

    /// Whether the process has nothing on its cards but a few bytes.
    pub(crate) const fn is_away(&self) -> bool {
        matches!(self.stage, Stage::Frozen | Stage::Queued(_) | Stage::Lost)
    }

    /// Whether the driver moves the process now.
    pub(crate) const fn is_under_way(&self) -> bool {
        matches!(self.stage, Stage::Freezing | Stage::Thawing(_))
    }

    /// Whether the process must not be killed: the driver has restored it, or it is on its way into a checkpoint or
    /// back. The kill of a restored process has hung a machine elsewhere.
    pub(crate) const fn is_spared(&self) -> bool {
        self.restored || self.returns() || matches!(self.stage, Stage::Freezing | Stage::Frozen)
    }

    /// Point in time at which the stage changes if no event comes before.
    pub(crate) fn deadline(&self, now: Nanos) -> Option<Nanos> {
        match self.stage {
            Stage::Parking(until) => Some(until),
            Stage::Due(_, after) => Some(after).filter(|&after| after > now),
            _ => None,
        }
    }

    /// Notes the obstacle that the process reports of itself.
    pub(crate) fn examine(&mut self, obstacle: Option<Obstacle>) {
        self.own = obstacle;
    }

    /// Notes that a thread waits with a call of the driver.
    pub(crate) fn call(&mut self) {
        self.called |= self.is_cold();
    }

    /// Asks the process for its proof.
    pub(crate) fn park(&mut self, now: Nanos) {
        if self.stage == Stage::Warm {
            self.stage = Stage::Parking(now + PARKING);
        }
    }

    /// Notes the proof.
    pub(crate) fn has_parked(&mut self) {
        if matches!(self.stage, Stage::Parking(_)) {
            self.stage = Stage::Parked;
        }
    }

    /// Lets a process that was not touched yet go on.
    pub(crate) fn unpark(&mut self) {
        if matches!(self.stage, Stage::Parking(_) | Stage::Parked) {
            self.warm();
        }
    }

    /// Begins to freeze a parked process, for which the host keeps `bytes`.
    pub(crate) fn freeze(&mut self, bytes: Bytes) {
        if self.stage == Stage::Parked {
            (self.stage, self.bytes) = (Stage::Freezing, bytes);
        }
    }

    /// Notes the end of a freeze; `ticket` is its place among those to thaw if it broke off.
    pub(crate) fn freeze_ended(&mut self, end: FreezeEnd, ticket: u64) {
        if self.stage != Stage::Freezing {
            return;
        }
        match end {
            FreezeEnd::Frozen => self.stage = Stage::Frozen,
            FreezeEnd::Refused => {
                self.found = Some(Obstacle::Refused);
                self.warm();
            }
            FreezeEnd::BrokeOff => self.count_as_unknown(ticket, Nanos::ZERO),
            FreezeEnd::Busy | FreezeEnd::TrialFailed { .. } => self.warm(),
            FreezeEnd::Prevented(obstacle) => {
                self.found = Some(obstacle).filter(|obstacle| obstacle.is_lasting()).or(self.found);
                self.warm();
            }
        }
    }

    /// Puts a frozen process among those to thaw.
    pub(crate) fn queue(&mut self, ticket: u64) {
        if self.stage == Stage::Frozen {
            self.stage = Stage::Queued(ticket);
        }
    }

    /// Puts a process that the last daemon has frozen, or had begun to freeze, among those to thaw.
    pub(crate) fn queue_found(&mut self, ticket: u64) {
        if self.stage == Stage::Warm {
            (self.stage, self.may_be_here) = (Stage::Queued(ticket), true);
        }
    }

    /// Makes the thaw of a queued process due, since its bytes fit, or puts it back, since they do not fit any more.
    /// Bytes of a process that may be on its cards always count.
    pub(crate) fn fit(&mut self, fits: bool) {
        match (self.stage, fits) {
            (Stage::Queued(ticket), true) => self.stage = Stage::Due(ticket, Nanos::ZERO),
            (Stage::Due(ticket, _), false) if !self.broke_off => {
                (self.stage, self.lacks_room) = (Stage::Queued(ticket), false);
            }
            _ => {}
        }
    }

    /// Makes the thaw of a process due of which nobody knows what is on its cards. A thaw brings it back from any state.
    pub(crate) fn count_as_unknown(&mut self, ticket: u64, after: Nanos) {
        self.stage = Stage::Due(ticket, after);
        (self.broke_off, self.may_be_here) = (true, true);
    }

    /// Notes that the last daemon had frozen the process, or had tried to.
    pub(crate) fn frozen_before(&mut self) {
        self.restored = true;
    }

    /// Notes that the thaw of a process is due and does not fit yet.
    pub(crate) fn miss_room(&mut self) {
        self.lacks_room = matches!(self.stage, Stage::Due(..));
    }

    /// Begins to thaw a process.
    pub(crate) fn thaw(&mut self) {
        if let Stage::Due(ticket, _) = self.stage {
            (self.stage, self.lacks_room) = (Stage::Thawing(ticket), false);
        }
    }

    /// Notes the end of a thaw. The thaw of a process that did not come back is due again after a pause. If it lacked
    /// memory it keeps its number. An attempt that broke off may have taken seconds, so it gets the last number,
    /// `ticket`. Otherwise two such processes would let no other one come back.
    pub(crate) fn thaw_ended(&mut self, end: ThawEnd, now: Nanos, ticket: u64) {
        let Stage::Thawing(own) = self.stage else {
            return;
        };
        match end {
            ThawEnd::Thawed => {
                self.warm();
                self.restored = true;
            }
            ThawEnd::BrokeOff => {
                self.count_as_unknown(ticket, now + PAUSE);
                self.lacks_memory = false;
            }
            // So it is in its checkpoint.
            ThawEnd::NoRoom => {
                (self.stage, self.lacks_memory) = (Stage::Due(own, now + PAUSE), true);
                (self.broke_off, self.may_be_here) = (false, false);
            }
            ThawEnd::Lost => {
                self.warm();
                (self.stage, self.found) = (Stage::Lost, Some(Obstacle::Lost));
                self.restored = true;
            }
        }
    }

    fn warm(&mut self) {
        (self.stage, self.bytes) = (Stage::Warm, Bytes::ZERO);
        (self.called, self.lacks_memory, self.lacks_room) = (false, false, false);
        (self.broke_off, self.may_be_here) = (false, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::from_secs(5);

    fn frozen() -> Frost {
        let mut frost = Frost::new();
        frost.park(NOW);
        frost.has_parked();
        frost.freeze(Bytes::gib(1));
        frost.freeze_ended(FreezeEnd::Frozen, 1);
        assert_eq!((frost.stage(), frost.host_bytes()), (Stage::Frozen, Bytes::gib(1)));
        frost
    }

    #[test]
    fn a_process_goes_all_the_way_and_back() {
        let mut frost = frozen();
        frost.call();
        frost.queue(2);
        assert!(frost.is_cold() && frost.is_away() && frost.bars() && frost.is_called());
        frost.thaw();
        assert_eq!(frost.stage(), Stage::Queued(2), "its bytes have to fit first");
        frost.fit(true);
        assert!(frost.is_cold() && !frost.is_away() && !frost.bars());
        frost.fit(false);
        assert_eq!((frost.stage(), frost.is_away()), (Stage::Queued(2), true));
        frost.fit(true);
        frost.thaw();
        frost.thaw_ended(ThawEnd::Thawed, NOW, 3);
        assert_eq!((frost.stage(), frost.is_called(), frost.host_bytes()), (Stage::Warm, false, Bytes::ZERO));
    }

    #[test]
    fn a_process_is_spared_from_its_freeze_on() {
        let mut frost = Frost::new();
        frost.park(NOW);
        frost.has_parked();
        assert!(!frost.is_spared(), "the driver has done nothing to it");
        frost.freeze(Bytes::gib(1));
        assert!(frost.is_spared());
        frost.freeze_ended(FreezeEnd::Refused, 1);
        assert!(!frost.is_spared(), "it was not restored");
        for end in [ThawEnd::Thawed, ThawEnd::Lost] {
            let mut frost = frozen();
            assert!(frost.is_spared());
            frost.queue(1);
            assert!(frost.is_spared());
            frost.fit(true);
            assert!(frost.is_spared());
            frost.thaw();
            assert!(frost.is_spared());
            frost.thaw_ended(end, NOW, 2);
            assert!(frost.is_spared());
        }
    }

    #[test]
    fn answers_out_of_turn_change_nothing() {
        let mut frost = Frost::new();
        frost.has_parked();
        frost.freeze(Bytes::gib(1));
        frost.freeze_ended(FreezeEnd::Frozen, 1);
        frost.thaw();
        frost.thaw_ended(ThawEnd::Lost, NOW, 3);
        frost.call();
        assert_eq!((frost.stage(), frost.is_called()), (Stage::Warm, false));
        let mut frost = frozen();
        frost.thaw_ended(ThawEnd::Thawed, NOW, 3);
        frost.unpark();
        frost.park(NOW);
        assert_eq!(frost.stage(), Stage::Frozen);
    }

    #[test]
    fn a_step_that_broke_off_is_repaired_by_a_thaw() {
        let mut frost = Frost::new();
        frost.park(NOW);
        assert_eq!(frost.deadline(NOW), Some(NOW + PARKING));
        frost.has_parked();
        frost.freeze(Bytes::gib(1));
        frost.freeze_ended(FreezeEnd::BrokeOff, 7);
        assert_eq!((frost.stage(), frost.deadline(NOW)), (Stage::Due(7, Nanos::ZERO), None));
        frost.fit(false);
        assert!(!frost.is_away(), "it may be on its cards");
        frost.thaw();
        frost.thaw_ended(ThawEnd::BrokeOff, NOW, 8);
        assert_eq!(frost.stage(), Stage::Due(8, NOW + PAUSE), "others come before");
        frost.thaw();
        frost.thaw_ended(ThawEnd::NoRoom, NOW, 9);
        assert_eq!(frost.stage(), Stage::Due(8, NOW + PAUSE), "it keeps its place");
        assert_eq!(frost.deadline(NOW), Some(NOW + PAUSE));
        assert_eq!(frost.host_bytes(), Bytes::gib(1), "the checkpoint may still be there");
    }

    #[test]
    fn a_busy_process_may_be_frozen_later() {
        let mut frost = Frost::new();
        frost.examine(None);
        frost.park(NOW);
        frost.has_parked();
        frost.freeze(Bytes::gib(1));
        frost.freeze_ended(FreezeEnd::Busy, 1);
        assert_eq!((frost.stage(), frost.obstacle(), frost.host_bytes()), (Stage::Warm, None, Bytes::ZERO));
    }

    #[test]
    fn a_refused_process_and_a_lost_one_are_not_tried_again() {
        let mut frost = Frost::new();
        frost.examine(None);
        frost.park(NOW);
        frost.has_parked();
        frost.freeze(Bytes::gib(1));
        frost.freeze_ended(FreezeEnd::Refused, 1);
        assert_eq!((frost.stage(), frost.obstacle()), (Stage::Warm, Some(Obstacle::Refused)));
        frost.examine(None);
        assert_eq!(frost.obstacle(), Some(Obstacle::Refused), "the driver's refusal outlasts reports");
        let mut frost = frozen();
        frost.queue(1);
        frost.fit(true);
        frost.thaw();
        frost.thaw_ended(ThawEnd::Lost, NOW, 3);
        frost.examine(Some(Obstacle::Managed));
        frost.examine(None);
        assert_eq!((frost.obstacle(), frost.is_away(), frost.is_cold()), (Some(Obstacle::Lost), true, false));
    }
}
