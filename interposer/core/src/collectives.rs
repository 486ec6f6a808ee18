//! Kernels that talk to other cards, and why a drop that has begun lets them in.
//!
//! A collective is a kernel on each of its cards, and each spins until all the others run. If a gate closes after the first of them
//! was launched and before the last, the work in flight waits for a thread at the gate. The drop would find that out when it
//! is late; this spares it the wait:
//!
//! ```text
//!   gate closed ──▶ drain begins: admitting ────────────────▶ nothing in flight ─▶ not admitting ─▶ who came in meanwhile
//!                        ▲            │ 4 × the drain target                                         is drained too ─▶ released
//!   a thread at the gate │            ▼
//!   with such a kernel ──┘        waits like any other
//! ```
//!
//! Which kernels those are their names say: NCCL's, and what the environment adds; a graph is one if such a kernel is in it (`window/graphs.rs`),
//! and so is whatever the program puts into a stream that it marked (`marked.rs`). The driver is asked for the name when a thread finds
//! the gate closed, so a launch through an open gate pays nothing. Whether the kernel belongs to a collective that has begun, nobody
//! can tell; but while this process drains, one may have. The lock is still held, memory has not moved, and the time is charged as the
//! drain's. After as long as a drop may take before it is late no more are let in, and the late drop's own rule takes over.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use gpushare_proto::{GateWord, Nanos, names};

use crate::driver::Driver;
use crate::driver::types::{CUDA_SUCCESS, CUfunction};

/// How NCCL's kernels begin, of all its releases.
const NCCL: [&str; 2] = ["ncclDevKernel", "ncclKernel"];
/// For how many drain targets a drop lets them in: when it is late, it is undone instead.
const PATIENCE: u64 = 4;

/// What a process knows of its collectives.
#[derive(Debug, Default)]
pub struct Collectives {
    /// The closed word under which they are let in, plus one; zero for none.
    admitting: AtomicU64,
    /// Until when, on the monotonic clock.
    until: AtomicU64,
    /// Beginnings of names besides NCCL's.
    own: Vec<String>,
}

impl Collectives {
    /// With what the environment adds to NCCL's.
    #[must_use]
    pub fn of_environment() -> Self {
        let own = std::env::var(names::COMMUNICATION_KERNELS).unwrap_or_default();
        Self { own: prefixes(&own), ..Self::default() }
    }

    /// A drain begins under a closed word at `now`, with this target. Those that it lets in must be drained as well.
    pub fn admit(&self, word: GateWord, now: Nanos, target: Nanos) {
        self.until
            .store((now + Nanos(target.0.saturating_mul(PATIENCE))).0, Ordering::Relaxed);
        self.admitting.store(u64::from(word.0) + 1, Ordering::SeqCst);
    }

    /// No more are let in. Who was, is counted inside the gate by now.
    pub fn admit_no_more(&self) {
        self.admitting.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Whether one is let in under this word. To be asked by a thread that is counted inside: then the drain waits for it.
    #[must_use]
    pub fn is_admitted(&self, word: GateWord, now: Nanos) -> bool {
        fence(Ordering::SeqCst);
        self.admitting.load(Ordering::SeqCst) == u64::from(word.0) + 1
            && now.0 < self.until.load(Ordering::Relaxed)
    }

    /// Whether a kernel talks to others.
    #[must_use]
    pub fn is_one(&self, driver: &Driver, function: CUfunction) -> bool {
        name(driver, function).is_some_and(|name| is_communication(name, &self.own))
    }
}

/// A kernel's name as the compiler wrote it. A launch takes functions and kernels of libraries; the driver tells which is which.
fn name(driver: &Driver, function: CUfunction) -> Option<&'static str> {
    [driver.func_get_name, driver.kernel_get_name]
        .into_iter()
        .flatten()
        .find_map(|ask| {
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

fn is_communication(name: &str, own: &[String]) -> bool {
    // C++ writes a length before a name.
    let plain = name
        .strip_prefix("_Z")
        .map_or(name, |rest| rest.trim_start_matches(|digit: char| digit.is_ascii_digit()));
    let mut all = NCCL.into_iter().chain(own.iter().map(String::as_str));
    all.any(|prefix| plain.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use gpushare_proto::GateState;

    use super::*;

    #[test]
    fn kernels_of_nccl_are_known_by_their_names_and_others_by_the_environment() {
        for name in [
            "_Z40ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE",
            "_Z36ncclKernel_AllReduce_RING_LL_Sum_float11ncclDevCommmP8ncclWork",
            "ncclDevKernel_Generic",
        ] {
            assert!(is_communication(name, &[]), "{name}");
        }
        for name in ["_Z6kernelPfS_", "my_ncclDevKernel", "vectorized_elementwise_kernel", ""] {
            assert!(!is_communication(name, &[]), "{name}");
        }
        let own = prefixes("nvshmem, ring_exchange,,");
        assert_eq!(own, ["nvshmem", "ring_exchange"]);
        assert!(is_communication("_Z13ring_exchangePf", &own));
    }

    #[test]
    fn they_are_let_in_while_the_drain_of_this_very_word_runs_and_for_so_long() {
        let collectives = Collectives::default();
        let word = GateWord::new(3, GateState::Closed);
        let ms = Nanos::from_millis;
        assert!(!collectives.is_admitted(word, ms(1)));
        collectives.admit(word, ms(1), ms(10));
        assert!(collectives.is_admitted(word, ms(40)));
        assert!(!collectives.is_admitted(word, ms(41)), "the drop is late by now");
        assert!(!collectives.is_admitted(GateWord::new(5, GateState::Closed), ms(2)));
        collectives.admit_no_more();
        assert!(!collectives.is_admitted(word, ms(2)));
    }
}
