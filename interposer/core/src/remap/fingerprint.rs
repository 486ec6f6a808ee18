//! Fingerprint of a chunk: a universal hash of 122 bits, which the card computes (`fingerprint.ptx`).
//!
//! ```text
//!   chunk ── blocks of 256 KiB ──▶ kernel ── two values a block ──▶ pinned memory ── Horner's rule ──▶ fingerprint
//! ```
//!
//! The words of 32 bits are the coefficients of a polynomial over the field of 2^61 − 1 elements, and the fingerprint is
//! its value at two secret points, the key. Two different chunks of `n` words differ in a polynomial of a degree below
//! `n`, which has fewer than `n` roots. So of all keys at most `(n / (2^61 − 2))²` give both chunks the same
//! fingerprint: for 128 MiB, with `n = 2^25`, that is 2^-72. It holds for any two chunks that were chosen without the
//! key. Nobody outside the process sees a key or a fingerprint, so contents that somebody made up collide no more often
//! than others. A chunk that is compared a thousand times a second for ten years is mistaken with a probability below
//! 2^-33.

use std::ffi::CStr;

use gpushare_proto::Bytes;

use crate::process::random;

/// Text of the kernel, which the driver compiles.
pub(super) const PTX: &CStr = {
    let text = concat!(include_str!("fingerprint.ptx"), "\0");
    // The driver refuses other characters, in comments too.
    assert!(text.is_ascii());
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("fingerprint.ptx holds a NUL"),
    }
};
/// Name of the kernel in [`PTX`].
pub(super) const ENTRY: &CStr = c"fingerprint";
/// Size of a block, which is one block of threads on the card.
pub(super) const BLOCK: Bytes = Bytes(256 << 10);
/// Threads of a block, half of them for each point of the key.
pub(super) const THREADS: u32 = 512;

/// Number of words of 32 bits in a block, as an exponent of two.
const WORDS: u32 = 16;
/// Threads for one point of the key.
const LANES: usize = THREADS as usize / 2;
/// Size of the field.
const PRIME: u64 = (1 << 61) - 1;

/// Secret points at which the polynomials are evaluated.
#[derive(Clone, Copy)]
pub(super) struct Key([u64; 2]);

impl std::fmt::Debug for Key {
    /// Writes the name alone, since the key is secret.
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("Key")
    }
}

impl Key {
    /// Draws a key; `None` if the system gives no random bytes.
    pub(super) fn draw() -> Option<Self> {
        Some(Self([point()?, point()?]))
    }

    /// Points of the key, as parameters of the kernel.
    pub(super) const fn points(self) -> [u64; 2] {
        self.0
    }

    /// Returns the fingerprint of a chunk from the values of its blocks: for each block one at each point.
    pub(super) fn combine(self, values: &[[u64; 2]]) -> u128 {
        let at = |which: usize| {
            let weight = (0..WORDS).fold(self.0[which], |power, _| mul_add(power, power, 0));
            values.iter().fold(0, |sum, block| mul_add(sum, weight, block[which]))
        };
        u128::from(at(0)) << 64 | u128::from(at(1))
    }

    /// Returns the values of a block of words, as the kernel computes them.
    pub(super) fn block(self, words: &[u32]) -> [u64; 2] {
        let lane = |lane| words.chunks_exact(2).skip(lane).step_by(LANES).flatten();
        let in_order = || (0..LANES).flat_map(lane);
        self.0
            .map(|point| in_order().fold(0, |sum, &word| mul_add(sum, point, word.into())))
    }
}

/// Draws a number between 1 and the size of the field, exclusive.
fn point() -> Option<u64> {
    loop {
        let number = u64::from_ne_bytes(random()?) & PRIME;
        if number != 0 && number != PRIME {
            return Some(number);
        }
    }
}

/// Returns `a · b + c` in the field.
fn mul_add(a: u64, b: u64, c: u64) -> u64 {
    let sum = u128::from(a) * u128::from(b) + u128::from(c);
    (sum % u128::from(PRIME)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key([3, PRIME - 1]);

    fn words(seed: u32) -> Vec<u32> {
        (0..1 << WORDS)
            .map(|i: u32| i.wrapping_mul(2_654_435_761).wrapping_add(seed))
            .collect()
    }

    fn of(blocks: &[Vec<u32>]) -> u128 {
        let values: Vec<_> = blocks.iter().map(|block| KEY.block(block)).collect();
        KEY.combine(&values)
    }

    #[test]
    fn a_fingerprint_depends_on_every_word_and_its_place() {
        let chunk = [words(1), words(2)];
        let whole = of(&chunk);
        for (block, word) in [(0, 0), (0, 1), (0, 512), (0, (1 << WORDS) - 1), (1, 0), (1, 40_000)] {
            let mut other = chunk.clone();
            other[block][word] ^= 1 << 31;
            assert_ne!(of(&other), whole, "word {word} of block {block}");
        }
        let mut swapped = chunk.clone();
        swapped[0].swap(7, 8);
        assert_ne!(of(&swapped), whole);
        let [first, second] = chunk;
        assert_ne!(of(&[second, first]), whole);
    }

    #[test]
    fn the_weights_of_words_are_those_of_one_polynomial() {
        let mut first = [vec![0; 1 << WORDS], vec![0; 1 << WORDS]];
        first[1][(1 << WORDS) - 1] = 5;
        assert_eq!(of(&first), 5 << 64 | 5, "the last word has the weight one");
        // Thread 0 has the units 0, 256, 512, …: the word before the last one of the same thread.
        let mut second = [vec![0; 1 << WORDS], vec![0; 1 << WORDS]];
        second[1][(1 << WORDS) - 2] = 1;
        assert_eq!(of(&second), 3 << 64 | u128::from(PRIME - 1));
        let mut third = [vec![0; 1 << WORDS], vec![0; 1 << WORDS]];
        third[0][(1 << WORDS) - 1] = 1;
        let weight = (0..1 << WORDS).fold(1, |power, _| mul_add(power, 3, 0));
        assert_eq!(
            of(&third) >> 64,
            u128::from(weight),
            "a block is as far from the next one as it has words"
        );
    }

    #[test]
    fn keys_differ_and_are_points_of_the_field() {
        let keys: Vec<_> = (0..50).map(|_| Key::draw().unwrap().points()).collect();
        assert!(keys.iter().flatten().all(|&point| point > 0 && point < PRIME));
        assert!(keys.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
