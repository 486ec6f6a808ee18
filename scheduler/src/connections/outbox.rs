//! Outbox of a connection: a bounded queue of messages. Replies to acts of administrators are held until
//! these are in the registry file.
//!
//! An urgent message goes out at once if no other one waits and the socket has room. So a process learns of
//! its turn before the engine has finished with the event that led to it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Weak};

use gpushare_proto::codec::{self, Message};
use tokio::sync::{mpsc, oneshot};

use super::socket::{Passed, PeerWriter};

/// Largest number of messages that wait for a slow peer, beyond those in the kernel's buffer.
const QUEUE: usize = 64;
/// Largest memory of unread messages with which a peer still gets descriptors. The kernel takes about a KiB
/// for each.
const MOST_UNREAD: usize = 16 << 10;
/// Longest message that the engine sends itself, in bytes.
const SHORT: usize = 1024;

#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) frame: Vec<u8>,
    pub(super) descriptor: Option<Box<dyn Passed>>,
    /// Whether the connection ends once this message is sent.
    pub(super) last: bool,
}

impl Outgoing {
    fn of<M: Message>(message: &M) -> Result<Self, Unsent> {
        let frame = codec::encode(message).map_err(|_| Unsent::TooLong)?;
        Ok(Self { frame, descriptor: None, last: false })
    }
}

/// Sender of messages to one peer. Dropping the outbox closes the connection at once.
#[derive(Debug)]
pub(crate) struct Outbox {
    queue: mpsc::Sender<Outgoing>,
    /// Writer of the connection's socket, while there is one.
    writer: Weak<PeerWriter>,
    /// Held messages. A reply waits until the registry file has the act of this number; later ones queue.
    held: VecDeque<(Option<u64>, Outgoing)>,
    _open: oneshot::Sender<Infallible>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unsent {
    #[error("it does not read")]
    Full,
    #[error("what it asked for is longer than a message may be")]
    TooLong,
}

impl Outbox {
    /// Creates an outbox with its queue. Also returns a channel that closes when the outbox is dropped.
    pub(super) fn new() -> (Self, mpsc::Receiver<Outgoing>, oneshot::Receiver<Infallible>) {
        let (queue, outgoing) = mpsc::channel(QUEUE);
        let (_open, closed) = oneshot::channel();
        (Self { queue, writer: Weak::new(), held: VecDeque::new(), _open }, outgoing, closed)
    }

    /// Creates an outbox like [`Self::new`], for the peer of this writer.
    pub(super) fn of(
        writer: &Arc<PeerWriter>,
    ) -> (Self, mpsc::Receiver<Outgoing>, oneshot::Receiver<Infallible>) {
        let (outbox, outgoing, closed) = Self::new();
        (Self { writer: Arc::downgrade(writer), ..outbox }, outgoing, closed)
    }

    pub(crate) fn send<M: Message>(&mut self, message: &M) -> Result<(), Unsent> {
        self.push(Outgoing::of(message)?)
    }

    /// Queues a message that is encoded already.
    pub(crate) fn send_frame(&mut self, frame: Vec<u8>) -> Result<(), Unsent> {
        self.push(Outgoing { frame, descriptor: None, last: false })
    }

    /// Queues a message that a descriptor goes with.
    pub(crate) fn send_with<M: Message>(
        &mut self,
        message: &M,
        descriptor: impl Passed + 'static,
    ) -> Result<(), Unsent> {
        self.push(Outgoing { descriptor: Some(Box::new(descriptor)), ..Outgoing::of(message)? })
    }

    /// Queues the last message of a connection, which ends after sending it.
    pub(crate) fn send_last<M: Message>(&mut self, message: &M) -> Result<(), Unsent> {
        self.push(Outgoing { last: true, ..Outgoing::of(message)? })
    }

    /// Holds a message, and all later ones, until [`Self::release`] is called for the act that it answers.
    pub(crate) fn send_after<M: Message>(&mut self, act: u64, message: &M) -> Result<(), Unsent> {
        self.hold(Some(act), Outgoing::of(message)?)
    }

    /// Sends the held replies to all acts up to number `through`. Replaces the last one by `instead`, if
    /// given.
    pub(crate) fn release<M: Message>(&mut self, through: u64, instead: Option<&M>) -> Result<(), Unsent> {
        let is_due = |(act, _): &(Option<u64>, Outgoing)| act.is_none_or(|act| act <= through);
        let due = self.held.iter().take_while(|held| is_due(held)).count();
        let due: Vec<_> = self.held.drain(..due).collect();
        for (act, outgoing) in due {
            let instead = instead.filter(|_| act == Some(through)).map(Outgoing::of).transpose()?;
            self.enqueue(instead.unwrap_or(outgoing))?;
        }
        Ok(())
    }

    /// Returns whether half of the queue is full. The peer then gets only messages that it depends on.
    pub(crate) fn is_behind(&self) -> bool {
        self.queue.capacity() < QUEUE / 2
    }

    /// Returns whether the peer has read most of what it was sent. One that has not gets no further
    /// descriptor that it can ask for without end: the kernel bounds the descriptors that the daemon has on
    /// their way.
    pub(crate) fn has_been_read(&self) -> bool {
        !self.is_behind() && self.writer.upgrade().is_none_or(|writer| writer.unread() <= MOST_UNREAD)
    }

    /// Returns whether the peer takes no message any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Sends a short message at once, or queues it behind others and what does not fit.
    pub(crate) fn send_urgent<M: Message>(&mut self, message: &M) -> Result<(), Unsent> {
        let mut outgoing = Outgoing::of(message)?;
        let is_next = self.held.is_empty() && self.queue.capacity() == QUEUE;
        if is_next
            && outgoing.frame.len() <= SHORT
            && let Some(writer) = self.writer.upgrade()
        {
            let sent = writer.send_now(&outgoing.frame);
            if sent == outgoing.frame.len() {
                return Ok(());
            }
            outgoing.frame.drain(..sent);
        }
        self.push(outgoing)
    }

    fn push(&mut self, outgoing: Outgoing) -> Result<(), Unsent> {
        match self.held.is_empty() {
            true => self.enqueue(outgoing),
            false => self.hold(None, outgoing),
        }
    }

    fn hold(&mut self, act: Option<u64>, outgoing: Outgoing) -> Result<(), Unsent> {
        if self.held.len() >= QUEUE {
            return Err(Unsent::Full);
        }
        self.held.push_back((act, outgoing));
        Ok(())
    }

    fn enqueue(&self, outgoing: Outgoing) -> Result<(), Unsent> {
        match self.queue.try_send(outgoing) {
            // A connection that has just ended reports that itself.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Unsent::Full),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future as _, poll_fn};
    use std::io::Read as _;
    use std::os::unix::net::UnixStream as BlockingStream;
    use std::pin::pin;
    use std::task::Poll;

    use gpushare_proto::codec::HEADER;
    use gpushare_proto::tenant::{GpuInfo, PROTOCOL, TenantReply, TenantRequest};
    use gpushare_proto::{Bytes, GpuUuid};

    use tokio::net::UnixStream;

    use super::super::socket::{Closer, PeerSocket};
    use super::*;

    #[test]
    fn held_replies_go_out_in_order_and_failed_ones_are_replaced() {
        let (mut outbox, mut outgoing, _) = Outbox::new();
        let said = |protocol| TenantReply::Ready { protocol };
        assert_eq!(outbox.send_after(1, &said(1)), Ok(()));
        assert_eq!(outbox.send(&said(2)), Ok(()));
        assert_eq!(outbox.send_after(2, &said(3)), Ok(()));
        assert_eq!(outbox.send(&said(4)), Ok(()));
        assert!(outgoing.try_recv().is_err());
        let mut heard = || {
            let frame = outgoing.try_recv().ok()?.frame;
            codec::decode::<TenantReply>(&frame[HEADER..]).ok()
        };
        assert_eq!(outbox.release::<TenantReply>(1, None), Ok(()));
        assert_eq!((heard(), heard(), heard()), (Some(said(1)), Some(said(2)), None));
        assert_eq!(outbox.release(2, Some(&said(9))), Ok(()));
        assert_eq!((heard(), heard(), heard()), (Some(said(9)), Some(said(4)), None));
    }

    #[tokio::test]
    async fn an_urgent_message_goes_out_at_once_but_not_before_or_within_another() {
        let (ours, mut theirs) = BlockingStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut socket = PeerSocket::new(UnixStream::from_std(ours).unwrap(), &Closer::start().unwrap());
        let (_, writer) = socket.split().unwrap();
        let (mut outbox, mut outgoing, _closed) = Outbox::of(writer);
        let said = |protocol| TenantReply::Ready { protocol };
        let frame = |protocol| codec::encode(&said(protocol)).unwrap();

        assert_eq!(outbox.send_urgent(&said(1)), Ok(()));
        let mut heard = frame(0);
        theirs.read_exact(&mut heard).unwrap();
        assert_eq!(heard, frame(1));
        assert!(outgoing.try_recv().is_err());

        assert_eq!(outbox.send(&said(2)), Ok(()));
        assert_eq!(outbox.send_urgent(&said(3)), Ok(()));
        let queued = [outgoing.try_recv(), outgoing.try_recv()].map(|queued| queued.unwrap().frame);
        assert_eq!(queued, [frame(2), frame(3)]);

        let long = vec![0; 4 << 20];
        let mut sending = pin!(writer.send(&long, None));
        let is_pending = poll_fn(|context| Poll::Ready(sending.as_mut().poll(context).is_pending()));
        assert!(is_pending.await, "the peer does not read");
        assert_eq!(outbox.send_urgent(&said(4)), Ok(()));
        assert_eq!(outgoing.try_recv().unwrap().frame, frame(4));
    }

    #[test]
    fn a_message_that_is_too_long_is_no_full_queue() {
        let (mut outbox, _outgoing, _) = Outbox::new();
        let long = TenantRequest::Attach(GpuInfo {
            uuid: GpuUuid::gpu([1; 16]),
            name: "x".repeat(32 << 20),
            total: Bytes::gib(1),
        });
        assert_eq!(outbox.send(&long), Err(Unsent::TooLong));
        let ready = TenantReply::Ready { protocol: PROTOCOL };
        for _ in 0..QUEUE {
            assert_eq!(outbox.send(&ready), Ok(()));
        }
        assert_eq!(outbox.send(&ready), Err(Unsent::Full));
    }
}
