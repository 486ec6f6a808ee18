//! Connections to an HTTP server. If a new one exceeds their limit, another one is closed.
//!
//! ```text
//!   oldest ─────────────────────────────▶ newest
//!   asked   silent   known   silent   asked          a new connection
//!             └── closed first; then the oldest that asked; those that showed a key last
//! ```
//!
//! A scraper sends its request as soon as it is connected, and its connection is the newest then. So it is
//! closed last of its rank.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::task::JoinHandle;

#[derive(Debug)]
pub(super) struct Connections {
    most: usize,
    open: VecDeque<(Rank, JoinHandle<()>)>,
}

/// Rank of a connection: those of the lowest rank are closed first. A new connection is silent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rank(Arc<AtomicU8>);

impl Rank {
    /// Notes that the connection has sent a request.
    pub(crate) fn asked(&self) {
        self.0.fetch_max(1, Ordering::Relaxed);
    }

    /// Notes that the connection has shown a valid key.
    pub(crate) fn known(&self) {
        self.0.fetch_max(2, Ordering::Relaxed);
    }
}

impl Connections {
    pub(super) fn new(most: usize) -> Self {
        Self { most, open: VecDeque::with_capacity(most) }
    }

    /// Serves one more connection. Closes another connection first if there are too many.
    pub(super) fn add<F>(&mut self, serve: impl FnOnce(Rank) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.open.retain(|(_, task)| !task.is_finished());
        if self.open.len() >= self.most {
            self.close_one();
        }
        let rank = Rank::default();
        let task = tokio::spawn(serve(rank.clone()));
        self.open.push_back((rank, task));
    }

    /// Closes the oldest connection of the lowest rank.
    pub(super) fn close_one(&mut self) {
        let open = self.open.iter().map(|(rank, _)| rank.0.load(Ordering::Relaxed)).enumerate();
        // Of equal ones the first is the oldest.
        let first = open.min_by_key(|&(_, rank)| rank);
        if let Some((_, task)) = first.and_then(|(at, _)| self.open.remove(at)) {
            task.abort();
        }
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.open.iter().for_each(|(_, task)| task.abort());
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Mutex;

    use tokio::task::yield_now;

    use super::*;

    /// Records its number when its connection is closed.
    struct Closing(u32, Arc<Mutex<Vec<u32>>>);

    impl Drop for Closing {
        fn drop(&mut self) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    async fn stay(_closing: Closing) {
        pending::<()>().await;
    }

    #[tokio::test]
    async fn silent_connections_are_closed_first_then_the_oldest() {
        let closed = Arc::new(Mutex::new(Vec::new()));
        let mut connections = Connections::new(3);
        for number in 1..=8 {
            connections.add(|rank| {
                // All but the second and the fifth ask, and then never read their answer.
                if number != 2 && number != 5 {
                    rank.asked();
                }
                stay(Closing(number, closed.clone()))
            });
            yield_now().await;
        }
        assert_eq!(*closed.lock().unwrap(), [2, 1, 5, 3, 4]);
    }

    #[tokio::test]
    async fn connections_with_a_key_are_closed_last() {
        let closed = Arc::new(Mutex::new(Vec::new()));
        let mut connections = Connections::new(2);
        for number in 1..=5 {
            connections.add(|rank| {
                rank.asked();
                if number == 1 {
                    rank.known();
                }
                stay(Closing(number, closed.clone()))
            });
            yield_now().await;
        }
        assert_eq!(*closed.lock().unwrap(), [2, 3, 4]);
    }

    #[tokio::test]
    async fn a_served_connection_closes_no_other() {
        let closed = Arc::new(Mutex::new(Vec::new()));
        let mut connections = Connections::new(2);
        connections.add(|_| stay(Closing(1, closed.clone())));
        for _ in 0..10 {
            connections.add(|_| async {});
            yield_now().await;
        }
        assert_eq!(*closed.lock().unwrap(), [0; 0]);
    }
}
