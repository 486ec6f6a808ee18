//! Whose child a process without a token is: children and shells stay in the session that they were started in, also when they
//! threw its token away or began a POSIX session of their own.
//!
//! ```text
//!   the process itself entered or registered one  that one
//!   a parent of its parents …                     that one's, if it is in a session, entered or registered one
//!   … is in a POSIX session with processes         that of its job
//! ```
//!
//! All of it is the kernel's word. Whoever outlives its parents is nobody's child any more: what then holds is its own POSIX session.

use std::iter;

use gpushare_proto::SessionId;
use gpushare_sys::process;

use super::Shell;
use crate::identity::{PeerProcess, ProcessId};

/// Parents that are looked at; a chain that is longer is nobody's usual one.
const GENERATIONS: usize = 64;

impl Shell {
    /// The session that a process belongs to by where it comes from.
    pub(super) fn by_descent(&self, peer: &PeerProcess) -> Option<SessionId> {
        peer.id
            .and_then(|process| self.taken_by(process))
            .or_else(|| parents(peer.id).find_map(|parent| self.of_parent(peer, parent)))
            .or_else(|| {
                let key = peer.implicit_key();
                let mut keys = iter::once(key.clone())
                    .chain(parents(peer.id).filter_map(|parent| key.of_job(parent.pid)));
                keys.find_map(|key| self.sessions.by_key(&key))
            })
    }

    /// The session of a parent, for a child of its. What a user shares without a token is for that user alone.
    fn of_parent(&self, peer: &PeerProcess, parent: ProcessId) -> Option<SessionId> {
        let joined = self.session_of(parent).filter(|&session| {
            self.sessions
                .get(session)
                .is_some_and(|session| !session.is_implicit() || session.uid() == peer.user)
        });
        joined.or_else(|| self.taken_by(parent))
    }

    /// The session that a process entered or registered, for itself and for all that it starts.
    fn taken_by(&self, process: ProcessId) -> Option<SessionId> {
        let entered = self.entrants.session_of(process);
        entered.or_else(|| self.sessions.by_registrar(process))
    }
}

/// The parents of a process, the closest first.
fn parents(of: Option<ProcessId>) -> impl Iterator<Item = ProcessId> {
    let next = |child: &ProcessId| parent(*child);
    iter::successors(of, next).skip(1).take(GENERATIONS)
}

/// The parent of a process. It is asked for twice: a pid whose process is the parent still was not given away meanwhile.
fn parent(child: ProcessId) -> Option<ProcessId> {
    let ask = || {
        let pid = process::parent(child.pid).filter(|&parent| parent > 1)?;
        let start = process::start_time(pid)?;
        let is_still = process::parent(child.pid) == Some(pid);
        is_still.then_some(ProcessId { pid, start })
    };
    // Another one takes over the children of one that just died.
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
