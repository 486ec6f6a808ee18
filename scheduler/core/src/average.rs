//! Moving averages of what was measured, in whole numbers.

/// An average in which every new value counts a quarter: four or five values forget the past, one
/// outlier does not rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Average(u64);

impl Average {
    /// Starts from a guess.
    pub(crate) const fn new(guess: u64) -> Self {
        Self(guess)
    }

    pub(crate) const fn get(self) -> u64 {
        self.0
    }

    pub(crate) fn add(&mut self, value: u64) {
        let sum = 3 * u128::from(self.0) + u128::from(value);
        self.0 = u64::try_from(sum / 4).unwrap_or(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_level_is_reached_within_a_few_values() {
        let mut average = Average::new(0);
        for _ in 0..5 {
            average.add(1000);
        }
        assert_eq!(average.get(), 761);
        average.add(u64::MAX);
        assert_eq!(average.get(), u64::MAX / 4 + 571, "and nothing overflows");
    }
}
