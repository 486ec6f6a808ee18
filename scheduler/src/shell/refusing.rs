//! Memory that was asked for: the last refusals of each session, which `gpushare-ctl explain` shows, and the audit log's lines of refusals
//! and of what was given.

use std::collections::{BTreeMap, VecDeque};

use gpushare_proto::audit::{Allocation, Entry, Outcome, Refusal};
use gpushare_proto::explain::KEPT_REFUSALS;
use gpushare_proto::page::MemoryRefusal;
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos, SessionId};
use gpushare_sys::clock;

use super::Shell;
use super::telling::Whose;
use crate::operation::{OUT_OF_MEMORY, Operation};

/// What asks for memory is called.
pub(super) const RESERVE: &str = "memory.reserve";

/// The last refusals of each session.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<SessionId, VecDeque<Refused>>);

/// A refusal as it is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    pub(super) at: Nanos,
    pub(super) client: ClientId,
    pub(super) pid: u32,
    pub(super) gpu: GpuId,
    pub(super) refusal: MemoryRefusal,
}

impl Shell {
    /// The last refusals of a session, oldest first.
    pub(super) fn refusals_of(&self, session: SessionId) -> impl Iterator<Item = &Refused> {
        self.refused.0.get(&session).into_iter().flatten()
    }

    /// Memory was refused.
    pub(super) fn keep_refusal(
        &mut self,
        session: SessionId,
        client: ClientId,
        gpu: GpuId,
        refusal: MemoryRefusal,
    ) {
        let at = clock::monotonic();
        let (pid, uid) = self.process_of(client);
        let kept = self.refused.0.entry(session).or_default();
        if kept.len() >= KEPT_REFUSALS {
            kept.pop_front();
        }
        kept.push_back(Refused { at, client, pid, gpu, refusal });
        if !self.gets_a_line(Whose::Session(session)) {
            return;
        }
        let MemoryRefusal { requested, limit, used, by } = refusal;
        self.telling.audit.write(Entry::Refusal(Refusal {
            operation: RESERVE.to_owned(),
            session_id: session,
            session: self.sessions.name(session),
            uid,
            pid,
            gpu,
            uuid: self.cards.get(gpu).map(|card| card.info.uuid),
            requested,
            limit,
            used,
            by,
            result: Outcome::Refused,
            error_code: OUT_OF_MEMORY.to_owned(),
        }));
    }

    /// A process was leased memory.
    pub(super) fn leased(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        let Some(process) = self.clients.get(&client) else {
            return;
        };
        let (session, pid, uid) = (process.session, process.peer.pid, process.peer.uid);
        let leased = process.page.leased(gpu).unwrap_or_default();
        if let Some(session) = self.sessions.get(session).map(|known| (session, &known.name)) {
            Operation::done(RESERVE)
                .of(session.0, session.1)
                .process(pid)
                .on(gpu)
                .bytes(bytes)
                .debug(format_args!("{} got {bytes} on {gpu}, pid {pid}", session.1));
        }
        if let Some(one_in) = self.telling.audit.samples_reservation() {
            self.telling.audit.write(Entry::Allocation(Allocation {
                operation: RESERVE.to_owned(),
                session_id: session,
                session: self.sessions.name(session),
                uid,
                pid,
                gpu,
                bytes,
                leased,
                result: Outcome::Ok,
                one_in,
            }));
        }
    }

    /// The session is no more.
    pub(super) fn forget_refusals(&mut self, session: SessionId) {
        self.refused.0.remove(&session);
    }

    /// A client's pid and user; 0 for one that is gone.
    fn process_of(&self, client: ClientId) -> (u32, u32) {
        let process = self.clients.get(&client);
        process.map_or((0, 0), |client| (client.peer.pid, client.peer.uid))
    }
}
