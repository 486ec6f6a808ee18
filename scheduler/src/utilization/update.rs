//! Updates of the parts: the question to NVML, and its answer.
//!
//! If NVML cannot say what the processes of a card did, the sessions on the card have equal parts. If nobody
//! worked, the parts stay.

use gpushare_proto::{GpuId, Nanos};
use nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample;
use tracing::{debug, warn};

use super::parts::{self, Parts};
use crate::engine::Engine;
use crate::nvml::Work;

/// Asks NVML about the shared cards if that is due.
pub(crate) fn update_if_due(engine: &mut Engine, now: Nanos) {
    let Engine { utilization, clients, cards, inputs, .. } = engine;
    if utilization.due().is_none_or(|due| due > now) {
        return;
    }
    utilization.end_unshared(clients);
    let shared: Vec<GpuId> = clients.shared_cards().collect();
    utilization.schedule_next((!shared.is_empty()).then_some(now));
    if shared.is_empty() {
        return;
    }
    let uuids = shared.iter().filter_map(|&gpu| Some(cards.get(gpu)?.info.uuid));
    let answers = utilization.ask(uuids.collect(), inputs).unwrap_or_else(|cause| {
        warn!("the utilization of sessions is not measured now: {cause}");
        false
    });
    if !answers {
        shared.into_iter().for_each(|gpu| utilization.tell_equal(clients, gpu));
    }
}

pub(crate) fn turn_off(engine: &mut Engine) {
    debug!("there is no NVML, so sessions have equal parts in the utilization of a card");
    engine.utilization.answered();
    engine.utilization.turn_off();
    let shared: Vec<GpuId> = engine.clients.shared_cards().collect();
    shared
        .into_iter()
        .for_each(|gpu| engine.utilization.tell_equal(&engine.clients, gpu));
}

/// Tells the sessions their parts by NVML's answer. Cards that were not asked about wait for the next one.
pub(crate) fn worked(engine: &mut Engine, work: &Work) {
    engine.utilization.answered();
    let shared: Vec<GpuId> = engine.clients.shared_cards().collect();
    for gpu in shared {
        let answer = engine.cards.get(gpu).and_then(|card| work.get(&card.info.uuid));
        let Some(samples) = answer else { continue };
        let is_known = samples.as_ref().is_some_and(|samples| is_by_known_pids(engine, gpu, samples));
        let parts = samples
            .as_ref()
            .filter(|_| is_known)
            .map(|samples| by_work(engine, gpu, samples));
        let Engine { utilization, clients, .. } = engine;
        match parts {
            Some(Some(parts)) => utilization.tell(clients, gpu, parts),
            Some(None) if utilization.has_told(gpu) => {}
            Some(None) | None => utilization.tell_equal(clients, gpu),
        }
    }
}

fn by_work(engine: &Engine, gpu: GpuId, samples: &[ProcessUtilizationSample]) -> Option<Parts> {
    let clients = &engine.clients;
    parts::by_work(samples, |pid| clients.session_of_pid(pid), clients.sessions_on(gpu))
}

/// Returns whether samples name processes by the daemon's own pids. In a container NVML may use others, and
/// then every process seems to be outside all sessions.
fn is_by_known_pids(engine: &Engine, gpu: GpuId, samples: &[ProcessUtilizationSample]) -> bool {
    let clients = &engine.clients;
    samples.is_empty()
        || samples.iter().any(|sample| clients.session_of_pid(sample.pid).is_some())
        || clients
            .iter()
            .any(|(_, client)| client.overheads.get(&gpu).is_some_and(|overhead| overhead.listed))
}
