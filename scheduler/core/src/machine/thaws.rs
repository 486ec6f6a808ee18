//! Order of thaws: which of the frozen processes that are to come back does so, and when.
//!
//! ```text
//!   queued ── its bytes fit beside what stays ──▶ due ── everything fits, its turn, no pause ──▶ thaw
//!      ▲                                           │
//!      └──── they do not fit any more ─────────────┘
//! ```
//!
//! Once the thaw of a process is due, its bytes count as on its cards, and others make room by their goals. Frozen
//! processes may need more together than a card has, so those that do not fit wait without a claim on it. A thaw begins
//! once everything fits, in the order in which the processes were to come back. After one that failed comes a pause.

use std::collections::BTreeMap;

use gpushare_proto::{Bytes, ClientId, GpuId, SessionId};

use crate::events::Effect;
use crate::machine::Core;
use crate::memory::book::LEFT;
use crate::memory::sums::Total;
use crate::residency::plan;
use crate::session::client::Client;
use crate::session::frost::{Frost, Stage};
use crate::session::gate::Passage;
use crate::view::View;

impl View {
    /// Bytes on a card that do not leave it, with those of processes whose thaws are due. Contexts that were not measured
    /// count as nothing: they are measured only once their processes are back, and before each thaw the card's free
    /// memory is asked for.
    fn stays_on(&self, gpu: GpuId) -> Total {
        let sums = self.cards.get(gpu).map(|card| card.index.sums).unwrap_or_default();
        let mut sum = sums.overhead;
        sum += sums.fixed;
        sum
    }

    /// Whether all memory on a card, with that of processes whose thaws are due, fits there.
    fn fits(&self, gpu: GpuId) -> bool {
        let Some(card) = self.cards.get(gpu) else { return false };
        let rows = self.rows(gpu);
        self.stays_on(gpu) <= card.total.into()
            && (rows.is_empty() || plan::claims(&rows) <= Total::from(self.for_remapped(gpu)))
    }

    /// Processes that are queued for a thaw, or whose thaw is due and may be put back. One with an open gate, or one that
    /// may be on its cards, is not put back.
    fn returning(&self) -> impl Iterator<Item = (ClientId, &Client)> {
        let sessions = self.cold.iter().filter_map(|&id| self.sessions.get(id));
        let clients = sessions.flat_map(|session| session.clients.iter());
        clients.filter(|(_, process)| match process.frost.stage() {
            Stage::Queued(_) => true,
            Stage::Due(..) => !process.frost.broke_off() && process.gate.passage() == Passage::Shut,
            _ => false,
        })
    }
}

impl Core {
    /// Chooses the processes whose thaws are due: in the order of their tickets, those whose bytes fit on all their
    /// cards beside what stays there. One that does not fit is overtaken only by those that need less on one of its
    /// cards.
    ///
    /// Nothing that is chosen here changes what stays, so the same facts give the same choice.
    pub(crate) fn choose_due_thaws(&mut self) {
        if self.view.cold.is_empty() {
            return;
        }
        let mut queue: Vec<(Option<u64>, ClientId)> = self
            .view
            .returning()
            .map(|(client, process)| (process.frost.ticket(), client))
            .collect();
        queue.sort_unstable();
        // What is taken if none of them comes back.
        let mut taken: BTreeMap<GpuId, Total> = BTreeMap::new();
        for (_, process) in self.view.returning() {
            for (gpu, book) in process.books.iter() {
                let taken = taken.entry(gpu).or_insert_with(|| self.view.stays_on(gpu));
                *taken -= (book.stays_here() + book.overhead_here()).into();
                *taken += LEFT.into();
            }
        }
        let mut lacking: Vec<Vec<(GpuId, Bytes)>> = Vec::new();
        for (_, client) in queue {
            let Some(process) = self.view.sessions.client(client) else { continue };
            let is_away = process.frost.is_away();
            let books = process.books.iter();
            let needs: Vec<(GpuId, Bytes)> = books
                .map(|(gpu, book)| (gpu, book.stays() + book.overhead.unwrap_or_default()))
                .collect();
            let with = |&(gpu, bytes): &(GpuId, Bytes)| {
                let mut sum = taken.get(&gpu).copied().unwrap_or_default();
                sum -= LEFT.into();
                sum += bytes.into();
                (gpu, sum)
            };
            let with_it: Vec<(GpuId, Total)> = needs.iter().map(with).collect();
            let total = |gpu| self.view.cards.get(gpu).map_or(Bytes::ZERO, |card| card.total);
            let overtakes = lacking.iter().any(|earlier| needs_as_much(&needs, earlier));
            let fits = !overtakes && with_it.iter().all(|&(gpu, sum)| sum <= total(gpu).into());
            if fits {
                taken.extend(with_it);
            } else {
                lacking.push(needs);
            }
            if fits == is_away {
                self.change_frost(client, |frost| frost.fit(fits));
            }
        }
    }

    /// Begins the thaws that may begin, in the order of their tickets.
    ///
    /// A process is overtaken on its cards only during the pause after an attempt. If it lacked free memory, it is
    /// overtaken only by those that need less on one of its cards: no other one would find enough.
    ///
    /// Returns whether a session got or lost its use for a turn, since a process lacks room or does not any more.
    pub(super) fn begin_thaws(&mut self) -> bool {
        let now = self.view.now;
        let due = |(_, client, frost): (SessionId, ClientId, Frost)| match frost.stage() {
            Stage::Due(ticket, after) => Some((ticket, client, after > now, frost)),
            _ => None,
        };
        let mut queue: Vec<(u64, ClientId, bool, Frost)> =
            self.view.cold_processes().filter_map(due).collect();
        queue.sort_unstable_by_key(|&(ticket, client, ..)| (ticket, client));
        let (mut taken, mut changes_wishes) = (self.moving_cards(), false);
        // Needs of those that pause, since they lacked free memory.
        let mut lacking: Vec<Vec<(GpuId, Bytes)>> = Vec::new();
        for (_, client, pauses, frost) in queue {
            let cards = self.view.cards_of_process(client);
            let needs = self.bytes_to_thaw(client);
            if pauses {
                lacking.extend(frost.lacks_memory().then_some(needs));
                continue;
            }
            // It pauses too. Else those behind that need less would wait for it.
            if lacking.iter().any(|earlier| needs_as_much(&needs, earlier)) {
                continue;
            }
            let fits = cards
                .into_iter()
                .all(|gpu| self.view.fits(gpu) && !self.view.awaits_reports(gpu));
            // One that the last daemon froze is about to announce its cards.
            if !cards.is_empty() && !cards.overlaps(taken) {
                if fits {
                    self.change_frost(client, Frost::thaw);
                    self.effects.push_back(Effect::Thaw { client });
                } else if !frost.lacks_room() {
                    self.change_frost(client, Frost::miss_room);
                }
                changes_wishes |= fits == frost.lacks_room();
            }
            // Nobody overtakes the first one that waits for room.
            taken = taken.with(cards);
        }
        changes_wishes
    }
}

/// Whether a process needs at least as many bytes as an earlier one on each card of that one.
pub(crate) fn needs_as_much(needs: &[(GpuId, Bytes)], earlier: &[(GpuId, Bytes)]) -> bool {
    let on = |gpu| needs.iter().find(|need| need.0 == gpu).map(|need| need.1);
    let has_as_much = |&(gpu, bytes): &(GpuId, Bytes)| on(gpu).is_some_and(|needed| needed >= bytes);
    !earlier.is_empty() && earlier.iter().all(has_as_much)
}
