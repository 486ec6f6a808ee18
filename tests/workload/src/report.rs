//! How a program ends: one JSON line on stdout, and an exit code.

use std::process::ExitCode;

use serde::Serialize;
use serde_json::{Value, json};

use crate::error::CudaError;

/// Prints the last line and turns the outcome into an exit code: 0 if `ok`, else 1.
pub fn finish<T: Serialize>(outcome: Result<T, CudaError>) -> ExitCode {
    let line = match outcome.map(|report| serde_json::to_value(report)) {
        Ok(Ok(report)) => report,
        Ok(Err(error)) => json!({ "ok": false, "error": "report", "message": error.to_string() }),
        Err(error) => error.report(),
    };
    println!("{line}");
    match line.get("ok") {
        Some(Value::Bool(false)) => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

/// The `percent`-th percentile of sorted values by the nearest rank; the default if there are none.
pub fn percentile<T: Copy + Default>(sorted: &[T], percent: usize) -> T {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        assert_eq!(percentile(&[1, 2, 3, 4], 50), 2);
        assert_eq!(percentile(&[1, 2, 3, 4], 99), 4);
        assert_eq!(percentile::<u64>(&[], 50), 0);
    }
}
