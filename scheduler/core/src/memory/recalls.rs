//! Memory requests that are being decided, and free lease that was asked back from processes.

use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::{Bytes, ClientId, GpuId, RequestId, SessionId};

/// Kind of memory that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory that can move off the card.
    Movable,
    /// Memory that can move, in chunks that the process has already: a free piece of a shared block.
    Piece,
    /// Memory that never moves: pools, arrays, graphs.
    Fixed,
}

/// Request for memory ([`crate::Event::Reserve`]) that is being decided.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) session: SessionId,
    pub(crate) client: ClientId,
    pub(crate) gpu: GpuId,
    pub(crate) id: RequestId,
    pub(crate) bytes: Bytes,
    pub(crate) kind: Kind,
    /// Processes of the session that are still to be asked for free lease, the first one last; `None` before
    /// the first question.
    pub(crate) siblings: Option<Vec<ClientId>>,
    /// Processes of other sessions that were asked to give free lease back for this request.
    pub(crate) tried: BTreeSet<ClientId>,
}

/// Memory request that waits for free lease of other processes, and the recalls that are not answered yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recalls {
    request: Option<Request>,
    /// Number of bytes asked back from each process and card. An answer counts up to this number, and once.
    asked: BTreeMap<(ClientId, GpuId), Bytes>,
}

impl Recalls {
    /// Keeps a request until the process that was asked for free lease has answered.
    pub(crate) fn suspend(&mut self, request: Request) {
        self.request = Some(request);
    }

    /// Removes and returns the waiting request, which can now be decided.
    pub(crate) fn resume(&mut self) -> Option<Request> {
        self.request.take()
    }

    /// Whether a request waits for an answer of the daemon ([`crate::Event::Recalled`]).
    pub(crate) fn is_waiting(&self) -> bool {
        self.request.is_some()
    }

    /// Notes that `bytes` of free lease were asked back from a process.
    pub(crate) fn ask(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        self.asked.insert((client, gpu), bytes);
    }

    /// Whether a process was asked for free lease and the answer is missing.
    pub(crate) fn is_asked(&self, client: ClientId, gpu: GpuId) -> bool {
        self.asked.contains_key(&(client, gpu))
    }

    /// Ends a recall of free lease and returns the number of bytes that were asked for.
    pub(crate) fn answered(&mut self, client: ClientId, gpu: GpuId) -> Option<Bytes> {
        self.asked.remove(&(client, gpu))
    }

    /// All processes that are named in the request or in a recall.
    pub(crate) fn clients(&self) -> impl Iterator<Item = ClientId> {
        let asker = self.request.iter().map(|request| request.client);
        asker.chain(self.asked.keys().map(|&(client, _)| client))
    }

    /// Removes the request and the recalls of a process that is dead.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.asked.retain(|&(asked, _), _| asked != client);
        self.request = self.request.take().filter(|request| request.client != client);
    }
}
