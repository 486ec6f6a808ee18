//! The memory of a session as CUDA, NVML and `nvidia-smi` show it inside: the core's figures with the pids of
//! its processes.

use gpushare_proto::SessionId;
use gpushare_proto::session::Amount;
use gpushare_proto::tenant::{CardMemory, ProcessMemory, SessionMemory};

use crate::engine::Engine;
use crate::identity::PeerProcess;

/// Returns the memory of a session, with pids as `asker` sees them.
pub(crate) fn memory_report(
    engine: &mut Engine,
    session: SessionId,
    asker: &PeerProcess,
) -> Option<SessionMemory> {
    engine.read_pages(Some(session));
    let Engine { machine, clients, cards, sessions, .. } = engine;
    let process = |(client, used)| {
        let peer = &clients.get(client)?.peer;
        Some(ProcessMemory { pid: peer.pid_as_seen_by(asker), outer_pid: peer.pid, used })
    };
    let accounts = machine.memory_figures(session)?.into_iter();
    let cards = accounts.filter_map(|on_card| {
        Some(CardMemory {
            info: cards.get(on_card.gpu)?.info.clone(),
            total: on_card.total,
            used: on_card.used,
            free: on_card.free,
            processes: on_card.processes.into_iter().filter_map(process).collect(),
        })
    });
    let known = sessions.get(session)?;
    Some(SessionMemory {
        session,
        name: known.name.clone(),
        limit: match known.terms.memory.every {
            Some(Amount::Bytes(bytes)) => Some(bytes),
            _ => None,
        },
        cards: cards.collect(),
    })
}
