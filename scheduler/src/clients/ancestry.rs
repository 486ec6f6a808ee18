//! Process ancestry: the session of a process without a token, by its parents.
//!
//! A child or a shell stays in the session that it was started in, also if it threw the token away or began a
//! POSIX session of its own. The first rule that applies decides:
//!
//! ```text
//!   the process itself entered or registered a session            that session
//!   a parent is a client of, entered or registered a session      that session; the closest parent first
//!   the process or a parent is in a POSIX session with clients    the implicit session of that job
//! ```
//!
//! All of this is the kernel's word. A process that outlives its parents has none; then its own POSIX session
//! decides.

use std::iter;

use gpushare_proto::SessionId;
use gpushare_sys::process;

use super::awaited::Awaited;
use super::joined::JoinedProcesses;
use super::table::Clients;
use crate::identity::{PeerProcess, ProcessId};
use crate::sessions::{Session, Sessions};

/// Largest number of parents that are looked at.
const GENERATIONS: usize = 64;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ancestry<'a> {
    pub(crate) sessions: &'a Sessions,
    pub(crate) clients: &'a Clients,
    pub(crate) awaited: &'a Awaited,
    pub(crate) joined: &'a JoinedProcesses,
}

impl Ancestry<'_> {
    /// Returns the session that a process belongs to by itself or by its parents.
    pub(crate) fn session_of(&self, peer: &PeerProcess) -> Option<SessionId> {
        let entered = || peer.id.and_then(|process| self.entered_or_registered(process));
        let of_parent = || parents(peer.id).find_map(|parent| self.of_parent(peer, parent));
        let of_job = || {
            let key = peer.implicit_key();
            let of_parents = parents(peer.id).filter_map(|parent| key.of_job(parent.pid));
            let mut keys = iter::once(key.clone()).chain(of_parents);
            keys.find_map(|key| self.sessions.by_key(&key))
        };
        entered().or_else(of_parent).or_else(of_job)
    }

    /// Returns the session that a process is a client of, or was one of under the last daemon.
    pub(crate) fn client_session(&self, process: ProcessId) -> Option<SessionId> {
        let awaited = || self.awaited.session_of(process);
        self.clients.session_of(process).or_else(awaited)
    }

    /// Returns the session that a child inherits from a parent. An implicit session is for its user alone.
    fn of_parent(&self, peer: &PeerProcess, parent: ProcessId) -> Option<SessionId> {
        let is_open = |session: &Session| !session.is_implicit() || session.uid() == peer.user;
        let joined = self.client_session(parent);
        joined
            .filter(|&session| self.sessions.get(session).is_some_and(is_open))
            .or_else(|| self.entered_or_registered(parent))
    }

    fn entered_or_registered(&self, process: ProcessId) -> Option<SessionId> {
        let registered = || self.sessions.by_registrar(process);
        self.joined.session_of(process).or_else(registered)
    }
}

fn parents(of: Option<ProcessId>) -> impl Iterator<Item = ProcessId> {
    let next = |child: &ProcessId| parent(*child);
    iter::successors(of, next).skip(1).take(GENERATIONS)
}

/// Returns the parent of a process. Asks twice: if the parent is still the same, its pid was not reused
/// meanwhile.
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
