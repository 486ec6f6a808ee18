//! Grants of the lock. Where sessions take turns, they get the lock in turn order (turns/order.rs);
//! elsewhere every session gets it. After a restart of the daemon, the earlier holders get it again.

use std::cell::Cell;

use gpushare_proto::{ClientId, GpuId, Nanos, SessionId};
use smallvec::SmallVec;

use crate::card::Card;
use crate::card::queue::{self, Admission, Occupancies, Occupancy};
use crate::config::StuckPolicy;
use crate::events::Notice;
use crate::machine::Core;
use crate::machine::residency::has_hole;
use crate::memory::absent::Absent;
use crate::session::client::{Client, Past};
use crate::session::clock::Clock;
use crate::session::drop::{LEAD, PendingDrop};
use crate::session::lock::{Entry, Grant, Lock, Ticket};
use crate::turns::backfill::Prospect;
use crate::values::gpu_set::GpuSet;
use crate::view::View;

/// Largest number of times that turns double. The others wait that much longer for theirs.
const DOUBLINGS: u32 = 2;

/// Reason for which a session gets the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occasion {
    /// The session takes no turns on its cards, so it need not wait.
    Parallel,
    /// The session takes turns and its turn has come. A backfilled turn must end by the given time.
    Turn(Option<Nanos>),
    /// The session held the lock when the last daemon ended, and goes on.
    Return,
}

impl View {
    /// Whether a session released the lock unasked, or at least a quantum ago. Only then may its return end
    /// another session's turn early.
    pub(crate) fn is_rested(&self, id: SessionId) -> bool {
        match self.sessions.get(id).and_then(|session| session.left) {
            Some((at, true)) => self.now >= at + self.quantum(id, Nanos::ZERO),
            Some((_, false)) | None => true,
        }
    }

    /// Returns `cards` with all cards that waiting gangs tie to them, directly or through other gangs.
    pub(crate) fn tied(&self, cards: GpuSet) -> GpuSet {
        let (mut tied, mut open) = (cards, cards);
        while let Some(gpu) = open.pop_first() {
            let ties = self.cards.get(gpu).map(|card| card.index.tied()).unwrap_or_default();
            let more = ties.without(tied);
            (tied, open) = (tied.with(more), open.with(more));
        }
        tied
    }

    /// Returns the waiting sessions that wait for no absent memory and no awaited process, in order. The
    /// others reserve no cards and take no holder's turn, since their wait has no known end.
    pub(crate) fn admissible(&self, cards: GpuSet) -> impl Iterator<Item = SessionId> {
        self.in_line(cards, None, |id| self.is_admissible(id))
    }

    /// Whether a waiting session waits for no absent memory and no awaited process.
    pub(crate) fn is_admissible(&self, id: SessionId) -> bool {
        // Every waiter is checked often, and both are rare.
        let is_stuck = |card: &Card| card.index.in_turn(card.takes_turns()).stuck > 0;
        (self.recovery.is_over() && !self.cards.values().any(is_stuck))
            || (!self.is_held_up(id) && !self.waits_for_absent_memory(id))
    }

    /// Whether an awaited process of the last daemon may run on any of a session's cards.
    pub(crate) fn is_held_up(&self, id: SessionId) -> bool {
        self.recovery.holds_up(self.cards_of(id))
    }

    /// Whether a session could not fit beside absent memory even if all holders released the lock.
    pub(crate) fn waits_for_absent_memory(&self, id: SessionId) -> bool {
        let mut cards = self.cards.among(self.turn_cards(id));
        cards.any(|(gpu, card)| {
            let absent = self.absent(gpu);
            absent != Absent::NONE && !card.empty_occupancy().beside(absent).fits(self.claim(id, gpu))
        })
    }

    /// Absent memory on a card.
    pub(crate) fn absent(&self, gpu: GpuId) -> Absent {
        match (self.config.stuck_policy, self.cards.get(gpu)) {
            (StuckPolicy::RunOthers, Some(card)) => card.absent(self.recovery.overdue(gpu)),
            _ => Absent::NONE,
        }
    }

    /// Whether a session is stuck: it was asked for the lock, is late, and was reported.
    pub(crate) fn is_stuck(&self, id: SessionId) -> bool {
        let drop = self.sessions.get(id).and_then(|session| session.lock.dropping());
        drop.is_some_and(|drop| drop.stuck().is_some())
    }

    /// Returns the occupancy of a card by the sessions that take turns there.
    pub(crate) fn occupancy_on(&self, gpu: GpuId) -> Option<Occupancy> {
        Some(self.cards.get(gpu)?.occupancy(self.absent(gpu)))
    }

    /// Returns the occupancy of each of `cards` by the sessions that take turns there.
    pub(crate) fn occupancies(&self, cards: GpuSet) -> Occupancies {
        let cards = self.cards.among(cards);
        cards.map(|(gpu, card)| (gpu, card.occupancy(self.absent(gpu)))).collect()
    }

    /// Admission of the waiting sessions of a card that no gang ties to others.
    fn admission_on(&self, gpu: GpuId) -> Admission {
        let first = self.first_on(gpu).zip(self.cards.get(gpu));
        let Some((first, card)) = first else {
            return Admission::default();
        };
        let mut occupancy = card.occupancy(self.absent(gpu));
        // Mostly there is no room for the first one, so that the line behind it does not matter.
        if !occupancy.fits(self.claim(first, gpu)) {
            return Admission { wanted: gpu.into(), ..Admission::default() };
        }
        if card.index.waiting() == 1 {
            return Admission { admitted: SmallVec::from_slice(&[(first, None)]), ..Admission::default() };
        }
        let waiters = card.groups.in_order(|id| self.is_admissible(id));
        let waiters = waiters.map(|id| (id, self.claim(id, gpu)));
        queue::admit_to_one(gpu, waiters, &mut occupancy)
    }

    fn entry(&self, id: SessionId) -> Entry {
        let asked = self
            .sessions
            .get(id)
            .and_then(|session| session.usage.waits_since())
            .unwrap_or(self.now);
        let cards = self.turn_cards(id).into_iter();
        let vacated = cards.filter_map(|gpu| Some(self.cards.get(gpu)?.vacated)).max();
        Entry { asked, handing_over: vacated.unwrap_or_default().max(asked) }
    }

    /// Creates the clock of a grant at the present time, with the longest quantum of the session's cards.
    pub(crate) fn clock(&self, id: SessionId, moves: bool, limit: Option<Nanos>) -> Clock {
        let (expected, patience) = match moves {
            true => (self.expected_move(id), self.move_patience(id)),
            false => (Nanos::ZERO, Nanos::ZERO),
        };
        Clock::granted(self.now, self.turn_length(id, expected), patience, limit)
    }

    /// Length of a session's next turn: its quantum. Where switches overlap, it doubles with each turn in a row
    /// that the session used up, at most [`DOUBLINGS`] times.
    pub(crate) fn turn_length(&self, id: SessionId, expected_move: Nanos) -> Nanos {
        let quantum = self.quantum(id, expected_move);
        match self.sessions.get(id).map_or(0, |session| session.used_up.min(DOUBLINGS)) {
            0 => quantum,
            times => self.doubled(id, quantum, times),
        }
    }

    /// Longest turn that a session can have.
    pub(crate) fn longest_turn(&self, id: SessionId, expected_move: Nanos) -> Nanos {
        self.doubled(id, self.quantum(id, expected_move), DOUBLINGS)
    }

    fn doubled(&self, id: SessionId, quantum: Nanos, times: u32) -> Nanos {
        let is_fixed = |(_, card): (_, &Card)| card.has_fixed_quantum();
        if !self.overlaps(id) || self.cards.among(self.cards_of(id)).any(is_fixed) {
            return quantum;
        }
        let longest = self.config.quantum_max.max(quantum);
        Nanos(quantum.0.saturating_mul(1 << times)).min(longest)
    }

    pub(crate) fn quantum(&self, id: SessionId, expected_move: Nanos) -> Nanos {
        let cards = self.cards.among(self.cards_of(id)).map(|(_, card)| card);
        let quanta = cards.map(|card| card.quantum(expected_move, &self.config));
        quanta.max().unwrap_or(self.config.quantum_min)
    }

    /// Expected drain of a session on a card: the average of its own drains, or the card's usual drain.
    pub(crate) fn drain_on(&self, id: SessionId, gpu: GpuId, card: &Card) -> Nanos {
        let on = self.sessions.get(id).and_then(|session| session.cards.get(gpu));
        on.and_then(|on| on.drain.get()).map_or_else(|| card.usual_drain(), Nanos)
    }

    /// Duration for which a newly granted session may bring its memory in before its quantum begins.
    fn move_patience(&self, id: SessionId) -> Nanos {
        let cards = self.cards.among(self.turn_cards(id));
        cards
            .map(|(gpu, card)| card.move_patience(self.need(id, gpu)))
            .max()
            .unwrap_or_default()
    }

    pub(crate) fn expected_move(&self, id: SessionId) -> Nanos {
        let Some(session) = self.sessions.get(id) else {
            return Nanos::ZERO;
        };
        let cards = session.turn_cards(self.in_turns).into_iter();
        let moves = cards.filter_map(|gpu| {
            let own = session.sums(gpu).movable.get();
            Some(self.cards.get(gpu)?.expected_move(own))
        });
        moves.max().unwrap_or_default()
    }

    /// Time that is lost by a switch to a session: the most over the cards on which it takes turns.
    pub(crate) fn switch_cost(&self, id: SessionId) -> Nanos {
        let expected_move = self.expected_move(id);
        let cards = self.cards.among(self.turn_cards(id));
        let costs = cards.map(|(_, card)| card.switch_cost(expected_move, &self.config));
        costs.max().unwrap_or_default()
    }

    /// Expected time from the moment when a holder is asked for its lock to the turn of the next session.
    pub(crate) fn handoff(&self, id: SessionId) -> Nanos {
        let earlier = if self.overlaps(id) { LEAD + self.config.switch_cost } else { Nanos::ZERO };
        self.switch_time(id) - earlier
    }

    /// Duration of a switch to a session: the longest over the cards on which it takes turns.
    pub(crate) fn switch_time(&self, id: SessionId) -> Nanos {
        let expected_move = self.expected_move(id);
        let cards = self.cards.among(self.turn_cards(id));
        let times = cards.map(|(_, card)| card.switch_time(expected_move, &self.config));
        times.max().unwrap_or_default()
    }

    /// Length of the next turn on a card: of the first session in its queue, else of one that moves no
    /// memory.
    pub(crate) fn next_quantum(&self, card: &Card) -> Nanos {
        match card.groups.first(|_| true) {
            Some(id) => self.turn_length(id, self.expected_move(id)),
            None => card.quantum(Nanos::ZERO, &self.config),
        }
    }
}

impl Core {
    /// Resumes a session from before a restart as soon as one of its processes announces a card. A recorded
    /// holder runs on under a new grant. A process that only claims the lock must drain first.
    pub(crate) fn resume_returned(&mut self, id: SessionId) {
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        let (mut held, mut claimants) = (false, Vec::new());
        for (client, process) in session.clients.iter_mut() {
            if !process.is_attached() {
                continue;
            }
            match std::mem::take(&mut process.past) {
                Past::Nothing => {}
                Past::Held => held = true,
                Past::Claims => claimants.push(client),
            }
        }
        if !held && claimants.is_empty() {
            return;
        }
        match &session.lock {
            Lock::Idle | Lock::Waiting(_) if held => self.grant(id, Occasion::Return),
            Lock::Idle | Lock::Waiting(_) => self.let_end(id, &claimants),
            Lock::Dropping(grant, drop) => {
                let epoch = grant.epoch;
                match drop.is_reopened() {
                    true => session.open(epoch, &mut self.effects),
                    false => session.close_those(&claimants, epoch, &mut self.effects),
                }
            }
            // The gates of returned processes open with the others'.
            Lock::Holding(_) => {}
        }
    }

    /// Gives the lock to a session until the work of the processes that claim it has ended.
    fn let_end(&mut self, id: SessionId, claimants: &[ClientId]) {
        let clock = self.view.clock(id, false, None);
        let drop = PendingDrop::new(self.view.now, self.view.expected_drain(id), &self.view.config);
        self.last_epoch.counter += 1;
        let epoch = self.last_epoch;
        let grant = Grant {
            epoch,
            at: self.view.now,
            clock,
            is_turn: false,
            is_early: false,
            is_shared: false,
            entry: None,
        };
        self.set_lock(id, Lock::Dropping(grant, drop));
        if let Some(session) = self.view.sessions.get_mut(id) {
            session.close_those(claimants, epoch, &mut self.effects);
        }
    }

    /// Updates the lock of one session. Without turns, the session gets the lock and any drop ends. With
    /// turns, the session queues while a thread sleeps at a gate, and releases the lock while it may not run.
    pub(crate) fn queue_or_run(&mut self, id: SessionId) {
        let Some(session) = self.view.sessions.get(id) else {
            return;
        };
        let takes_turns = session.uses.is_empty() || session.takes_turns(self.view.in_turns);
        if session.may_run() && !takes_turns && !self.view.recovery.holds_up(session.uses) {
            let idles = session.lock.grant().is_none() && !session.has_sleeper();
            if !idles || !session.runs_on_demand(self.view.on_demand) {
                return self.run_beside(id);
            }
        }
        match session.lock {
            Lock::Idle if session.has_sleeper() => {
                self.last_ticket += 1;
                let has_used_up = session.used_up > 0;
                if self.view.is_rested(id) {
                    self.wakers.push(id);
                    if has_used_up {
                        self.rest(id);
                    }
                }
                self.set_lock(id, Lock::Waiting(Ticket(self.last_ticket)));
            }
            Lock::Waiting(_) if !session.has_sleeper() => self.set_lock(id, Lock::Idle),
            Lock::Holding(_) if !session.may_run() || session.is_throttled() => self.begin_drop(id, true),
            _ => {}
        }
    }

    /// Lets the turns of a session begin with one quantum again, since it was idle.
    fn rest(&mut self, id: SessionId) {
        if let Some(session) = self.view.sessions.get_mut(id) {
            session.used_up = 0;
        }
    }

    /// Gives the lock to a session that takes no turns, or ends a drop of its lock.
    fn run_beside(&mut self, id: SessionId) {
        match self.view.sessions.get(id).map(|session| &session.lock) {
            Some(Lock::Idle | Lock::Waiting(_)) => self.grant(id, Occasion::Parallel),
            Some(&Lock::Dropping(grant, _)) => {
                self.set_lock(id, Lock::Holding(grant));
                if let Some(session) = self.view.sessions.get_mut(id) {
                    session.open(grant.epoch, &mut self.effects);
                }
            }
            _ => {}
        }
    }

    /// Admits waiters in their order, on every card of the agenda and on the cards that gangs tie to it.
    pub(crate) fn grant_turns(&mut self) {
        let mut open = self.agenda.cards();
        while let Some(gpu) = open.pop_first() {
            let tied = self.view.tied(gpu.into());
            open = open.without(tied);
            self.grant_turns_on(tied);
        }
    }

    fn grant_turns_on(&mut self, tied: GpuSet) {
        if let Some(gpu) = tied.only() {
            return self.grant_turns_on_one(gpu);
        }
        loop {
            let closed = Cell::default();
            let waiters = self.view.in_line(tied, Some(&closed), |id| self.view.is_admissible(id));
            let waiters = waiters.map(|id| (id, self.view.turn_cards(id)));
            let need = |id, gpu| self.view.claim(id, gpu);
            let prospect = Prospect::new(&self.view);
            let start = |id, misfits| prospect.start(id, misfits);
            let ends_before = |id, limit| self.view.ends_before(id, limit);
            let mut taken = self.view.occupancies(tied);
            let admission = queue::admit(waiters, need, start, ends_before, &mut taken, &closed);
            self.set_wanted(tied, admission.wanted);
            // Floors rise by grants, and the order of gangs with them.
            let again = !admission.admitted.is_empty();
            // Cards that no waiting gang ties any more have a line of their own.
            self.reordered |= again;
            for (id, limit) in admission.admitted {
                self.grant(id, Occasion::Turn(limit));
            }
            if !again {
                break;
            }
        }
    }

    /// Admits waiters on a card that no gang ties to others.
    fn grant_turns_on_one(&mut self, gpu: GpuId) {
        let admission = self.view.admission_on(gpu);
        self.set_wanted(gpu.into(), admission.wanted);
        for (id, limit) in admission.admitted {
            self.grant(id, Occasion::Turn(limit));
        }
    }

    /// Sets which of the cards `of` a waiting session wants. Holders on cards that change are looked at,
    /// since their turns may end.
    fn set_wanted(&mut self, of: GpuSet, wanted: GpuSet) {
        let before = self.view.wanted;
        self.view.wanted = before.without(of).with(wanted);
        let changed = before.without(self.view.wanted).with(self.view.wanted.without(before));
        for gpu in changed {
            let holders = self.view.cards.get(gpu).map(|card| card.index.holders.clone());
            holders.into_iter().flatten().for_each(|id| self.touch(id));
        }
    }

    /// Gives the lock to a session that neither holds it nor was asked to release it.
    fn grant(&mut self, id: SessionId, occasion: Occasion) {
        let turn = matches!(occasion, Occasion::Turn(_));
        let gpus = self.view.turn_cards(id);
        let at = self.view.now;
        let moves = turn && self.view.cards.among(gpus).any(|(_, card)| card.moves_memory());
        if turn {
            self.forgive(id);
        }
        let clock = match occasion {
            Occasion::Turn(limit) => self.view.clock(id, true, limit),
            Occasion::Parallel | Occasion::Return => self.view.clock(id, false, None),
        };
        let entry = turn.then(|| self.view.entry(id));
        self.stand_up(id);
        self.last_epoch.counter += 1;
        let epoch = self.last_epoch;
        let cards = &self.view.cards;
        if let Some(session) = self.view.sessions.get_mut(id) {
            let is_early = std::mem::take(&mut session.urgent) && turn;
            session.lock =
                Lock::Holding(Grant { epoch, at, clock, is_turn: turn, is_early, is_shared: false, entry });
            // Remapped memory may be out in any mode.
            let moves = |id, client: &Client| match client.remaps {
                true => has_hole(cards, id, client),
                false => moves && !client.movable().is_zero(),
            };
            session.open_moving(epoch, moves, &mut self.effects);
        }
        self.recount(id);
        if let Some(entry) = entry {
            for gpu in gpus {
                if let Some(card) = self.view.cards.get_mut(gpu) {
                    card.handoffs += 1;
                }
            }
            self.notice(Notice::Granted {
                session: id,
                epoch,
                quantum: clock.lasts(self.view.now),
                gpus,
                waited: self.view.now - entry.asked,
            });
        }
    }

    /// Reports how long a session's way to its turn took, once all its memory is in.
    pub(crate) fn note_entry(&mut self, id: SessionId) {
        if let Some(session) = self.view.sessions.get_mut(id)
            && let Lock::Holding(grant) = &mut session.lock
            && let Some(entry) = grant.entry.take()
        {
            let gpus = session.turn_cards(self.view.in_turns);
            self.notice(Notice::Entered {
                session: id,
                gpus,
                waited: self.view.now - entry.asked,
                handoff: self.view.now - entry.handing_over,
            });
        }
    }
}
