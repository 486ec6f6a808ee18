//! Many measurements in one number.

use std::time::Duration;

use anyhow::Context;

/// The `percent`-th percentile in microseconds, by the nearest rank.
pub(crate) fn microseconds(mut took: Vec<Duration>, percent: usize) -> anyhow::Result<f64> {
    took.sort_unstable();
    let rank = (took.len() * percent).div_ceil(100);
    let value = took.get(rank.saturating_sub(1)).context("nothing was measured")?;
    Ok((value.as_secs_f64() * 1e7).round() / 10.0)
}
