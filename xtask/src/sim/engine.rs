//! One run: the sessions of a trace on cards in virtual time, under one scheduler.
//!
//! ```text
//!   agenda: arrivals, work that begins, memory that is in, work that is done, idle graces ─┐ the earliest
//!   the scheduler's deadline ───────────────────────────────────────────────────────────────┴─▶ happens
//!        ─▶ words of the scheduler, all of them ─▶ a session's reply ─▶ words … until nobody has anything to say ─▶ next
//! ```
//!
//! Between two instants nothing happens, so a day takes as long as there are things to do in it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use gpushare_proto::tenant::NEARLY_DRAINED;
use gpushare_proto::{Bytes, Nanos};

use super::account::Accounts;
use super::card::{Card, Work};
use super::player::{Gate, Player, Reply, What};
use super::policy::{Policy, Who, Word};
use super::progress::Progress;
use super::tenant::{Phase, Program};
use super::trace::Trace;

/// Result of a run.
#[derive(Debug)]
pub(super) struct Outcome<'a> {
    pub(super) accounts: Accounts<'a>,
    /// When each session ended, if it did.
    pub(super) ended: Vec<Option<Nanos>>,
    pub(super) moved: Bytes,
    pub(super) handoffs: u64,
    pub(super) quanta: Vec<Nanos>,
}

struct Run<'a, P> {
    trace: &'a Trace,
    policy: P,
    now: Nanos,
    agenda: BinaryHeap<Reverse<(Nanos, u64, What)>>,
    planned: u64,
    cards: Vec<Card>,
    /// Of each card's next [`What::IsDone`].
    plans: Vec<u64>,
    players: Vec<Player<'a>>,
    replies: VecDeque<(Who, Reply)>,
    accounts: Accounts<'a>,
}

/// Runs `trace` under `policy`.
pub(super) fn run<'a>(trace: &'a Trace, policy: impl Policy) -> Outcome<'a> {
    let mut run = Run::new(trace, policy);
    let mut clock = Progress::new();
    while let Some(next) = run.next().filter(|&next| next <= trace.until) {
        run.now = run.now.max(next);
        run.step();
        run.talk();
        clock.tick(run.policy.name(), run.now, trace.until);
    }
    run.finish()
}

impl<'a, P: Policy> Run<'a, P> {
    fn new(trace: &'a Trace, policy: P) -> Self {
        let cards = usize::from(trace.machine.gpus);
        let mut run = Self {
            trace,
            policy,
            now: Nanos::ZERO,
            agenda: BinaryHeap::new(),
            planned: 0,
            cards: (0..cards).map(|_| Card::new(&trace.machine)).collect(),
            plans: vec![0; cards],
            players: trace.tenants.iter().map(Player::new).collect(),
            replies: VecDeque::new(),
            accounts: Accounts::new(&trace.tenants, cards),
        };
        let holds_all = run.policy.moves_memory();
        run.cards.iter_mut().for_each(|card| card.holds_all = holds_all);
        for (who, tenant) in trace.tenants.iter().enumerate() {
            run.plan(tenant.arrives, What::Arrives(who));
        }
        run
    }

    fn plan(&mut self, at: Nanos, what: What) {
        self.planned += 1;
        self.agenda.push(Reverse((at.max(self.now), self.planned, what)));
    }

    fn next(&self) -> Option<Nanos> {
        if self.players.iter().all(|player| player.ended.is_some()) {
            return None;
        }
        let planned = self.agenda.peek().map(|Reverse((at, ..))| *at);
        planned.into_iter().chain(self.policy.deadline()).min()
    }

    /// The earliest thing happens.
    fn step(&mut self) {
        match self.agenda.peek() {
            Some(Reverse((at, ..))) if *at <= self.now => {
                let what = self.agenda.pop().map(|Reverse((.., what))| what);
                what.into_iter().for_each(|what| self.happens(what));
            }
            _ => self.policy.wake(self.now),
        }
    }

    fn happens(&mut self, what: What) {
        match what {
            What::Arrives(who) => {
                self.policy.arrives(self.now, who, &self.trace.tenants[who]);
                self.obey();
                self.go_on(who, self.now);
            }
            What::Begins(who) => {
                let next = self.players[who].next.take();
                next.into_iter().for_each(|phase| self.begin(who, phase));
            }
            What::IsIn(who, plan) if self.players[who].plan == plan => self.is_in(who),
            What::IsDone(card, plan) if self.plans[card] == plan => {
                for who in self.cards[card].done(self.now) {
                    self.job_done(who, card);
                }
                self.plan_card(card);
            }
            What::WasIdle(who, plan) if self.players[who].plan == plan => self.was_idle(who),
            What::EndsSoon(who, told) if self.players[who].gate == Gate::Draining(told) => {
                self.replies.push_back((who, Reply::EndsSoon));
            }
            What::IsIn(..) | What::IsDone(..) | What::WasIdle(..) | What::EndsSoon(..) => {}
        }
    }

    /// Handles messages until none is left.
    fn talk(&mut self) {
        loop {
            self.obey();
            let Some((who, reply)) = self.replies.pop_front() else {
                return;
            };
            let (policy, now) = (&mut self.policy, self.now);
            match reply {
                Reply::Wants => policy.wants(now, who),
                Reply::Entered(moved, took) => policy.entered(now, who, moved, took),
                Reply::EndsSoon => policy.ends_soon(now, who),
                Reply::LetGo(drain) => policy.let_go(now, who, drain),
                Reply::Leaves => policy.leaves(now, who),
            }
        }
    }

    fn obey(&mut self) {
        while let Some(word) = self.policy.poll() {
            match word {
                Word::Pass { who, moves } => self.pass(who, moves),
                Word::Shut { who } => self.shut(who),
                Word::Wanted { who, wanted } => {
                    self.players[who].wanted = wanted;
                    self.watch_idle(who);
                }
            }
        }
    }

    fn pass(&mut self, who: Who, moves: bool) {
        let player = &mut self.players[who];
        if player.ended.is_some() {
            return;
        }
        match player.gate {
            Gate::Open | Gate::Entering { .. } => {}
            Gate::Draining(_) if player.coming.is_some() => player.gate = Gate::Entering { told: false },
            Gate::Draining(_) => {
                player.gate = Gate::Open;
                self.stop(who);
                self.resume(who);
            }
            Gate::Shut => {
                player.grace.judge(player.came);
                match moves {
                    true => self.bring_in(who, true),
                    false => {
                        player.gate = Gate::Open;
                        self.resume(who);
                    }
                }
            }
        }
    }

    fn shut(&mut self, who: Who) {
        let player = &mut self.players[who];
        match player.gate {
            Gate::Shut | Gate::Draining(_) => {}
            Gate::Entering { .. } => player.gate = Gate::Draining(self.now),
            Gate::Open if player.running == 0 => {
                player.gate = Gate::Shut;
                self.sleep(who);
                self.replies.push_back((who, Reply::LetGo(Nanos::ZERO)));
            }
            Gate::Open => {
                player.gate = Gate::Draining(self.now);
                let window = self.trace.machine.window.0 as Work;
                for card in self.cards_of(who) {
                    self.cards[card].shorten(self.now, who, window);
                    self.plan_card(card);
                }
                let ends = self.cards_of(who).into_iter().filter_map(|card| self.cards[card].end_of(who));
                if let Some(end) = ends.max() {
                    self.plan(end - NEARLY_DRAINED, What::EndsSoon(who, self.now));
                }
            }
        }
    }

    fn cards_of(&self, who: Who) -> Vec<usize> {
        let gpus = &self.trace.tenants[who].gpus;
        gpus.iter().map(|gpu| usize::from(gpu.0)).collect()
    }

    /// Its memory comes in, over all its links at once.
    fn bring_in(&mut self, who: Who, told: bool) {
        let memory = self.trace.tenants[who].memory;
        let (mut bytes, mut there) = (Bytes::ZERO, self.now);
        for card in self.cards_of(who) {
            let (moved, at) = self.cards[card].bring_in(self.now, who, memory);
            bytes += moved;
            there = there.max(at);
        }
        let player = &mut self.players[who];
        player.gate = Gate::Entering { told };
        player.coming = Some((bytes, self.now));
        player.plan += 1;
        let plan = player.plan;
        self.plan(there, What::IsIn(who, plan));
    }

    fn is_in(&mut self, who: Who) {
        let player = &mut self.players[who];
        let Some((bytes, since)) = player.coming.take() else {
            return;
        };
        match player.gate {
            Gate::Entering { told } => {
                player.gate = Gate::Open;
                if told {
                    self.replies.push_back((who, Reply::Entered(bytes, self.now - since)));
                }
                if self.players[who].phase.is_some() {
                    self.start(who);
                } else {
                    self.watch_idle(who);
                }
            }
            Gate::Draining(told) => self.let_go(who, told),
            Gate::Shut | Gate::Open => {}
        }
    }

    /// Its gate is open. Memory that is not there is fetched first, unless so much runs that nothing stays
    /// there.
    fn resume(&mut self, who: Who) {
        if self.players[who].phase.is_none() {
            return;
        }
        let memory = self.trace.tenants[who].memory;
        let cards = self.cards_of(who);
        let missing = cards.iter().any(|&card| !self.cards[card].missing(who, memory).is_zero());
        let fits = cards.iter().all(|&card| self.cards[card].has_room_beside(memory));
        if missing && fits {
            self.bring_in(who, false);
        } else {
            self.start(who);
        }
    }

    fn start(&mut self, who: Who) {
        self.accounts.look(self.now, who);
        let player = &mut self.players[who];
        if let Some(since) = player.asleep.take() {
            self.accounts.waits.push(self.now - since);
        }
        let memory = self.trace.tenants[who].memory;
        for (nth, card) in self.cards_of(who).into_iter().enumerate() {
            let left = self.players[who].left[nth];
            if left > 0.0 {
                self.players[who].running += 1;
                self.cards[card].start(self.now, who, left, memory);
                self.plan_card(card);
            }
        }
    }

    /// Ends the session's work for now.
    fn stop(&mut self, who: Who) {
        if self.players[who].running == 0 {
            return;
        }
        for (nth, card) in self.cards_of(who).into_iter().enumerate() {
            let done = self.cards[card].stop(self.now, who);
            self.players[who].left[nth] -= done;
            self.accounts.give(who, done);
            self.plan_card(card);
        }
        self.players[who].running = 0;
    }

    fn plan_card(&mut self, card: usize) {
        self.plans[card] += 1;
        if let Some(at) = self.cards[card].next_end() {
            self.plan(at, What::IsDone(card, self.plans[card]));
        }
    }

    /// One of its cards has done what it was given.
    fn job_done(&mut self, who: Who, card: usize) {
        let done = self.cards[card].stop(self.now, who);
        self.accounts.give(who, done);
        let nth = self.cards_of(who).iter().position(|&own| own == card).unwrap_or(0);
        let player = &mut self.players[who];
        player.left[nth] = (player.left[nth] - done).max(0.0);
        player.running -= 1;
        if player.running > 0 {
            return;
        }
        if let Gate::Draining(told) = player.gate {
            self.let_go(who, told);
        } else {
            self.phase_done(who);
        }
    }

    fn let_go(&mut self, who: Who, told: Nanos) {
        self.players[who].gate = Gate::Shut;
        self.sleep(who);
        self.replies.push_back((who, Reply::LetGo(self.now - told)));
    }

    /// A thread that has work sleeps at the closed gate. It came there before the last work had ended, so
    /// it asks before its session is said to have let go.
    fn sleep(&mut self, who: Who) {
        let player = &mut self.players[who];
        let Some(_) = player.phase else { return };
        if player.left.iter().all(|left| *left == 0.0) {
            self.phase_done(who);
        } else {
            if player.asleep.is_none() {
                (player.asleep, player.came) = (Some(self.now), self.now);
            }
            self.replies.push_back((who, Reply::Wants));
        }
    }

    fn phase_done(&mut self, who: Who) {
        let Some(phase) = self.players[who].phase.take() else {
            return;
        };
        self.accounts.end(self.now, who);
        if matches!(self.trace.tenants[who].program, Program::Bursts { .. }) {
            self.accounts.delays.push(self.now - phase.begins - phase.work);
        }
        self.go_on(who, phase.begins);
    }

    /// After work that began then, the next.
    fn go_on(&mut self, who: Who, began: Nanos) {
        let now = self.now;
        let Some(phase) = self.players[who].phases.next(began, now) else {
            return self.leave(who);
        };
        if phase.begins <= now {
            return self.begin(who, phase);
        }
        self.players[who].next = Some(phase);
        self.plan(phase.begins, What::Begins(who));
        self.players[who].idle = now;
        self.watch_idle(who);
    }

    fn begin(&mut self, who: Who, phase: Phase) {
        self.accounts.begin(self.now, who);
        let player = &mut self.players[who];
        player.phase = Some(phase);
        player.left.fill(phase.work.0 as Work);
        if player.coming.is_some() {
            return;
        }
        player.plan += 1;
        match player.gate {
            Gate::Open => self.resume(who),
            Gate::Shut => self.sleep(who),
            Gate::Entering { .. } | Gate::Draining(_) => {}
        }
    }

    /// Releases the lock of a session that was idle for the grace while another one waits.
    fn watch_idle(&mut self, who: Who) {
        let player = &mut self.players[who];
        if player.wanted && player.phase.is_none() && player.gate == Gate::Open {
            player.plan += 1;
            let plan = player.plan;
            let due = self.policy.lets_go_at(self.now, player.idle, player.grace.span());
            self.plan(due, What::WasIdle(who, plan));
        }
    }

    fn was_idle(&mut self, who: Who) {
        let player = &mut self.players[who];
        if player.wanted && player.phase.is_none() && player.gate == Gate::Open {
            player.gate = Gate::Shut;
            player.grace.note_release(self.now);
            self.replies.push_back((who, Reply::LetGo(Nanos::ZERO)));
        }
    }

    fn leave(&mut self, who: Who) {
        let player = &mut self.players[who];
        player.ended = Some(self.now);
        player.gate = Gate::Shut;
        for card in self.cards_of(who) {
            self.cards[card].forget(who);
        }
        self.replies.push_back((who, Reply::Leaves));
    }

    /// Whether the time is up, or no session is left.
    fn finish(mut self) -> Outcome<'a> {
        if self.players.iter().any(|player| player.ended.is_none()) {
            self.now = self.trace.until;
        }
        for who in 0..self.players.len() {
            self.stop(who);
            let player = &self.players[who];
            if let Some(since) = player.asleep {
                self.accounts.waits.push(self.now - since);
            }
            if let Some(phase) = player.phase {
                self.accounts.end(self.now, who);
                let bursts = matches!(self.trace.tenants[who].program, Program::Bursts { .. });
                let delay = self.now - phase.begins - phase.work;
                if bursts && !delay.is_zero() {
                    self.accounts.delays.push(delay);
                }
            }
        }
        Outcome {
            ended: self.players.iter().map(|player| player.ended).collect(),
            moved: self.policy.moved() + self.cards.iter().map(|card| card.moved).sum(),
            handoffs: self.policy.handoffs(),
            quanta: self.policy.quanta(),
            accounts: self.accounts,
        }
    }
}
