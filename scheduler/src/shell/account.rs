//! What a session is told about its memory: the core's figures with the kernel's names of its processes.

use gpushare_core::MemoryFigures;
use gpushare_proto::SessionId;
use gpushare_proto::session::Amount;
use gpushare_proto::tenant::{CardMemory, ProcessMemory, SessionMemory};

use super::Shell;
use crate::identity::PeerProcess;

impl Shell {
    /// The account of a session, for `asker`.
    pub(super) fn account(&mut self, session: SessionId, asker: &PeerProcess) -> Option<SessionMemory> {
        self.look_at_pages_of(session);
        let accounts = self.core.memory_figures(session)?;
        let cards = accounts.into_iter().filter_map(|account| self.card_account(account, asker));
        let known = self.sessions.get(session)?;
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

    fn card_account(&self, figures: MemoryFigures, asker: &PeerProcess) -> Option<CardMemory> {
        let process = |(client, used)| {
            let peer = &self.clients.get(&client)?.peer;
            Some(ProcessMemory { pid: peer.pid_as_seen_by(asker), outer_pid: peer.pid, used })
        };
        Some(CardMemory {
            info: self.cards.get(figures.gpu)?.info.clone(),
            total: figures.total,
            used: figures.used,
            free: figures.free,
            processes: figures.processes.into_iter().filter_map(process).collect(),
        })
    }
}
