//! Accepted connections whose peers are not known yet.
//!
//! A thread of its own reads each peer's identity from `/proc` and serves users in turn (`fair_thread.rs`).
//! Each waiting connection costs a descriptor, so the users share a number of places.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpushare_sys::peer;
use tokio::sync::oneshot;

use super::ConnectionId;
use super::socket::PeerSocket;
use crate::fair_thread::FairThread;
use crate::identity::{PeerProcess, UserGroups};

/// Number of places that the users of the waiting connections share.
const PLACES: usize = 4096;
/// Largest number of waiting connections of one user.
const MOST: usize = 1024;

type Answer = (io::Result<PeerProcess>, PeerSocket);

#[derive(Debug)]
struct Question {
    socket: PeerSocket,
    answered: oneshot::Sender<Answer>,
}

/// Sender of accepted connections to the thread that identifies their peers.
#[derive(Clone, Debug)]
pub(crate) struct Identifier(FairThread<u32, ConnectionId, Question>);

impl Identifier {
    /// Starts the thread, which runs as long as the daemon.
    pub(crate) fn start(user_groups: UserGroups) -> io::Result<Self> {
        Ok(Self(FairThread::start("identity", move |question| identify(&user_groups, question))?))
    }

    /// Returns the process at the other end of a connection of user `uid`, with the connection.
    pub(super) async fn identify(
        &self,
        uid: u32,
        connection: ConnectionId,
        socket: PeerSocket,
    ) -> Option<Answer> {
        let (answered, answer) = oneshot::channel();
        self.0.push(&uid, connection, Question { socket, answered });
        answer.await.ok()
    }
}

fn identify(user_groups: &UserGroups, Question { socket, answered }: Question) {
    let peer = socket.stream().and_then(|stream| match peer::has_hung_up(stream) {
        false => PeerProcess::known_by(user_groups, stream),
        true => Err(io::ErrorKind::BrokenPipe.into()),
    });
    // The daemon may be ending.
    let _ = answered.send((peer, socket));
}

/// Number of waiting connections by user id.
#[derive(Clone, Debug, Default)]
pub(super) struct Unidentified(Arc<Mutex<HashMap<u32, usize>>>);

/// Place of a waiting connection, which is given back when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    all: Unidentified,
    uid: u32,
}

impl Unidentified {
    /// Returns a place for one more connection of a user; `None` if the user has its share of the places.
    pub(super) fn place(&self, uid: u32) -> Option<Place> {
        let mut counts = self.counts();
        let others = counts.len() - usize::from(counts.contains_key(&uid));
        let count = counts.entry(uid).or_default();
        if *count >= (PLACES / (others + 1)).clamp(1, MOST) {
            return None;
        }
        *count += 1;
        Some(Place { all: self.clone(), uid })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        // Every change under the lock is complete, so a poisoned lock is usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.all.counts();
        if let Some(count) = counts.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;
    use tokio::task::{JoinHandle, yield_now};

    use super::*;
    use crate::connections::Closer;

    fn uid_alone(question: Question) {
        identify(&UserGroups::default(), question);
    }

    #[tokio::test]
    async fn a_user_waits_for_no_flood_of_another() {
        let (thread, mut waiting) = FairThread::without_thread();
        let (identifier, closer) = (Identifier(thread), Closer::start().unwrap());
        let mut peers = Vec::new();
        let mut connect = |uid, number| -> JoinHandle<Option<Answer>> {
            let (ours, theirs) = UnixStream::pair().unwrap();
            peers.push(theirs);
            let (identifier, socket) = (identifier.clone(), PeerSocket::new(ours, &closer));
            tokio::spawn(async move { identifier.identify(uid, ConnectionId(number), socket).await })
        };
        let flood: Vec<_> = (0..100).map(|number| connect(1, number)).collect();
        yield_now().await;
        (0..9).for_each(|_| assert!(waiting.work_on_next(uid_alone)));
        let other = connect(2, 100);
        yield_now().await;
        waiting.work_on_next(uid_alone);
        let (peer, _socket) = other.await.unwrap().unwrap();
        assert_eq!(peer.unwrap().pid, std::process::id());
        assert!(flood.iter().filter(|waiting| waiting.is_finished()).count() < 10);
    }

    #[tokio::test]
    async fn a_peer_that_hung_up_is_not_identified() {
        let (thread, mut waiting) = FairThread::without_thread();
        let (identifier, closer) = (Identifier(thread), Closer::start().unwrap());
        let (ours, theirs) = UnixStream::pair().unwrap();
        let socket = PeerSocket::new(ours, &closer);
        let asked = tokio::spawn(async move { identifier.identify(1, ConnectionId(1), socket).await });
        yield_now().await;
        drop(theirs);
        waiting.work_on_next(uid_alone);
        assert!(asked.await.unwrap().unwrap().0.is_err());
    }

    #[test]
    fn users_share_the_places_and_each_has_one() {
        let all = Unidentified::default();
        let fill = |uid| std::iter::from_fn(|| all.place(uid)).collect::<Vec<_>>();
        let first = fill(1);
        assert_eq!(first.len(), MOST);
        let many: Vec<_> = (2..10_000).flat_map(fill).collect();
        assert!(fill(10_000).len() == 1 && many.len() < 10 * PLACES + 10_000, "{}", many.len());
        drop((first, many));
        assert_eq!(fill(3).len(), MOST);
        assert!(all.counts().is_empty());
    }
}
