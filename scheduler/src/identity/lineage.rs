//! Lineage of a process: its parents and the jobs that it may belong to, by which its session is found.
//!
//! The kernel is asked for it at most once a connection, and by a thread of its own, because a stranger
//! decides how many parents a process has. Requests of all connections wait in a fair queue (`fair.rs`).
//!
//! ```text
//!   connection without a token ── process ──▶ fair queue ──▶ lineage thread ── /proc ──▶ connection ──▶ engine
//! ```

use std::sync::{Arc, OnceLock};
use std::{io, iter};

use gpushare_sys::process;
use tokio::sync::oneshot;

use super::{ImplicitKey, PeerProcess, Principal, ProcessId, Scope};
use crate::fair_thread::FairThread;

/// Largest number of parent processes that the search visits.
const GENERATIONS: usize = 64;

/// Facts about a process and its parents, as the kernel reported them to one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lineage {
    /// Parents of the process, the closest first.
    pub(crate) parents: Vec<ProcessId>,
    /// Keys of the implicit sessions that the process may belong to, its own key first.
    pub(crate) keys: Vec<ImplicitKey>,
    /// Name of the program that the process runs.
    pub(crate) program: String,
}

impl Lineage {
    /// Reads the lineage of a process from `/proc`.
    fn read(peer: &PeerProcess) -> Self {
        let pid = peer.pid;
        let parents: Vec<ProcessId> = parents(peer.id).collect();
        let key = |scope| ImplicitKey { uid: peer.user, scope };
        let keys = match peer.container() {
            Some(path) => vec![key(Scope::Container(path.to_owned()))],
            None => {
                let in_session = |session| match &peer.user_group {
                    Some(group) => Scope::InUserGroup { group: group.clone(), session },
                    None => Scope::PosixSession(session),
                };
                let own = process::posix_session(pid).unwrap_or(0);
                let of_parents = parents.iter().filter_map(|parent| process::posix_session(parent.pid));
                let mut sessions: Vec<u32> = iter::once(own).chain(of_parents).collect();
                sessions.dedup();
                sessions.into_iter().map(|session| key(in_session(session))).collect()
            }
        };
        let program = process::comm(pid).unwrap_or_else(|| "process".to_owned());
        Self { parents, keys, program }
    }

    /// Returns the key of the implicit session that the daemon opens for the process.
    pub(crate) fn own_key(&self) -> Option<&ImplicitKey> {
        self.keys.first()
    }
}

/// Lineage of a connection's process, once it is known.
pub(crate) type KnownLineage = Arc<OnceLock<Lineage>>;

#[derive(Debug)]
struct Question {
    peer: PeerProcess,
    answered: oneshot::Sender<()>,
}

/// Sender of questions to the lineage thread.
#[derive(Clone, Debug)]
pub(crate) struct Genealogist(FairThread<Principal, u64, Question>);

impl Genealogist {
    /// Starts the thread, which runs as long as the daemon.
    pub(crate) fn start() -> io::Result<Self> {
        Ok(Self(FairThread::start("lineage", answer)?))
    }

    /// Completes once the lineage of the process of connection number `connection` is known.
    pub(crate) async fn learn(&self, connection: u64, peer: &PeerProcess) {
        if peer.lineage.get().is_some() {
            return;
        }
        let (answered, answer) = oneshot::channel();
        let question = Question { peer: peer.clone(), answered };
        self.0.push(&peer.principal, connection, question);
        // The thread lasts as long as the daemon.
        let _ = answer.await;
    }
}

fn answer(Question { peer, answered }: Question) {
    if !answered.is_closed() {
        peer.lineage.get_or_init(|| Lineage::read(&peer));
    }
    // The connection may have ended.
    let _ = answered.send(());
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

    #[tokio::test]
    async fn the_parents_are_read_once_a_connection() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let genealogist = Genealogist::start().unwrap();
        let peer = PeerProcess::of(&ours).unwrap();
        assert_eq!(peer.lineage.get(), None, "not read before somebody needs it");
        genealogist.learn(1, &peer).await;
        let first: *const Lineage = peer.lineage.get().unwrap();
        genealogist.learn(1, &peer.clone()).await;
        assert!(std::ptr::eq(first, peer.lineage.get().unwrap()));
        let parent = process::parent(peer.pid);
        assert_eq!(peer.lineage.get().unwrap().parents.first().map(|process| process.pid), parent);
    }

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
