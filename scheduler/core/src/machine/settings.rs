//! Events about cards and about settings of the administrator.

use std::collections::BTreeSet;

use gpushare_proto::admin::{Knob, Setting};
use gpushare_proto::{Bytes, GpuId, SessionId};

use crate::card::Card;
use crate::config::Tuning;
use crate::machine::Core;
use crate::memory::sums::Sums;
use crate::session::lock::Lock;
use crate::values::gpu_set::GpuSet;

impl Core {
    pub(super) fn gpu_found(&mut self, gpu: GpuId, total: Bytes) {
        if gpu.0 >= GpuSet::MOST {
            return;
        }
        let (knobs, config) = (self.knobs, &self.view.config);
        self.view.cards.get_or_insert_with(gpu, || Card::new(total, knobs, config));
        self.agenda.look_at(gpu);
    }

    pub(super) fn set(&mut self, setting: Setting) {
        self.view.cards.keys().for_each(|gpu| self.agenda.look_at(gpu));
        match setting.gpu {
            Some(gpu) => self.set_on(gpu, setting.knob),
            None => {
                self.knobs.set(setting.knob);
                let cards: GpuSet = self.view.cards.keys().collect();
                cards.into_iter().for_each(|gpu| self.set_on(gpu, setting.knob));
            }
        }
        self.shorten_turns();
    }

    fn set_on(&mut self, gpu: GpuId, knob: Knob) {
        let before = self.view.assumed(gpu);
        if let Some(card) = self.view.cards.get_mut(gpu) {
            card.knobs.set(knob);
        }
        let after = self.view.assumed(gpu);
        if before != after {
            self.assume(gpu, before, after);
        }
    }

    /// Updates all sums on a card where unmeasured contexts are assumed to take `after` bytes instead of `before`.
    fn assume(&mut self, gpu: GpuId, before: Bytes, after: Bytes) {
        let mut changes: Vec<(SessionId, Sums, Sums)> = Vec::new();
        for (id, session) in self.view.sessions.iter() {
            let books = session
                .books(gpu)
                .map(|(_, book)| (id, Sums::of(book, before), Sums::of(book, after)));
            changes.extend(books);
        }
        for orphan in self.view.orphans.values() {
            let sums = orphan
                .sums(|_| before)
                .zip(orphan.sums(|_| after))
                .filter(|((on, _), _)| *on == gpu);
            changes.extend(sums.map(|((_, before), (_, after))| (orphan.session, before, after)));
        }
        for (id, before, after) in changes {
            self.add_up(id, gpu, before, after);
            self.recount(id);
        }
    }

    /// Changes a setting that is the same for all cards, and looks at everything again: each timer may
    /// change.
    pub(super) fn tune(&mut self, tuning: Tuning) {
        self.view.config.tune(tuning);
        self.view.recovery.follow(self.view.config.stuck_policy);
        if let Tuning::Trickle(trickle) = tuning {
            let ids = self.view.sessions.ids();
            ids.iter().for_each(|&id| self.charge_so_far(id));
            self.view.cards.values_mut().for_each(|card| card.groups.set_trickle(trickle));
            for id in ids {
                let share = self.view.sessions.get(id).map(|session| session.share.with_trickle(trickle));
                share.into_iter().for_each(|share| self.share(id, share));
            }
        }
        self.shorten_turns();
        self.touch_all();
    }

    /// Shortens the running turns of sessions whose turns would be shorter now. So a setting takes effect at
    /// once, although turns can last half a minute.
    fn shorten_turns(&mut self) {
        let holders = self
            .view
            .cards
            .among(self.view.in_turns)
            .flat_map(|(_, card)| &card.index.holders);
        for id in holders.copied().collect::<BTreeSet<SessionId>>() {
            let length = self.view.turn_length(id, self.view.expected_move(id));
            if let Some(session) = self.view.sessions.get_mut(id)
                && let Lock::Holding(grant) = &mut session.lock
                && grant.clock.shorten(length)
            {
                self.touch(id);
            }
        }
    }
}
