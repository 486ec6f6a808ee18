//! Remapped memory as the page shows it: where it is, and the last handoff.

use std::time::Duration;

use gpushare_proto::Bytes;
use gpushare_proto::admin::ResidenceView;
use gpushare_proto::follow::CardResidence;
use gpushare_proto::handoff::{Direction, Handoff};
use serde::Serialize;

/// Places of remapped memory: bytes on the card, in host memory, and those that move.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Places {
    resident: Bytes,
    hosted: Bytes,
    moving: Bytes,
}

/// Handoff of remapped memory, as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Moved {
    is_running: bool,
    took_ms: f64,
    out: OneWay,
    #[serde(rename = "in")]
    into: OneWay,
    overlap_percent: f64,
}

/// One direction of a handoff.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct OneWay {
    bytes: Bytes,
    rest: Bytes,
    per_second: Bytes,
}

impl Places {
    /// Returns the places on a card; none if its remapped memory is gone.
    pub(super) fn of_card(on: &CardResidence) -> Option<Self> {
        let places = Self { resident: on.resident_bytes, hosted: on.hosted_bytes, moving: on.moving_bytes };
        (!(places.resident + places.hosted).is_zero()).then_some(places)
    }

    pub(super) fn of_session(on: &ResidenceView) -> Self {
        Self { resident: on.resident_bytes, hosted: on.hosted_bytes, moving: on.moving_bytes }
    }
}

impl Moved {
    pub(super) fn is_running(&self) -> bool {
        self.is_running
    }

    pub(super) fn of(handoff: &Handoff, is_running: bool) -> Self {
        Self {
            is_running,
            took_ms: Duration::from(handoff.took_ns).as_secs_f64() * 1000.0,
            out: OneWay::of(&handoff.out),
            into: OneWay::of(&handoff.into),
            overlap_percent: f64::from(handoff.overlap.0) / 100.0,
        }
    }
}

impl OneWay {
    fn of(way: &Direction) -> Self {
        Self { bytes: way.bytes, rest: way.rest_bytes, per_second: way.bytes_per_second }
    }
}
