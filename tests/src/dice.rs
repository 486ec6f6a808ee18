//! Chance that a seed repeats: the same seed always gives the same throws.

use std::time::Duration;

/// SplitMix64: small, and good enough for choosing what to break.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Dice of their own for one part, so that it throws the same whatever the others do.
    pub fn for_part(seed: u64, part: u64) -> Self {
        let mut dice = Self(seed);
        Self(dice.throw() ^ part.wrapping_mul(0xd134_2543_de82_ef95))
    }

    /// Any number.
    pub fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `bound`; 0 for 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.throw() % bound.max(1)
    }

    /// One of so many; 0 for none.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }

    /// From so many milliseconds on to less than so many.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to.saturating_sub(from)))
    }

    /// Yes once in so many times.
    pub fn one_in(&mut self, chance: u64) -> bool {
        self.below(chance) == 0
    }

    /// So many bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.throw().to_le_bytes()[0]).take(length).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_throws_and_parts_throw_their_own() {
        let throws = |mut dice: Dice| (0..4).map(|_| dice.below(1000)).collect::<Vec<_>>();
        assert_eq!(throws(Dice::new(7)), throws(Dice::new(7)));
        assert_ne!(throws(Dice::new(7)), throws(Dice::new(8)));
        assert_ne!(throws(Dice::for_part(7, 0)), throws(Dice::for_part(7, 1)));
    }
}
