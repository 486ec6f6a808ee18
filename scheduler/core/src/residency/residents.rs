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
/// Time after a death for which the driver's refusals do not show that the card is short of memory, since a busy machine
/// may return that of the dead later than usual. A refused process tries again each second.
const LATE_RETURN: Nanos = Nanos::from_secs(2);
/// Time for which a process waits for memory that nobody gives, before it maps what is missing from the host. Memory of
/// the dead is back sooner, and a move that has failed was tried again. Also the pause after a process could not map.
const GIVING_UP: Nanos = Nanos::from_secs(3);
/// Time for which a card is taken for as full as it was when the driver had no memory.
const SHORTAGE: Nanos = Nanos::from_secs(10);

/// Remapped memory of one process on one card.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resident {
    pub(crate) facts: Facts,
    pub(crate) transfer: Transfer,
    /// Whether the card has no more room for the process, which maps what is missing from the host.
    overflows: bool,
    wait: Wait,
    /// Point in time from which on the process may try again to map memory from the host, if it could not.
    maps_from: Option<Nanos>,
    /// Host memory that the process should have ready, as its page says.
    host_target: Bytes,
    /// Whether the process has a new page, to which its latest goal is not written yet.
    has_blank_page: bool,
}

/// Wait of a process for memory that nobody gives. It ends once all memory of the process is on the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wait {
    /// Time that the process has waited, in all of its turns.
    waited: Nanos,
    /// Point in time since which it waits now.
    since: Option<Nanos>,
    /// Whether it was in vain, so that what is missing is mapped from the host at once.
    is_over: bool,
}

impl Resident {
    /// Whether the process may map from the host what is missing: it has waited in vain, or need not wait, and it could
    /// map memory when it tried last.
    pub(crate) fn may_map(&self, need_not_wait: bool) -> bool {
        self.maps_from.is_none() && (need_not_wait || self.wait.is_over)
    }

    /// Notes whether the process lacks memory that nobody gives, and whether all its memory is on the card.
    pub(crate) fn note_wait(&mut self, now: Nanos, lacks: bool, is_whole: bool) {
        let Wait { waited, since, is_over } = &mut self.wait;
        match since {
            Some(from) if !lacks => (*waited, *since) = (*waited + (now - *from), None),
            None if lacks && !*is_over => *since = Some(now),
            _ => {}
        }
        if is_whole {
            self.wait = Wait::default();
        }
    }

    /// Notes that the process could not follow its goal. If it was to map memory from the host, it waits before it tries
    /// again.
    pub(crate) fn note_failure(&mut self, now: Nanos) {
        if self.overflows {
            self.maps_from = Some(now + GIVING_UP);
        }
    }

    /// Ends waits whose time is over.
    fn expire(&mut self, now: Nanos) {
        if self.gives_up_at().is_some_and(|at| at <= now) {
            self.wait = Wait { is_over: true, ..Wait::default() };
        }
        self.maps_from = self.maps_from.filter(|&from| from > now);
    }

    /// Point in time at which the process has waited long enough.
    fn gives_up_at(&self) -> Option<Nanos> {
        Some(self.wait.since? + (GIVING_UP - self.wait.waited))
    }

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
    /// Point in time from which on the driver has returned the memory of all dead processes for sure.
    returned_from: Nanos,
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
            self.returned_from = now + LATE_RETURN;
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

    /// Whether the driver may still have memory of a dead process that counts no more.
    pub(crate) fn may_return_late(&self, now: Nanos) -> bool {
        now < self.returned_from
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
        self.living.values_mut().for_each(|resident| resident.expire(now));
    }

    /// Point in time at which a move is late or is tried again, a process gives up its wait, memory of a dead process is
    /// free, or a shortage is over.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let of_resident =
            |resident: &Resident| [resident.transfer.deadline(), resident.gives_up_at(), resident.maps_from];
        let living = self.living.values().flat_map(of_resident).flatten();
        let dead = self.departed.values().filter_map(|departed| departed.until);
        living.chain(dead).chain(self.shortage.map(|shortage| shortage.until)).min()
    }
}
