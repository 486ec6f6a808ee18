//! Moving average of measured values, in whole numbers.

/// Moving average of measured values that begins with a configured guess.
///
/// ```text
///   average ← average + (value − average) ÷ min(n, 4)      n: number of values so far, this one included
/// ```
///
/// The first value replaces the guess. The first four values count alike, and each later one counts a
/// quarter. So the average follows a change after four or five values, and one outlier changes it little.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Average {
    value: u64,
    /// Number of values that were added so far, at most [`WINDOW`].
    count: u64,
}

/// Number of added values from which on each new value counts one part in this number.
const WINDOW: u64 = 4;

impl Average {
    /// Creates an average that returns `guess` until the first value is added.
    pub(crate) const fn new(guess: u64) -> Self {
        Self { value: guess, count: 0 }
    }

    pub(crate) const fn get(self) -> u64 {
        self.value
    }

    pub(crate) fn add(&mut self, value: u64) {
        self.count = (self.count + 1).min(WINDOW);
        let sum = u128::from(self.count - 1) * u128::from(self.value) + u128::from(value);
        self.value = u64::try_from(sum / u128::from(self.count)).unwrap_or(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_replaces_the_guess_and_the_first_four_count_alike() {
        let mut average = Average::new(1_000_000);
        let values = [10, 20, 30, 60].map(|value| {
            average.add(value);
            average.get()
        });
        assert_eq!(values, [10, 15, 20, 30]);
    }

    #[test]
    fn later_values_count_a_quarter_each() {
        let mut average = Average::new(0);
        (0..4).for_each(|_| average.add(0));
        (0..5).for_each(|_| average.add(1000));
        assert_eq!(average.get(), 761);
        average.add(u64::MAX);
        assert_eq!(average.get(), u64::MAX / 4 + 571, "no overflow");
    }
}
