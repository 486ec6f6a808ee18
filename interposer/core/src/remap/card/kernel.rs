//! Kernel that fingerprints chunks: loaded once for a context, proved on known words, then launched for each chunk.

use std::ffi::c_void;
use std::fmt;
use std::ptr::{null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use gpushare_proto::Bytes;

use crate::driver::types::{CUDA_ERROR_NOT_SUPPORTED, CUdeviceptr, CUresult, CUstream};
use crate::driver::{Driver, try_answer};
use crate::process::stderr::print;
use crate::remap::fingerprint::{BLOCK, ENTRY, Key, PTX, THREADS};
use crate::remap::swap::CHUNK;
use crate::remap::vmm::{MOST_DIGESTS, Span};

/// Most blocks of a launch.
const MOST_BLOCKS: usize = (CHUNK.0 / BLOCK.0) as usize;
/// Bytes of the values of most blocks.
const VALUES: usize = MOST_BLOCKS * size_of::<[u64; 2]>();
/// Memory that all contexts may use as pinned, and kernels too (`CU_MEMHOSTALLOC_PORTABLE`, `CU_MEMHOSTALLOC_DEVICEMAP`).
const PORTABLE_AND_MAPPED: u32 = 1 | 2;

/// Fingerprints of one card.
#[derive(Debug)]
pub(super) struct Fingerprints {
    /// Whether memory stays on the card without fingerprints (`--paranoid`).
    is_paranoid: bool,
    /// Kernel in use. The lock is held while a fingerprint is computed. A thread of the application takes it once, in the
    /// first allocation on the card, before there are fingerprints.
    pub(super) kernel: Mutex<Use>,
    /// Address of the context of the kernel that was loaded last.
    pub(super) context: AtomicUsize,
    /// Number of contexts with a kernel that have ended.
    pub(super) ended: AtomicU64,
    key: OnceLock<Option<Key>>,
}

/// Use of the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Use {
    /// Not loaded yet, or its context has ended.
    #[default]
    Unloaded,
    /// Loaded, and not proved yet.
    Loaded(Kernel),
    /// Loaded and proved.
    Proved(Kernel),
    /// Never used: the driver cannot load it, it computes other values than it should, or the system gives no random key.
    Unusable,
}

/// Kernel in one context.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    key: Key,
    /// Number of contexts with a kernel that had ended when this one was loaded.
    ended: u64,
    /// Address of the context.
    pub(super) context: usize,
    /// Address of the function.
    function: usize,
    /// Address of pinned memory: a block of known words, and [`VALUES`] bytes for each of the most launches.
    memory: usize,
}

impl Fingerprints {
    pub(super) fn new(is_paranoid: bool) -> Self {
        Self {
            is_paranoid,
            kernel: Mutex::default(),
            context: AtomicUsize::new(0),
            ended: AtomicU64::new(0),
            key: OnceLock::new(),
        }
    }

    /// Computes no fingerprints any more. The user is told if memory stays on the card for it.
    pub(super) fn give_up(&self, known: &mut Use, why: fmt::Arguments<'_>) {
        *known = Use::Unusable;
        if self.is_paranoid {
            print(format_args!(
                "paranoid: no fingerprints on this card: {why}. The memory of this program stays on the card, and \
                 other programs may wait for it. Run it without --paranoid"
            ));
        }
    }

    /// Notes that a context of the card has ended.
    pub(super) fn end_context(&self, context: usize) {
        if self.context.load(Ordering::SeqCst) == context {
            self.ended.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns the key of all fingerprints; `None` if the system gave no random bytes.
    pub(super) fn key(&self) -> Option<Key> {
        *self.key.get_or_init(Key::draw)
    }
}

impl Kernel {
    /// Loads the kernel into the current context, which has the address `context`.
    ///
    /// # Errors
    /// Error of the driver, which cannot compile the kernel, or has no memory.
    pub(super) fn load(driver: &Driver, context: usize, key: Key, ended: u64) -> Result<Self, CUresult> {
        let calls = driver
            .module_load_data
            .zip(driver.module_get_function)
            .zip(driver.mem_host_alloc);
        let ((load, get), allocate) = calls.ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
        // SAFETY: reads the text and writes one handle; the context is current.
        let module = try_answer(null_mut(), |module| unsafe { load(module, PTX.as_ptr().cast()) })?;
        // SAFETY: reads a name and writes one handle.
        let function = try_answer(null_mut(), |function| unsafe { get(function, module, ENTRY.as_ptr()) })?;
        let size = BLOCK.0 as usize + MOST_DIGESTS * VALUES;
        // SAFETY: writes one address.
        let memory = try_answer(null_mut(), |memory| unsafe { allocate(memory, size, PORTABLE_AND_MAPPED) })?;
        let (words, known) = (memory.cast::<u32>(), known_words());
        // SAFETY: the memory is gpushare's own, and large enough.
        unsafe { words.copy_from_nonoverlapping(known.as_ptr(), known.len()) };
        Ok(Self {
            key,
            ended,
            context,
            function: function.expose_provenance(),
            memory: memory.expose_provenance(),
        })
    }

    /// Whether the kernel's context lives, if so many contexts with a kernel have ended.
    pub(super) fn is_alive(&self, ended: u64) -> bool {
        self.ended == ended
    }

    /// Range of the known words, for [`Self::is_right`].
    pub(super) fn known(&self) -> Span {
        Span { address: self.memory as CUdeviceptr, size: BLOCK }
    }

    /// Launches the kernel for a range of whole blocks, as the launch with the number `place` below
    /// [`MOST_DIGESTS`].
    ///
    /// # Errors
    /// Error of the driver.
    pub(super) fn launch(&self, driver: &Driver, place: usize, span: Span, stream: CUstream) -> CUresult {
        let Some(launch) = driver.launch_kernel else { return CUDA_ERROR_NOT_SUPPORTED };
        let blocks = blocks(span.size);
        let [first, second] = self.key.points();
        let values = self.values_of(place) as u64;
        let mut parameters = [span.address, span.size.0 / 4, first, second, values];
        let mut places = parameters
            .each_mut()
            .map(|parameter| std::ptr::from_mut(parameter).cast::<c_void>());
        let function = with_exposed_provenance_mut(self.function);
        let (grid, places) = (blocks as u32, places.as_mut_ptr());
        // SAFETY: the function takes these five parameters, and reads and writes mapped memory only.
        unsafe { launch(function, grid, 1, 1, THREADS, 1, 1, 0, stream, places, null_mut()) }
    }

    /// Returns the fingerprint that the launch with this number has computed. Its context must be alive.
    pub(super) fn fingerprint(&self, place: usize, size: Bytes) -> u128 {
        self.key.combine(self.values(place, size))
    }

    /// Returns whether the first launch, for the known words, has computed the right values.
    pub(super) fn is_right(&self) -> bool {
        self.values(0, BLOCK) == [self.key.block(&known_words())]
    }

    /// Address of the values of a launch.
    fn values_of(&self, place: usize) -> usize {
        self.memory + BLOCK.0 as usize + place % MOST_DIGESTS * VALUES
    }

    fn values(&self, place: usize, size: Bytes) -> &[[u64; 2]] {
        let values = with_exposed_provenance(self.values_of(place));
        // SAFETY: the memory lives as long as the context, which the caller keeps, and no launch is under way.
        unsafe { std::slice::from_raw_parts(values, blocks(size)) }
    }
}

/// Number of blocks in so many bytes.
fn blocks(size: Bytes) -> usize {
    ((size.0 / BLOCK.0) as usize).min(MOST_BLOCKS)
}

/// Words on which the kernel is proved. They have all bits, and none repeats.
fn known_words() -> Vec<u32> {
    (0..BLOCK.0 as u32 / 4)
        .map(|number| number.wrapping_mul(2_654_435_761))
        .collect()
}
