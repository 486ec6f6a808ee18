//! Accepting connections: who may come in, and how many of them.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpushare_proto::audit::Outcome;
use gpushare_proto::tenant::{Failure, FailureCode};
use gpushare_sys::clock;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::sleep;
use tracing::{debug, warn};

use crate::connection::{Dialect, serve, turn_away};
use crate::identity::PeerProcess;
use crate::input::{ConnectionId, Input, Place};
use crate::operation::{Operation, code_name};
use crate::throttle::Throttle;

/// How long to wait when the system has no descriptor or memory for another connection.
const PAUSE: Duration = Duration::from_millis(100);

/// What both doors know.
#[derive(Debug)]
pub(crate) struct House {
    /// The user whose connections are not counted, and who may administrate besides root.
    uid: u32,
    connections_per_user: usize,
    inputs: mpsc::Sender<Input>,
    next: AtomicU64,
    /// Whose bad connections were logged when.
    complaints: Mutex<Throttle<u32>>,
}

impl House {
    pub(crate) fn new(uid: u32, connections_per_user: usize, inputs: mpsc::Sender<Input>) -> Self {
        Self {
            uid,
            connections_per_user,
            inputs,
            next: AtomicU64::new(1),
            complaints: Mutex::default(),
        }
    }

    fn may_complain(&self, uid: u32) -> bool {
        let mut complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        complaints.pass(uid, clock::monotonic()).is_some()
    }
}

/// Accepts forever.
pub(crate) async fn attend<D: Dialect>(listener: UnixListener, house: Arc<House>) {
    let mut places = Places::default();
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
            Ok(peer) => receive::<D>(stream, peer, &house, &mut places),
            Err(cause) => debug!("a peer was gone before it was known: {cause}"),
        }
    }
}

fn receive<D: Dialect>(stream: UnixStream, peer: PeerProcess, house: &Arc<House>, places: &mut Places) {
    let (pid, uid) = (peer.pid, peer.uid);
    if D::PLACE == Place::Admin && uid != 0 && uid != house.uid {
        Operation::done("daemon.administrate")
            .process(pid)
            .user(uid)
            .failed(Outcome::Refused, code_name(FailureCode::Permission))
            .warn(format_args!(
                "user {uid} (pid {pid}) may not administrate this daemon"
            ));
        let message = format!(
            "user {uid} may not administrate this daemon; run the command as user {} or root",
            house.uid
        );
        let code = FailureCode::Permission;
        let inputs = house.inputs.clone();
        let (process, why) = ((pid, uid), message.clone());
        tokio::spawn(async move {
            // Nobody listens only when the daemon ends.
            let _ = inputs.send(Input::Trespassed { process, why }).await;
            turn_away::<D>(stream, Failure { code, message }).await;
        });
        return;
    }
    let counted = uid != house.uid;
    let place = counted.then(|| places.take(uid, house.connections_per_user));
    if matches!(place, Some(None)) {
        // No farewell: it would cost what the limit is there to save.
        debug!(
            "user {uid} has {} connections already",
            house.connections_per_user
        );
        return;
    }
    let connection = ConnectionId(house.next.fetch_add(1, Ordering::Relaxed));
    let (house, inputs) = (house.clone(), house.inputs.clone());
    tokio::spawn(async move {
        let _place = place;
        let end = serve::<D>(stream, connection, peer, inputs).await;
        if !end.is_usual() && house.may_complain(uid) {
            Operation::done("peer.close")
                .process(pid)
                .user(uid)
                .failed(Outcome::Failed, "connection")
                .info(format_args!(
                    "closed {connection} of pid {pid}, user {uid}: {end}"
                ));
        } else {
            debug!("{connection} of pid {pid} ended: {end}");
        }
    });
}

/// Connections per user.
#[derive(Debug, Default)]
struct Places(HashMap<u32, Arc<Semaphore>>);

impl Places {
    /// A place for one more connection of `uid`, until dropped; none if all are taken.
    fn take(&mut self, uid: u32, limit: usize) -> Option<OwnedSemaphorePermit> {
        // Only users with connections are remembered, however many users there are.
        self.0.retain(|_, places| places.available_permits() < limit);
        let places = self
            .0
            .entry(uid)
            .or_insert_with(|| Arc::new(Semaphore::new(limit)));
        places.clone().try_acquire_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_users_connections_do_not_take_anothers_places() {
        let mut places = Places::default();
        let held: Vec<_> = (0..2).map(|_| places.take(7, 2).unwrap()).collect();
        assert!(places.take(7, 2).is_none());
        assert!(places.take(8, 2).is_some());
        drop(held);
        assert!(places.take(7, 2).is_some());
        assert_eq!(places.0.len(), 1);
    }
}
