//! Measures the driver's own memory for each process, and the memory that dead processes still have.
//!
//! NVML may list a process without bytes (on WSL), or list no process of this PID namespace (in containers).
//! Such processes are booked with the assumed size of a context. So are all processes when the driver stops
//! answering. Where NVML lists another client, a client that it omits has no context, whatever it claims. If
//! the list of one card fails once, nothing changes for its processes. A process that is several clients has
//! one figure, which is charged to the first of them.
//!
//! The same answers show remapped memory that a process does not report. Pids in NVML's lists are those of the
//! machine, so this holds only for a daemon in the machine's first PID namespace: elsewhere a number may be that of
//! another process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use gpushare_core::{Event, Reported};
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos};
use gpushare_sys::process;
use tracing::{debug, warn};

use super::metering::{FixedBytes, Step};
use super::unreported::Reading;
use crate::clients::{leave, returning};
use crate::engine::Engine;
use crate::nvml::{OnCard, Usages};

/// Sends a question to NVML if one is due. Discards old figures if NVML does not answer.
pub(crate) fn measure_if_due(engine: &mut Engine, now: Nanos) {
    match engine.metering.next_step(now, engine.orphans.due()) {
        None | Some(Step::Drop(None)) => {}
        Some(Step::Drop(Some(fixed))) => {
            book_unreported(engine, &Usages::new());
            book_overheads(engine, fixed, &Usages::new());
        }
        Some(Step::Ask { all }) => {
            let fixed = all.then(|| fixed_now(engine));
            match engine.metering.ask(now, fixed, &engine.inputs) {
                Ok(true) if all => note_claims_at_question(engine),
                Ok(true) => {}
                Ok(false) => turn_off(engine),
                Err(cause) => {
                    warn!("the memory of contexts is not measured now: {cause}");
                    engine.orphans.ask_later(now);
                }
            }
        }
    }
}

pub(crate) fn turn_off(engine: &mut Engine) {
    debug!("there is no NVML, so the memory of contexts is assumed");
    engine.metering.turn_off();
    engine.orphans.ids().into_iter().for_each(|id| leave::remove_orphan(engine, id));
}

pub(crate) fn measured(engine: &mut Engine, usages: &Usages) {
    let Some(fixed) = engine.metering.answered() else {
        return;
    };
    if let Some(fixed) = fixed {
        book_unreported(engine, usages);
        book_overheads(engine, fixed, usages);
        returning::remove_unlisted(engine, usages);
    }
    let asked = engine.metering.questions;
    leave::remove_unlisted_orphans(engine, usages, asked);
}

/// Part of a card by which NVML's figure must be above what a process explains.
const MARGIN: u64 = 8;
/// Whether the daemon's PID namespace is the first one of the machine.
static SEES_ALL_PIDS: LazyLock<bool> = LazyLock::new(process::is_in_first_namespace);

/// Notes the claim of a process on a card, which the next event may lower.
pub(crate) fn note_claim(engine: &mut Engine, id: ClientId, gpu: GpuId) {
    let claim = engine.machine.reported(id, gpu).unwrap_or_default().claim;
    if let Some(unreported) = engine.clients.get_mut(id).and_then(|client| client.unreported.get_mut(&gpu)) {
        unreported.note(claim);
    }
}

/// Notes the claims of all processes when NVML is asked.
fn note_claims_at_question(engine: &mut Engine) {
    let ids: Vec<ClientId> = engine.clients.iter().map(|(id, _)| id).collect();
    for id in ids {
        let Some(client) = engine.clients.get_mut(id) else { continue };
        for gpu in client.page.gpus() {
            let claim = engine.machine.reported(id, gpu).unwrap_or_default().claim;
            let fixed = engine.machine.fixed_bytes(id, gpu).unwrap_or_default();
            client.unreported.entry(gpu).or_default().ask(claim, fixed);
        }
    }
}

/// Tells the decision machine how much remapped memory each process has at least, where that has changed.
fn book_unreported(engine: &mut Engine, usages: &Usages) {
    if !*SEES_ALL_PIDS {
        return;
    }
    let mut processes = BTreeMap::<(u32, GpuId), Vec<ClientId>>::new();
    for (id, client) in engine.clients.iter().filter(|(_, client)| client.peer.id.is_some()) {
        for gpu in client.page.gpus() {
            processes.entry((client.peer.pid, gpu)).or_default().push(id);
        }
    }
    let mut events = Vec::new();
    for ((pid, gpu), ids) in processes {
        let first = ids.iter().copied().find(|&id| engine.machine.reported(id, gpu).is_some());
        let (Some(first), Some(card)) = (first, engine.cards.get(gpu)) else { continue };
        let on_card = usages.get(&card.info.uuid);
        // A frozen process is not listed, and a list that could not be read says nothing.
        let is_frozen = ids.iter().any(|&id| engine.machine.is_frozen(id));
        if is_frozen || on_card.is_some_and(Option::is_none) {
            continue;
        }
        let used = on_card
            .and_then(Option::as_ref)
            .and_then(|listed| listed.get(&pid).copied().flatten());
        let margin = Bytes(card.info.total.0 / MARGIN);
        let reading = used.map(|used| reading(engine, (&ids, first), gpu, used, margin));
        for id in ids {
            let unreported = engine.clients.get_mut(id).and_then(|client| client.unreported.get_mut(&gpu));
            let bytes = unreported.and_then(|unreported| unreported.read(reading.filter(|_| id == first)));
            events.extend(bytes.map(|bytes| Event::Measured { client: id, gpu, bytes }));
        }
    }
    engine.feed_all(events);
}

/// Returns NVML's figure of a process on a card, with all that its clients `ids` may explain of it. What is left is of
/// the client `first`.
fn reading(
    engine: &Engine,
    (ids, first): (&[ClientId], ClientId),
    gpu: GpuId,
    used: Bytes,
    margin: Bytes,
) -> Reading {
    let mut reading = Reading { margin, ..Reading::default() };
    let mut all_fixed = Bytes::ZERO;
    for &id in ids {
        let Reported { resident, claim, whole } = engine.machine.reported(id, gpu).unwrap_or_default();
        let fixed = engine.machine.fixed_bytes(id, gpu).unwrap_or_default();
        let unreported = engine.clients.get(id).and_then(|client| client.unreported.get(&gpu));
        let (most, before) = unreported
            .map(|unreported| (unreported.most(), unreported.fixed()))
            .unwrap_or_default();
        let most = most.max(claim);
        all_fixed += fixed.max(before);
        reading.resident += resident;
        reading.claim += most;
        reading.whole += whole;
        if id != first {
            reading.of_others += most;
        }
    }
    reading.beside_fixed = used - all_fixed;
    reading
}

/// Reports the driver's memory of each process to the decision machine, if it existed at the question.
fn book_overheads(engine: &mut Engine, before: FixedBytes, usages: &Usages) {
    let processes = by_process(fixed_now(engine), &before, |id| Some(engine.clients.get(id)?.peer.pid));
    let mut events = Vec::new();
    let pids: BTreeSet<u32> = engine.clients.iter().map(|(_, client)| client.peer.pid).collect();
    let listed = usages.values().flatten().flat_map(|on_card| on_card.keys());
    let lists_clients = listed.copied().any(|pid| pids.contains(&pid));
    for (id, gpu) in before.into_keys() {
        if engine.machine.is_frozen(id) {
            continue;
        }
        let (Some(client), Some(card)) = (engine.clients.get_mut(id), engine.cards.get(gpu)) else {
            continue;
        };
        let on_card = usages.get(&card.info.uuid);
        if on_card.is_some_and(Option::is_none) {
            continue;
        }
        let on_card = on_card.and_then(Option::as_ref);
        let used = on_card.and_then(|on_card| figure(on_card, client.peer.pid, lists_clients));
        let (used, fixed) = match processes.get(&(client.peer.pid, gpu)) {
            Some(&(first, fixed)) if first == id => (used, fixed),
            _ => (used.map(|_| Bytes::ZERO), Bytes::ZERO),
        };
        let overhead = client.overheads.entry(gpu).or_default();
        overhead.listed |= on_card.is_some_and(|listed| listed.contains_key(&client.peer.pid));
        let event = |bytes| Event::Overhead { client: id, gpu, bytes };
        events.extend(overhead.read(used, fixed).map(event));
    }
    engine.feed_all(events);
}

/// Returns, for each process and card, the first of the process's clients there and the fixed bytes of all. A
/// process may be many clients, and NVML's one figure contains the memory of all of them.
fn by_process(
    mut fixed: FixedBytes,
    before: &FixedBytes,
    pid: impl Fn(ClientId) -> Option<u32>,
) -> BTreeMap<(u32, GpuId), (ClientId, Bytes)> {
    for (&key, &bytes) in before {
        let greater = fixed.entry(key).or_default();
        *greater = bytes.max(*greater);
    }
    let mut processes = BTreeMap::new();
    for ((id, gpu), bytes) in fixed {
        if let Some(pid) = pid(id) {
            processes.entry((pid, gpu)).or_insert((id, Bytes::ZERO)).1 += bytes;
        }
    }
    processes
}

/// Returns NVML's figure of a process on a card. `lists_clients` says that NVML lists clients at all.
fn figure(on_card: &OnCard, pid: u32, lists_clients: bool) -> Option<Bytes> {
    match on_card.get(&pid) {
        Some(bytes) => *bytes,
        None => lists_clients.then_some(Bytes::ZERO),
    }
}

/// Returns the bytes of each process that NVML's figure contains beside the driver's own memory. What NVML shows beyond
/// them counts as the driver's own.
fn fixed_now(engine: &Engine) -> FixedBytes {
    let clients = engine.clients.iter();
    let on = clients.flat_map(|(id, client)| client.page.gpus().map(move |gpu| (id, gpu)));
    let machine = &engine.machine;
    let bytes = |id, gpu| Some(machine.fixed_bytes(id, gpu)? + machine.resident_bytes(id, gpu));
    on.filter_map(|(id, gpu)| Some(((id, gpu), bytes(id, gpu)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_many_clients_is_charged_once_less_all_their_fixed_bytes() {
        let on = |id: u64, mib| ((ClientId(id), GpuId(0)), Bytes::mib(mib));
        let (before, after) = (FixedBytes::from([on(4, 2), on(5, 1), on(6, 8)]), [on(4, 1), on(5, 3)]);
        let pid = |id: ClientId| (id.0 != 7).then_some(if id.0 == 6 { 60 } else { 40 });
        let found = by_process(FixedBytes::from(after), &before, pid);
        let expected =
            [((40, GpuId(0)), (ClientId(4), Bytes::mib(5))), ((60, GpuId(0)), (ClientId(6), Bytes::mib(8)))];
        assert_eq!(found, expected.into());
    }

    #[test]
    fn a_process_that_nvml_omits_has_no_context_where_nvml_lists_others() {
        let on_card: OnCard = [(7, Some(Bytes::mib(518))), (8, None)].into();
        let figures = |lists_clients| [7, 8, 9].map(|pid| figure(&on_card, pid, lists_clients));
        assert_eq!(figures(true), [Some(Bytes::mib(518)), None, Some(Bytes::ZERO)]);
        assert_eq!(figures(false), [Some(Bytes::mib(518)), None, None], "NVML may not see this namespace");
    }
}
