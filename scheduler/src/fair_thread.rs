//! Thread that works on items of the users in turn, by the time that each one cost (`fair.rs`).

use std::hash::Hash;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::{io, thread};

use gpushare_proto::Nanos;
use gpushare_sys::clock;

use crate::fair::FairQueue;

/// Sender of items `T` from the connections `C` of the users `U` to the thread.
#[derive(Debug)]
pub(crate) struct FairThread<U, C, T>(Sender<(U, C, T)>);

/// Items that wait for the thread. No lock is held while it runs, since the daemon's task would wait for it.
#[derive(Debug)]
pub(crate) struct Waiting<U, C, T> {
    arriving: Receiver<(U, C, T)>,
    queue: FairQueue<U, C, T>,
}

impl<U, C, T> Clone for FairThread<U, C, T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<U: Clone + Eq + Hash, C: Copy + Ord, T> FairThread<U, C, T> {
    /// Creates the sender and the items without the thread.
    pub(crate) fn without_thread() -> (Self, Waiting<U, C, T>) {
        let (sender, arriving) = channel();
        (Self(sender), Waiting { arriving, queue: FairQueue::new() })
    }

    /// Starts the thread, which does `work` for each item until no sender is left.
    pub(crate) fn start(name: &str, mut work: impl FnMut(T) + Send + 'static) -> io::Result<Self>
    where
        U: Send + 'static,
        C: Send + 'static,
        T: Send + 'static,
    {
        let (sender, mut waiting) = Self::without_thread();
        thread::Builder::new().name(name.to_owned()).spawn(
            move || {
                while waiting.work_on_next(&mut work) {}
            },
        )?;
        Ok(sender)
    }

    pub(crate) fn push(&self, user: &U, connection: C, item: T) {
        // The thread lasts as long as its senders.
        let _ = self.0.send((user.clone(), connection, item));
    }
}

impl<U: Clone + Eq + Hash, C: Copy + Ord, T> Waiting<U, C, T> {
    /// Waits for an item and works on the next one. Returns `false` once no sender is left.
    pub(crate) fn work_on_next(&mut self, mut work: impl FnMut(T)) -> bool {
        if self.queue.is_empty() {
            let Ok((user, connection, item)) = self.arriving.recv() else {
                return false;
            };
            self.queue.push(&user, connection, item);
        }
        for (user, connection, item) in self.arriving.try_iter() {
            self.queue.push(&user, connection, item);
        }
        if let Some((ticket, item)) = self.queue.pop() {
            let began = clock::thread();
            work(item);
            let took = clock::thread() - began;
            self.queue.charge(ticket, took.max(Nanos(1)), 1);
        }
        true
    }
}
