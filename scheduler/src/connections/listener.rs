//! Accepts connections on the sockets, after checks of the peer and of the number of its connections.
//!
//! ```text
//!   accept ─▶ pid and uid ── process at its limit? user has too many unidentified? closed
//!               └─▶ a thread reads /proc, users in turn: who is it? ─▶ principal at its limit? closed ─▶ connection
//! ```
//!
//! Accepting waits for no peer's `/proc`. The daemon's task reads nothing about a peer. Accepting has a budget
//! of time (`budget.rs`), so that a flood of connections waits in the kernel's queue.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpushare_proto::Nanos;
use gpushare_proto::audit::Outcome;
use gpushare_proto::tenant::{Failure, FailureCode};
use gpushare_sys::socket::refuse_descriptors;
use gpushare_sys::{clock, peer};
use tokio::net::UnixListener;
use tokio::task::yield_now;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::connection::{Dialect, serve, turn_away};
use super::inbox::{Inbox, Newcomer};
use super::limit::{ConnectionLimit, OpenConnections, SharedConnections};
use super::socket::{Closer, PeerSocket};
use super::unidentified::{Identifier, Unidentified};
use super::{ConnectionEvent, ConnectionId, Socket};
use crate::budget::Budget;
use crate::identity::{Genealogist, PeerProcess};
use crate::log::limiter::LogLimiter;
use crate::operation::{Operation, code_name};

/// Pause after a failed accept. Such a failure mostly means that the system lacks descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepting may take a quarter of the daemon's time, for each socket.
const ACCEPTING: Budget = Budget::new(4, Nanos::from_millis(20));
/// Time charged for a connection in addition to the checks here: the accept itself and the end.
const ACCEPT_AND_END: Nanos = Nanos(20_000);

/// State that the listeners of both sockets share.
#[derive(Debug)]
pub(crate) struct Acceptor {
    /// User id of the daemon: this user may administrate, and so may root.
    uid: u32,
    limit: ConnectionLimit,
    inbox: Arc<Inbox>,
    genealogist: Genealogist,
    identifier: Identifier,
    closer: Closer,
    next: AtomicU64,
    /// Limiter of log lines about bad connections, by user.
    log_lines: Mutex<LogLimiter<u32>>,
}

impl Acceptor {
    /// Creates the shared state for a daemon of user `uid`. Events of connections are sent to `inbox`.
    pub(crate) fn new(
        uid: u32,
        limit: ConnectionLimit,
        inbox: Arc<Inbox>,
        genealogist: Genealogist,
        identifier: Identifier,
        closer: Closer,
    ) -> Self {
        Self {
            uid,
            limit,
            inbox,
            genealogist,
            identifier,
            closer,
            next: AtomicU64::new(1),
            log_lines: Mutex::default(),
        }
    }

    pub(super) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    pub(super) fn new_id(&self) -> ConnectionId {
        ConnectionId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn may_log(&self, user: u32) -> bool {
        let mut lines = self.log_lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.admit(user, clock::monotonic()).is_some()
    }
}

/// Accepts connections on one socket until the task is aborted.
pub(crate) async fn accept<D: Dialect>(listener: UnixListener, acceptor: Arc<Acceptor>) {
    let (open, unidentified) = (SharedConnections::default(), Unidentified::default());
    let mut budget = ACCEPTING;
    // Kernels before Linux 6.16 cannot.
    let _ = refuse_descriptors(&listener);
    loop {
        let socket = match listener.accept().await {
            Ok((stream, _)) => PeerSocket::new(stream, &acceptor.closer),
            Err(cause) => {
                if acceptor.may_log(acceptor.uid) {
                    warn!("cannot accept a connection: {cause}");
                }
                sleep(PAUSE).await;
                continue;
            }
        };
        let began = clock::thread();
        accepted::<D>(socket, &acceptor, &open, &unidentified);
        budget.charge(clock::thread() - began + ACCEPT_AND_END, clock::monotonic());
        let wait = budget.wait(clock::monotonic());
        if wait.is_zero() {
            // A flood of connections leaves others their turns.
            yield_now().await;
        } else {
            sleep(wait.into()).await;
        }
    }
}

/// Closes a connection that certainly may not be, and identifies its peer otherwise. Closed ones get no
/// answer, which would cost the descriptors that the limits save.
fn accepted<D: Dialect>(
    socket: PeerSocket,
    acceptor: &Arc<Acceptor>,
    open: &SharedConnections,
    unidentified: &Unidentified,
) {
    let Ok(peer) = socket.stream().and_then(peer::credentials) else {
        return;
    };
    // A process outside of the daemon's PID namespace has no pid here.
    if peer.pid != 0 && OpenConnections::is_over_limit(open, (peer.pid, peer.uid), &acceptor.limit) {
        return;
    }
    let Some(place) = unidentified.place(peer.uid) else {
        return;
    };
    let (acceptor, open, newcomer) = (acceptor.clone(), open.clone(), acceptor.inbox.newcomer());
    tokio::spawn(async move {
        let connection = acceptor.new_id();
        let identified = acceptor.identifier.identify(peer.uid, connection, socket).await;
        drop(place);
        match identified {
            Some((Ok(peer), socket)) => receive::<D>(socket, peer, (connection, newcomer), &acceptor, &open),
            Some((Err(cause), _)) => debug!("a peer ended before its credentials were read: {cause}"),
            None => {}
        }
    });
}

fn receive<D: Dialect>(
    mut socket: PeerSocket,
    peer: PeerProcess,
    (connection, newcomer): (ConnectionId, Newcomer),
    acceptor: &Arc<Acceptor>,
    open: &SharedConnections,
) {
    let (pid, uid, user) = (peer.pid, peer.uid, peer.user);
    if D::SOCKET == Socket::Admin && uid != 0 && uid != acceptor.uid {
        let code = FailureCode::Permission;
        Operation::done("daemon.administrate")
            .peer(&peer)
            .failed(Outcome::Refused, code_name(code))
            .warn(format_args!("user {uid} (pid {pid}) may not administrate this daemon"));
        let message = format!(
            "user {uid} may not administrate this daemon; run the command as user {} or root",
            acceptor.uid
        );
        let events = acceptor.inbox.sender(peer.principal, connection);
        tokio::spawn(async move {
            let (process, why) = ((pid, uid), message.clone());
            events.send(ConnectionEvent::Trespassed { process, why }).await;
            turn_away::<D>(socket, Failure { code, message }).await;
            drop(newcomer);
        });
        return;
    }
    let Some(mark) = OpenConnections::add(open, (pid, uid), &peer.principal, &acceptor.limit) else {
        // Closed without an answer, which would cost the descriptors that the limit saves.
        debug!("{} has {} connections already", peer.principal, acceptor.limit.most);
        return;
    };
    socket.count_as(mark);
    let acceptor = acceptor.clone();
    tokio::spawn(async move {
        let (inbox, genealogist) = (&acceptor.inbox, &acceptor.genealogist);
        let end = serve::<D>(socket, (connection, newcomer), peer, inbox, genealogist).await;
        if !end.is_usual() && acceptor.may_log(user) {
            Operation::done("peer.close")
                .process(pid)
                .user(uid)
                .failed(Outcome::Failed, "connection")
                .info(format_args!("closed {connection} of pid {pid}, user {uid}: {end}"));
        } else {
            debug!("{connection} of pid {pid} ended: {end}");
        }
    });
}
