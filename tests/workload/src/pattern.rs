//! Contents of a correct program's memory, computed without reading it.
//!
//! A buffer is filled page by page, each page with a word of its own, so that a page which is lost,
//! stale or in another page's place changes the checksum:
//!
//! ```text
//! checksum = Σ p[i]·(2i+1)        over one page [a, b) of equal words w:  w·(b² − a²)
//! ```

use crate::memory::Buffer;

/// Words of one page: 2 MiB, the unit in which drivers move managed memory.
pub const PAGE_WORDS: u64 = (2 << 20) / 4;

/// The pages of a buffer: first word, number of words and the word that fills it.
pub fn pages(words: u64, seed: u32) -> impl Iterator<Item = (u64, u64, u32)> {
    (0..words.div_ceil(PAGE_WORDS)).map(move |page| {
        let first = page * PAGE_WORDS;
        let count = PAGE_WORDS.min(words - first);
        (first, count, word(seed, page))
    })
}

/// The checksum of a buffer filled by [`pages`], after `added` was added to each word.
pub fn checksum(words: u64, seed: u32, added: u32) -> u64 {
    pages(words, seed).fold(0, |sum, (first, count, word)| {
        let ends = square(first + count).wrapping_sub(square(first));
        sum.wrapping_add(u64::from(word.wrapping_add(added)).wrapping_mul(ends))
    })
}

/// The checksum of a buffer whose words are all `value`.
pub fn uniform_checksum(buffer: Buffer, value: u32) -> u64 {
    u64::from(value).wrapping_mul(square(buffer.words()))
}

fn square(n: u64) -> u64 {
    n.wrapping_mul(n)
}

/// The word of one page: mixed, so that neighbours differ in all bits.
fn word(seed: u32, page: u64) -> u32 {
    let mut x = u64::from(seed) << 32 ^ page.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x ^= x >> 29;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (x >> 32) as u32
}

#[cfg(test)]
mod tests {
    use gpushare_proto::Bytes;

    use super::*;
    use crate::memory::Door;

    fn by_hand(words: &[u32]) -> u64 {
        words
            .iter()
            .zip(0u64..)
            .fold(0, |sum, (&word, i)| sum.wrapping_add(u64::from(word).wrapping_mul(2 * i + 1)))
    }

    #[test]
    fn the_formula_is_the_sum_by_hand() {
        let words = 3 * PAGE_WORDS + 17;
        let filled: Vec<u32> = pages(words, 7)
            .flat_map(|(_, count, word)| vec![word.wrapping_add(5); count as usize])
            .collect();
        assert_eq!(filled.len() as u64, words);
        assert_eq!(checksum(words, 7, 5), by_hand(&filled));
    }

    #[test]
    fn two_pages_in_each_others_place_show() {
        let mut filled: Vec<u32> = pages(2 * PAGE_WORDS, 7)
            .flat_map(|(_, count, word)| vec![word; count as usize])
            .collect();
        filled.rotate_left(PAGE_WORDS as usize);
        assert_ne!(checksum(2 * PAGE_WORDS, 7, 0), by_hand(&filled));
    }

    #[test]
    fn a_uniform_buffer_is_one_product() {
        let buffer = Buffer { address: 0, bytes: Bytes(4_000), door: Door::Mem };
        assert_eq!(uniform_checksum(buffer, 9), by_hand(&[9; 1_000]));
    }
}
