//! Freezing of idle sessions: events about it, and the steps that follow from all facts.
//!
//! ```text
//!   Freeze, Paused, idle ─▶ wish of the session ─▶ lock given back ─▶ memory leaves ─▶ park ─▶ freeze
//!   a thread waits at the gate or with a call ─▶ wish over ─▶ thaw due, bytes reserved ─▶ they fit ─▶ thaw
//! ```
//!
//! While a session wishes to be frozen it may not run, nor while it waits for a process alone that has nothing on its
//! cards. So it gives the lock back as a paused one does.
//!
//! Which process comes back and when, `thaws.rs` decides. The driver moves one process at a time on each card.

use gpushare_proto::page::FLAG_FROZEN;
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos, SessionId};

use crate::card::Card;
use crate::events::{Effect, Event, FreezeEnd, Notice, Obstacle, ThawEnd};
use crate::machine::Core;
use crate::memory::book::Book;
use crate::memory::sums::Total;
use crate::session::Session;
use crate::session::client::Client;
use crate::session::frost::{Frost, Stage};
use crate::session::gate::Passage;
use crate::session::idle::is_sign_of_life;
use crate::session::lock::Lock;
use crate::values::gpu_set::GpuSet;
use crate::view::View;

impl View {
    /// Cards of a process.
    pub(super) fn cards_of_process(&self, client: ClientId) -> GpuSet {
        let process = self.sessions.client(client);
        process.map_or_else(GpuSet::default, |process| process.books.keys().collect())
    }

    /// Bytes on all its cards that the driver moves into host memory when a process is frozen: its contexts, and
    /// what never leaves by goals.
    fn bytes_to_freeze(&self, process: &Client) -> Bytes {
        process.books.iter().map(|(gpu, book)| self.bytes_to_freeze_on(gpu, book)).sum()
    }

    /// Bytes on one card that the driver moves when the process is frozen or comes back.
    fn bytes_to_freeze_on(&self, gpu: GpuId, book: &Book) -> Bytes {
        let contexts = Bytes(self.assumed(gpu).0.saturating_mul(u64::from(book.contexts)));
        book.stays() + book.overhead.unwrap_or(contexts)
    }

    /// First obstacle that a card of a process is.
    fn obstacle_of_cards(&self, process: &Client) -> Option<Obstacle> {
        let cards: GpuSet = process.books.keys().collect();
        let on = |is_so: fn(&Card) -> bool| self.cards.among(cards).any(|(_, card)| is_so(card));
        let persistence = on(|card| card.lacks_persistence).then_some(Obstacle::Persistence);
        persistence.or_else(|| on(|card| card.trial_failed).then_some(Obstacle::Trial))
    }

    /// Whether the remapped memory of a process has left all its cards.
    fn is_all_hosted(&self, client: ClientId) -> bool {
        self.cards_of_process(client).into_iter().all(|gpu| {
            let figures = self.figures(client, gpu);
            figures.is_none_or(|figures| figures.resident.is_zero() && figures.claim.is_zero())
        })
    }

    /// First obstacle among the processes of a session that use a card.
    pub(crate) fn obstacle(&self, id: SessionId) -> Option<(ClientId, Obstacle)> {
        let session = self.sessions.get(id)?;
        session.attached().find_map(|(client, process)| {
            let is_pinned = process.books.values().any(|book| !book.pinned.is_zero());
            let pinned = is_pinned.then_some(Obstacle::Pinned);
            let cards = self.obstacle_of_cards(process);
            Some((client, process.frost.obstacle().or(cards).or(pinned)?))
        })
    }

    /// Whether the host has no room for what the driver moves of a process.
    pub(crate) fn lacks_host_memory(&self, process: &Client) -> bool {
        self.bytes_to_freeze(process) > self.host.room(self.host_claims().get())
    }

    /// Processes of the sessions that wish to be frozen or are cold.
    pub(crate) fn cold_processes(&self) -> impl Iterator<Item = (SessionId, ClientId, Frost)> {
        let sessions = self.cold.iter().filter_map(|&id| Some((id, self.sessions.get(id)?)));
        sessions.flat_map(|(id, session)| {
            session.clients.iter().map(move |(client, process)| (id, client, process.frost))
        })
    }
}

impl Core {
    /// Notes that a session is to be frozen, or no longer. It is refused if any of its processes cannot be frozen.
    pub(crate) fn freeze(&mut self, id: SessionId, wanted: bool) {
        if let Some((client, obstacle)) = self.view.obstacle(id).filter(|_| wanted) {
            return self.notice(Notice::FreezeRefused { session: id, client, obstacle });
        }
        if let Some(session) = self.view.sessions.get_mut(id) {
            session.wants_frost = wanted && session.attached().next().is_some();
            self.frost_changed(id);
        }
    }

    /// Sets the idle time after which a session is frozen.
    pub(crate) fn freeze_after(&mut self, id: SessionId, idle: Option<Nanos>) {
        if let Some(session) = self.view.sessions.get_mut(id) {
            session.idle.freeze_after(idle);
        }
    }

    /// Notes that the session of a process is not idle if the process says so in passing.
    pub(crate) fn note_life(&mut self, event: Event) {
        if is_sign_of_life(&event)
            && let Some(id) = event.client().and_then(|client| self.view.session_of(client))
            && let Some(session) = self.view.sessions.get_mut(id)
        {
            session.idle.lives();
        }
    }

    /// Freezes a session that was idle for long enough, unless something stands in the way. An attempt ends its idle
    /// time, so the next one comes after as long a time again.
    #[cold]
    #[inline(never)]
    pub(crate) fn freeze_idle(&mut self, id: SessionId) {
        if self.view.recovery.is_early() || self.view.obstacle(id).is_some() {
            return;
        }
        if let Some(session) = self.view.sessions.get_mut(id) {
            session.idle.lives();
            session.wants_frost = true;
            self.frost_changed(id);
        }
    }

    /// Notes the obstacle that a process reports of itself.
    pub(crate) fn freezable(&mut self, client: ClientId, obstacle: Option<Obstacle>) {
        self.change_frost(client, |frost| frost.examine(obstacle));
    }

    /// Notes that a thread of a process waits with a call of the driver.
    pub(crate) fn called(&mut self, client: ClientId) {
        self.change_frost(client, Frost::call);
    }

    /// Notes that no thread of a process is in the driver, and none enters.
    pub(crate) fn parked(&mut self, client: ClientId) {
        self.change_frost(client, Frost::has_parked);
    }

    /// Notes that the last daemon has frozen a process.
    pub(crate) fn found_frozen(&mut self, client: ClientId) {
        let Some(process) = self.view.sessions.client(client) else { return };
        let is_shut = process.gate.passage() == Passage::Shut;
        if process.frost.stage() != Stage::Warm {
            return;
        }
        let ticket = self.next_thaw();
        self.change_frost(client, |frost| match is_shut {
            true => frost.queue_found(ticket),
            false => frost.count_as_unknown(ticket, Nanos::ZERO),
        });
    }

    /// Spares a process that the last daemon had frozen once, wherever it is.
    pub(crate) fn frozen_before(&mut self, client: ClientId) {
        self.view.recovery.spare(client);
        self.change_frost(client, Frost::frozen_before);
    }

    /// Notes the end of an attempt to freeze a process.
    pub(crate) fn freeze_ended(&mut self, client: ClientId, end: FreezeEnd) {
        // Also if the process has died meanwhile.
        if let FreezeEnd::TrialFailed { gpu } = end {
            self.trial_failed(gpu);
        }
        let under_way = self.stage(client) == Some(Stage::Freezing);
        let Some(id) = self.view.session_of(client).filter(|_| under_way) else {
            return;
        };
        let ticket = self.next_thaw();
        let bytes = self.view.sessions.client(client).map(|process| process.frost.host_bytes());
        self.change_frost(client, |frost| frost.freeze_ended(end, ticket));
        let bytes = bytes.unwrap_or_default();
        // Else it would be tried again at once.
        if end != FreezeEnd::Frozen
            && let Some(session) = self.view.sessions.get_mut(id)
        {
            session.wants_frost = false;
            self.frost_changed(id);
        }
        self.notice(match end {
            FreezeEnd::Frozen => Notice::Frozen { session: id, client, bytes },
            FreezeEnd::Refused => Notice::FreezeRefused { session: id, client, obstacle: Obstacle::Refused },
            FreezeEnd::BrokeOff => Notice::FreezeBrokeOff { session: id, client },
            FreezeEnd::Busy => Notice::FreezeRefused { session: id, client, obstacle: Obstacle::Busy },
            FreezeEnd::TrialFailed { .. } => {
                Notice::FreezeRefused { session: id, client, obstacle: Obstacle::Trial }
            }
            FreezeEnd::Prevented(obstacle) => Notice::FreezeRefused { session: id, client, obstacle },
        });
    }

    /// Notes that the trial of a freeze has failed on a card.
    fn trial_failed(&mut self, gpu: GpuId) {
        if let Some(card) = self.view.cards.get_mut(gpu) {
            card.trial_failed = true;
            self.touch_members(gpu);
        }
    }

    /// Notes whether a card is in persistence mode.
    pub(crate) fn persistence(&mut self, gpu: GpuId, is_on: bool) {
        if let Some(card) = self.view.cards.get_mut(gpu) {
            card.lacks_persistence = !is_on;
            self.touch_members(gpu);
        }
    }

    /// Bytes that the driver brings back onto each card of a process when it thaws the process.
    #[must_use]
    pub fn bytes_to_thaw(&self, client: ClientId) -> Vec<(GpuId, Bytes)> {
        let process = self.view.sessions.client(client);
        let books = process.into_iter().flat_map(|process| process.books.iter());
        books
            .map(|(gpu, book)| (gpu, self.view.bytes_to_freeze_on(gpu, book)))
            .collect()
    }

    /// Bytes on a card that processes other than `client` may still take: remapped memory for which they have goals.
    #[must_use]
    pub fn promised_beside(&self, client: ClientId, gpu: GpuId) -> Bytes {
        let mut sum = Total::default();
        for row in self.view.rows(gpu).iter().filter(|row| row.client != client) {
            sum += (row.figures.claim - row.figures.resident).into();
        }
        sum.get()
    }

    /// Bytes that a context takes on a card until it is measured.
    #[must_use]
    pub fn context_on(&self, gpu: GpuId) -> Bytes {
        self.view.cards.get(gpu).map_or(Bytes::ZERO, Card::assumed)
    }

    /// Whether a process that is to come back may be on its cards as before, so that its thaw may need no memory.
    #[must_use]
    pub fn may_be_on_cards(&self, client: ClientId) -> bool {
        let process = self.view.sessions.client(client);
        process.is_some_and(|process| process.frost.may_be_here())
    }

    /// Notes the end of an attempt to thaw a process.
    pub(crate) fn thaw_ended(&mut self, client: ClientId, end: ThawEnd) {
        let under_way = matches!(self.stage(client), Some(Stage::Thawing(_)));
        let Some(id) = self.view.session_of(client).filter(|_| under_way) else {
            return;
        };
        let (now, ticket) = (self.view.now, self.next_thaw());
        self.change_frost(client, |frost| frost.thaw_ended(end, now, ticket));
        match end {
            ThawEnd::Thawed => self.notice(Notice::Thawed { session: id, client }),
            ThawEnd::Lost => self.notice(Notice::FrostKilled { session: id, client }),
            ThawEnd::BrokeOff | ThawEnd::NoRoom => {}
        }
    }

    fn stage(&self, client: ClientId) -> Option<Stage> {
        Some(self.view.sessions.client(client)?.frost.stage())
    }

    fn next_thaw(&mut self) -> u64 {
        self.last_thaw += 1;
        self.last_thaw
    }

    /// Changes the frost of a process, and counts its memory as away or as on its cards.
    pub(super) fn change_frost(&mut self, client: ClientId, change: impl FnOnce(&mut Frost)) {
        let Some(id) = self.view.session_of(client) else { return };
        let Some(process) = self.view.sessions.client_mut(client) else {
            return;
        };
        let before = process.frost.is_away();
        change(&mut process.frost);
        let away = process.frost.is_away();
        if before != away {
            for gpu in self.view.cards_of_process(client) {
                self.change_book(client, gpu, |book| book.is_away = away);
                self.touch_members(gpu);
            }
        }
        self.frost_changed(id);
    }

    fn frost_changed(&mut self, id: SessionId) {
        let is_cold = self.view.sessions.get_mut(id).is_some_and(|session| {
            session.may_be_cold = session.clients.values().any(|client| client.frost.is_cold());
            session.is_cold()
        });
        match is_cold {
            true => _ = self.view.cold.insert(id),
            false => _ = self.view.cold.remove(&id),
        }
        self.count_frozen();
        self.recount(id);
        for gpu in self.view.cards_of(id) {
            self.agenda.look_at(gpu);
        }
    }

    fn count_frozen(&mut self) {
        let frozen: Bytes = self.view.cold_processes().map(|(.., frost)| frost.host_bytes()).sum();
        if self.view.host.set_frozen(frozen) {
            self.view.remapped.into_iter().for_each(|gpu| self.agenda.look_at(gpu));
        }
    }

    /// Ends the wish of a session that has work or cannot be frozen, and lets its processes come back.
    #[cold]
    #[inline(never)]
    pub(crate) fn judge_frost(&mut self, id: SessionId) {
        let Some(session) = self.view.sessions.get(id).filter(|session| session.is_cold()) else {
            return;
        };
        let now = self.view.now;
        let late = |(client, process): (ClientId, &Client)| {
            matches!(process.frost.stage(), Stage::Parking(until) if until <= now).then_some(client)
        };
        let silent = session.clients.iter().find_map(late).map(|client| (client, Obstacle::Silent));
        let refused = silent.or_else(|| self.view.obstacle(id)).filter(|_| session.wants_frost);
        let is_left = session.attached().next().is_none();
        let is_over = session.wants_frost && (session.is_called() || refused.is_some() || is_left);
        if let Some((client, obstacle)) = refused {
            self.notice(Notice::FreezeRefused { session: id, client, obstacle });
        }
        if is_over && let Some(session) = self.view.sessions.get_mut(id) {
            session.wants_frost = false;
            self.frost_changed(id);
        }
        self.let_come_back(id);
    }

    /// Lets the processes of a session come back if it does not wish to be frozen any more.
    fn let_come_back(&mut self, id: SessionId) {
        let Some(session) = self.view.sessions.get(id).filter(|session| !session.wants_frost) else {
            return;
        };
        let stages = session.clients.iter().map(|(client, process)| (client, process.frost.stage()));
        let waiting: Vec<(ClientId, Stage)> = stages.collect();
        // One for all that are frozen now, so that no other process comes between them.
        let ticket = self.next_thaw();
        let mut has_queued = false;
        for (client, stage) in waiting {
            match stage {
                Stage::Parking(_) | Stage::Parked => self.change_frost(client, Frost::unpark),
                Stage::Frozen => {
                    self.change_frost(client, |frost| frost.queue(ticket));
                    has_queued = true;
                }
                _ => {}
            }
        }
        // If it fits, it may have its turn at once.
        if has_queued {
            self.choose_due_thaws();
        }
    }

    /// Begins all steps that may begin. Returns whether the host memory of frozen processes changed, or a session's use
    /// for a turn.
    pub(crate) fn begin_frosts(&mut self) -> bool {
        !self.view.cold.is_empty() && self.begin_steps()
    }

    #[cold]
    #[inline(never)]
    fn begin_steps(&mut self) -> bool {
        let before = self.view.host.frozen();
        let is_cold = |id: &SessionId| self.view.sessions.get(*id).is_some_and(Session::is_cold);
        let ended: Vec<SessionId> = self.view.cold.iter().copied().filter(|id| !is_cold(id)).collect();
        ended.into_iter().for_each(|id| self.frost_changed(id));
        // Who died meanwhile takes no host memory any more.
        self.count_frozen();
        let mut changes_wishes = false;
        if !self.view.recovery.is_early() {
            changes_wishes = self.begin_thaws();
            self.begin_freezes();
        }
        changes_wishes || self.view.host.frozen() != before
    }

    /// Tells a process that its last freeze is over if it does not know. Else it would take the next one for the last
    /// one, which it has answered.
    fn end_last_request(&mut self, client: ClientId) {
        let Some(process) = self.client_mut(client) else { return };
        if process.told.flags & FLAG_FROZEN != 0 {
            process.told.flags &= !FLAG_FROZEN;
            let flags = process.told.flags;
            self.effects.push_back(Effect::Flags { client, flags });
        }
    }

    /// Cards on which the driver moves a process.
    pub(super) fn moving_cards(&self) -> GpuSet {
        let under_way = self.view.cold_processes().filter(|(.., frost)| frost.is_under_way());
        let cards = under_way.map(|(_, client, _)| self.view.cards_of_process(client));
        cards.fold(GpuSet::default(), GpuSet::with)
    }

    fn begin_freezes(&mut self) {
        let wishing = |&(id, ..): &(SessionId, ClientId, Frost)| {
            let session = self.view.sessions.get(id);
            session.is_some_and(|session| {
                session.wants_frost && matches!(session.lock, Lock::Idle | Lock::Waiting(_))
            })
        };
        let processes: Vec<(SessionId, ClientId, Frost)> =
            self.view.cold_processes().filter(wishing).collect();
        let mut taken = self.moving_cards();
        for (_, client, frost) in processes {
            let Some(process) = self.view.sessions.client(client).filter(|process| process.is_attached())
            else {
                continue;
            };
            if !matches!(frost.stage(), Stage::Warm | Stage::Parked) {
                continue;
            }
            let cards = self.view.cards_of_process(client);
            let (bytes, lacks_host_memory) =
                (self.view.bytes_to_freeze(process), self.view.lacks_host_memory(process));
            let is_still = process.gate.passage() == Passage::Shut && self.view.is_all_hosted(client);
            let awaits_reports = cards.into_iter().any(|gpu| self.view.awaits_reports(gpu));
            if !is_still || awaits_reports || lacks_host_memory {
                continue;
            }
            match frost.stage() {
                Stage::Warm => {
                    let now = self.view.now;
                    self.end_last_request(client);
                    self.change_frost(client, |frost| frost.park(now));
                }
                Stage::Parked if !cards.overlaps(taken) => {
                    self.change_frost(client, |frost| frost.freeze(bytes));
                    self.effects.push_back(Effect::Freeze { client });
                    taken = taken.with(cards);
                }
                _ => {}
            }
        }
    }
}
