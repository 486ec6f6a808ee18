//! What nobody can mean by a setting, whether it comes from the configuration or from `gpushare-ctl set`.

use gpushare_proto::Nanos;
use gpushare_proto::admin::{Knob, MIN_MEMORY, MIN_QUANTUM};

/// What a launch or two take,
const LEAST_TARGET: Nanos = Nanos(100_000);
/// and what nobody at a notebook would want to wait for.
const MOST_TARGET: Nanos = Nanos::from_secs(10);

/// Refuses what nobody can mean.
pub(crate) fn check(knob: Knob) -> Result<(), String> {
    match knob {
        Knob::Quantum(Some(quantum)) if quantum < MIN_QUANTUM => {
            Err(format!("a quantum of {quantum} lets nobody run; use {MIN_QUANTUM} or more"))
        }
        Knob::Capacity(Some(bytes)) | Knob::ManagedLimit(bytes) if bytes < MIN_MEMORY => {
            Err(format!("{bytes} leaves nothing to share; use {MIN_MEMORY} or more"))
        }
        Knob::WindowTarget(target) if target < LEAST_TARGET || target > MOST_TARGET => Err(format!(
            "a window target of {target} is no time for work in flight; use {LEAST_TARGET} to {MOST_TARGET}"
        )),
        Knob::Epsilon(share) if share.0 == 0 || share.0 >= 10_000 => {
            Err(format!("epsilon is a share of time to lose: more than 0% and less than 100%, not {share}"))
        }
        _ => Ok(()),
    }
}
