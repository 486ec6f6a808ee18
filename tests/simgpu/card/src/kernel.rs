//! The kernels: what each reads and writes, and what it computes.
//!
//! A kernel is known by the name of its `.entry` in `tests/workload/src/kernels.ptx`, the text that a real
//! driver compiles, or in gpushare's own `fingerprint.ptx`. Here it is a *walk* over its words, in pieces that end where a 2 MiB page ends
//! (`walk.rs`): each piece costs time, may fault, and does its share of the real computation when its time
//! is over. So a kernel that was interrupted half-way has written half of its words, as a real one has.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};

use crate::bytes::SharedBytes;

/// Bytes that a real GPU moves at least for one word.
const SECTOR: u64 = 32;

/// One launch of a known kernel. Addresses are the client's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "p and n are the address and the number of 32-bit words")]
pub enum Kernel {
    /// Does nothing.
    Empty,
    /// `p[i] = value`.
    Fill { p: u64, n: u64, value: u32 },
    /// `p[i] += value`, wrapping.
    Add { p: u64, n: u64, value: u32 },
    /// `*out += Σ p[i]·(2i + 1)`, modulo 2^64.
    Checksum { p: u64, n: u64, out: u64 },
    /// Reads every `stride`-th word and writes it back.
    Touch { p: u64, n: u64, stride: u64 },
    /// `out[2b + i] = Σ w · key[i]^e` modulo 2^61 − 1 over the words of each block `b` of 65,536 words, with an
    /// exponent for each word (`fingerprint.ptx`).
    Fingerprint { p: u64, n: u64, key: [u64; 2], out: u64 },
    /// Ends when `*flag` is not zero (if `flag` is not null) or after `nanoseconds`.
    Spin { flag: u64, nanoseconds: u64 },
}

/// The size of each parameter of each kernel, in bytes, by the name of its `.entry`.
pub const SIGNATURES: [(&str, &[usize]); 7] = [
    ("empty", &[]),
    ("fill", &[8, 8, 4]),
    ("add", &[8, 8, 4]),
    ("checksum", &[8, 8, 8]),
    ("touch", &[8, 8, 8]),
    ("spin", &[8, 8]),
    ("fingerprint", &[8, 8, 8, 8, 8]),
];

impl Kernel {
    /// The name of its `.entry`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Fill { .. } => "fill",
            Self::Add { .. } => "add",
            Self::Checksum { .. } => "checksum",
            Self::Touch { .. } => "touch",
            Self::Fingerprint { .. } => "fingerprint",
            Self::Spin { .. } => "spin",
        }
    }

    /// The launch of the kernel `name` with these parameters, or `None` if there is no such kernel or one
    /// parameter too few.
    pub fn decode(name: &str, parameters: &[u64]) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "the parameter is a .u32")]
        let word = |value: u64| value as u32;
        Some(match (name, parameters) {
            ("empty", _) => Self::Empty,
            ("fill", &[p, n, value]) => Self::Fill { p, n, value: word(value) },
            ("add", &[p, n, value]) => Self::Add { p, n, value: word(value) },
            ("checksum", &[p, n, out]) => Self::Checksum { p, n, out },
            ("touch", &[p, n, stride]) => Self::Touch { p, n, stride: stride.max(1) },
            ("fingerprint", &[p, n, first, second, out]) => {
                Self::Fingerprint { p, n, key: [first, second], out }
            }
            ("spin", &[flag, nanoseconds]) => Self::Spin { flag, nanoseconds },
            _ => return None,
        })
    }

    /// The words the kernel walks over: address of the first and how many.
    pub fn words(&self) -> (u64, u64) {
        match *self {
            Self::Fill { p, n, .. }
            | Self::Add { p, n, .. }
            | Self::Checksum { p, n, .. }
            | Self::Fingerprint { p, n, .. }
            | Self::Touch { p, n, .. } => (p, n),
            Self::Empty | Self::Spin { .. } => (0, 0),
        }
    }

    /// How many bytes the card's memory moves for `count` of the kernel's words.
    pub fn traffic(&self, count: u64) -> u64 {
        match *self {
            Self::Fill { .. } | Self::Checksum { .. } | Self::Fingerprint { .. } => count * 4,
            Self::Add { .. } => count * 8,
            Self::Touch { stride, .. } => count.div_ceil(stride) * 2 * SECTOR,
            Self::Empty | Self::Spin { .. } => 0,
        }
    }

    /// Computes the words `first .. first + count`, which lie at byte `offset` of `bytes`, and answers what
    /// they add to the checksum, or `None` if they are not there.
    pub fn compute(&self, bytes: &SharedBytes, offset: u64, first: u64, count: u64) -> Option<u64> {
        let words = bytes.words(offset, count)?;
        let mut sum = 0u64;
        match *self {
            Self::Fill { value, .. } => words.iter().for_each(|word| word.store(value, Relaxed)),
            Self::Add { value, .. } => {
                for word in words {
                    word.store(word.load(Relaxed).wrapping_add(value), Relaxed);
                }
            }
            Self::Checksum { .. } => {
                let mut weight = first.wrapping_mul(2).wrapping_add(1);
                for word in words {
                    sum = sum.wrapping_add(u64::from(word.load(Relaxed)).wrapping_mul(weight));
                    weight = weight.wrapping_add(2);
                }
            }
            // Written back as they were: nothing that anybody could see.
            Self::Touch { .. } | Self::Fingerprint { .. } | Self::Empty | Self::Spin { .. } => {}
        }
        Some(sum)
    }

    /// The bytes that the kernel writes at `out` when it ends, if it does so: address and number.
    pub fn output(&self) -> Option<(u64, u64)> {
        match *self {
            Self::Checksum { out, .. } => Some((out, 8)),
            Self::Fingerprint { n, out, .. } => Some((out, n / BLOCK_WORDS * 16)),
            _ => None,
        }
    }

    /// Fingerprints of `count` words from byte `offset` of `bytes` on, which must be whole blocks: two values a block.
    /// `None` if the words are not there; no values for another kernel.
    pub fn fingerprints(&self, bytes: &SharedBytes, offset: u64, count: u64) -> Option<Vec<u64>> {
        let Self::Fingerprint { key, .. } = *self else { return Some(Vec::new()) };
        let words = bytes.words(offset, count)?;
        let blocks = words.chunks_exact(BLOCK_WORDS as usize);
        blocks.remainder().is_empty().then_some(())?;
        Some(blocks.flat_map(|block| key.map(|point| fingerprint(block, point))).collect())
    }
}

/// Words of a block of a fingerprint.
const BLOCK_WORDS: u64 = 1 << 16;
/// Threads of a block that work for one point of the key.
const LANES: usize = 256;
/// Size of the field of fingerprints.
const PRIME: u64 = (1 << 61) - 1;

/// Each thread adds up its own words, then their sums are added up.
fn fingerprint(block: &[AtomicU32], point: u64) -> u64 {
    let mut lanes = [0; LANES];
    for row in block.chunks_exact(2 * LANES) {
        for (lane, unit) in lanes.iter_mut().zip(row.chunks_exact(2)) {
            for word in unit {
                *lane = mul_add(*lane, point, word.load(Relaxed).into());
            }
        }
    }
    let weight = (0..8).fold(point, |power, _| mul_add(power, power, 0));
    lanes.into_iter().fold(0, |sum, lane| mul_add(sum, weight, lane))
}

/// `a · b + c` in the field.
fn mul_add(a: u64, b: u64, c: u64) -> u64 {
    let product = u128::from(a) * u128::from(b) + u128::from(c);
    #[expect(clippy::cast_possible_truncation, reason = "both halves are below 2^62")]
    let sum = (product as u64 & PRIME) + (product >> 61) as u64;
    if sum >= PRIME { sum - PRIME } else { sum }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::Module;

    #[test]
    fn the_ptx_text_has_every_kernel_with_these_parameters() {
        let texts = [
            include_str!("../../../workload/src/kernels.ptx"),
            include_str!("../../../../interposer/core/src/remap/fingerprint.ptx"),
        ];
        let modules = texts.map(Module::parse);
        for (name, sizes) in SIGNATURES {
            let entry = modules.iter().find_map(|module| module.entry(name));
            let entry = entry.unwrap_or_else(|| panic!("no .entry {name}"));
            let declared: Vec<usize> = entry.parameters.iter().map(|parameter| parameter.size).collect();
            assert_eq!(declared, sizes, "{name}");
        }
        assert_eq!(modules.map(|module| module.entries.len()).iter().sum::<usize>(), SIGNATURES.len());
    }

    #[test]
    fn a_checksum_is_the_same_in_pieces_and_notices_an_exchange() {
        let bytes = SharedBytes::allocate(16).unwrap();
        for (index, value) in [3u32, 5, 7, 11].into_iter().enumerate() {
            bytes.words(0, 4).unwrap()[index].store(value, Relaxed);
        }
        let kernel = Kernel::Checksum { p: 0, n: 4, out: 0 };
        let whole = kernel.compute(&bytes, 0, 0, 4).unwrap();
        let halves = kernel.compute(&bytes, 0, 0, 2).unwrap() + kernel.compute(&bytes, 8, 2, 2).unwrap();
        assert_eq!(whole, 3 + 5 * 3 + 7 * 5 + 11 * 7);
        assert_eq!(whole, halves);
        bytes.words(0, 4).unwrap()[0].store(5, Relaxed);
        bytes.words(0, 4).unwrap()[1].store(3, Relaxed);
        assert_ne!(kernel.compute(&bytes, 0, 0, 4), Some(whole));
    }

    #[test]
    fn unknown_kernels_and_missing_parameters_are_refused() {
        assert_eq!(Kernel::decode("matmul", &[1, 2]), None);
        assert_eq!(Kernel::decode("fill", &[1, 2]), None);
    }
}
