//! Parts that the sessions were told, and the schedule of the questions to NVML.
//!
//! A session that is new on a card begins with an equal part, and the others keep theirs until NVML answers.
//! Only one question is open at a time, however long NVML takes. While NVML hangs, the parts stay.

use std::collections::BTreeMap;
use std::io;

use gpushare_proto::{ClientId, GpuId, GpuUuid, Nanos, SessionId, UtilizationPart};
use gpushare_sys::clock;
use tokio::sync::mpsc;

use super::parts::{Parts, equal};
use crate::clients::table::Clients;
use crate::input::Input;
use crate::nvml::{self, Reader};

/// Interval between two questions, while sessions share a card.
const PERIOD: Nanos = Nanos::from_secs(1);

/// Parts of the sessions in the utilization of shared cards, and the schedule of their updates.
#[derive(Debug, Default)]
pub(crate) struct Utilization {
    /// Parts that the sessions were told, by card; none for a card that only one session uses.
    told: BTreeMap<GpuId, Parts>,
    next: Option<Nanos>,
    reader: Option<Reader<Vec<GpuUuid>>>,
    /// Whether NVML has not answered the last question yet.
    is_asked: bool,
    /// Whether no NVML exists to ask.
    off: bool,
}

impl Utilization {
    /// Starts the updates if sessions share a card. They end by themselves.
    pub(crate) fn start(&mut self, clients: &Clients) {
        if self.next.is_none() && clients.share_a_card() {
            self.next = Some(clock::monotonic() + PERIOD);
        }
    }

    /// Returns the point in monotonic time of the next update.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.next
    }

    pub(super) fn schedule_next(&mut self, next: Option<Nanos>) {
        self.next = next.map(|now| now + PERIOD);
    }

    /// Returns the part of a session in the utilization of a card. A card that nobody uses is its own whole.
    pub(crate) fn part(&self, clients: &Clients, session: SessionId, gpu: GpuId) -> UtilizationPart {
        let told = self.told.get(&gpu).and_then(|parts| parts.get(&session));
        told.copied().unwrap_or_else(|| match clients.count_on(gpu) {
            0 => UtilizationPart::WHOLE,
            count if clients.is_on(session, gpu) => equal(count),
            _ => UtilizationPart::NOTHING,
        })
    }

    /// Writes the part of a client's session into the client's page, which is new on the card.
    pub(crate) fn write(&self, clients: &Clients, id: ClientId, gpu: GpuId) {
        if let Some(client) = clients.get(id) {
            client.page.set_part(gpu, self.part(clients, client.session, gpu));
        }
    }

    /// Writes the parts of all sessions on a card into the pages of their processes, where they changed.
    pub(super) fn tell(&mut self, clients: &Clients, gpu: GpuId, parts: Parts) {
        let before = self.told.remove(&gpu).unwrap_or_default();
        for (&session, &part) in &parts {
            if before.get(&session) != Some(&part) {
                clients.of(session).for_each(|client| client.page.set_part(gpu, part));
            }
        }
        self.told.insert(gpu, parts);
    }

    /// Tells all sessions on a card that they have equal parts.
    pub(super) fn tell_equal(&mut self, clients: &Clients, gpu: GpuId) {
        let part = equal(clients.count_on(gpu));
        self.tell(clients, gpu, clients.sessions_on(gpu).map(|session| (session, part)).collect());
    }

    pub(super) fn has_told(&self, gpu: GpuId) -> bool {
        self.told.contains_key(&gpu)
    }

    /// Gives the whole to the last session on each card that is no longer shared.
    pub(super) fn end_unshared(&mut self, clients: &Clients) {
        let told: Vec<GpuId> = self.told.keys().copied().collect();
        for gpu in told.into_iter().filter(|&gpu| clients.count_on(gpu) < 2) {
            self.tell_equal(clients, gpu);
            self.told.remove(&gpu);
        }
    }

    /// Asks NVML about `cards`, unless a question is open. Returns false if no answer can ever come; fails if
    /// the thread cannot start.
    pub(super) fn ask(&mut self, cards: Vec<GpuUuid>, inputs: &mpsc::Sender<Input>) -> io::Result<bool> {
        if self.off || self.is_asked {
            return Ok(!self.off);
        }
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => {
                let inputs = inputs.clone();
                let deliver = move |work| inputs.blocking_send(Input::Worked(work)).is_ok();
                Reader::start("utilization", nvml::work, deliver)?
            }
        };
        self.is_asked = self.reader.insert(reader).ask(cards);
        Ok(self.is_asked)
    }

    /// Closes the open question after its answer.
    pub(super) fn answered(&mut self) {
        self.is_asked = false;
    }

    pub(super) fn turn_off(&mut self) {
        self.off = true;
        self.reader = None;
    }
}
