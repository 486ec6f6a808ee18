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
use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::{debug, warn};

use crate::connection::{Dialect, serve, turn_away};
use crate::household::{Household, HouseholdLimit};
use crate::identity::PeerProcess;
use crate::input::{ConnectionId, Input, Place};
use crate::operation::{Operation, code_name};
use crate::throttle::Throttle;

/// How long to wait when the system has no descriptor or memory for another connection.
const PAUSE: Duration = Duration::from_millis(100);

/// What both doors know.
#[derive(Debug)]
pub(crate) struct House {
    /// The user who may administrate besides root.
    uid: u32,
    limit: HouseholdLimit,
    inputs: mpsc::Sender<Input>,
    next: AtomicU64,
    /// Whose bad connections were logged when.
    complaints: Mutex<Throttle<u32>>,
}

impl House {
    pub(crate) fn new(uid: u32, limit: HouseholdLimit, inputs: mpsc::Sender<Input>) -> Self {
        Self { uid, limit, inputs, next: AtomicU64::new(1), complaints: Mutex::default() }
    }

    fn may_complain(&self, user: u32) -> bool {
        let mut complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        complaints.pass(user, clock::monotonic()).is_some()
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
    let (pid, uid, user) = (peer.pid, peer.uid, peer.user);
    if D::PLACE == Place::Admin && uid != 0 && uid != house.uid {
        Operation::done("daemon.administrate")
            .process(pid)
            .user(uid)
            .failed(Outcome::Refused, code_name(FailureCode::Permission))
            .warn(format_args!("user {uid} (pid {pid}) may not administrate this daemon"));
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
    let Some(place) = places.take(&peer.household, &house.limit) else {
        // No farewell: it would cost what the limit is there to save.
        debug!("{} has {} connections already", peer.household, house.limit.most);
        return;
    };
    let connection = ConnectionId(house.next.fetch_add(1, Ordering::Relaxed));
    let (house, inputs) = (house.clone(), house.inputs.clone());
    tokio::spawn(async move {
        let _place = place;
        let end = serve::<D>(stream, connection, peer, inputs).await;
        if !end.is_usual() && house.may_complain(user) {
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

/// The connections of each household: as many as their mark has holders besides ourselves.
#[derive(Debug, Default)]
struct Places(HashMap<Household, Arc<()>>);

impl Places {
    /// A place for one more connection of a household, until dropped; none if all are taken.
    fn take(&mut self, household: &Household, limit: &HouseholdLimit) -> Option<Arc<()>> {
        // Only those with connections are remembered, however many there are.
        self.0.retain(|_, places| Arc::strong_count(places) > 1);
        let has = self.0.get(household).map_or(0, |places| Arc::strong_count(places) - 1);
        limit
            .allows(household, has)
            .then(|| self.0.entry(household.clone()).or_default().clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_users_connections_do_not_take_anothers_places() {
        let user = |uid| Household::of(uid, std::process::id(), || true);
        let own = Household::own();
        let (limit, [one, other]) = (HouseholdLimit::new(2), [70_000, 70_001].map(user));
        let mut places = Places::default();
        let held: Vec<_> = (0..2).map(|_| places.take(&one, &limit).unwrap()).collect();
        assert!(places.take(&one, &limit).is_none());
        assert!(places.take(&other, &limit).is_some());
        let ours: Vec<_> = (0..9).filter_map(|_| places.take(&own, &limit)).collect();
        assert_eq!(ours.len(), 9, "the daemon's own household is not limited");
        drop((held, ours));
        assert!(places.take(&one, &limit).is_some());
        assert_eq!(places.0.len(), 1);
    }
}
