//! Questions to NVML before a thaw: how much memory the cards have free, and whether they are in persistence mode.
//!
//! ```text
//!   Effect::Thaw ─▶ question to NVML ~~▶ answer ─▶ enough is free ─▶ helper
//!                                               ├▶ it may be on its cards as before ─▶ helper, without restore
//!                                               └▶ ThawEnded: NoRoom, and again after a pause
//! ```
//!
//! The books of the decision machine know nothing of programs without gpushare. A thaw that begins beside them would
//! fail for lack of memory, and perhaps lose the process. So NVML is asked right before each thaw. One question is open
//! at a time, and what comes meanwhile waits for the next one. Without NVML, and while it does not answer, the books
//! alone decide.

use std::collections::BTreeSet;

use gpushare_core::{Event, ThawEnd};
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos};
use gpushare_sys::clock;
use tracing::{debug, warn};

use super::creations;
use crate::engine::Engine;
use crate::freeze::Move;
use crate::input::Input;
use crate::nvml::{self, Reader, Rooms};

/// Thaws a process once its cards have free memory for it.
pub(crate) fn thaw(engine: &mut Engine, client: ClientId) {
    if engine.rooms.is_off {
        return engine.move_by_driver(client, Move::Thaw);
    }
    engine.rooms.later.push(client);
    ask(engine);
}

/// Asks NVML, unless a question is open.
pub(crate) fn ask(engine: &mut Engine) {
    let rooms = &mut engine.rooms;
    if rooms.is_off || rooms.asked.is_some() {
        return;
    }
    let inputs = engine.inputs.clone();
    let deliver = move |answer| inputs.blocking_send(Input::Rooms(answer)).is_ok();
    let reader = match rooms.reader.take() {
        Some(reader) => Ok(reader),
        None => Reader::start("room", |nvml, ()| nvml::rooms(nvml), deliver),
    };
    match reader {
        Ok(reader) if reader.ask(()) => {
            rooms.reader = Some(reader);
            rooms.asked = Some(clock::monotonic());
            rooms.thaws.append(&mut rooms.later);
        }
        Ok(_) => turn_off(engine),
        Err(cause) => {
            warn!("NVML is not asked for the free memory of the cards: {cause}");
            turn_off(engine);
        }
    }
}

/// Stops waiting for an answer that is late.
pub(crate) fn give_up_if_late(engine: &mut Engine, now: Nanos) {
    if engine.rooms.due().is_some_and(|due| due <= now) {
        warn!(
            "NVML does not say how much memory the cards have free; frozen processes are thawed all the same"
        );
        turn_off(engine);
    }
}

/// Thaws all by the books alone.
fn turn_off(engine: &mut Engine) {
    engine.rooms.is_off = true;
    for client in engine.rooms.take() {
        engine.move_by_driver(client, Move::Thaw);
    }
}

/// Takes NVML's answer; none if there is no NVML.
pub(crate) fn answered(engine: &mut Engine, rooms: Option<&Rooms>) {
    engine.rooms.asked = None;
    let Some(rooms) = rooms else {
        debug!("there is no NVML, so the books alone decide whether a frozen process has room");
        return turn_off(engine);
    };
    engine.rooms.is_off = false;
    note_persistence(engine, rooms);
    for client in std::mem::take(&mut engine.rooms.thaws) {
        let lacks = |&(gpu, bytes): &(GpuId, Bytes)| {
            let free = engine.cards.get(gpu).and_then(|card| rooms.get(&card.info.uuid)?.free);
            // What others are about to take is free by NVML still.
            let promised = engine.machine.promised_beside(client, gpu);
            let contexts = creations::creating_on(engine, client, gpu) as u64;
            let contexts = Bytes(engine.machine.context_on(gpu).0.saturating_mul(contexts));
            free.is_some_and(|free| free - promised - contexts < bytes)
        };
        if !engine.machine.bytes_to_thaw(client).iter().any(lacks) {
            engine.move_by_driver(client, Move::Thaw);
        } else if engine.machine.may_be_on_cards(client) {
            // Its own bytes may be what takes the memory.
            engine.move_by_driver(client, Move::ThawInPlace);
        } else {
            debug!("{client} is not thawed yet, since its cards have too little free memory");
            creations::end_restore(engine, client);
            engine.feed(Event::ThawEnded { client, end: ThawEnd::NoRoom });
        }
    }
    if !engine.rooms.later.is_empty() {
        ask(engine);
    }
}

/// Tells the decision machine of which cards the persistence mode has changed.
pub(crate) fn note_persistence(engine: &mut Engine, rooms: &Rooms) {
    let lacks = |uuid| rooms.get(&uuid).is_some_and(|room| room.is_persistent == Some(false));
    let without: BTreeSet<GpuId> = engine
        .cards
        .iter()
        .filter(|(_, card)| lacks(card.info.uuid))
        .map(|(gpu, _)| gpu)
        .collect();
    let before = std::mem::replace(&mut engine.rooms.without_persistence, without.clone());
    let changed: Vec<GpuId> = before.symmetric_difference(&without).copied().collect();
    engine.feed_all(
        changed
            .into_iter()
            .map(|gpu| Event::Persistence { gpu, is_on: !without.contains(&gpu) }),
    );
}
