//! Kernels that communicate with other cards, and their admission through a gate that is being drained.
//!
//! A collective is one kernel on each of its cards, and each spins until all others run. A gate may close
//! after the first of them was launched and before the last. Then the work in flight waits for a thread at
//! the gate. A late drop would be undone for that reason; admission spares the process that wait:
//!
//! ```text
//!   gate closed ──▶ drain begins: admit ───────────▶ nothing in flight ──▶ end admission ──▶ admitted work is
//!                        ▲            │ 4 × drain target                                   drained too ──▶ released
//!   a thread at the gate │            ▼
//!   with such a kernel ──┘        waits like any other
//! ```
//!
//! A kernel counts as collective by its name: NCCL's prefixes and those of the environment. A graph counts if
//! it contains such a kernel (`window/graphs.rs`). All work in a marked stream counts too
//! (`communication.rs`). A launch through an open gate does not ask the driver for the name. The lock is
//! still held during the drain, no memory has moved, and the session is charged for the time.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use gpushare_proto::{GateWord, Nanos, names};

use crate::driver::Driver;
use crate::driver::types::{CUDA_SUCCESS, CUfunction};
use crate::window::aimd::DRAIN_TARGET;

/// Prefixes of NCCL's kernel names in all its releases.
const NCCL: [&str; 2] = ["ncclDevKernel", "ncclKernel"];
/// Longest time for which collectives are admitted, as a multiple of the target time of a drain. A drop that
/// takes longer is undone.
const PATIENCE: u64 = 4;

/// Admission of collective kernels while a drain runs, and the name prefixes that identify them.
#[derive(Debug, Default)]
pub struct Collectives {
    /// Gate word (closed) for which collectives are admitted, plus one; zero for none.
    admitting: AtomicU64,
    /// Point in time on the monotonic clock, in nanoseconds, at which the admission ends.
    until: AtomicU64,
    /// Prefixes of kernel names from the environment, besides NCCL's.
    prefixes: Vec<String>,
}

impl Collectives {
    pub fn of_environment() -> Self {
        let list = std::env::var(names::COMMUNICATION_KERNELS).unwrap_or_default();
        Self { prefixes: prefixes(&list), ..Self::default() }
    }

    /// Begins to admit collectives at `now`, while the gate word is the closed `word`. The drain covers their
    /// work.
    pub fn admit(&self, word: GateWord, now: Nanos, target: Nanos) {
        // Peers need their time, however short the drains of this session should be.
        let until = now + Nanos(target.max(DRAIN_TARGET).0.saturating_mul(PATIENCE));
        self.until.store(until.0, Ordering::Relaxed);
        self.admitting.store(u64::from(word.0) + 1, Ordering::SeqCst);
    }

    /// Ends the admission of collectives. Threads that were admitted count as inside the gate.
    pub fn end_admission(&self) {
        self.admitting.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Returns whether a collective is admitted while the gate word is `word`. The answer is reliable only
    /// for a thread that counts as inside the gate.
    pub fn is_admitted(&self, word: GateWord, now: Nanos) -> bool {
        fence(Ordering::SeqCst);
        self.admitting.load(Ordering::SeqCst) == u64::from(word.0) + 1
            && now.0 < self.until.load(Ordering::Relaxed)
    }

    pub fn is_collective(&self, driver: &Driver, function: CUfunction) -> bool {
        name(driver, function).is_some_and(|name| has_prefix(name, &self.prefixes))
    }
}

/// Returns the mangled name of a kernel, given as a function or as a kernel of a library.
fn name(driver: &Driver, function: CUfunction) -> Option<&'static str> {
    let mut questions = [driver.func_get_name, driver.kernel_get_name].into_iter().flatten();
    questions.find_map(|ask| {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: writes one pointer; the driver checks what kind of handle it is given.
        let found = unsafe { ask(&raw mut name, function) } == CUDA_SUCCESS && !name.is_null();
        // SAFETY: the driver keeps the name as long as the code is loaded, and it is about to be launched.
        found.then(|| unsafe { CStr::from_ptr(name) }.to_str().ok())?
    })
}

fn prefixes(list: &str) -> Vec<String> {
    let words = list.split(',').map(str::trim);
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn has_prefix(name: &str, further: &[String]) -> bool {
    // C++ mangling puts a length before the name.
    let plain = name
        .strip_prefix("_Z")
        .map_or(name, |rest| rest.trim_start_matches(|digit: char| digit.is_ascii_digit()));
    let mut all = NCCL.into_iter().chain(further.iter().map(String::as_str));
    all.any(|prefix| plain.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use gpushare_proto::GateState;

    use super::*;

    #[test]
    fn collectives_are_known_by_nccls_prefixes_and_the_environments() {
        for name in [
            "_Z40ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE",
            "_Z36ncclKernel_AllReduce_RING_LL_Sum_float11ncclDevCommmP8ncclWork",
            "ncclDevKernel_Generic",
        ] {
            assert!(has_prefix(name, &[]), "{name}");
        }
        for name in ["_Z6kernelPfS_", "my_ncclDevKernel", "vectorized_elementwise_kernel", ""] {
            assert!(!has_prefix(name, &[]), "{name}");
        }
        let own = prefixes("nvshmem, ring_exchange,,");
        assert_eq!(own, ["nvshmem", "ring_exchange"]);
        assert!(has_prefix("_Z13ring_exchangePf", &own));
    }

    #[test]
    fn collectives_are_admitted_for_one_word_and_a_limited_time() {
        let collectives = Collectives::default();
        let word = GateWord::new(3, GateState::Closed);
        let ms = Nanos::from_millis;
        assert!(!collectives.is_admitted(word, ms(1)));
        collectives.admit(word, ms(1), ms(10));
        assert!(collectives.is_admitted(word, ms(40)));
        assert!(!collectives.is_admitted(word, ms(41)), "the drop is late by now");
        assert!(!collectives.is_admitted(GateWord::new(5, GateState::Closed), ms(2)));
        collectives.end_admission();
        assert!(!collectives.is_admitted(word, ms(2)));
    }
}
