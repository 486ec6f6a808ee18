//! Memory of a card with a pattern that a freeze must not change.

use std::ffi::{c_int, c_uint, c_void};

use crate::driver::Driver;
use crate::protocol::Refusal;

/// Number of words: 4 MiB.
const WORDS: usize = 1 << 20;
/// First card that the process sees, which `CUDA_VISIBLE_DEVICES` chooses.
const CARD: c_int = 0;

type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_uint;
type ContextRetain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_uint;
type ContextSet = unsafe extern "C" fn(*mut c_void) -> c_uint;
type Allocate = unsafe extern "C" fn(*mut u64, usize) -> c_uint;
type CopyIn = unsafe extern "C" fn(u64, *const c_void, usize) -> c_uint;
type CopyOut = unsafe extern "C" fn(*mut c_void, u64, usize) -> c_uint;

/// Allocation on the card. It ends with the process.
#[derive(Debug)]
pub(super) struct Memory<'a> {
    driver: &'a Driver,
    address: u64,
}

impl<'a> Memory<'a> {
    /// Makes a context on the first card, allocates memory there and writes the pattern.
    pub(super) fn written(driver: &'a Driver) -> Result<Self, Refusal> {
        let (mut card, mut context, mut address) = (0, std::ptr::null_mut(), 0);
        let pattern = pattern();
        // SAFETY: the signatures are cuda.h's, and results go to variables of their types that live through the call.
        // The copy reads the whole pattern and nothing else.
        unsafe {
            driver.call("cuDeviceGet", |get: DeviceGet| get(&raw mut card, CARD))?;
            driver
                .call("cuDevicePrimaryCtxRetain", |retain: ContextRetain| retain(&raw mut context, card))?;
            driver.call("cuCtxSetCurrent", |set: ContextSet| set(context))?;
            driver.call("cuMemAlloc_v2", |allocate: Allocate| {
                allocate(&raw mut address, size_of_val(&*pattern))
            })?;
            driver.call("cuMemcpyHtoD_v2", |copy: CopyIn| {
                copy(address, pattern.as_ptr().cast(), size_of_val(&*pattern))
            })?;
        }
        Ok(Self { driver, address })
    }

    /// Reads the memory back, and returns how many words differ from the pattern.
    pub(super) fn wrong_words(&self) -> Result<usize, Refusal> {
        let mut words = vec![0_u32; WORDS];
        // SAFETY: the signature is cuda.h's, and the copy fills the words and nothing else.
        unsafe {
            self.driver.call("cuMemcpyDtoH_v2", |copy: CopyOut| {
                copy(words.as_mut_ptr().cast(), self.address, size_of_val(&*words))
            })?;
        }
        Ok(differences(&words, &pattern()))
    }
}

/// Words that differ from each other and from what an empty memory holds.
fn pattern() -> Vec<u32> {
    (1..).take(WORDS).map(|number: u32| number.wrapping_mul(0x9e37_79b1)).collect()
}

fn differences(found: &[u32], wanted: &[u32]) -> usize {
    found.iter().zip(wanted).filter(|(found, wanted)| found != wanted).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_fills_four_mebibytes_with_different_words() {
        let mut words = pattern();
        assert_eq!(size_of_val(&*words), 4 << 20);
        words.sort_unstable();
        assert!(words[0] != 0 && words.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn each_wrong_word_counts() {
        let mut words = pattern();
        assert_eq!(differences(&words, &pattern()), 0);
        (words[3], words[WORDS - 1]) = (0, 0);
        assert_eq!(differences(&words, &pattern()), 2);
    }
}
