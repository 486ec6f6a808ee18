//! Running move of one process on one card, with its deadline.
//!
//! ```text
//!             goal differs from what is resident        one second without progress, or MoveFailed
//!   Resting ────────────────────────────────────▶ Moving ───────────────────────────────────────▶ Late
//!      ▲                                          │  ▲                                             │
//!      └──────────────── done, or called off ─────┘  └── progress, pause over, another interval ───┘
//! ```
//!
//! Progress is what the process reports: less resident or a goal acknowledged on the way out, more resident or mapped
//! from the host on the way in. A process that answers without progress is as late as one that is stopped.

use gpushare_proto::page::GoalNumber;
use gpushare_proto::{Bytes, Nanos};

use crate::residency::plan::Rank;

/// Time without progress after which a move is late, and pause after a failed move.
pub(crate) const PATIENCE: Nanos = Nanos::from_secs(1);

/// Direction of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Memory or credit is given up.
    Out,
    /// Memory comes in.
    In,
}

/// Move that the latest goal of a process asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) way: Way,
    /// Number of the goal.
    pub(crate) number: GoalNumber,
    /// Resident bytes at the end of the move.
    pub(crate) target: Bytes,
}

/// Memory that a process has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) way: Way,
    pub(crate) bytes: Bytes,
    pub(crate) took: Nanos,
}

/// Figures of a process that show the progress of its move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Bytes on the card.
    pub(crate) resident: Bytes,
    /// Bytes that are mapped from the host.
    pub(crate) mapped: Bytes,
    /// Most bytes that may be on the card.
    pub(crate) claim: Bytes,
}

/// State of a process's move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// Nothing is asked of the process.
    #[default]
    Resting,
    Moving {
        task: Task,
        /// Figures at the last progress.
        at: Mark,
        deadline: Nanos,
        /// Time and figures at the beginning.
        began: (Nanos, Mark),
    },
    /// The process did not move in time, or said that it could not.
    Late {
        task: Task,
        at: Mark,
        /// Whether the session had the lock.
        held: bool,
        /// Point in time at which the process is asked again; `None` if that takes progress.
        until: Option<Nanos>,
    },
}

impl Transfer {
    /// Whether the process is late in one direction.
    pub(crate) fn is_late(&self, way: Way) -> bool {
        matches!(self, Self::Late { task, .. } if task.way == way)
    }

    /// Direction in which the process was asked to move, and the point in time since which it does; `now` for a late
    /// one.
    pub(crate) fn direction(&self, now: Nanos) -> Option<(Way, Nanos)> {
        match *self {
            Self::Resting => None,
            Self::Moving { task, began, .. } => Some((task.way, began.0)),
            Self::Late { task, .. } => Some((task.way, now)),
        }
    }

    /// Bytes that have to leave the card or to come in, if `resident` ones are there. A move out that is about credit
    /// alone has none.
    pub(crate) fn rest(&self, resident: Bytes) -> Bytes {
        match *self {
            Self::Moving { task: Task { way: Way::Out, target, .. }, .. } => resident - target,
            Self::Moving { task: Task { way: Way::In, target, .. }, .. } => target - resident,
            Self::Resting | Self::Late { .. } => Bytes::ZERO,
        }
    }

    /// Point in time at which the state changes without an event.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        match *self {
            Self::Resting => None,
            Self::Moving { deadline, .. } => Some(deadline),
            Self::Late { until, .. } => until,
        }
    }

    /// Notes where the memory of the process is now. `acknowledged` says whether the process has seen its latest
    /// goal.
    pub(crate) fn note(&mut self, now: Nanos, mark: Mark, acknowledged: bool, rank: Rank) {
        let held = rank.has_lock();
        // A session that must let go needs nothing more, so its move in is about to be called off.
        let is_wanted = |task: &Task| task.way == Way::Out || matches!(rank, Rank::Holds(_));
        match self {
            Self::Moving { task, at, deadline, .. } if has_progressed(task.way, *at, mark) => {
                (*at, *deadline) = (mark, now + PATIENCE);
            }
            Self::Moving { task, at, deadline, .. } if now >= *deadline && is_wanted(task) => {
                *self = Self::Late { task: *task, at: *at, held, until: None };
            }
            Self::Late { task, at, held: before, until } => {
                let waits = match (*until, task.way) {
                    (Some(until), _) => now < until,
                    (None, Way::Out) => true,
                    // Its goal was lowered to what is resident, so it cannot progress.
                    (None, Way::In) => !acknowledged,
                };
                if *before != held || !waits || has_progressed(task.way, *at, mark) {
                    *self = Self::Resting;
                }
            }
            Self::Resting | Self::Moving { .. } => {}
        }
    }

    /// Ends the running move if the process has reached its target, and returns it. A move that is called off is
    /// not returned: it ends after the turns are decided, and what is learned then would change them. Neither is one
    /// during which memory was mapped from the host, which takes much longer than a move.
    pub(crate) fn end(&mut self, now: Nanos, mark: Mark) -> Option<Moved> {
        let Self::Moving { task: Task { way, target, .. }, began: (begin, before), .. } = *self else {
            return None;
        };
        let bytes = match way {
            Way::Out if mark.claim <= target => before.resident - mark.resident,
            Way::In if mark.resident >= target => mark.resident - before.resident,
            Way::Out | Way::In => return None,
        };
        *self = Self::Resting;
        (mark.mapped <= before.mapped).then_some(Moved { way, bytes, took: now - begin })
    }

    /// Follows the task that the latest goal asks for. A new task in the same direction keeps the deadline.
    pub(crate) fn follow(&mut self, now: Nanos, task: Option<Task>, mark: Mark) {
        *self = match (*self, task) {
            (Self::Late { .. }, _) => return,
            (_, None) => Self::Resting,
            (Self::Moving { task: before, at, deadline, began }, Some(task)) if before.way == task.way => {
                Self::Moving { task, at, deadline, began }
            }
            (_, Some(task)) => {
                let (deadline, began) = (now + PATIENCE, (now, mark));
                Self::Moving { task, at: mark, deadline, began }
            }
        };
    }

    /// Notes that the process could not carry out its goal `number`. Returns whether that is the running move.
    pub(crate) fn fail(&mut self, now: Nanos, number: GoalNumber, held: bool) -> bool {
        match *self {
            Self::Moving { task, at, .. } if task.number == number => {
                *self = Self::Late { task, at, held, until: Some(now + PATIENCE) };
                true
            }
            _ => false,
        }
    }
}

fn has_progressed(way: Way, before: Mark, now: Mark) -> bool {
    match way {
        Way::Out => now.resident < before.resident || now.claim < before.claim,
        Way::In => now.resident + now.mapped > before.resident + before.mapped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = PATIENCE;
    const HOLDS: Rank = Rank::Holds(1);
    const BARRED: Rank = Rank::Barred;
    const HALF: Nanos = Nanos(PATIENCE.0 / 2);

    fn task(way: Way, number: u64) -> Option<Task> {
        Some(Task { way, number: GoalNumber(number), target: Bytes(0) })
    }

    fn figures(resident: u64) -> Mark {
        Mark { resident: Bytes(resident), mapped: Bytes::ZERO, claim: Bytes(9) }
    }

    #[test]
    fn progress_and_nothing_else_moves_the_deadline() {
        let mut transfer = Transfer::default();
        transfer.follow(Nanos(0), task(Way::Out, 1), figures(9));
        transfer.follow(HALF, task(Way::Out, 2), figures(9));
        assert_eq!(transfer.deadline(), Some(SECOND));
        transfer.note(HALF, figures(8), false, BARRED);
        assert_eq!(transfer.deadline(), Some(HALF + SECOND));
        transfer.note(SECOND, figures(9), true, BARRED);
        transfer.note(HALF + SECOND, figures(8), true, BARRED);
        assert!(transfer.is_late(Way::Out));
        transfer.note(SECOND + SECOND, figures(8), true, BARRED);
        assert!(transfer.is_late(Way::Out), "an answer without progress");
        transfer.note(SECOND + SECOND, figures(7), true, BARRED);
        assert_eq!(transfer, Transfer::Resting);
    }

    #[test]
    fn a_move_that_reaches_its_target_tells_how_much_moved_in_which_time() {
        let to = |way, target| Some(Task { way, number: GoalNumber(1), target: Bytes(target) });
        let mut transfer = Transfer::default();
        transfer.follow(Nanos(5), to(Way::Out, 6), figures(9));
        transfer.follow(Nanos(6), to(Way::Out, 4), figures(7));
        assert_eq!(transfer.end(Nanos(7), figures(4)), None, "the goal is not acknowledged");
        let moved = transfer.end(Nanos(8), Mark { claim: Bytes(4), ..figures(4) });
        assert_eq!(moved, Some(Moved { way: Way::Out, bytes: Bytes(5), took: Nanos(3) }));
        transfer.follow(Nanos(8), to(Way::In, 6), figures(4));
        assert_eq!(transfer.end(Nanos(8), figures(5)), None);
        let moved = transfer.end(Nanos(9), figures(6));
        assert_eq!(moved, Some(Moved { way: Way::In, bytes: Bytes(2), took: Nanos(1) }));
        assert_eq!(transfer, Transfer::Resting);
    }

    #[test]
    fn memory_that_is_mapped_from_the_host_is_progress_and_says_nothing_of_the_bus() {
        let mut transfer = Transfer::default();
        let to = Some(Task { way: Way::In, number: GoalNumber(1), target: Bytes(6) });
        transfer.follow(Nanos(0), to, figures(4));
        let mapped = Mark { mapped: Bytes(3), ..figures(4) };
        transfer.note(HALF, mapped, false, HOLDS);
        assert_eq!(transfer.deadline(), Some(HALF + SECOND));
        assert_eq!(transfer.end(SECOND, Mark { resident: Bytes(6), ..mapped }), None);
        assert_eq!(transfer, Transfer::Resting);
    }

    #[test]
    fn a_late_entrant_is_asked_again_once_it_has_seen_its_lower_goal() {
        let mut transfer = Transfer::default();
        transfer.follow(Nanos(0), task(Way::In, 1), figures(1));
        transfer.note(SECOND, figures(1), false, HOLDS);
        transfer.note(SECOND, figures(1), false, HOLDS);
        assert!(transfer.is_late(Way::In));
        transfer.note(SECOND, figures(1), true, HOLDS);
        assert_eq!(transfer, Transfer::Resting);
    }

    #[test]
    fn a_move_in_is_not_late_once_its_session_must_let_go() {
        let mut transfer = Transfer::default();
        transfer.follow(Nanos(0), task(Way::In, 1), figures(1));
        transfer.note(SECOND, figures(1), true, Rank::Drains);
        assert!(!transfer.is_late(Way::In));
        transfer.follow(SECOND, None, figures(1));
        assert_eq!(transfer, Transfer::Resting);
    }

    #[test]
    fn a_failed_move_is_tried_again_after_a_pause_or_in_another_interval() {
        let mut transfer = Transfer::default();
        transfer.follow(Nanos(0), task(Way::Out, 3), figures(9));
        assert!(!transfer.fail(Nanos(0), GoalNumber(2), false), "an old failure");
        assert!(transfer.fail(Nanos(0), GoalNumber(3), false));
        transfer.note(HALF, figures(9), true, BARRED);
        assert_eq!(transfer.deadline(), Some(SECOND));
        let mut granted = transfer;
        granted.note(HALF, figures(9), true, HOLDS);
        assert_eq!(granted, Transfer::Resting);
        transfer.note(SECOND, figures(9), true, BARRED);
        assert_eq!(transfer, Transfer::Resting);
    }
}
