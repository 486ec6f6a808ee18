//! Processes with remapped memory on one card, and memory of those that died.

use std::collections::BTreeMap;

use gpushare_proto::page::GoalNumber;
use gpushare_proto::tenant::Residence;
use gpushare_proto::{Bytes, ClientId, Nanos};
use smallvec::SmallVec;

use crate::events::Lack;
use crate::memory::sums::Total;
use crate::residency::facts::Facts;
use crate::residency::handoff::Handoffs;
use crate::residency::rates::Rates;
use crate::residency::transfer::{Task, Transfer, Way};

/// Longest time for which the memory of a dead process counts. The driver returned it after 60 to 80 ms.
const RETURN: Nanos = Nanos::from_millis(200);
/// Time for which a card is taken for as full as it was when the driver had no memory.
const SHORTAGE: Nanos = Nanos::from_secs(10);

/// Remapped memory of one process on one card.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resident {
    pub(crate) facts: Facts,
    pub(crate) transfer: Transfer,
    /// Whether the card has no more room for the process, which maps what is missing from the host.
    overflows: bool,
    /// Host memory that the process should have ready, as its page says.
    host_target: Bytes,
    /// Whether the process has a new page, to which its latest goal is not written yet.
    has_blank_page: bool,
}

impl Resident {
    /// Notes that the process has a new page without a goal.
    pub(crate) fn has_new_page(&mut self) {
        self.has_blank_page = self.facts.last() > GoalNumber::NONE;
        self.host_target = Bytes::ZERO;
    }

    /// Whether the process overflows the card.
    pub(crate) fn overflows(&self) -> bool {
        self.overflows
    }

    /// Sets the host memory that the process should have ready, and returns whether that has changed.
    pub(crate) fn set_host_target(&mut self, bytes: Bytes) -> bool {
        std::mem::replace(&mut self.host_target, bytes) != bytes
    }

    /// Returns whether the latest goal must be written to a new page. The caller writes it.
    pub(crate) fn take_blank_page(&mut self) -> bool {
        std::mem::take(&mut self.has_blank_page)
    }
}

/// Claim of a dead process.
#[derive(Clone, Copy, Debug)]
struct Departed {
    bytes: Bytes,
    /// Time at which the memory is taken for free; `None` while another process keeps the card's files open.
    until: Option<Nanos>,
}

/// Bytes that a card does not have, although no account shows who has them.
#[derive(Clone, Copy, Debug)]
struct Shortage {
    bytes: Bytes,
    until: Nanos,
}

/// All remapped memory on one card.
#[derive(Clone, Debug, Default)]
pub(crate) struct Residents {
    living: BTreeMap<ClientId, Resident>,
    departed: BTreeMap<ClientId, Departed>,
    shortage: Option<Shortage>,
    /// Reason why a holder does not have its memory yet, by the last plan.
    pub(crate) wait_reason: Option<Lack>,
    /// Whether the last plan was limited by the host memory.
    pub(crate) host_is_full: bool,
    /// Whether processes prepare host memory, as far as the node has room.
    pub(crate) prepares: bool,
    pub(crate) rates: Rates,
    pub(crate) handoffs: Handoffs,
}

impl Residents {
    /// Whether the card has no remapped memory at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.living.is_empty() && self.departed.is_empty()
    }

    pub(crate) fn get(&self, client: ClientId) -> Option<&Resident> {
        self.living.get(&client)
    }

    pub(crate) fn get_mut(&mut self, client: ClientId) -> Option<&mut Resident> {
        self.living.get_mut(&client)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ClientId, &Resident)> {
        self.living.iter().map(|(&client, resident)| (client, resident))
    }

    /// Whether a process overflows the card.
    pub(crate) fn overflows(&self, client: ClientId) -> bool {
        self.living.get(&client).is_some_and(Resident::overflows)
    }

    /// Sets which processes overflow the card, and returns those for which it has changed.
    pub(crate) fn set_overflows(&mut self, overflows: impl Fn(&ClientId) -> bool) -> SmallVec<[ClientId; 1]> {
        let changed = self.living.iter_mut().filter_map(|(client, resident)| {
            let overflows = overflows(client);
            (std::mem::replace(&mut resident.overflows, overflows) != overflows).then_some(*client)
        });
        changed.collect()
    }

    /// Whether goals or targets depend on the host memory that other cards leave.
    pub(crate) fn depends_on_host(&self) -> bool {
        self.host_is_full || self.prepares || self.moves_out()
    }

    /// Whether a process is to give up memory.
    fn moves_out(&self) -> bool {
        let moves_out = |resident: &Resident| {
            matches!(resident.transfer, Transfer::Moving { task: Task { way: Way::Out, .. }, .. })
        };
        self.living.values().any(moves_out)
    }

    /// Adds a process whose memory is remapped.
    pub(crate) fn join(&mut self, client: ClientId) {
        self.living.entry(client).or_default();
    }

    /// Notes a report, and returns whether the process is here.
    pub(crate) fn say(&mut self, client: ClientId, seen: GoalNumber, report: Residence) -> bool {
        let resident = self.living.get_mut(&client);
        resident.map(|resident| resident.facts.say(seen, report)).is_some()
    }

    /// Notes that a process is dead. Its `claim` counts until its memory is free, or while an orphan `remains`.
    pub(crate) fn depart(&mut self, now: Nanos, client: ClientId, claim: Bytes, remains: bool) {
        if self.living.remove(&client).is_some() && !claim.is_zero() {
            let until = (!remains).then_some(now + RETURN);
            self.departed.insert(client, Departed { bytes: claim, until });
        }
    }

    /// Removes the claim of an orphan whose memory the driver has taken back.
    pub(crate) fn forget_orphan(&mut self, client: ClientId) {
        self.departed.remove(&client);
    }

    /// Whether memory of dead processes is about to be free.
    pub(crate) fn awaits_dead(&self) -> bool {
        self.departed.values().any(|departed| departed.until.is_some())
    }

    /// Memory of dead processes.
    pub(crate) fn departed(&self) -> Bytes {
        let mut sum = Total::default();
        self.departed.values().for_each(|departed| sum += departed.bytes.into());
        sum.get()
    }

    /// Sets how many bytes the card has less than the accounts show. It is forgotten after 10 s.
    pub(crate) fn set_shortage(&mut self, now: Nanos, bytes: Bytes) {
        self.shortage = Some(Shortage { bytes, until: now + SHORTAGE });
    }

    /// Bytes that the card has less than the accounts show, as the driver showed a short time ago.
    pub(crate) fn shortage(&self) -> Bytes {
        self.shortage.map_or(Bytes::ZERO, |shortage| shortage.bytes)
    }

    /// Lowers the memory of dead processes to `most`, the bytes that NVML sees beside all others.
    pub(crate) fn seen_free(&mut self, most: Bytes) {
        let mut excess = self.departed() - most;
        for departed in self.departed.values_mut().filter(|departed| departed.until.is_some()) {
            let gone = excess.min(departed.bytes);
            departed.bytes -= gone;
            excess -= gone;
        }
        self.departed.retain(|_, departed| !departed.bytes.is_zero());
    }

    /// Forgets the memory of dead processes, and a shortage, whose time is over.
    pub(crate) fn expire(&mut self, now: Nanos) {
        self.shortage = self.shortage.filter(|shortage| shortage.until > now);
        self.departed
            .retain(|_, departed| departed.until.is_none_or(|until| until > now));
    }

    /// Point in time at which a move is late, is tried again, memory of a dead process is free, or a shortage is over.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let moves = self.living.values().filter_map(|resident| resident.transfer.deadline());
        let dead = self.departed.values().filter_map(|departed| departed.until);
        moves.chain(dead).chain(self.shortage.map(|shortage| shortage.until)).min()
    }
}
