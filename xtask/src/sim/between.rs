//! A quantity of a trace: one value, or anything from one to another. Written `5s`, or `5s..20s`.

use std::fmt::Display;
use std::str::FromStr;

use gpushare_proto::{Bytes, Nanos};
use gpushare_tests::dice::Dice;
use serde::{Deserialize, Deserializer, de::Error};

/// From the one to the other, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Between<T>(T, T);

/// Quantities that can be drawn at random.
pub(super) trait Quantity: Copy + Ord {
    fn number(self) -> u64;
    fn of(number: u64) -> Self;
}

impl Quantity for Nanos {
    fn number(self) -> u64 {
        self.0
    }
    fn of(number: u64) -> Self {
        Self(number)
    }
}

impl Quantity for Bytes {
    fn number(self) -> u64 {
        self.0
    }
    fn of(number: u64) -> Self {
        Self(number)
    }
}

impl<T: Quantity> Between<T> {
    pub(super) const fn exactly(value: T) -> Self {
        Self(value, value)
    }

    /// Any of them is as likely as any other.
    pub(super) fn draw(&self, dice: &mut Dice) -> T {
        let (from, to) = (self.0.number(), self.1.number());
        // A single value takes a throw too: what comes after it is the same whatever it is.
        let thrown = dice.throw();
        T::of(from + thrown % (to - from).saturating_add(1))
    }
}

impl<'de, T: Quantity + FromStr<Err: Display>> Deserialize<'de> for Between<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let value = |text: &str| text.trim().parse::<T>().map_err(Error::custom);
        let (from, to) = match text.split_once("..") {
            Some((from, to)) => (value(from)?, value(to)?),
            None => (value(&text)?, value(&text)?),
        };
        if from > to {
            return Err(Error::custom(format!("`{text}` begins above its end")));
        }
        Ok(Self(from, to))
    }
}
