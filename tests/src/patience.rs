//! Waiting for other processes: until a condition holds, and never for ever.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;

/// How long anything on a busy machine may take before it counts as stuck.
pub const PATIENCE: Duration = Duration::from_secs(60);

const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Looks until `look` finds something.
pub fn until<T>(what: &str, mut look: impl FnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if start.elapsed() > PATIENCE {
            bail!("waited {PATIENCE:?} in vain: {what}");
        }
        thread::sleep(LOOK_EVERY);
    }
}
