//! Accepts connections on the sockets, after checks of the peer and of the number of its connections.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpushare_proto::audit::Outcome;
use gpushare_proto::tenant::{Failure, FailureCode};
use gpushare_sys::clock;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::connection::{Dialect, serve, turn_away};
use super::limit::{ConnectionLimit, OpenConnections};
use super::{ConnectionEvent, ConnectionId, Socket};
use crate::identity::PeerProcess;
use crate::log_limiter::LogLimiter;
use crate::operation::{Operation, code_name};

/// Pause after a failed accept. Such a failure mostly means that the system lacks descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// State that the listeners of both sockets share.
#[derive(Debug)]
pub(crate) struct Acceptor {
    /// User id of the daemon: this user may administrate, and so may root.
    uid: u32,
    limit: ConnectionLimit,
    events: mpsc::Sender<ConnectionEvent>,
    next: AtomicU64,
    /// Limiter of log lines about bad connections, by user.
    log_lines: Mutex<LogLimiter<u32>>,
}

impl Acceptor {
    /// Creates the shared state for a daemon of user `uid`. Events of connections are sent to `events`.
    pub(crate) fn new(uid: u32, limit: ConnectionLimit, events: mpsc::Sender<ConnectionEvent>) -> Self {
        Self { uid, limit, events, next: AtomicU64::new(1), log_lines: Mutex::default() }
    }

    fn may_log(&self, user: u32) -> bool {
        let mut lines = self.log_lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.admit(user, clock::monotonic()).is_some()
    }
}

/// Accepts connections on one socket until the task is aborted.
pub(crate) async fn accept<D: Dialect>(listener: UnixListener, acceptor: Arc<Acceptor>) {
    let mut open = OpenConnections::default();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(cause) => {
                warn!("cannot accept a connection: {cause}");
                sleep(PAUSE).await;
                continue;
            }
        };
        match PeerProcess::of(stream.as_fd()) {
            Ok(peer) => receive::<D>(stream, peer, &acceptor, &mut open),
            Err(cause) => debug!("a peer ended before its credentials were read: {cause}"),
        }
    }
}

fn receive<D: Dialect>(
    stream: UnixStream,
    peer: PeerProcess,
    acceptor: &Arc<Acceptor>,
    open: &mut OpenConnections,
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
        let events = acceptor.events.clone();
        tokio::spawn(async move {
            let (process, why) = ((pid, uid), message.clone());
            // The receiver is gone only when the daemon ends.
            let _ = events.send(ConnectionEvent::Trespassed { process, why }).await;
            turn_away::<D>(stream, Failure { code, message }).await;
        });
        return;
    }
    let Some(mark) = open.add(&peer.principal, &acceptor.limit) else {
        // Closed without an answer, which would cost the descriptors that the limit saves.
        debug!("{} has {} connections already", peer.principal, acceptor.limit.most);
        return;
    };
    let connection = ConnectionId(acceptor.next.fetch_add(1, Ordering::Relaxed));
    let acceptor = acceptor.clone();
    tokio::spawn(async move {
        let _mark = mark;
        let end = serve::<D>(stream, connection, peer, acceptor.events.clone()).await;
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
