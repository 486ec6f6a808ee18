//! Producer of the page's events: one connection to the engine for all viewers, and only while there are any.
//!
//! ```text
//!   engine ─▶ increments, events of a watch ─▶ model ─▶ one text a tick ─▶ queue of a viewer ─▶ its connection
//! ```
//!
//! A viewer is disconnected when its queue is full or its key is over. The engine never waits for one.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use gpushare_proto::admin::{AdminReply, AdminRequest};
use gpushare_sys::clock;
use hyper::body::{Body, Bytes, Frame};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{MissedTickBehavior, interval};

use super::Source;
use super::keys::{Rights, Role};
use super::lanes::TICK;
use super::model::Model;
use crate::connections::InternalConnection;
use crate::identity::PeerProcess;

/// Number of messages that wait for a slow viewer: those of a quarter of a minute.
const QUEUE: usize = 60;
/// Largest number of viewers without a key, and the same of viewers with one.
const VIEWERS: usize = 16;
/// Number of ticks for which the watch goes on after the last viewer has left.
const LINGER: u32 = 20;

/// Producer's end of one viewer's queue.
#[derive(Debug)]
struct Viewer {
    /// Rights of its key; none without a key.
    rights: Option<Rights>,
    queue: mpsc::Sender<Bytes>,
    /// Ends the viewer's connection.
    cut: Arc<Notify>,
    has_all: bool,
}

/// Body of a viewer's answer: the messages of its queue.
#[derive(Debug)]
pub(super) struct Stream {
    queue: mpsc::Receiver<Bytes>,
    _place: OwnedSemaphorePermit,
}

/// Viewers that have come, and the places for more.
#[derive(Debug)]
pub(super) struct Feed {
    newcomers: Mutex<Vec<Viewer>>,
    news: Notify,
    guests: Arc<Semaphore>,
    known: Arc<Semaphore>,
}

impl Feed {
    pub(super) fn new() -> Self {
        let places = || Arc::new(Semaphore::new(VIEWERS));
        Self {
            newcomers: Mutex::default(),
            news: Notify::new(),
            guests: places(),
            known: places(),
        }
    }

    /// Adds a viewer; none if there are too many. `cut` ends the connection if the viewer is too slow.
    pub(super) fn join(&self, rights: Option<&Rights>, cut: Arc<Notify>) -> Option<Stream> {
        let places = if rights.is_some() { &self.known } else { &self.guests };
        let place = places.clone().try_acquire_owned().ok()?;
        let (queue, receiver) = mpsc::channel(QUEUE);
        let rights = rights.cloned();
        let role = rights.as_ref().map_or(Role::Guest, |rights| rights.role);
        let hello = format!("event: hello\ndata: {{\"role\":\"{}\"}}\n\n", role.name());
        // The queue is empty.
        let _ = queue.try_send(hello.into());
        let viewer = Viewer { rights, queue, cut, has_all: false };
        self.newcomers.lock().unwrap_or_else(PoisonError::into_inner).push(viewer);
        self.news.notify_one();
        Some(Stream { queue: receiver, _place: place })
    }

    fn newcomers(&self) -> Vec<Viewer> {
        std::mem::take(&mut *self.newcomers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Serves the viewers. Watches the engine while there are any.
    pub(super) async fn produce(&self, source: &Source, own: PeerProcess) {
        loop {
            let mut viewers = self.newcomers();
            if viewers.is_empty() {
                self.news.notified().await;
                continue;
            }
            self.watch(source, own.clone(), &mut viewers).await;
            // The engine found the watch too slow. Viewers that connect again get everything.
            viewers.iter().for_each(|viewer| viewer.cut.notify_one());
        }
    }

    /// Watches the engine until all viewers have left, or the engine closes the watch.
    async fn watch(&self, source: &Source, own: PeerProcess, viewers: &mut Vec<Viewer>) {
        let mut connection = InternalConnection::open(&source.acceptor, own).await;
        connection.ask(AdminRequest::Watch).await;
        connection.ask(AdminRequest::Follow).await;
        let mut model = Model::new(source.uptime());
        let mut tick = interval(TICK.into());
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut empty = 0;
        loop {
            tokio::select! {
                reply = connection.hear() => match reply {
                    Some(AdminReply::Events(events)) => events.iter().for_each(|event| model.apply(event)),
                    Some(AdminReply::Increments(increments)) => model.follow(&increments),
                    Some(_) => {}
                    None => return,
                },
                _ = tick.tick() => {
                    viewers.extend(self.newcomers());
                    model.pass(source.uptime());
                    send(&mut model, viewers);
                    empty = if viewers.is_empty() { empty + 1 } else { 0 };
                    if empty > LINGER {
                        return;
                    }
                }
            }
        }
    }
}

/// Sends each viewer what it lacks, and removes those that are over or do not read.
fn send(model: &mut Model, viewers: &mut Vec<Viewer>) {
    if !model.is_complete() {
        return;
    }
    let now = clock::boot();
    let mut texts: VecDeque<((bool, bool), Bytes)> = VecDeque::new();
    viewers.retain_mut(|viewer| {
        if viewer.rights.as_ref().is_some_and(|rights| rights.are_over(now)) {
            viewer.cut.notify_one();
            return false;
        }
        // Each of the four texts is written once, for all viewers that need it.
        let names = viewer.rights.is_some();
        let form = (names, viewer.has_all);
        let known = texts.iter().find(|(known, _)| *known == form).map(|(_, text)| text.clone());
        let text = known.unwrap_or_else(|| {
            let text: Bytes = if viewer.has_all { model.more(names) } else { model.full(names) }.into();
            texts.push_back((form, text.clone()));
            text
        });
        viewer.has_all = true;
        match viewer.queue.try_send(text) {
            Ok(()) => true,
            Err(TrySendError::Closed(_)) => false,
            Err(TrySendError::Full(_)) => {
                viewer.cut.notify_one();
                false
            }
        }
    });
    model.sent();
}

impl Body for Stream {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.queue.poll_recv(context).map(|text| text.map(|text| Ok(Frame::data(text))))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gpushare_proto::Nanos;
    use gpushare_proto::follow::Increments;
    use tokio::time::timeout;

    use super::*;

    fn rights(ends: Nanos) -> Rights {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        Rights::new(Role::Viewer, PeerProcess::of(&ours).unwrap(), ends)
    }

    fn viewer(rights: Option<Rights>) -> (Viewer, mpsc::Receiver<Bytes>, Arc<Notify>) {
        let (queue, receiver) = mpsc::channel(QUEUE);
        let cut = Arc::new(Notify::new());
        (Viewer { rights, queue, cut: cut.clone(), has_all: false }, receiver, cut)
    }

    fn complete() -> Model {
        let mut model = Model::new(Nanos::ZERO);
        model.follow(&Increments { whole: true, ..Increments::default() });
        model
    }

    async fn is_cut(cut: &Notify) -> bool {
        timeout(Duration::ZERO, cut.notified()).await.is_ok()
    }

    #[tokio::test]
    async fn a_viewer_that_does_not_read_is_cut_and_the_others_are_not() {
        let mut model = complete();
        let (slow, _unread, slow_cut) = viewer(None);
        let (good, mut read, good_cut) = viewer(Some(rights(Nanos::MAX)));
        let mut viewers = vec![slow, good];
        for _ in 0..=QUEUE {
            assert_eq!(viewers.len(), 2);
            send(&mut model, &mut viewers);
            assert!(read.recv().await.is_some());
        }
        assert_eq!(viewers.len(), 1);
        assert!(is_cut(&slow_cut).await && !is_cut(&good_cut).await);
    }

    #[tokio::test]
    async fn a_viewer_leaves_with_its_connection_or_when_its_key_is_over() {
        let mut model = complete();
        let (gone, receiver, _) = viewer(None);
        let (over, _receiver, cut) = viewer(Some(rights(Nanos(1))));
        drop(receiver);
        let mut viewers = vec![gone, over];
        send(&mut model, &mut viewers);
        assert!(viewers.is_empty() && is_cut(&cut).await);
    }

    #[tokio::test]
    async fn nothing_is_sent_before_the_state_is_whole() {
        let mut model = Model::new(Nanos::ZERO);
        let (new, mut receiver, _) = viewer(None);
        let mut viewers = vec![new];
        send(&mut model, &mut viewers);
        assert!(receiver.try_recv().is_err());
        model.follow(&Increments { whole: true, ..Increments::default() });
        send(&mut model, &mut viewers);
        assert!(receiver.try_recv().unwrap().starts_with(b"data: {\"kind\":\"full\""));
        send(&mut model, &mut viewers);
        assert!(receiver.try_recv().unwrap().starts_with(b"data: {\"kind\":\"more\""));
    }

    #[test]
    fn the_places_of_guests_and_of_viewers_with_a_key_are_apart() {
        let feed = Feed::new();
        let join = |rights: Option<&Rights>| feed.join(rights, Arc::default());
        let guests: Vec<Stream> = (0..VIEWERS).map(|_| join(None).unwrap()).collect();
        assert!(join(None).is_none());
        let _known = join(Some(&rights(Nanos::MAX))).unwrap();
        drop(guests);
        assert!(join(None).is_some());
    }
}
