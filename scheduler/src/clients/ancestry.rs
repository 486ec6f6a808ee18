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
//! decides.

use std::iter;

use gpushare_proto::SessionId;
use gpushare_sys::process;

use crate::engine::Engine;
use crate::identity::{PeerProcess, ProcessId};
use crate::sessions::Session;

/// Largest number of parent processes that the search visits.
const GENERATIONS: usize = 64;

/// Returns the session of a process, found by the process itself or by its parents.
pub(crate) fn session_of(engine: &Engine, peer: &PeerProcess) -> Option<SessionId> {
    let entered = || peer.id.and_then(|process| entered_or_registered(engine, process));
    let by_parent = || parents(peer.id).find_map(|parent| of_parent(engine, peer, parent));
    let of_job = || {
        let key = peer.implicit_key();
        let of_parents = parents(peer.id).filter_map(|parent| key.of_job(parent.pid));
        let mut keys = iter::once(key.clone()).chain(of_parents);
        keys.find_map(|key| engine.sessions.by_key(&key))
    };
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

fn parents(of: Option<ProcessId>) -> impl Iterator<Item = ProcessId> {
    let next = |child: &ProcessId| parent(*child);
    iter::successors(of, next).skip(1).take(GENERATIONS)
}

/// Returns the parent of a process. Reads the parent twice: if both answers agree, its pid was not reused
/// between them.
fn parent(child: ProcessId) -> Option<ProcessId> {
    let ask = || {
        let pid = process::parent(child.pid).filter(|&parent| parent > 1)?;
        let start = process::start_time(pid)?;
        let is_still = process::parent(child.pid) == Some(pid);
        is_still.then_some(ProcessId { pid, start })
    };
    // The second try is for a parent that just died: another process takes over its children.
    let found = ask().or_else(ask);
    found.filter(|_| process::start_time(child.pid) == Some(child.start))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_child_of_a_child_has_us_among_its_parents() {
        let mut child = Command::new("sh")
            .args(["-c", "setsid --wait cat; true"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let process = |pid| {
            let start = process::start_time(pid).unwrap();
            ProcessId { pid, start }
        };
        let (own, theirs) = (process(std::process::id()), process(child.id()));
        assert!(parents(Some(theirs)).any(|parent| parent == own));
        assert!(parents(Some(own)).all(|parent| parent.pid != own.pid && parent.pid > 1));
        let earlier = ProcessId { start: theirs.start - 1, ..theirs };
        assert_eq!(parents(Some(earlier)).count(), 0, "its pid is another process's by now");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(parents(Some(theirs)).count(), 0);
        assert_eq!(parents(None).count(), 0);
    }
}
