//! Waiting for other processes: until a condition holds, and never for ever.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;

/// How long anything on a busy machine may take before it counts as stuck.
pub const PATIENCE: Duration = Duration::from_secs(60);

const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Looks until `look` finds something.
pub fn until<T>(what: &str, look: impl FnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    until_within(PATIENCE, what, look)
}

/// Looks until `look` finds something, for at most `patience`.
pub fn until_within<T>(
    patience: Duration,
    what: &str,
    mut look: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if start.elapsed() > patience {
            bail!("waited {patience:?} in vain: {what}");
        }
        thread::sleep(LOOK_EVERY);
    }
}
