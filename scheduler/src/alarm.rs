//! Timer of the daemon's task, which rings however much other work there is.
//!
//! The runtime rounds a timer up to its next tick of a millisecond. A timer that is made anew for each input
//! would therefore never ring while inputs come faster than that, and no turn would end.

use std::future;
use std::pin::Pin;
use std::time::Duration;

use gpushare_proto::Nanos;
use gpushare_sys::clock;
use tokio::time::{Instant, Sleep, sleep};

/// Timer that lasts while inputs are handled.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: Pin<Box<Sleep>>,
    /// Point in monotonic time for which the timer is set.
    due: Option<Nanos>,
}

impl Alarm {
    pub(crate) fn new() -> Self {
        Self { timer: Box::pin(sleep(Duration::ZERO)), due: None }
    }

    /// Sets the alarm to ring by `due`. It rings earlier if it is set for an earlier time, so that times
    /// which move on with the clock do not put it off for ever.
    pub(crate) fn set(&mut self, due: Option<Nanos>) {
        let Some(due) = due.filter(|&due| self.due.is_none_or(|set| due < set)) else {
            return;
        };
        self.due = Some(due);
        self.timer.as_mut().reset(Instant::now() + (due - clock::monotonic()).into());
    }

    /// Waits until the alarm rings, for ever if it is not set.
    pub(crate) async fn ring(&mut self) {
        if self.due.is_none() {
            return future::pending().await;
        }
        self.timer.as_mut().await;
        self.due = None;
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn the_alarm_rings_while_other_inputs_never_pause() {
        let mut alarm = Alarm::new();
        let due = clock::monotonic() + Nanos::from_millis(5);
        let end = due + Nanos::from_secs(10);
        for input in 0_u64.. {
            alarm.set(Some(due));
            tokio::select! {
                () = alarm.ring() => break,
                () = future::ready(()) => assert!(clock::monotonic() < end, "it never rang"),
            }
            if input % 16 == 0 {
                yield_now().await;
            }
        }
        assert!(clock::monotonic() >= due);
        assert_eq!(alarm.due, None);
    }

    #[tokio::test]
    async fn the_alarm_rings_at_the_earliest_time_and_once() {
        let mut alarm = Alarm::new();
        let begun = clock::monotonic();
        for seconds in [3600, 0, 7200] {
            alarm.set(Some(begun + Nanos::from_secs(seconds)));
        }
        alarm.set(None);
        alarm.ring().await;
        tokio::select! {
            biased;
            () = alarm.ring() => panic!("it rang twice"),
            () = sleep(Duration::from_millis(5)) => {}
        }
    }
}
