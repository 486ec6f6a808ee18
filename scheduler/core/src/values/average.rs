//! Moving average of measured values, in whole numbers.

/// Moving average of measured values.
///
/// ```text
///   average ← average + (value − average) ÷ min(n, 4)      n: number of values so far, this one included
/// ```
///
/// The first four values count alike, and each later one counts a quarter. A later value counts as at least
/// half and at most twice the average, so a few extreme values of one tenant change it little. So the average
/// follows a change after four or five values, and one outlier changes it little.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Average {
    value: u64,
    /// Number of values that were added so far, at most [`WINDOW`].
    count: u64,
}

/// Number of added values from which on each new value counts one part in this number.
const WINDOW: u64 = 4;

impl Average {
    /// Average of the values; `None` until the first one is added.
    pub(crate) fn get(self) -> Option<u64> {
        (self.count > 0).then_some(self.value)
    }

    pub(crate) fn add(&mut self, value: u64) {
        let value = match self.count {
            WINDOW => value.clamp(self.value / 2, self.value.saturating_mul(2).max(1)),
            _ => value,
        };
        self.count = (self.count + 1).min(WINDOW);
        let sum = u128::from(self.count - 1) * u128::from(self.value) + u128::from(value);
        self.value = u64::try_from(sum / u128::from(self.count)).unwrap_or(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_four_values_count_alike() {
        let mut average = Average::default();
        assert_eq!(average.get(), None);
        let values = [10, 20, 30, 60].map(|value| {
            average.add(value);
            average.get()
        });
        assert_eq!(values, [10, 15, 20, 30].map(Some));
    }

    #[test]
    fn later_values_count_a_quarter_each_and_at_most_twice_the_average() {
        let mut average = Average::default();
        (0..4).for_each(|_| average.add(1000));
        average.add(1400);
        assert_eq!(average.get(), Some(1100));
        average.add(u64::MAX);
        assert_eq!(average.get(), Some(1375));
        average.add(0);
        assert_eq!(average.get(), Some(1203));
    }

    #[test]
    fn a_minority_of_extreme_values_changes_it_little() {
        let mut average = Average::default();
        (0..4).for_each(|_| average.add(1000));
        for _ in 0..100 {
            average.add(u64::MAX);
            (0..3).for_each(|_| average.add(1000));
        }
        assert!(average.get() < Some(1_250), "{average:?}");
    }
}
