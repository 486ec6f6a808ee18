//! Picture of the daemon for the metrics, made in slices between the inputs of the daemon's task.
//!
//! ```text
//!   request ─▶ sketch ── a slice of sessions at a time, inputs in between ──▶ picture ─▶ metrics thread
//! ```
//!
//! The figures of two sessions may therefore be some milliseconds apart. The shared pages are only read:
//! no free bytes are reported to the decision machine.

use gpushare_proto::{Bytes, GpuId, SessionId};
use gpushare_sys::clock;

use super::sketch::Sketch;
use crate::engine::Engine;
use crate::metrics::{AuditPicture, CardPicture, Picture, SessionPicture};

/// Number of sessions in one slice. Each takes about a microsecond.
const SLICE: usize = 32;

/// Adds a slice of sessions to the sketch. Sends the picture once it is complete.
pub(crate) fn draw(engine: &mut Engine) {
    let Some(mut sketch) = engine.sketch.take() else { return };
    let ids: Vec<SessionId> = engine.sessions.ids_from(sketch.next).take(SLICE).collect();
    for &id in &ids {
        sketch.next = SessionId(id.0.saturating_add(1));
        if let Some(mut state) = engine.machine.session_snapshot(clock::monotonic(), id) {
            engine.clients.update_allocated(&mut state);
            sketch.sessions.push(SessionPicture { name: engine.sessions.name(id), state });
        }
    }
    if ids.len() < SLICE {
        let Sketch { answer, sessions, .. } = sketch;
        // A reader that is gone needs no answer.
        let _ = answer.send(finish(engine, sessions));
    } else if !sketch.answer.is_closed() {
        engine.sketch = Some(sketch);
    }
}

fn finish(engine: &mut Engine, mut sessions: Vec<SessionPicture>) -> Picture {
    let now = clock::monotonic();
    let living = sessions.len();
    let cards = engine.machine.card_snapshots().into_iter().filter_map(|mut state| {
        state.allocated_bytes = allocated(&sessions, state.gpu);
        let info = engine.cards.get(state.gpu)?.info.clone();
        Some(CardPicture { info, state })
    });
    let cards = cards.collect();
    engine.metrics.name_cards(&engine.cards);
    sessions.extend(engine.metrics.ended());
    let (written, lost) = engine.audit.log.counts();
    Picture {
        uptime: now - engine.started,
        ready: !engine.machine.is_recovering(),
        recovering: engine.machine.recovering(),
        cards,
        sessions,
        residences: engine.machine.residences(),
        copies: engine.copies.view(),
        audit: AuditPicture { written, lost },
        lost_log_lines: engine.lost_log_lines.count(),
        living,
    }
}

fn allocated(sessions: &[SessionPicture], gpu: GpuId) -> Bytes {
    let usages = sessions.iter().flat_map(|session| &session.state.gpus);
    usages.filter(|usage| usage.gpu == gpu).map(|usage| usage.allocated_bytes).sum()
}
