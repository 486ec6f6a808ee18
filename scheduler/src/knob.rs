//! Describes the settings of a card as text, and checks their values.

use gpushare_core::Knobs;
use gpushare_proto::admin::{Knob, Mode};
use gpushare_proto::ranges::{self, OutOfRange};

/// Refuses a value that a setting of a card cannot have.
pub(crate) fn check(knob: Knob) -> Result<(), OutOfRange> {
    match knob {
        Knob::Quantum(Some(quantum)) => ranges::QUANTUM.check(quantum).map(drop),
        Knob::Capacity(Some(bytes)) => ranges::CAPACITY.check(bytes).map(drop),
        Knob::ManagedLimit(bytes) => ranges::MANAGED_LIMIT.check(bytes).map(drop),
        Knob::Epsilon(share) => ranges::EPSILON.check(share).map(drop),
        Knob::WindowTarget(target) => ranges::DRAIN_TARGET.check(target).map(drop),
        Knob::ContextReserve(bytes) => ranges::CONTEXT_RESERVE.check(bytes).map(drop),
        Knob::Quantum(None) | Knob::Capacity(None) | Knob::Mode(_) => Ok(()),
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
