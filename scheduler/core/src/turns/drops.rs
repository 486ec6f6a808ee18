//! Drops (requests for the lock) and their ends: holders that no longer fit together, quanta that are over,
//! late drops, and the release of drained locks.

use gpushare_proto::{Bytes, ClientId, GpuId, Nanos, SessionId};
use smallvec::SmallVec;

use crate::card::Card;
use crate::card::index::Turns;
use crate::card::queue::{self, Need, Occupancy};
use crate::events::{Effect, Notice};
use crate::machine::Core;
use crate::session::Session;
use crate::session::drop::{LEAD, PendingDrop, Step};
use crate::session::lock::{Grant, Lock};
use crate::turns::backfill::Prospect;
use crate::values::gpu_set::GpuSet;
use crate::values::small_map::ByGpu;
use crate::view::View;

/// Decision on a holder whose quantum is over.
enum AfterQuantum {
    /// The holder releases the lock for the first waiter on a card.
    MakeWay(GpuId),
    /// The holder releases the lock for a session whose turn is backfilled.
    Drop,
    /// Another quantum begins; if it is backfilled, it ends by the given time.
    Renew(Option<Nanos>),
}

/// Number of sessions that have a turn on a session's cards at the same time, or whose work in flight ends beside
/// it, this one included: the largest over its cards. At most 1 where memory moves, and 0 for a session without a
/// turn.
pub(crate) fn sharers(session: &Session, cards: &ByGpu<Card>, in_turns: GpuSet) -> u32 {
    let gpus = session.turn_cards(in_turns);
    if session.lock.grant().is_none() || gpus.is_empty() {
        return 0;
    }
    let overlapping = cards.among(gpus).filter(|(_, card)| card.overlaps());
    let sharers = overlapping.map(|(_, card)| card.index.in_turn(card.takes_turns()).all());
    sharers.max().unwrap_or(1).max(1)
}

impl View {
    fn after_quantum(&self, id: SessionId) -> AfterQuantum {
        let prospect = Prospect::new(self);
        match prospect.useless_until(id) {
            Some(until) if prospect.yields_behind(id, until) => AfterQuantum::Drop,
            Some(until) => AfterQuantum::Renew(Some(until)),
            None => prospect.makes_way(id).map_or(AfterQuantum::Renew(None), AfterQuantum::MakeWay),
        }
    }

    /// Whether a waiting session needs holders to make room on a card.
    pub(crate) fn is_wanted(&self, gpu: GpuId) -> bool {
        self.wanted.contains(gpu)
    }

    /// Expected drain of a session for which it is not late in any case: at least the drain target.
    pub(crate) fn expected_drain(&self, id: SessionId) -> Nanos {
        let cards = self.cards.among(self.cards_of(id));
        let target = cards.map(|(_, card)| card.knobs.window_target).max();
        self.usual_drain(id).max(target.unwrap_or_default())
    }

    /// Usual drain of a session: the longest over its cards.
    fn usual_drain(&self, id: SessionId) -> Nanos {
        let cards = self.cards.among(self.cards_of(id));
        cards.map(|(gpu, card)| self.drain_on(id, gpu, card)).max().unwrap_or_default()
    }

    /// Whether the next session on all cards of a session may begin before this one has drained.
    pub(crate) fn overlaps(&self, id: SessionId) -> bool {
        let mut cards = self.cards.among(self.cards_of(id));
        cards.all(|(_, card)| card.overlaps())
    }

    /// Sessions whose turns began beside the drain of a session and are not over, and for how long each has
    /// overlapped with it. None for a drain that was late.
    fn begun_beside(&self, id: SessionId) -> SmallVec<[(SessionId, Nanos); 2]> {
        let drop = self.sessions.get(id).and_then(|session| session.lock.dropping());
        let on_time = |drop: &&PendingDrop| drop.tries() == 0 && drop.stuck().is_none();
        let Some(drop) = drop.filter(on_time).filter(|_| self.overlaps(id)) else {
            return SmallVec::new();
        };
        let mut beside: SmallVec<[(SessionId, Nanos); 2]> = SmallVec::new();
        let cards = self.cards.among(self.turn_cards(id));
        for &other in cards.flat_map(|(_, card)| &card.index.holders).filter(|&&other| other != id) {
            let turn = self.sessions.get(other).and_then(|session| session.lock.grant());
            // A gang holds several of the cards.
            let is_new = beside.iter().all(|&(known, _)| known != other);
            let turn = turn.filter(|turn| is_new && turn.is_turn && turn.at >= drop.since());
            beside.extend(turn.map(|turn| (other, self.now - turn.at)));
        }
        beside
    }

    /// Whether the work in flight of another session ends beside a session's turn. That session may want the card
    /// back as soon as this one is idle.
    pub(crate) fn has_drain_beside(&self, session: &Session) -> bool {
        if session.lock.holding().is_none() {
            return false;
        }
        let mut cards = self.cards.among(session.turn_cards(self.in_turns));
        cards.any(|(_, card)| {
            let Turns { dropping, leaving, .. } = card.index.in_turn(card.takes_turns());
            dropping + leaving > 0 && card.overlaps()
        })
    }

    /// Whether a session that was interrupted by an early turn may keep its lock: it goes before all that wait,
    /// and has room as for a new turn. One with a compute limit always drains, since its tokens decide.
    fn may_go_on(&self, id: SessionId) -> bool {
        let interrupted = |session: &&Session| match &session.lock {
            Lock::Dropping(grant, drop) => {
                grant.clock.is_interrupted() && drop.tries() == 0 && drop.stuck().is_none()
            }
            _ => false,
        };
        let session = self.sessions.get(id).filter(interrupted);
        let Some(session) =
            session.filter(|session| session.may_run() && !session.is_limited() && self.overlaps(id))
        else {
            return false;
        };
        session.turn_cards(self.in_turns).into_iter().all(|gpu| {
            let is_first = self.first_on(gpu).is_none_or(|first| self.goes_before(id, first));
            let mut others = self.occupancy_on(gpu).unwrap_or(Occupancy::empty(0, Bytes::ZERO));
            others.end_drain(self.need(id, gpu));
            is_first && others.fits(Need { bytes: self.need(id, gpu), early: false })
        })
    }
}

impl Core {
    /// Releases the locks of all sessions on the agenda that have drained. Returns whether there were any.
    pub(crate) fn collect(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.agenda.len() {
            let id = self.agenda.session(at);
            let session = self.view.sessions.get(id);
            if session.is_some_and(|session| session.has_let_go(self.view.on_demand)) {
                self.free(id);
                any = true;
            }
        }
        any
    }

    /// Releases the lock of a session that has drained, and records the duration of its drain.
    fn free(&mut self, id: SessionId) {
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        let Some(&Grant { epoch, is_turn, at, .. }) = session.lock.grant() else {
            return;
        };
        let class = session.share.class;
        // A session that went idle before its gates closed was not drained.
        let drop = session.lock.dropping().filter(|drop| drop.was_closed());
        let drain = drop.map(PendingDrop::drain);
        let vacated = drop.map_or(self.view.now, PendingDrop::since);
        let beside = if drain.is_some() { self.view.begun_beside(id) } else { SmallVec::new() };
        self.give_limits_back(id, &beside);
        let overlap = beside.iter().map(|&(_, overlap)| overlap).max().unwrap_or_default();
        // Beside another session its work took longer.
        let drain = drain.map(|drain| drain - Nanos(overlap.min(drain).0 / 2));
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        session.shut();
        session.left = Some((self.view.now, drain.is_some()));
        // A holder without a turn may still bring its memory in, which makes its drain long.
        let typical = drain.filter(|&drain| is_turn || drain <= self.view.config.drain_target);
        for (_, on) in session.cards.iter_mut().filter(|(_, on)| on.is_attached()) {
            typical.into_iter().for_each(|drain| on.drained(drain));
        }
        let (cards, gpus) = (session.uses, session.turn_cards(self.view.in_turns));
        self.recount(id);
        for gpu in cards {
            if let Some(card) = self.view.cards.get_mut(gpu) {
                card.vacated = card.vacated.max(vacated);
                drain.into_iter().for_each(|drain| card.drained(drain, typical.is_some()));
                if drain.is_some() && !overlap.is_zero() {
                    card.overlapped(overlap);
                }
                if drain.is_none() && is_turn && card.overlaps() {
                    card.bursts_for(class, self.view.now - at);
                }
            }
        }
        self.let_interrupted_go_on(gpus);
        // Turns are backfilled only where gangs wait.
        if self.view.cards.among(cards).any(|(_, card)| card.index.has_gangs()) {
            self.end_backfill(self.view.tied(cards));
        }
        self.notice(Notice::Dropped { session: id, epoch, gpus, drain });
    }

    /// Gives compute limits half of the time back for which a drain overlapped with the next turn: at most
    /// [`LEAD`], since what is left when the next turn begins takes twice as long beside it, and once for each
    /// turn. So a process that is slow to answer makes no limit larger.
    fn give_limits_back(&mut self, id: SessionId, beside: &[(SessionId, Nanos)]) {
        let longest = beside.iter().map(|&(_, overlap)| overlap).max();
        for (other, overlap) in beside.iter().copied().chain(longest.map(|overlap| (id, overlap))) {
            let Some(session) = self.view.sessions.get_mut(other).filter(|session| session.is_limited())
            else {
                continue;
            };
            let is_new = match &mut session.lock {
                Lock::Holding(grant) => !std::mem::replace(&mut grant.is_shared, true),
                _ => other == id,
            };
            if is_new {
                session.compute.give_back(Nanos(overlap.0 / 2).min(LEAD));
                self.touch(other);
            }
        }
    }

    /// Takes the drops of sessions back that were interrupted by early turns on some cards, if these turns are
    /// over: the sessions go on with a new quantum, those first that have had least.
    pub(crate) fn let_interrupted_go_on(&mut self, gpus: GpuSet) {
        loop {
            let cards = self.view.cards.among(gpus).filter(|(_, card)| card.overlaps());
            let others = cards.flat_map(|(_, card)| &card.index.holders).copied();
            let interrupted = others.filter(|&other| self.view.may_go_on(other));
            let Some(id) = interrupted.min_by_key(|&other| self.view.standing_in_line(other)) else {
                return;
            };
            let clock = self.view.clock(id, false, None);
            let Some(session) = self.view.sessions.get_mut(id) else {
                return;
            };
            let Lock::Dropping(grant, _) = &session.lock else {
                return;
            };
            let grant = Grant { clock, ..*grant };
            session.open(grant.epoch, &mut self.effects);
            self.set_lock(id, Lock::Holding(grant));
        }
    }

    /// Asks for the lock of holders that no longer fit together on a card. The session that grew stays first,
    /// then the earliest grants, and backfilled turns last.
    pub(crate) fn fit_holders(&mut self) {
        for gpu in self.agenda.cards() {
            let Some(card) = self.view.cards.get(gpu).filter(|card| !card.holders_fit()) else {
                continue;
            };
            let mut holders: Vec<_> = card
                .index
                .holders
                .iter()
                .filter(|id| self.view.turn_cards(**id).contains(gpu))
                .filter_map(|&id| match self.view.sessions.get(id)?.lock {
                    Lock::Holding(grant) => {
                        let grew = self.grown == Some(id);
                        Some((grant.clock.is_limited(), !grew, grant.epoch, id))
                    }
                    _ => None,
                })
                .collect();
            holders.sort_unstable();
            let mut taken = [(gpu, card.empty_occupancy())].into_iter().collect();
            let holders = holders.into_iter().map(|(.., id)| (id, self.view.turn_cards(id)));
            for id in queue::surplus(holders, |id, gpu| self.view.claim(id, gpu), &mut taken) {
                self.begin_drop(id, true);
            }
        }
    }

    /// Handles the end of a quantum.
    fn expire_quantum(&mut self, id: SessionId) {
        let branch = self.view.sessions.get(id).map(Session::branch).unwrap_or_default();
        let cards = || self.view.cards.among(self.view.turn_cards(id));
        if cards().any(|(_, card)| card.groups.are_several(branch)) {
            // The order of users and classes counts what was charged.
            self.charge_so_far(id);
            self.recount(id);
        }
        if let Some(session) = self.view.sessions.get_mut(id) {
            let whole = |grant: &Grant| !grant.is_early && !grant.clock.is_interrupted();
            let whole = session.lock.holding().is_some_and(whole);
            session.used_up = session.used_up.saturating_add(u32::from(whole));
        }
        let wanted = self.view.turn_cards(id).and(self.view.wanted);
        wanted.into_iter().for_each(|gpu| self.raise_floors(gpu, branch));
        match self.view.after_quantum(id) {
            AfterQuantum::MakeWay(_) if self.pays_to_go_on(id) => self.renew(id, None),
            AfterQuantum::MakeWay(gpu) => self.make_way(id, gpu),
            AfterQuantum::Drop => self.begin_drop(id, true),
            AfterQuantum::Renew(limit) => self.renew(id, limit),
        }
    }

    /// Starts a drop: asks a session for its lock by closing its gates. If the drop is not `pressing`, they may
    /// stay open for a moment where the next session begins beside this one.
    pub(crate) fn begin_drop(&mut self, id: SessionId, pressing: bool) {
        let (now, expected) = (self.view.now, self.view.expected_drain(id));
        let mut drop = PendingDrop::new(now, expected, &self.view.config);
        let overlaps = self.view.overlaps(id);
        if overlaps {
            drop = drop.overlapping(self.view.usual_drain(id), expected, pressing);
        }
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        if let Lock::Holding(grant) = session.lock {
            if !drop.is_reopened() {
                session.close(grant.epoch, &mut self.effects);
            }
            let uses = session.uses;
            for gpu in uses.into_iter().filter(|_| overlaps) {
                if let Some(card) = self.view.cards.get_mut(gpu) {
                    card.vacated = now;
                }
            }
            // A waiter may begin beside this drain, on those of a gang's cards where no memory moves.
            self.reordered |= self.view.cards.among(uses).any(|(_, card)| card.overlaps());
            self.set_lock(id, Lock::Dropping(grant, drop));
        }
    }

    /// Ends quanta that are over, and advances drops (`session/drop.rs`). Returns whether to look again: others
    /// may pass a holder that is stuck or about to end.
    pub(crate) fn push_holders(&mut self) -> bool {
        let mut again = false;
        for at in 0..self.agenda.len() {
            let id = self.agenda.session(at);
            let Some(session) = self.view.sessions.get(id) else {
                continue;
            };
            match &session.lock {
                Lock::Holding(grant)
                    if grant.clock.is_over(self.view.now) && self.view.stands_in_the_way(session) =>
                {
                    // Others may go beside a turn that is not backfilled any more.
                    again |= grant.clock.is_limited();
                    self.expire_quantum(id);
                }
                Lock::Dropping(..) => {}
                _ => continue,
            }
            again |= self.advance_drop(id);
        }
        again
    }

    /// Advances a session's drop, and returns whether others may pass it from now on, or may not any more.
    fn advance_drop(&mut self, id: SessionId) -> bool {
        let Some(session) = self.view.sessions.get_mut(id) else {
            return false;
        };
        let (sleeper, ends_soon) = (session.has_sleeper(), session.lets_go_soon());
        let Lock::Dropping(_, drop) = &mut session.lock else {
            return false;
        };
        let gave_way = drop.gives_way();
        let steps = drop.advance(self.view.now, sleeper, ends_soon, &self.view.config);
        // A drop that is undone takes its room back.
        let mut passed = drop.gives_way() != gave_way;
        for step in steps {
            passed |= matches!(step, Step::Report(_));
            self.push_drop(id, step);
        }
        self.recount(id);
        passed
    }

    fn push_drop(&mut self, id: SessionId, step: Step) {
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        let Lock::Dropping(grant, drop) = &session.lock else {
            return;
        };
        let (epoch, tries) = (grant.epoch, drop.tries());
        match step {
            Step::Close => session.close(epoch, &mut self.effects),
            Step::GiveWay => {}
            Step::Reopen => {
                session.open(epoch, &mut self.effects);
                self.notice(Notice::DropReopened { session: id, tries });
                for gpu in self.view.cards_of(id) {
                    if let Some(card) = self.view.cards.get_mut(gpu) {
                        card.aborted_drops += 1;
                    }
                }
            }
            Step::Report(reason) => self.notice(Notice::Stuck { session: id, reason }),
            Step::Kill => self.kill_stuck(id),
        }
    }

    /// Kills the processes of a stuck session that may have work in flight, apart from those that are spared.
    fn kill_stuck(&mut self, id: SessionId) {
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        let is_spared =
            |client: &ClientId| session.clients.get(*client).is_some_and(|process| process.frost.is_spared());
        let (spared, others): (Vec<ClientId>, Vec<ClientId>) = session.in_flight().partition(is_spared);
        self.effects.extend(others.into_iter().map(|client| Effect::Kill { client }));
        if spared.is_empty() {
            return;
        }
        if let Lock::Dropping(_, drop) = &mut session.lock {
            drop.spare();
        }
        // Others wait for another reason now.
        self.view.cards_of(id).into_iter().for_each(|gpu| self.touch_members(gpu));
        for client in spared {
            self.notice(Notice::Spared { session: id, client });
        }
    }
}
