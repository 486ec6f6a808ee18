//! Finds the session of a process without a token by its parent processes.
//!
//! A child or a shell stays in the session that it was started in. Neither a discarded token nor an own POSIX
//! session changes that. The first rule that applies decides:
//!
//! ```text
//!   the process itself entered or registered a session            that session
//!   a parent is a client of, entered or registered a session      that session; the closest parent first
//!   the process or a parent is in a POSIX session with clients    the implicit session of that job
//! ```
//!
//! The kernel reports all of these facts. If the parents of a process have ended, its own POSIX session
//! decides. The parents are known when the engine is asked (`identity/lineage.rs`): it looks up sessions,
//! and reads nothing.

use gpushare_proto::SessionId;

use crate::engine::Engine;
use crate::identity::{PeerProcess, ProcessId};
use crate::sessions::Session;

/// Returns the session of a process, found by the process itself or by its parents.
pub(crate) fn session_of(engine: &Engine, peer: &PeerProcess) -> Option<SessionId> {
    let entered = || peer.id.and_then(|process| entered_or_registered(engine, process));
    let lineage = peer.lineage.get();
    let parents = || lineage.into_iter().flat_map(|lineage| &lineage.parents);
    let by_parent = || parents().find_map(|&parent| of_parent(engine, peer, parent));
    let keys = || lineage.into_iter().flat_map(|lineage| &lineage.keys);
    let of_job = || keys().find_map(|key| engine.sessions.by_key(key));
    entered().or_else(by_parent).or_else(of_job)
}

/// Returns the session in which a process is a client, or was one under the last daemon.
pub(crate) fn client_session(engine: &Engine, process: ProcessId) -> Option<SessionId> {
    let awaited = || engine.awaited.session_of(process);
    engine.clients.session_of(process).or_else(awaited)
}

/// Returns the session that a child inherits from a parent. Only the user of an implicit session inherits it.
fn of_parent(engine: &Engine, peer: &PeerProcess, parent: ProcessId) -> Option<SessionId> {
    let is_open = |session: &Session| !session.is_implicit() || session.uid() == peer.user;
    let joined = client_session(engine, parent);
    joined
        .filter(|&session| engine.sessions.get(session).is_some_and(is_open))
        .or_else(|| entered_or_registered(engine, parent))
}

fn entered_or_registered(engine: &Engine, process: ProcessId) -> Option<SessionId> {
    let registered = || engine.sessions.by_registrar(process);
    engine.joined.session_of(process).or_else(registered)
}
