//! Measures the driver's own memory for each process, and the memory that dead processes still have.
//!
//! NVML may not list a process, or list it without bytes (in containers, on WSL). Such a process is booked
//! with the assumed size of its contexts. So are all processes when the driver stops answering. If the list
//! of one card fails once, nothing changes for its processes.

use gpushare_core::Event;
use gpushare_proto::Nanos;
use tracing::{debug, warn};

use super::metering::{FixedBytes, Step};
use crate::clients::{leave, returning};
use crate::engine::Engine;
use crate::nvml::Usages;

/// Sends a question to NVML if one is due. Discards old figures if NVML does not answer.
pub(crate) fn measure_if_due(engine: &mut Engine, now: Nanos) {
    match engine.metering.next_step(now, engine.orphans.due()) {
        None | Some(Step::Drop(None)) => {}
        Some(Step::Drop(Some(fixed))) => book_overheads(engine, fixed, &Usages::new()),
        Some(Step::Ask { all }) => {
            let fixed = all.then(|| fixed_now(engine));
            match engine.metering.ask(now, fixed, &engine.inputs) {
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
        book_overheads(engine, fixed, usages);
        returning::remove_unlisted(engine, usages);
    }
    let asked = engine.metering.questions;
    leave::remove_unlisted_orphans(engine, usages, asked);
}

/// Reports the driver's memory of each process to the decision machine, if it existed at the question.
fn book_overheads(engine: &mut Engine, before: FixedBytes, usages: &Usages) {
    let after = fixed_now(engine);
    let mut events = Vec::new();
    for ((id, gpu), before) in before {
        let (Some(client), Some(card)) = (engine.clients.get_mut(id), engine.cards.get(gpu)) else {
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
        events.extend(overhead.read(used, fixed).map(event));
    }
    engine.feed_all(events);
}

fn fixed_now(engine: &Engine) -> FixedBytes {
    let clients = engine.clients.iter();
    let on = clients.flat_map(|(id, client)| client.page.gpus().map(move |gpu| (id, gpu)));
    on.filter_map(|(id, gpu)| Some(((id, gpu), engine.machine.fixed_bytes(id, gpu)?)))
        .collect()
}
