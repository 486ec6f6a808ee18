//! Connections to the metrics endpoint. If a new one exceeds their limit, another one is closed.
//!
//! ```text
//!   oldest ─────────────────────────────▶ newest
//!   asked   silent   asked   silent   asked          a new connection
//!             └── closed first; without a silent one, the oldest of all
//! ```
//!
//! A scraper sends its request as soon as it is connected, and its connection is the newest then. So it is
//! closed last.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinHandle;

#[derive(Debug)]
pub(super) struct Connections {
    most: usize,
    open: VecDeque<(Asked, JoinHandle<()>)>,
}

/// Flag that tells whether a connection has sent a request.
pub(super) type Asked = Arc<AtomicBool>;

impl Connections {
    pub(super) fn new(most: usize) -> Self {
        Self { most, open: VecDeque::with_capacity(most) }
    }

    /// Serves one more connection. Closes another connection first if there are too many.
    pub(super) fn add<F>(&mut self, serve: impl FnOnce(Asked) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.open.retain(|(_, task)| !task.is_finished());
        if self.open.len() >= self.most {
            self.close_one();
        }
        let asked = Asked::default();
        let task = tokio::spawn(serve(asked.clone()));
        self.open.push_back((asked, task));
    }

    /// Closes the oldest connection without a request, or else the oldest of all.
    pub(super) fn close_one(&mut self) {
        let silent = self.open.iter().position(|(asked, _)| !asked.load(Ordering::Relaxed));
        if let Some((_, task)) = self.open.remove(silent.unwrap_or(0)) {
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
            connections.add(|asked| {
                // All but the second and the fifth ask, and then never read their answer.
                if number != 2 && number != 5 {
                    asked.store(true, Ordering::Relaxed);
                }
                stay(Closing(number, closed.clone()))
            });
            yield_now().await;
        }
        assert_eq!(*closed.lock().unwrap(), [2, 1, 5, 3, 4]);
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
