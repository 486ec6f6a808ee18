//! Rates at which remapped memory moves on and off one card.
//!
//! ```text
//!   ended move ─▶ bytes and time of its direction ─▶ from 64 MiB on: a rate ─▶ average of the direction
//! ```
//!
//! Moves of a handoff end with every credit, so small ones are added up before a rate is computed.

use gpushare_proto::{Bytes, Nanos};

use crate::residency::transfer::{Moved, Way};
use crate::values::average::Average;

/// Smallest number of moved bytes from which a rate is computed; a smaller move measures latency.
const SUBSTANTIAL: Bytes = Bytes::mib(64);

/// Average rates of both directions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rates {
    out: Rate,
    into: Rate,
}

/// Rate of one direction.
#[derive(Clone, Debug, Default)]
struct Rate {
    /// Bytes a second.
    usual: Average,
    /// Bytes and time of moves since the last rate was computed.
    part: (Bytes, Nanos),
}

impl Rates {
    /// Notes a move that has ended. A rate is believed within `bounds`, since processes report it.
    pub(crate) fn add(&mut self, moved: Moved, (least, most): (u64, u64)) {
        let rate = match moved.way {
            Way::Out => &mut self.out,
            Way::In => &mut self.into,
        };
        rate.part = (rate.part.0 + moved.bytes, rate.part.1 + moved.took);
        let (bytes, took) = rate.part;
        if bytes >= SUBSTANTIAL {
            rate.usual.add(per_second(bytes, took).0.max(least).min(most));
            rate.part = (Bytes::ZERO, Nanos::ZERO);
        }
    }

    /// Rate of a handoff, in bytes a second: that of the slower direction, since both move at once. `None` until one
    /// was measured.
    pub(crate) fn of_handoff(&self) -> Option<Bytes> {
        let rates = [&self.out, &self.into].into_iter().filter_map(|rate| rate.usual.get());
        rates.min().map(Bytes)
    }
}

/// Bytes a second of a move of `bytes` in the time `took`.
pub(crate) fn per_second(bytes: Bytes, took: Nanos) -> Bytes {
    let rate = u128::from(bytes.0) * u128::from(Nanos::from_secs(1).0) / u128::from(took.0.max(1));
    Bytes(u64::try_from(rate).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: (u64, u64) = (1, u64::MAX);

    fn moved(way: Way, bytes: Bytes, took: Nanos) -> Moved {
        Moved { way, bytes, took }
    }

    #[test]
    fn a_handoff_is_as_fast_as_its_slower_direction() {
        let mut rates = Rates::default();
        assert_eq!(rates.of_handoff(), None);
        rates.add(moved(Way::In, Bytes::gib(8), Nanos::from_secs(1)), BOUNDS);
        assert_eq!(rates.of_handoff(), Some(Bytes::gib(8)));
        rates.add(moved(Way::Out, Bytes::gib(4), Nanos::from_secs(1)), BOUNDS);
        assert_eq!(rates.of_handoff(), Some(Bytes::gib(4)));
    }

    #[test]
    fn small_moves_are_added_up_and_a_lie_is_bounded() {
        let mut rates = Rates::default();
        for _ in 0..3 {
            rates.add(moved(Way::Out, Bytes::mib(16), Nanos::from_millis(1)), BOUNDS);
        }
        assert_eq!(rates.of_handoff(), None);
        rates.add(moved(Way::Out, Bytes::mib(16), Nanos::from_millis(1)), BOUNDS);
        assert_eq!(rates.of_handoff(), Some(Bytes::mib(16_000)));
        let mut rates = Rates::default();
        rates.add(moved(Way::In, Bytes::MAX, Nanos(0)), (1, 100));
        assert_eq!(rates.of_handoff(), Some(Bytes(100)));
    }
}
