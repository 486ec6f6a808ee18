//! Who a peer is, by the kernel's word, and which implicit session it falls into.
//!
//! Peers without a token that are nobody's children (`shell/kinship.rs`) share one session per user and container, or per user and
//! POSIX session where there is no container: so forking wins nothing, and the ranks of one job stay together.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use gpushare_sys::{peer, process, user_namespace};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;
use tracing::warn;

use crate::household::{Household, container};

/// How often a process is looked after that cannot be watched.
const LOOK: Duration = Duration::from_millis(20);

/// One process for good: a pid is given away again, a pid with its start time is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pub(crate) pid: u32,
    /// Clock ticks since boot.
    pub(crate) start: u64,
}

impl ProcessId {
    /// A pidfd of this very process, if it still lives.
    pub(crate) fn open(self) -> Option<OwnedFd> {
        let pidfd = peer::open(self.pid).ok()?;
        let same = process::start_time(self.pid) == Some(self.start);
        (same && !process::is_dead(self.pid)).then_some(pidfd)
    }
}

/// The process at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct PeerProcess {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    /// Who answers for it: the user who made the user namespace that it is in, else its own. So nobody is several by subordinate
    /// ids. Where root made the namespace, as container engines do, its users are what they are.
    pub(crate) user: u32,
    /// None where the process has no pid in our namespace.
    pub(crate) id: Option<ProcessId>,
    pub(crate) pidfd: Arc<OwnedFd>,
    /// With whom it is counted.
    pub(crate) household: Household,
    inside: Option<process::Inside>,
}

impl PeerProcess {
    /// The peer of a connected socket.
    pub(crate) fn of(socket: impl std::os::fd::AsFd) -> io::Result<Self> {
        let peer::Peer { pid, uid, .. } = peer::credentials(&socket)?;
        // First the pidfd, then what the pid says: while the pidfd's process lives the number is its own.
        let pidfd = peer::pidfd(&socket, pid)?;
        let id = process::start_time(pid).map(|start| ProcessId { pid, start });
        let is_alive = || !peer::is_dead(&pidfd);
        let maker = user_namespace::maker(pid).filter(|&maker| maker != 0 && is_alive());
        let user = maker.unwrap_or(uid);
        Ok(Self {
            pid,
            uid,
            user,
            id,
            household: Household::of(user, pid, is_alive),
            pidfd: Arc::new(pidfd),
            inside: process::inside(pid),
        })
    }

    /// Whether the kernel says that it is dead, or that it is dying and does nothing any more.
    pub(crate) fn is_ending(&self) -> bool {
        let ending = self.id.is_some_and(|id| process::is_ending(id.pid));
        // As long as the pidfd's process is not dead the number is its own.
        peer::is_dead(&self.pidfd) || ending
    }

    /// Whether both are the same process for sure.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.id.is_some() && self.id == other.id
    }

    /// Its pid as `asker` sees it: where both are in one PID namespace it is the one there, else ours.
    pub(crate) fn pid_as_seen_by(&self, asker: &Self) -> u32 {
        match (&self.inside, &asker.inside) {
            (Some(own), Some(theirs)) if own.namespace == theirs.namespace => own.pid,
            _ => self.pid,
        }
    }

    /// The implicit session that the process belongs to.
    pub(crate) fn implicit_key(&self) -> ImplicitKey {
        let groups = process::cgroups(self.pid);
        let scope = match groups.iter().find_map(|group| container(group)) {
            Some(path) => Scope::Container(path.to_owned()),
            None => Scope::PosixSession(process::posix_session(self.pid).unwrap_or(0)),
        };
        ImplicitKey { uid: self.user, scope }
    }
}

/// Resolves when the process behind a pidfd is dead.
///
/// Watches a copy: one descriptor can be watched only once, and a process is often several things at a
/// time (a connection, a registrar). Where it cannot be watched (no descriptors are left) it is asked about now and then.
#[expect(
    deprecated,
    reason = "the safe constructor; an `OwnedFd` keeps the promise that the unsafe one asks for"
)]
pub(crate) async fn death(pidfd: Arc<OwnedFd>) {
    let watch = |copy| AsyncFd::with_interest(copy, Interest::READABLE);
    match pidfd.try_clone().and_then(watch) {
        // An error is the end of the runtime.
        Ok(watched) => drop(watched.readable().await),
        Err(error) => {
            warn!("cannot watch a process for its death, so it is looked after every {LOOK:?}: {error}");
            while !peer::is_dead(&pidfd) {
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

/// The watch over a process. It ends with this, since each costs descriptors until the process is dead.
#[derive(Debug, Default)]
pub(crate) struct Watch(Option<AbortHandle>);

impl Watch {
    /// Until the process is dead, then does `dead`.
    pub(crate) fn over(pidfd: Arc<OwnedFd>, dead: impl Future<Output = ()> + Send + 'static) -> Self {
        let watching = tokio::spawn(async move {
            death(pidfd).await;
            dead.await;
        });
        Self(Some(watching.abort_handle()))
    }

    /// Lasts as long as the process.
    pub(crate) fn until_death(mut self) {
        self.0 = None;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(watching) = &self.0 {
            watching.abort();
        }
    }
}

/// What peers without a token have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImplicitKey {
    pub(crate) uid: u32,
    pub(crate) scope: Scope,
}

/// The container, else the login or job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scope {
    Container(String),
    PosixSession(u32),
}

impl ImplicitKey {
    /// That of the job that another process is in, for the same user; none in a container, which is one whatever is in it.
    pub(crate) fn of_job(&self, pid: u32) -> Option<Self> {
        let session = match self.scope {
            Scope::Container(_) => return None,
            Scope::PosixSession(_) => process::posix_session(pid)?,
        };
        Some(Self { uid: self.uid, scope: Scope::PosixSession(session) })
    }
}

impl fmt::Display for ImplicitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.scope {
            Scope::Container(path) => write!(f, "user {}, container {path}", self.uid),
            Scope::PosixSession(session) => write!(f, "user {}, POSIX session {session}", self.uid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_shares_a_pid_namespace_is_told_the_pid_in_it() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let own = PeerProcess::of(&ours).unwrap();
        let inside = |namespace: &str, pid| PeerProcess {
            inside: Some(process::Inside { namespace: namespace.into(), pid }),
            ..own.clone()
        };
        let process = inside("pid:[1]", 7);
        assert_eq!(process.pid_as_seen_by(&inside("pid:[1]", 9)), 7);
        assert_eq!(process.pid_as_seen_by(&inside("pid:[2]", 9)), own.pid);
        assert_eq!(process.pid_as_seen_by(&PeerProcess { inside: None, ..own.clone() }), own.pid);
    }

    #[test]
    fn a_process_is_found_again_by_pid_and_start_only() {
        let pid = std::process::id();
        let start = process::start_time(pid).unwrap();
        assert!(ProcessId { pid, start }.open().is_some());
        let start = start + 1;
        assert!(ProcessId { pid, start }.open().is_none());
    }
}
