//! Who is connected to the metrics' endpoint, and who leaves when another comes and there is no place.
//!
//! ```text
//!   oldest ─────────────────────────────▶ newest
//!   asked   silent   asked   silent   asked          a new guest
//!             └── leaves first; without any silent one, the oldest of all
//! ```
//!
//! A scraper asks as soon as it is connected and is the newest then, so it is the last to leave.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinHandle;

/// Connections being attended, the oldest first.
#[derive(Debug)]
pub(super) struct Guests {
    most: usize,
    present: VecDeque<Seat>,
}

#[derive(Debug)]
struct Seat {
    guest: Guest,
    attending: JoinHandle<()>,
}

/// What is known of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Guest(Arc<AtomicBool>);

impl Guest {
    /// Its request has arrived.
    pub(super) fn asks(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_silent(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }
}

impl Guests {
    /// None yet, and never more than `most`.
    pub(super) fn new(most: usize) -> Self {
        Self { most, present: VecDeque::with_capacity(most) }
    }

    /// Attends one more. Another leaves for it if there are too many.
    pub(super) fn admit<F>(&mut self, attend: impl FnOnce(Guest) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.present.retain(|seat| !seat.attending.is_finished());
        if self.present.len() >= self.most {
            self.dismiss_one();
        }
        let guest = Guest::default();
        let attending = tokio::spawn(attend(guest.clone()));
        self.present.push_back(Seat { guest, attending });
    }

    /// Closes a connection.
    pub(super) fn dismiss_one(&mut self) {
        let silent = self.present.iter().position(|seat| seat.guest.is_silent());
        if let Some(seat) = self.present.remove(silent.unwrap_or(0)) {
            seat.attending.abort();
        }
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        self.present.iter().for_each(|seat| seat.attending.abort());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::pending;
    use std::sync::Mutex;

    use tokio::task::yield_now;

    use super::*;

    /// Says its number when it is closed.
    struct Closing(u32, Arc<Mutex<Vec<u32>>>);

    impl Drop for Closing {
        fn drop(&mut self) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    #[tokio::test]
    async fn who_never_reads_leaves_after_the_silent_and_the_newest_stays() {
        let left = Arc::new(Mutex::new(Vec::new()));
        let known = RefCell::new(Vec::new());
        let mut guests = Guests::new(3);
        for number in 1..=8 {
            guests.admit(|guest| {
                known.borrow_mut().push(guest.clone());
                let closing = Closing(number, left.clone());
                async move {
                    let _closing = closing;
                    pending::<()>().await;
                }
            });
            // All but the second and the fifth ask, and then never read their answer.
            if number != 2 && number != 5 {
                known.borrow()[number as usize - 1].asks();
            }
            yield_now().await;
        }
        assert_eq!(*left.lock().unwrap(), [2, 1, 5, 3, 4]);
    }

    #[tokio::test]
    async fn who_is_served_makes_no_other_leave() {
        let left = Arc::new(Mutex::new(Vec::new()));
        let mut guests = Guests::new(2);
        let closing = Closing(1, left.clone());
        guests.admit(|_| async move {
            let _closing = closing;
            pending::<()>().await;
        });
        for _ in 0..10 {
            guests.admit(|_| async {});
            yield_now().await;
        }
        assert_eq!(*left.lock().unwrap(), [0; 0]);
    }
}
