//! Words of the daemon in the page, which a card follows.

use std::sync::atomic::Ordering;

use gpushare_proto::page::{
    FEATURE_COPIES, FEATURE_GOALS, FLAG_HOST_FULL, Goal, GoalNumber, Page, flag_overflows,
};
use gpushare_proto::{Bytes, GpuId};

use super::Card;
use super::reports::Told;
use crate::process::lock;
use crate::remap::lanes::Moving;
use crate::remap::swap::UNLIMITED;

/// Words of the daemon for one card.
#[derive(Clone, Copy, Debug)]
struct Words {
    goal: Goal,
    /// Whether the process overflows the card.
    overflows: bool,
    /// Whether the host memory is too full for what must leave the cards.
    host_is_full: bool,
    /// Host memory that should be ready for what leaves the card; `None` before the first goal.
    host_target: Option<Bytes>,
    /// Whether the daemon knows how processes share host memory.
    shares: bool,
}

impl Words {
    fn read(page: &Page, gpu: GpuId) -> Self {
        let number = usize::from(gpu.0);
        let features = page.features.load(Ordering::Relaxed);
        let gives_goals = features & FEATURE_GOALS != 0;
        let goal = page.goals.get(number).filter(|_| gives_goals);
        // The goal under which memory overflows the card is written before the flag.
        let flags = page.flags.load(Ordering::Acquire);
        let goal = goal.map_or(UNLIMITED, |goal| Goal::from_bits(goal.load(Ordering::Acquire)));
        let host_is_full = flags & FLAG_HOST_FULL != 0;
        let target = page.host_targets.get(number).map(|bytes| Bytes(bytes.load(Ordering::Acquire)));
        let target = target.filter(|_| goal.number != GoalNumber::NONE);
        Self {
            goal,
            overflows: flags & flag_overflows(gpu) != 0,
            host_is_full,
            host_target: target.map(|bytes| if host_is_full { Bytes::ZERO } else { bytes }),
            shares: features & FEATURE_COPIES != 0,
        }
    }

    /// Whether the card follows these words already.
    fn are_followed(self, moving: &mut Moving) -> bool {
        let Self { goal, overflows, host_is_full, host_target, shares } = self;
        let knows_sharing = moving.is_sharing_known() == shares;
        let engine = moving.blocks.engine();
        let has_surplus = host_is_full && engine.has_kept_slots();
        let has_target = host_target.is_none_or(|target| target == moving.pool.target());
        (engine.goal(), engine.overflows()) == (goal, overflows)
            && !has_surplus
            && has_target
            && knows_sharing
    }

    fn apply(self, moving: &mut Moving) {
        let Self { goal, overflows, host_is_full, host_target, shares } = self;
        moving.set_sharing(shares);
        let engine = moving.blocks.engine();
        engine.set_goal(goal);
        if engine.overflows() != overflows {
            engine.set_overflows(overflows);
        }
        if let Some(target) = host_target {
            moving.pool.set_target(target);
        }
        if host_is_full {
            let kept = moving.blocks.engine().take_kept_slots(Bytes::MAX);
            kept.into_iter().for_each(|slot| moving.pool.put(slot));
        }
    }
}

impl Card {
    /// Follows the words in the page of the daemon, where the card has the number `gpu`.
    pub(super) fn follow(&self, page: &'static Page, gpu: GpuId) {
        let words = Words::read(page, gpu);
        // A thread may have read the page before another daemon's came into force.
        let is_in_force = || std::ptr::eq(page, crate::gate::page());
        if !is_in_force() {
            return;
        }
        let place = Some((page, gpu));
        let is_known = |(known, number): (&Page, GpuId)| std::ptr::eq(known, page) && number == gpu;
        if !lock(&self.told).place.is_some_and(is_known) {
            // The goal of the last daemon ends before the next one is told anything.
            self.lanes.change(|moving| {
                if is_in_force() {
                    moving.blocks.engine().set_goal(words.goal);
                }
            });
            let mut told = lock(&self.told);
            let is_new = is_in_force();
            if is_new {
                *told = Told { place, report: None };
            }
            drop(told);
            self.lanes.change(|moving| {
                if is_new {
                    moving.note_new_daemon();
                }
            });
        }
        if !self.lanes.look(|moving| words.are_followed(moving)) {
            self.lanes.change(|moving| {
                if is_in_force() {
                    words.apply(moving);
                }
            });
        }
    }
}
