//! Waits for the deaths of processes.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use gpushare_sys::peer;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;
use tracing::warn;

/// Interval of checks whether a process is dead, if its pidfd cannot be watched.
const POLL: Duration = Duration::from_millis(20);

/// Completes when the process of a pidfd is dead.
///
/// Watches a copy, because a descriptor can be watched only once and several tasks may wait for one process.
/// Checks periodically if no descriptor is left for the copy.
#[expect(
    deprecated,
    reason = "the safe constructor; an `OwnedFd` keeps the promise that the unsafe one asks for"
)]
pub(crate) async fn death(pidfd: Arc<OwnedFd>) {
    let watch = |copy| AsyncFd::with_interest(copy, Interest::READABLE);
    match pidfd.try_clone().and_then(watch) {
        // Fails only when the runtime ends.
        Ok(watched) => drop(watched.readable().await),
        Err(error) => {
            warn!("cannot watch a process for its death, so it is polled every {POLL:?}: {error}");
            while !peer::is_dead(&pidfd) {
                tokio::time::sleep(POLL).await;
            }
        }
    }
}

/// Task that waits for a process's death. Dropping the watch ends the task, because a task costs descriptors.
#[derive(Debug, Default)]
pub(crate) struct Watch(Option<AbortHandle>);

impl Watch {
    /// Starts a task that runs `then` once the process is dead.
    pub(crate) fn over(pidfd: Arc<OwnedFd>, then: impl Future<Output = ()> + Send + 'static) -> Self {
        let watching = tokio::spawn(async move {
            death(pidfd).await;
            then.await;
        });
        Self(Some(watching.abort_handle()))
    }

    /// Keeps the task alive until the process is dead.
    pub(crate) fn until_death(mut self) {
        self.0 = None;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(watching) = &self.0 {
            watching.abort();
        }
    }
}
