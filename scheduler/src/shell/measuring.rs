//! What the driver keeps for each process besides what it allocated: contexts, kernels, stacks.
//!
//! ```text
//!   a card is attached, a context comes or goes ─▶ SOON ─┐
//!                                                        ▼                                  Overhead, if it is news
//!   while there are clients ─▶ every PAUSE ─▶ fixed bytes noted, meter asked ~~▶ answer ─▶ used − fixed ─▶ core
//! ```
//!
//! NVML's figure of a process is its contexts and what cannot move; managed memory is in none (docs/results/real-card-suite.md).
//! So the rest beside the fixed bytes in the books is what the driver keeps. The answer is of some moment between question
//! and answer, in which memory may have come or gone. Of all that may be true the least is believed: the greater of the
//! fixed bytes before and after, and the smaller of two answers that follow each other.
//!
//! Whom NVML does not list, or lists without bytes (containers, WSL), and everybody when the driver falls silent, has what is assumed
//! of a context. A card whose list fails once says nothing of anybody.
//!
//! One question is open at a time, however long its answer takes: so an answer belongs to its question, and is never older than that.

use std::collections::BTreeMap;

use gpushare_core::Event;
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos};
use gpushare_sys::clock;
use tracing::{debug, warn};

use super::Shell;
use crate::input::Input;
use crate::nvml::{self, Reader, Usages};

/// How long a context has to come into being.
const SOON: Nanos = Nanos::from_secs(1);
/// How often all are measured.
const PAUSE: Nanos = Nanos::from_secs(5);
/// An answer that takes longer than this is not waited for with old figures.
const STALE: Nanos = Nanos::from_secs(30);

/// Who measures, and when.
#[derive(Debug, Default)]
pub(super) struct Measuring {
    next: Option<Nanos>,
    meter: Option<Reader>,
    asked: Option<Asked>,
    /// How many questions were asked.
    questions: u64,
    /// There is nobody to ask on this machine.
    off: bool,
}

/// A question without an answer yet.
#[derive(Debug)]
struct Asked {
    at: Nanos,
    /// Of everybody, unless it is about those only that left memory behind.
    fixed: Option<BTreeMap<(ClientId, GpuId), Bytes>>,
    /// Whether it is not waited for with old figures any more.
    stale: bool,
}

/// What was measured of a process on one card.
#[derive(Debug, Default)]
pub(super) struct Overhead {
    last: Option<Bytes>,
    told: Option<Bytes>,
    /// Whether NVML ever listed it there.
    listed: bool,
}

impl Measuring {
    pub(super) fn questions(&self) -> u64 {
        self.questions
    }

    /// Whether there is nobody to ask.
    pub(super) fn is_off(&self) -> bool {
        self.off
    }

    /// Nobody is left to be measured.
    pub(super) fn rest(&mut self) {
        self.next = None;
    }
}

impl Overhead {
    pub(super) fn was_listed(&self) -> bool {
        self.listed
    }

    /// Takes an answer in; what the core must hear, if it is news.
    fn read(&mut self, used: Option<Bytes>, fixed: Bytes) -> Option<Option<Bytes>> {
        let now = used.map(|used| used - fixed);
        let before = std::mem::replace(&mut self.last, now);
        let least = now.map(|now| now.min(before.unwrap_or(now)));
        (std::mem::replace(&mut self.told, least) != least).then_some(least)
    }
}

impl Shell {
    /// A context comes or goes.
    pub(super) fn measure_soon(&mut self) {
        let soon = clock::monotonic() + SOON;
        let measuring = &mut self.measuring;
        if !measuring.off {
            measuring.next = Some(measuring.next.map_or(soon, |next| next.min(soon)));
        }
    }

    /// When there is something to do: to ask, or to go on without the figures of an answer.
    pub(super) fn measuring_due(&self) -> Option<Nanos> {
        match &self.measuring.asked {
            Some(asked) => (!asked.stale).then(|| asked.at + STALE),
            None => self.measuring.next.into_iter().chain(self.orphans.due()).min(),
        }
    }

    /// Asks, if it is time.
    pub(super) fn measure_if_due(&mut self, now: Nanos) {
        if self.measuring_due().is_none_or(|due| due > now) {
            return;
        }
        if let Some(asked) = &mut self.measuring.asked {
            asked.stale = true;
            if let Some(fixed) = asked.fixed.take() {
                self.take_measured(fixed, &Usages::new());
            }
            return;
        }
        let all = self.measuring.next.is_some_and(|next| next <= now);
        if all {
            self.measuring.next = Some(now + PAUSE);
        }
        self.ask_meter(now, all);
    }

    /// Asks about `all`, or about those only that left memory behind.
    fn ask_meter(&mut self, now: Nanos, all: bool) {
        let fixed = all.then(|| self.fixed_now());
        if self.measuring.meter.is_none() {
            let inputs = self.inputs.clone();
            let deliver = move |usages| inputs.blocking_send(Input::Measured(usages)).is_ok();
            match Reader::start("meter", nvml::usages, deliver) {
                Ok(meter) => self.measuring.meter = Some(meter),
                Err(cause) => {
                    warn!("what contexts take is not measured now: {cause}");
                    return self.orphans.ask_later(now);
                }
            }
        }
        let answers = self.measuring.meter.as_ref().is_some_and(Reader::ask);
        if answers {
            self.measuring.questions += 1;
            self.measuring.asked = Some(Asked { at: now, fixed, stale: false });
        } else {
            self.measuring_is_off();
        }
    }

    /// There is no NVML.
    pub(super) fn measuring_is_off(&mut self) {
        debug!("without NVML what contexts take is assumed");
        self.measuring.off = true;
        self.measuring.meter = None;
        self.measuring.asked = None;
        self.measuring.rest();
        self.bury_all_orphans();
    }

    /// The meter's answer.
    pub(super) fn measured(&mut self, usages: &Usages) {
        let Some(asked) = self.measuring.asked.take() else {
            return;
        };
        if let Some(fixed) = asked.fixed {
            self.take_measured(fixed, usages);
            self.bury_unlisted(usages);
        }
        self.bury_unlisted_orphans(usages, self.measuring.questions);
    }

    /// What a process has that came after the question is not in the answer for sure: it is measured next time.
    fn take_measured(&mut self, before: BTreeMap<(ClientId, GpuId), Bytes>, usages: &Usages) {
        let after = self.fixed_now();
        let mut news = Vec::new();
        for ((id, gpu), before) in before {
            let (Some(client), Some(card)) = (self.clients.get_mut(&id), self.cards.get(gpu)) else {
                continue;
            };
            let on_card = usages.get(&card.info.uuid);
            if on_card.is_some_and(Option::is_none) {
                continue;
            }
            let on_card = on_card.and_then(Option::as_ref);
            let used = on_card.and_then(|used| *used.get(&client.peer.pid)?);
            let fixed = after.get(&(id, gpu)).copied().unwrap_or_default().max(before);
            let overhead = client.overheads.entry(gpu).or_default();
            overhead.listed |= on_card.is_some_and(|listed| listed.contains_key(&client.peer.pid));
            let event = |bytes| Event::Overhead { client: id, gpu, bytes };
            news.extend(overhead.read(used, fixed).map(event));
        }
        news.into_iter().for_each(|event| self.feed(event));
    }

    /// The fixed bytes of everybody, as far as they are known.
    fn fixed_now(&self) -> BTreeMap<(ClientId, GpuId), Bytes> {
        let clients = self.clients.iter();
        let on = clients.flat_map(|(&id, client)| client.page.gpus().map(move |gpu| (id, gpu)));
        on.filter_map(|(id, gpu)| Some(((id, gpu), self.core.fixed_bytes(id, gpu)?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: fn(u64) -> Bytes = Bytes::mib;

    #[test]
    fn what_is_used_beside_the_books_is_told_once() {
        let mut overhead = Overhead::default();
        assert_eq!(overhead.read(Some(MIB(518)), Bytes::ZERO), Some(Some(MIB(518))));
        assert_eq!(overhead.read(Some(MIB(1542)), MIB(1024)), None);
    }

    #[test]
    fn a_rise_is_believed_when_it_is_seen_twice_and_a_fall_at_once() {
        let mut overhead = Overhead::default();
        overhead.read(Some(MIB(518)), Bytes::ZERO);
        assert_eq!(overhead.read(Some(MIB(2566)), Bytes::ZERO), None, "perhaps not booked yet");
        assert_eq!(overhead.read(Some(MIB(2566)), MIB(2048)), None);
        assert_eq!(overhead.read(Some(MIB(900)), Bytes::ZERO), None);
        assert_eq!(overhead.read(Some(MIB(901)), Bytes::ZERO), Some(Some(MIB(900))));
        assert_eq!(overhead.read(Some(MIB(400)), Bytes::ZERO), Some(Some(MIB(400))));
    }

    #[test]
    fn books_that_say_more_than_nvml_are_no_debt() {
        assert_eq!(Overhead::default().read(Some(MIB(5)), MIB(9)), Some(Some(Bytes::ZERO)));
    }

    #[test]
    fn without_a_figure_the_assumption_is_back() {
        let mut overhead = Overhead::default();
        assert_eq!(overhead.read(None, Bytes::ZERO), None, "nothing was told");
        overhead.read(Some(MIB(518)), Bytes::ZERO);
        assert_eq!(overhead.read(None, Bytes::ZERO), Some(None));
        assert_eq!(overhead.read(Some(MIB(600)), Bytes::ZERO), Some(Some(MIB(600))));
    }
}
