//! Waits for the death of processes.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use gpushare_sys::peer;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;
use tracing::warn;

/// Interval at which a process is polled if its pidfd cannot be watched.
const POLL: Duration = Duration::from_millis(20);

/// Resolves when the process behind a pidfd is dead.
///
/// Watches a copy, because one descriptor can be watched only once and several tasks may wait for one
/// process. Polls if no descriptor is left for the copy.
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

/// Task that waits for a process's death. Dropping it ends the task, because each one costs descriptors.
#[derive(Debug, Default)]
pub(crate) struct Watch(Option<AbortHandle>);

impl Watch {
    /// Runs `then` once the process is dead.
    pub(crate) fn over(pidfd: Arc<OwnedFd>, then: impl Future<Output = ()> + Send + 'static) -> Self {
        let watching = tokio::spawn(async move {
            death(pidfd).await;
            then.await;
        });
        Self(Some(watching.abort_handle()))
    }

    /// Keeps the task until the process is dead.
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
