//! Events about remapped memory, and goals: the plan of each card, carried out after all grants and drops.
//!
//! ```text
//!   transfers that are late ─▶ rows, by the order of turns ─▶ plan ─▶ Goal ─┬─ until no card's plan changes
//!                                       ▲                                  │  (all share the host memory)
//!                                       └──────────────────────────────────┘
//! ```

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gpushare_proto::page::GoalNumber;
use gpushare_proto::tenant::Residence;
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos, SessionId};

use crate::card::{Card, believed};
use crate::events::{Effect, WaitsFor};
use crate::machine::Core;
use crate::machine::agenda::Timer;
use crate::memory::sums::Total;
use crate::residency::facts::Figures;
use crate::residency::most_shortage;
use crate::residency::plan::{self, Rank, Row, Supply};
use crate::residency::prepare;
use crate::residency::residents::Resident;
use crate::residency::transfer::{Task, Way};
use crate::session::Session;
use crate::session::client::Client;
use crate::session::lock::Lock;
use crate::values::gpu_set::GpuSet;
use crate::values::small_map::ByGpu;
use crate::view::View;

/// Largest number of times that the plans of all cards are made after one event.
const ROUNDS: usize = 8;

/// Whether remapped memory that a process needs is not on its cards.
pub(crate) fn has_hole(cards: &ByGpu<Card>, id: ClientId, client: &Client) -> bool {
    client.books.iter().any(|(gpu, book)| {
        let resident = cards.get(gpu).and_then(|card| card.residents.get(id));
        let figures = resident.map(|resident| resident.facts.figures(book));
        figures.is_some_and(|figures| figures.resident < figures.whole)
    })
}

impl View {
    /// Figures of a process's remapped memory on a card.
    pub(crate) fn figures(&self, client: ClientId, gpu: GpuId) -> Option<Figures> {
        let resident = self.cards.get(gpu)?.residents.get(client)?;
        Some(resident.facts.figures(self.book(client, gpu)?))
    }

    /// Whether the movable memory of a process is remapped.
    pub(crate) fn remaps(&self, client: ClientId) -> bool {
        self.sessions.client(client).is_some_and(|client| client.remaps)
    }

    /// Whether any process of a session has remapped memory.
    pub(crate) fn has_remapped(&self, id: SessionId) -> bool {
        let remaps = |session: &Session| session.clients.values().any(|client| client.remaps);
        !self.remapped.is_empty() && self.sessions.get(id).is_some_and(remaps)
    }

    /// Processes with remapped memory on a card, in the order of keeping it.
    pub(crate) fn rows(&self, gpu: GpuId) -> Vec<Row> {
        let Some(card) = self.cards.get(gpu).filter(|card| !card.residents.is_empty()) else {
            return Vec::new();
        };
        let places: BTreeMap<SessionId, u32> = card.groups.in_order(|_| true).zip(0..).collect();
        let row = |(client, resident): (ClientId, &Resident)| {
            let id = self.session_of(client)?;
            let session = self.sessions.get(id)?;
            let process = session.clients.get(client)?;
            let figures = resident.facts.figures(process.books.get(gpu)?);
            let late = [Way::In, Way::Out].into_iter().find(|&way| resident.transfer.is_late(way));
            let rank = rank(session, places.get(&id).copied());
            let may_overflow = resident.may_map(session.quota.may_oversubscribe());
            let ends_work = process.gate.ends_work();
            let (leaves, returns) = (session.wants_frost, process.frost.returns());
            Some(Row { client, rank, figures, ends_work, late, may_overflow, leaves, returns })
        };
        let mut rows: Vec<Row> = card.residents.iter().filter_map(row).collect();
        rows.sort_by_key(|row| row.rank);
        rows
    }

    /// Bytes of a card for remapped memory, without memory of processes that did not return.
    pub(crate) fn for_remapped(&self, gpu: GpuId) -> Bytes {
        let card = self.cards.get(gpu).map_or(Bytes::ZERO, Card::for_remapped);
        card - self.recovery.used(gpu)
    }

    /// Host memory that evictions on a card may still bring, beside what is hosted or promised.
    fn host_room(&self, gpu: GpuId, rows: &[Row]) -> Bytes {
        let mut claims = self.host_claims_beside(gpu);
        rows.iter().for_each(|row| claims += row.host_claim().into());
        self.host.room(claims.get())
    }

    /// Host memory of all cards that is hosted or promised.
    pub(crate) fn host_claims(&self) -> Total {
        self.host_claims_beside_all(GpuSet::default())
    }

    /// Host memory of other cards that is hosted or promised.
    fn host_claims_beside(&self, gpu: GpuId) -> Total {
        self.host_claims_beside_all(gpu.into())
    }

    fn host_claims_beside_all(&self, gpus: GpuSet) -> Total {
        let mut claims = Total::default();
        for other in self.remapped.without(gpus) {
            self.rows(other).iter().for_each(|row| claims += promised(row).into());
        }
        claims
    }

    /// Whether goals must wait for processes of the last daemon, whose memory nobody knows.
    pub(crate) fn awaits_reports(&self, gpu: GpuId) -> bool {
        self.recovery.holds_up(gpu.into()) || self.recovery.returns_to(gpu)
    }

    /// Reason for which a session with the lock waits for its own memory, and the expected duration of the rest of
    /// the move; `None` if all is on its cards.
    pub(crate) fn waits_for_memory(&self, id: SessionId) -> Option<(WaitsFor, Nanos)> {
        let session = self.sessions.get(id).filter(|session| session.lock.grant().is_some())?;
        let (mut missing, mut lack, mut rest) = (Bytes::ZERO, None, Nanos::ZERO);
        let moving = || session.attached().filter(|(_, client)| client.gate.is_moving());
        for (gpu, card) in self.cards.among(self.remapped) {
            let mut bytes = Bytes::ZERO;
            for (client, _) in moving() {
                let Some(figures) = self.figures(client, gpu) else { continue };
                let overflows = card.residents.overflows(client);
                let lacking = figures.missing(overflows);
                let waits = !overflows && !lacking.is_zero() && figures.goal < Some(figures.whole);
                bytes += lacking;
                lack = lack.or(card.residents.wait_reason.filter(|_| waits));
            }
            missing += bytes;
            rest = rest.max(card.move_time(bytes));
        }
        (!missing.is_zero()).then_some((WaitsFor::Memory { missing, lack }, rest))
    }

    /// Move that the latest goal of a process asks for.
    fn task(&self, row: &Row, number: GoalNumber, overflows: bool) -> Option<Task> {
        let Figures { resident, goal, claim, .. } = row.figures;
        let goal = goal?;
        let target = if row.rank.has_lock() { goal.max(resident) } else { goal };
        if claim > target {
            return Some(Task { way: Way::Out, number, target });
        }
        let moves = || self.sessions.client(row.client).is_some_and(|client| client.gate.is_moving());
        let target = goal.min(resident + row.figures.missing(overflows));
        let comes_in = matches!(row.rank, Rank::Holds(_)) && resident < target && moves();
        comes_in.then_some(Task { way: Way::In, number, target })
    }
}

impl Core {
    /// Notes that the memory of a process moves by goals.
    pub(crate) fn remaps(&mut self, client: ClientId) {
        if let Some(process) = self.client_mut(client).filter(|process| !process.is_attached()) {
            process.remaps = true;
        }
    }

    /// Notes where the remapped memory of a process is.
    pub(crate) fn resides(&mut self, client: ClientId, gpu: GpuId, seen: GoalNumber, residence: Residence) {
        let before = self.view.said_resident(client, gpu);
        let Some(card) = self.view.cards.get_mut(gpu) else { return };
        let copied = card
            .residents
            .get(client)
            .map_or(Bytes::ZERO, |resident| resident.facts.copied_out());
        if card.residents.say(client, seen, residence) {
            let chunks = self.view.believed_chunks(client, gpu, residence.whole());
            let grew = self.change_book(client, gpu, |book| {
                let before = book.whole();
                book.chunks = chunks;
                book.pinned = residence.pinned.min(residence.resident);
                book.whole() > before
            });
            if grew == Some(true) {
                self.grown = self.view.session_of(client);
            }
            self.note_moved(client, gpu, before, copied);
            self.learn_from_move(client, gpu);
            self.agenda.look_at(gpu);
        }
    }

    /// Learns the rate of a move that has ended.
    fn learn_from_move(&mut self, client: ClientId, gpu: GpuId) {
        let (now, figures) = (self.view.now, self.view.figures(client, gpu));
        if let Some(figures) = figures
            && let Some(card) = self.view.cards.get_mut(gpu)
            && let Some(process) = card.residents.get_mut(client)
            && let Some(moved) = process.transfer.end(now, figures.mark())
        {
            card.residents.rates.add(moved, believed(&self.view.config));
        }
    }

    /// Notes that a process could not follow a goal. If the card had no memory, `refused` bytes show it.
    pub(crate) fn move_failed(&mut self, client: ClientId, gpu: GpuId, number: GoalNumber, refused: Bytes) {
        let session = self.view.session_of(client).and_then(|id| self.view.sessions.get(id));
        let held = session.is_some_and(|session| session.lock.grant().is_some());
        let now = self.view.now;
        if let Some(card) = self.view.cards.get_mut(gpu)
            && let Some(resident) = card.residents.get_mut(client)
        {
            resident.transfer.fail(now, number, held);
            resident.note_failure(now);
            self.agenda.look_at(gpu);
        }
        self.card_is_short(client, gpu, refused);
    }

    /// Notes that a process got no memory of a card for `bytes`. If it has the lock and its goal has room for them, the
    /// card has no more than what is resident, and others must give what the process needs. Soon after a death it may be
    /// memory of the dead that is missing.
    pub(crate) fn card_is_short(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        let rows = self.view.rows(gpu);
        let has_room = |row: &Row| {
            let Row { rank, figures: Figures { resident, goal, .. }, .. } = *row;
            let room = goal.unwrap_or_default() - resident;
            matches!(rank, Rank::Holds(_)) && !bytes.is_zero() && bytes <= room
        };
        if !rows.iter().any(|row| row.client == client && has_room(row)) {
            return;
        }
        let mut resident = Total::default();
        rows.iter().for_each(|row| resident += row.figures.resident.into());
        let (has, now) = (self.view.for_remapped(gpu), self.view.now);
        let card = self.view.cards.get_mut(gpu);
        if let Some(card) = card.filter(|card| !card.residents.may_return_late(now)) {
            let shortage = (has + card.residents.shortage()) - resident.get();
            card.residents.set_shortage(now, shortage.min(most_shortage(card.total)));
            self.agenda.look_at(gpu);
        }
    }

    /// Notes how much of a process NVML sees on a card at least.
    pub(crate) fn measured(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        if let Some(card) = self.view.cards.get_mut(gpu)
            && let Some(resident) = card.residents.get_mut(client)
        {
            // A higher figure waits for the event that takes the same bytes off the driver's own memory. Otherwise they
            // would count twice for a moment, and others would be told to give them.
            if resident.facts.measure(bytes.min(card.total)) {
                self.agenda.look_at(gpu);
            }
        }
    }

    /// Notes the free memory of a card: what is not free beside all known memory belongs to dead processes at
    /// most.
    pub(crate) fn card_free(&mut self, gpu: GpuId, free: Bytes) {
        let mut known = Total::default();
        self.view.rows(gpu).iter().for_each(|row| known += row.figures.resident.into());
        if let Some(card) = self.view.cards.get_mut(gpu) {
            let fixed = card.fixed() - card.index.sums.pinned.get();
            let taken = card.total - free;
            card.residents.seen_free(taken - card.reserve() - fixed - known.get());
            self.agenda.look_at(gpu);
        }
    }

    /// Notes that the page of a process is new and has no goal.
    pub(crate) fn has_new_page(&mut self, client: ClientId, gpu: GpuId) {
        if let Some(card) = self.view.cards.get_mut(gpu)
            && let Some(resident) = card.residents.get_mut(client)
        {
            resident.has_new_page();
        }
    }

    /// Notes that a process is dead, before its books are closed. What it may have on its cards counts until the
    /// driver has taken it back.
    pub(crate) fn departs(&mut self, client: ClientId, remains: bool) {
        for gpu in self.view.remapped {
            // What a child keeps of it was made by then. Without one the driver takes it all back in a moment.
            let of_dead = |figures: Figures| if remains { figures.resident } else { figures.claim };
            let claim = self.view.figures(client, gpu).map(of_dead);
            if let Some(card) = self.view.cards.get_mut(gpu)
                && let Some(claim) = claim
            {
                card.residents.depart(self.view.now, client, claim, remains);
            }
        }
    }

    /// Notes the budget for host memory. Evictions that it limits may go on.
    pub(crate) fn host_budget(&mut self, bytes: Bytes) {
        self.view.host.set_budget(bytes);
        self.view.remapped.into_iter().for_each(|gpu| self.agenda.look_at(gpu));
    }

    /// Looks at the moves on a card when one may be late, and forgets memory of dead processes that must be free by
    /// now.
    pub(crate) fn look_at_moves(&mut self, gpu: GpuId) {
        if let Some(card) = self.view.cards.get_mut(gpu) {
            card.residents.expire(self.view.now);
        }
        self.agenda.look_at(gpu);
    }

    /// Cards on the agenda whose goals may change, their sessions' cards included. Where one is, those are
    /// too that use or prepare host memory, which all cards share.
    fn cards_to_plan(&self) -> GpuSet {
        let remapped = self.view.remapped;
        let touched = (0..self.agenda.len()).map(|at| self.view.cards_of(self.agenda.session(at)));
        let due = touched.fold(self.agenda.cards(), GpuSet::with).and(remapped);
        if due.is_empty() {
            return due;
        }
        let limited = self.view.cards.among(remapped.without(due));
        let limited = limited.filter(|(_, card)| card.residents.depends_on_host()).map(|(gpu, _)| gpu);
        due.with(limited.collect())
    }

    /// Gives the goals that follow from all facts, and sets the deadlines of the moves.
    pub(crate) fn place_memory(&mut self) {
        if self.view.remapped.is_empty() {
            return;
        }
        let cards = self.cards_to_plan();
        for gpu in cards {
            self.note_progress(gpu);
        }
        for _ in 0..ROUNDS {
            let changed = cards.into_iter().filter(|&gpu| self.plan_goals(gpu)).count();
            if changed == 0 {
                break;
            }
        }
        for gpu in cards {
            self.follow_goals(gpu);
        }
        self.tell_whether_host_is_full();
    }

    /// Lets the processes know when the host memory becomes too full for what must leave the cards, and when it is
    /// so no longer.
    fn tell_whether_host_is_full(&mut self) {
        let cards = self.view.remapped;
        let is_full = self.view.cards.among(cards).any(|(_, card)| card.residents.host_is_full);
        if std::mem::replace(&mut self.view.host.is_full, is_full) != is_full {
            for gpu in cards {
                let members = self.view.cards.get(gpu).map(|card| card.index.members.clone());
                members.into_iter().flatten().for_each(|id| self.touch(id));
            }
        }
    }

    /// Notes which moves on a card have gone on and which are late.
    fn note_progress(&mut self, gpu: GpuId) {
        // Until the reports are back no goal is lowered, so none is seen.
        let (now, awaits) = (self.view.now, self.view.awaits_reports(gpu));
        for row in self.view.rows(gpu) {
            if let Some(card) = self.view.cards.get_mut(gpu)
                && let Some(resident) = card.residents.get_mut(row.client)
            {
                let acknowledged = resident.facts.is_acknowledged() && !awaits;
                resident.transfer.note(now, row.figures.mark(), acknowledged, row.rank);
            }
        }
    }

    /// Plans a card and gives the goals that changed. Returns whether there were any.
    fn plan_goals(&mut self, gpu: GpuId) -> bool {
        if self.view.awaits_reports(gpu) {
            return false;
        }
        let mut rows = self.view.rows(gpu);
        let supply = Supply {
            card: self.view.for_remapped(gpu),
            host: self.view.host_room(gpu, &rows),
            grows: self.view.cards.get(gpu).is_some_and(Card::awaits_room),
        };
        let plan = plan::plan(&mut rows, supply);
        let Some(card) = self.view.cards.get_mut(gpu) else {
            return false;
        };
        (card.residents.wait_reason, card.residents.host_is_full) = (plan.wait_reason, plan.host_is_full);
        for row in &rows {
            if let Some(resident) = card.residents.get_mut(row.client) {
                resident.note_wait(self.view.now, plan.lacks.contains(&row.client), row.is_whole());
            }
        }
        let mut goals = plan.goals;
        for row in &rows {
            // A new page has no goal, so the last one is given again.
            let has_blank_page = card.residents.get_mut(row.client).is_some_and(Resident::take_blank_page);
            if has_blank_page && let Some(goal) = row.figures.goal {
                goals.retain(|&mut (client, _)| client != row.client);
                goals.push((row.client, goal));
            }
        }
        let overflows = |client: &ClientId| plan.overflows.contains(client);
        let told = card.residents.set_overflows(overflows);
        for &(client, bytes) in &goals {
            if let Some(resident) = card.residents.get_mut(client) {
                let number = resident.facts.order(bytes);
                self.effects.push_back(Effect::Goal { client, gpu, number, bytes });
            }
        }
        for client in told {
            self.view.session_of(client).into_iter().for_each(|id| self.touch(id));
        }
        !goals.is_empty()
    }

    /// Starts and ends the transfers on a card as its goals ask, and sets the timer for the first that is late.
    fn follow_goals(&mut self, gpu: GpuId) {
        let now = self.view.now;
        let rows = self.view.rows(gpu);
        let mut moves = false;
        for row in &rows {
            let last = self.view.cards.get(gpu).and_then(|card| card.residents.get(row.client));
            let number = last.map_or(GoalNumber::NONE, |resident| resident.facts.last());
            let overflows = last.is_some_and(Resident::overflows);
            let task = self.view.task(row, number, overflows);
            if let Some(card) = self.view.cards.get_mut(gpu)
                && let Some(resident) = card.residents.get_mut(row.client)
            {
                resident.transfer.follow(now, task, row.figures.mark());
                moves |= !resident.transfer.rest(row.figures.resident).is_zero();
            }
        }
        self.begin_or_end_handoff(gpu, moves, &rows);
        self.set_host_targets(gpu, &rows);
        if let Some(card) = self.view.cards.get_mut(gpu) {
            let deadline = card.residents.deadline();
            self.agenda.set_timer(Timer::Moves(gpu), &mut card.alarms.moves, deadline);
            if card.residents.is_empty() {
                self.view.remapped.remove(gpu);
            }
        }
    }

    /// Tells the processes of a card how much host memory they should have ready, once it is known where all memory is.
    fn set_host_targets(&mut self, gpu: GpuId, rows: &[Row]) {
        if self.view.awaits_reports(gpu) {
            return;
        }
        let has = self.view.for_remapped(gpu);
        let mut claims = self.view.host_claims_beside(gpu);
        rows.iter().for_each(|row| claims += promised(row).into());
        let room = prepare::share(self.view.host.budget()) - claims.get();
        let Some(card) = self.view.cards.get_mut(gpu) else { return };
        let most = prepare::most_to_give(rows, has);
        card.residents.prepares = !most.is_zero();
        for (client, bytes) in prepare::targets(rows, most, room) {
            let resident = card.residents.get_mut(client);
            if resident.is_some_and(|resident| resident.set_host_target(bytes)) {
                self.effects.push_back(Effect::HostTarget { client, gpu, bytes });
            }
        }
    }
}

/// Host memory that a process has, or will have once it has followed its goal.
fn promised(row: &Row) -> Bytes {
    row.figures.host_claim(row.figures.goal)
}

/// Right of a session's processes to be on a card, where it has this place in the queue.
fn rank(session: &Session, place: Option<u32>) -> Rank {
    match (&session.lock, place) {
        (Lock::Holding(grant), _) => Rank::Holds(grant.epoch.counter),
        (Lock::Dropping(..), _) => Rank::Drains,
        _ if !session.may_run() => Rank::Barred,
        (_, Some(place)) => Rank::Waits(place),
        (_, None) => Rank::Idles(Reverse(session.left.map(|(at, _)| at))),
    }
}
