//! Describes the settings of a card as text, and checks their values.

use gpushare_core::Knobs;
use gpushare_proto::admin::{Knob, MIN_MEMORY, MIN_QUANTUM, Mode};
use gpushare_proto::{Bytes, Nanos};

/// Smallest window target (target duration of work in flight): the duration of a launch or two.
const MIN_TARGET: Nanos = Nanos(100_000);
/// Largest window target. Longer work in flight would delay interactive sessions too much.
const MAX_TARGET: Nanos = Nanos::from_secs(10);

/// Largest assumed size of a context.
const MAX_RESERVE: Bytes = Bytes::gib(16);

/// Refuses a value that a setting of a card cannot have.
pub(crate) fn check(knob: Knob) -> Result<(), String> {
    match knob {
        Knob::Quantum(Some(quantum)) if quantum < MIN_QUANTUM => {
            Err(format!("a quantum of {quantum} is too short for any work; use {MIN_QUANTUM} or more"))
        }
        Knob::Capacity(Some(bytes)) | Knob::ManagedLimit(bytes) if bytes < MIN_MEMORY => {
            Err(format!("{bytes} leaves nothing to share; use {MIN_MEMORY} or more"))
        }
        Knob::WindowTarget(target) if target < MIN_TARGET || target > MAX_TARGET => Err(format!(
            "a window target of {target} is no time for work in flight; use {MIN_TARGET} to {MAX_TARGET}"
        )),
        Knob::Epsilon(share) if share.0 == 0 || share.0 >= 10_000 => {
            Err(format!("epsilon is a share of time to lose: more than 0% and less than 100%, not {share}"))
        }
        Knob::ContextReserve(bytes) if bytes > MAX_RESERVE => {
            Err(format!("a context takes at most {MAX_RESERVE}, not {bytes}"))
        }
        _ => Ok(()),
    }
}

/// Returns the value of the setting that `knob` names, as text.
pub(crate) fn words(knobs: &Knobs, knob: Knob) -> String {
    fn or(value: Option<impl ToString>, otherwise: &str) -> String {
        value.map_or_else(|| otherwise.to_owned(), |value| value.to_string())
    }
    match knob {
        Knob::Quantum(_) => or(knobs.quantum, "computed"),
        Knob::Mode(_) => or(knobs.mode.map(Mode::name), "as memory fits"),
        Knob::Capacity(_) => or(knobs.capacity, "total less reserve"),
        Knob::ManagedLimit(_) => or(knobs.managed_limit, "computed"),
        Knob::Epsilon(_) => knobs.epsilon.to_string(),
        Knob::WindowTarget(_) => knobs.window_target.to_string(),
        Knob::ContextReserve(_) => knobs.context_reserve.to_string(),
    }
}

/// Returns the name of a setting of a card, as in `gpushare-ctl set`.
pub(crate) const fn name(knob: Knob) -> &'static str {
    match knob {
        Knob::Quantum(_) => "quantum",
        Knob::Mode(_) => "mode",
        Knob::Capacity(_) => "capacity",
        Knob::ManagedLimit(_) => "managed-limit",
        Knob::Epsilon(_) => "epsilon",
        Knob::WindowTarget(_) => "window-target",
        Knob::ContextReserve(_) => "context-reserve",
    }
}
