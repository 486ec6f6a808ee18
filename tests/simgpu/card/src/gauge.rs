//! How hard a GPU works, as its sensors show it: temperature and power follow the load with a delay.
//!
//! ```text
//! busy   ____####________      reading += (target - reading) · (1 - e^(-time/delay))
//! power  ____/‾‾‾\_______
//! heat   ____.-‾‾‾-._____
//! ```

use std::time::Duration;

use crate::ids::Time;

const IDLE_MILLIWATTS: f64 = 70_000.0;
const FULL_MILLIWATTS: f64 = 350_000.0;
const POWER_DELAY: Duration = Duration::from_millis(20);

const COOL: f64 = 32.0;
const HOT: f64 = 68.0;
const HEAT_DELAY: Duration = Duration::from_millis(500);

/// The sensors of one GPU.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    busy: bool,
    since: Time,
    /// Shares of the way from idle to full.
    power: f64,
    heat: f64,
}

impl Gauge {
    /// From `now` on somebody computes, or nobody.
    pub(crate) fn set(&mut self, now: Time, busy: bool) {
        (self.power, self.heat) = self.at(now);
        (self.busy, self.since) = (busy, now);
    }

    /// Power draw.
    pub(crate) fn milliwatts(&self, now: Time) -> u32 {
        round(IDLE_MILLIWATTS + (FULL_MILLIWATTS - IDLE_MILLIWATTS) * self.at(now).0)
    }

    /// Temperature in degrees Celsius.
    pub(crate) fn degrees(&self, now: Time) -> u32 {
        round(COOL + (HOT - COOL) * self.at(now).1)
    }

    fn at(&self, now: Time) -> (f64, f64) {
        let time = now.saturating_sub(self.since);
        let target = if self.busy { 1.0 } else { 0.0 };
        let follow = |reading: f64, delay: Duration| {
            let share = 1.0 - (-time.as_secs_f64() / delay.as_secs_f64()).exp();
            reading + (target - reading) * share
        };
        (follow(self.power, POWER_DELAY), follow(self.heat, HEAT_DELAY))
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "always positive and small")]
fn round(value: f64) -> u32 {
    value.round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_and_temperature_rise_with_work_and_fall_without() {
        let mut gauge = Gauge::default();
        assert_eq!((gauge.milliwatts(Time::ZERO), gauge.degrees(Time::ZERO)), (70_000, 32));
        gauge.set(Time::ZERO, true);
        let second = Duration::from_secs(1);
        assert_eq!((gauge.milliwatts(second), gauge.degrees(second)), (350_000, 63));
        gauge.set(second, false);
        let later = Duration::from_secs(9);
        assert_eq!((gauge.milliwatts(later), gauge.degrees(later)), (70_000, 32));
    }
}
