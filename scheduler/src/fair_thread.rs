//! Thread that works on items of the users in turn, by the time that each one cost (`fair.rs`).

use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::{io, thread};

use gpushare_proto::Nanos;
use gpushare_sys::{clock, cpu};

use crate::fair::FairQueue;

/// Sender of items `T` from the connections `C` of the users `U` to the thread.
#[derive(Debug)]
pub(crate) struct FairThread<U, C, T>(Arc<Shared<U, C, T>>);

#[derive(Debug)]
struct Shared<U, C, T> {
    queue: Mutex<FairQueue<U, C, T>>,
    news: Condvar,
}

impl<U, C, T> Clone for FairThread<U, C, T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<U, C, T> Shared<U, C, T> {
    fn queue(&self) -> MutexGuard<'_, FairQueue<U, C, T>> {
        // No function of the queue panics, so a poisoned lock is usable.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<U: Clone + Eq + Hash, C: Copy + Ord, T> FairThread<U, C, T> {
    /// Creates the queue without the thread.
    pub(crate) fn without_thread() -> Self {
        Self(Arc::new(Shared { queue: Mutex::new(FairQueue::new()), news: Condvar::new() }))
    }

    /// Does one round of the thread's work.
    #[cfg(test)]
    pub(crate) fn work_on_next(&self, mut work: impl FnMut(T)) {
        self.0.work_on_next(&mut work);
    }

    /// Starts the thread, which does `work` for each item as long as the daemon runs.
    pub(crate) fn start(name: &str, mut work: impl FnMut(T) + Send + 'static) -> io::Result<Self>
    where
        U: Send + 'static,
        C: Send + 'static,
        T: Send + 'static,
    {
        let sender = Self::without_thread();
        let shared = sender.0.clone();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            // A flood of strangers decides how much there is to do.
            cpu::yield_to_others();
            loop {
                shared.work_on_next(&mut work);
            }
        })?;
        Ok(sender)
    }

    pub(crate) fn push(&self, user: &U, connection: C, item: T) {
        self.0.queue().push(user, connection, item);
        self.0.news.notify_one();
    }
}

impl<U: Clone + Eq + Hash, C: Copy + Ord, T> Shared<U, C, T> {
    fn work_on_next(&self, work: &mut impl FnMut(T)) {
        let mut queue = self.queue();
        let (ticket, item) = loop {
            match queue.pop() {
                Some(next) => break next,
                None => queue = self.news.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(queue);
        let began = clock::thread();
        work(item);
        let took = clock::thread() - began;
        self.queue().charge(ticket, took.max(Nanos(1)), 1);
    }
}
