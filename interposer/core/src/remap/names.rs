//! Addresses that kernels were given as arguments since the last look, for programs for which the card has no room.
//!
//! A driver does not say which memory work touches, so the names in arguments are all there is. A launch notes
//! them without a lock: one bit for each [`GRANULE`]. Addresses 256 GiB apart share a bit, and an integer may look like
//! an address, so a bit says *perhaps*.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::space::GRANULE;
use super::vmm::Span;
use crate::driver::Driver;
use crate::driver::types::{CUDA_SUCCESS, CUdeviceptr, CUfunction};

/// Arguments of a kernel: a pointer for each of its parameters, or null if they are given as one buffer.
pub type Arguments = *mut c_void;

/// Number of bits.
const BITS: u64 = 1 << 17;
const WORDS: usize = (BITS / u64::BITS as u64) as usize;
/// Most arguments of a kernel that are looked at.
const MOST_ARGUMENTS: usize = 256;
/// Range of what may be an address of the card: the driver maps none below, and no card has more bits.
const ADDRESSES: std::ops::Range<CUdeviceptr> = (1 << 32)..(1 << 57);

/// Addresses noted since the last [`Names::take`].
#[derive(Debug)]
pub(crate) struct Names {
    bits: [AtomicU64; WORDS],
    has_any: AtomicBool,
}

/// Addresses that were noted in one span of work.
#[derive(Debug)]
pub struct Named(Vec<u64>);

impl Default for Names {
    fn default() -> Self {
        Self { bits: [const { AtomicU64::new(0) }; WORDS], has_any: AtomicBool::new(false) }
    }
}

/// Word and bit of an address.
const fn place(address: CUdeviceptr) -> (usize, u64) {
    let bit = (address / GRANULE.0) % BITS;
    ((bit / u64::BITS as u64) as usize, 1 << (bit % u64::BITS as u64))
}

impl Names {
    /// Notes a word of an argument, if it may be an address.
    pub(crate) fn note(&self, word: CUdeviceptr) {
        if ADDRESSES.contains(&word) {
            let (index, bit) = place(word);
            self.bits[index].fetch_or(bit, Ordering::Relaxed);
            self.has_any.store(true, Ordering::Release);
        }
    }

    /// Notes the arguments of a kernel, also addresses within structures. A driver before CUDA 12.4 does not say how large
    /// they are.
    ///
    /// # Safety
    /// Arguments are null, or readable as the kernel's parameters demand.
    pub(crate) unsafe fn note_arguments(&self, driver: &Driver, function: CUfunction, arguments: Arguments) {
        let questions = [driver.func_get_param_info, driver.kernel_get_param_info];
        let size = |index| {
            questions.into_iter().flatten().find_map(|ask| {
                let (mut offset, mut size) = (0, 0);
                // SAFETY: writes two numbers; the driver checks what kind of handle it is given.
                let result = unsafe { ask(function, index, &raw mut offset, &raw mut size) };
                (result == CUDA_SUCCESS).then_some(size)
            })
        };
        if arguments.is_null() {
            return;
        }
        for (index, size) in (0..MOST_ARGUMENTS).map_while(|index| size(index).map(|size| (index, size))) {
            // SAFETY: there is a pointer for each parameter, to as many bytes.
            let argument = unsafe { arguments.cast::<*const CUdeviceptr>().add(index).read() };
            for word in 0..size / size_of::<CUdeviceptr>() {
                // SAFETY: within the argument, which need not be aligned.
                self.note(unsafe { argument.add(word).read_unaligned() });
            }
        }
    }

    /// Takes what was noted; `None` if nothing was.
    pub(crate) fn take(&self) -> Option<Named> {
        let take = || self.bits.iter().map(|bits| bits.swap(0, Ordering::Relaxed)).collect();
        self.has_any.swap(false, Ordering::Acquire).then(|| Named(take()))
    }
}

impl Named {
    /// Returns whether an address of the range was noted.
    pub fn has(&self, range: Span) -> bool {
        let first = range.address - range.address % GRANULE.0;
        let mut granules = (first..range.end()).step_by(GRANULE.0 as usize);
        granules.any(|address| {
            let (index, bit) = place(address);
            self.0[index] & bit != 0
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::{null_mut, without_provenance_mut};

    use gpushare_proto::Bytes;

    use super::*;
    use crate::driver::fake;

    const fn range(address: CUdeviceptr, mib: u64) -> Span {
        Span { address, size: Bytes::mib(mib) }
    }

    #[test]
    fn a_range_is_named_by_any_address_within_it_and_only_once() {
        let (names, base) = (Names::default(), 1 << 40);
        assert!(names.take().is_none());
        names.note(base + (5 << 20) + 12);
        let named = names.take().unwrap();
        assert!(named.has(range(base, 128)) && named.has(range(base + (5 << 20), 1)));
        assert!(!named.has(range(base, 4)) && !named.has(range(base + (6 << 20), 64)));
        assert!(names.take().is_none(), "taken");
    }

    #[test]
    fn small_numbers_and_words_beyond_all_addresses_name_nothing() {
        let names = Names::default();
        for word in [0, 8192, u64::from(u32::MAX), 1 << 57, u64::MAX] {
            names.note(word);
        }
        assert!(names.take().is_none());
    }
    #[test]
    fn addresses_are_found_in_pointers_and_in_structures_of_a_kernels_arguments() {
        let (driver, names, base) = (fake::driver(), Names::default(), 1_u64 << 40);
        let kernel = without_provenance_mut(7);
        fake::answers(|answers| answers.parameters.insert(7, vec![8, 4, 24]));
        let (mut pointer, mut number, mut structure) =
            (base, 3_u32, [1, base + (256 << 20), base + (512 << 20)]);
        let mut arguments: [*mut c_void; 3] =
            [(&raw mut pointer).cast(), (&raw mut number).cast(), (&raw mut structure).cast()];
        // SAFETY: three arguments of these sizes.
        unsafe { names.note_arguments(&driver, kernel, arguments.as_mut_ptr().cast()) };
        let named = names.take().unwrap();
        let at = |mib: u64| named.has(range(base + (mib << 20), 2));
        assert_eq!([0, 128, 256, 384, 512].map(at), [true, false, true, false, true]);
        // SAFETY: no arguments, and a handle that is no kernel.
        unsafe {
            names.note_arguments(&driver, kernel, null_mut());
            names.note_arguments(&driver, without_provenance_mut(8), arguments.as_mut_ptr().cast());
        }
        assert!(names.take().is_none());
    }
}
