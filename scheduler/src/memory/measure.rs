//! Measures the driver's own memory for each process, and the memory that dead processes still have.
//!
//! NVML may list a process without bytes (on WSL), or list no process of this PID namespace (in containers).
//! Such processes are booked with the assumed size of a context. So are all processes when the driver stops
//! answering. Where NVML lists another client, a client that it omits has no context, whatever it claims. If
//! the list of one card fails once, nothing changes for its processes. A process that is several clients has
//! one figure, which is charged to the first of them.

use std::collections::{BTreeMap, BTreeSet};

use gpushare_core::Event;
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos};
use tracing::{debug, warn};

use super::metering::{FixedBytes, Step};
use super::{contradictions, room};
use crate::clients::{leave, returning};
use crate::engine::Engine;
use crate::freeze::tried::untried_driver;
use crate::nvml::{OnCard, Usages};

/// Sends a question to NVML if one is due. Discards old figures if NVML does not answer.
pub(crate) fn measure_if_due(engine: &mut Engine, now: Nanos) {
    match engine.metering.next_step(now, engine.orphans.due()) {
        None | Some(Step::Drop(None)) => {}
        Some(Step::Drop(Some(fixed))) => {
            contradictions::book(engine, &Usages::new());
            book_overheads(engine, fixed, &Usages::new());
        }
        Some(Step::Ask { all }) => {
            let fixed = all.then(|| fixed_at_question(engine));
            match engine.metering.ask(now, fixed, &engine.inputs) {
                Ok(true) if all => {
                    contradictions::note_question(engine);
                    note_question(engine);
                    // Sessions that idle are frozen by what the cards said last of their persistence mode.
                    if untried_driver().is_none() {
                        room::ask(engine);
                    }
                }
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
        contradictions::book(engine, usages);
        book_overheads(engine, fixed, usages);
        returning::remove_unlisted(engine, usages);
    }
    let asked = engine.metering.questions;
    leave::remove_unlisted_orphans(engine, usages, asked);
}

/// Notes the remapped memory of all processes when NVML is asked.
fn note_question(engine: &mut Engine) {
    let ids: Vec<ClientId> = engine.clients.iter().map(|(id, _)| id).collect();
    for id in ids {
        let Some(client) = engine.clients.get_mut(id) else { continue };
        for gpu in client.page.gpus() {
            let resting = engine.machine.resting_bytes(id, gpu);
            client.overheads.entry(gpu).or_default().ask(resting);
        }
    }
}

/// Reports the driver's memory of each process to the decision machine, if it existed at the question.
fn book_overheads(engine: &mut Engine, before: FixedBytes, usages: &Usages) {
    let processes = by_process(fixed_now(engine), &before, |id| Some(engine.clients.get(id)?.peer.pid));
    let mut events = Vec::new();
    let pids: BTreeSet<u32> = engine.clients.iter().map(|(_, client)| client.peer.pid).collect();
    let listed = usages.values().flatten().flat_map(|on_card| on_card.keys());
    let lists_clients = listed.copied().any(|pid| pids.contains(&pid));
    let restless = restless(engine);
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
        if used.is_some() && restless.contains(&(client.peer.pid, gpu)) {
            continue;
        }
        let event = |bytes| Event::Overhead { client: id, gpu, bytes };
        events.extend(overhead.read(used, fixed).map(event));
    }
    engine.feed_all(events);
}

/// Returns the processes with remapped memory on a card that moved since NVML was asked.
fn restless(engine: &Engine) -> BTreeSet<(u32, GpuId)> {
    let mut found = BTreeSet::new();
    for (id, client) in engine.clients.iter() {
        for gpu in client.page.gpus() {
            let resting = engine.machine.resting_bytes(id, gpu);
            let has_rested = client.overheads.get(&gpu).is_some_and(|overhead| overhead.has_rested(resting));
            if !has_rested {
                found.insert((client.peer.pid, gpu));
            }
        }
    }
    found
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

/// Returns the [`fixed_now`] bytes of each process about which NVML is asked.
fn fixed_at_question(engine: &Engine) -> FixedBytes {
    let mut fixed = fixed_now(engine);
    // A process that is frozen now may have come back when the answer is here, which does not list it.
    fixed.retain(|&(client, _), _| !engine.machine.is_frozen(client));
    fixed
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
    use crate::engine::bench::{Bench, usages};

    const PID: u32 = 70;
    const OTHER: (u32, Bytes) = (71, Bytes::mib(500));
    const CONTEXT: Bytes = Bytes::mib(600);

    /// Two processes of which NVML has said what their contexts take.
    fn measured_processes(bench: &mut Bench) -> ClientId {
        let [client, _other] = [PID, OTHER.0].map(|pid| bench.client(pid, Bytes::gib(1)));
        measures(bench, |_| (), &[(PID, CONTEXT), OTHER]);
        assert_eq!(contexts(bench), CONTEXT + OTHER.1);
        client
    }

    /// Asks NVML, lets something happen, and takes NVML's answer.
    fn measures(bench: &mut Bench, happens: impl FnOnce(&mut Bench), listed: &[(u32, Bytes)]) {
        let fixed = fixed_at_question(&bench.engine);
        note_question(&mut bench.engine);
        happens(bench);
        book_overheads(&mut bench.engine, fixed, &usages(listed));
    }

    /// Bytes of all contexts on the card.
    fn contexts(bench: &Bench) -> Bytes {
        bench.engine.machine.capacities()[0].contexts_bytes
    }

    #[tokio::test]
    async fn a_process_that_comes_back_before_the_answer_has_its_context() {
        let mut bench = Bench::new();
        let client = measured_processes(&mut bench);
        bench.freeze(client);
        measures(&mut bench, |bench| bench.thaw(client), &[OTHER]);
        assert_eq!(contexts(&bench), CONTEXT + OTHER.1, "the answer is of the time when it was frozen");
    }

    #[tokio::test]
    async fn what_nvml_says_of_a_frozen_process_is_not_taken_for_told() {
        let mut bench = Bench::new();
        let client = measured_processes(&mut bench);
        measures(&mut bench, |bench| bench.freeze(client), &[OTHER]);
        bench.thaw(client);
        measures(&mut bench, |_| (), &[OTHER]);
        assert_eq!(contexts(&bench), OTHER.1, "its context is gone");
    }

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
