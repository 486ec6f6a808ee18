//! Upkeep of what new pods get: NVML that hangs is noticed, and changes of the driver are followed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::notes::Notes;
use crate::supply::Supply;
use crate::watch::Watch;

/// Interval between two looks at the thread that asks NVML.
const EVERY: Duration = Duration::from_millis(250);
/// Interval between two looks at the driver and NVIDIA's spec.
const RENEWAL: Duration = Duration::from_secs(30);

/// Keeps the supply and the health up to date for ever.
pub(crate) async fn upkeep(supply: Arc<Supply>, watch: Watch, notes: Arc<Notes>) {
    let mut next_renewal = Instant::now() + RENEWAL;
    loop {
        tokio::time::sleep(EVERY).await;
        watch.check(Instant::now());
        if Instant::now() < next_renewal {
            continue;
        }
        next_renewal = Instant::now() + RENEWAL;
        let supply = Arc::clone(&supply);
        // It runs `ldconfig` and reads files of the host.
        if let Ok(Err(problem)) = tokio::task::spawn_blocking(move || supply.renew()).await {
            notes.warn(&format!("new pods get what was known before: {problem}"));
        }
    }
}
