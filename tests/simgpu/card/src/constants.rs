//! The card's constants: the measured rates of a real H100 (`memory.md` of the design), made small.
//!
//! ```text
//!            real H100      simulated       ratio
//! memory     80 GiB         256 MiB         320
//! rates      13 GB/s ...    1.3 GB/s ...     10   (RATE_SCALE, one factor for all)
//! ```
//!
//! Every ratio between two rates is therefore the real one, and moving a card-full by faults takes 0.2 s
//! each way: long enough to watch. What follows from an amount of memory (creating a context, giving a dead
//! process' memory back) shrinks by 320 / 10 = 32. What does not (a launch, the time slice) keeps its real
//! length.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// By how much every rate of the real card is divided.
pub const RATE_SCALE: u64 = 10;

/// The unit in which managed memory moves, faults and is evicted.
pub const PAGE: u64 = 2 << 20;

const GB: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;

/// A rate in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate(pub u64);

impl Rate {
    /// How long `bytes` take at this rate.
    pub fn time_for(self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.0.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The slower one of two rates.
    pub fn at_most(self, limit: Self) -> Self {
        Self(self.0.min(limit.0))
    }

    /// Half of this rate.
    pub fn half(self) -> Self {
        Self(self.0 / 2)
    }

    const fn scaled(real: u64) -> Self {
        Self(real / RATE_SCALE)
    }
}

/// Rates of the calls about physical memory with handles.
///
/// The figures are those of 8 GiB in pieces of 128 MiB on a GPU, and of 16 GiB on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandleRates {
    /// `cuMemCreate`.
    pub create: Rate,
    /// `cuMemMap` together with the `cuMemSetAccess` after it, which costs nothing more here.
    pub map: Rate,
    /// `cuMemUnmap`.
    pub unmap: Rate,
    /// The call that ends the memory: the last `cuMemRelease`, or the last `cuMemUnmap` if that comes later.
    pub release: Rate,
}

/// Everything about the card that is a number. Printed with every result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constants {
    /// Memory of one GPU, in bytes.
    pub memory: u64,
    /// Memory that one context takes, in bytes.
    pub context_memory: u64,
    /// Host to device copies of pinned memory.
    pub pinned_in: Rate,
    /// Device to host copies into pinned memory.
    pub pinned_out: Rate,
    /// Copies of pinned memory in both directions at once, their bytes counted together.
    pub pinned_both: Rate,
    /// Host to device copies of pageable memory.
    pub pageable_in: Rate,
    /// Device to host copies into pageable memory.
    pub pageable_out: Rate,
    /// Managed pages that come in because a kernel touched them.
    pub fault_in: Rate,
    /// Managed pages that leave because somebody needs their room.
    pub evict_out: Rate,
    /// Managed pages prefetched to the GPU.
    pub prefetch_in: Rate,
    /// Managed pages prefetched to the host.
    pub prefetch_out: Rate,
    /// Memory that a kernel reads and writes while it is resident.
    pub kernel: Rate,
    /// Memory of the host that a kernel reads and writes in place.
    pub kernel_on_host: Rate,
    /// Memory that lies on another GPU: copied, or read and written by a kernel.
    pub peer: Rate,
    /// `cuMemHostRegister` of memory that its process has touched.
    pub register: Rate,
    /// Memory that nobody has touched before it is registered, in addition.
    pub touch: Rate,
    /// `cuMemHostUnregister`.
    pub unregister: Rate,
    /// Memory of the host that can be pinned, registered, or made physical memory, in bytes.
    pub host_memory: u64,
    /// Calls about physical memory on a GPU.
    pub device_handles: HandleRates,
    /// Calls about physical memory on the host (`HOST_NUMA`).
    pub host_handles: HandleRates,
    /// Time of a kernel that touches nothing.
    pub launch: Duration,
    /// How long one process computes while another one waits.
    pub slice: Duration,
    /// Time for which nobody computes when a process is stopped for another one.
    pub slice_change: Duration,
    /// Time to create a context.
    pub context_create: Duration,
    /// Time between the death of a process and the return of its memory.
    pub death_release: Duration,
    /// Time of a checkpoint of a process that has nothing but contexts.
    pub checkpoint: Duration,
    /// Memory of a GPU that a checkpoint moves to the host, in addition.
    pub checkpoint_out: Rate,
    /// Memory that a process keeps on each GPU while it is checkpointed, in bytes.
    pub checkpoint_left: u64,
    /// Time of a restore of such a process.
    pub restore: Duration,
    /// Memory that a restore moves to a GPU, in addition.
    pub restore_in: Rate,
    /// How often a spinning kernel and a stream that waits for a value look at their word.
    pub poll: Duration,
}

impl Constants {
    /// Time to register so many bytes, of which so many have never been touched.
    pub fn registration(&self, len: u64, untouched: u64) -> Duration {
        self.register.time_for(len) + self.touch.time_for(untouched)
    }
}

impl Default for Constants {
    fn default() -> Self {
        Self {
            memory: 256 * MIB,
            context_memory: 2 * MIB,
            pinned_in: Rate::scaled(55 * GB),
            pinned_out: Rate::scaled(55 * GB),
            pinned_both: Rate::scaled(88 * GB),
            pageable_in: Rate::scaled(7 * GB),
            pageable_out: Rate::scaled(14 * GB),
            fault_in: Rate::scaled(13 * GB),
            evict_out: Rate::scaled(13 * GB),
            prefetch_in: Rate::scaled(48 * GB),
            prefetch_out: Rate::scaled(13 * GB),
            kernel: Rate::scaled(2_000 * GB),
            kernel_on_host: Rate::scaled(84 * GB),
            peer: Rate::scaled(55 * GB),
            register: Rate::scaled(44 * GB),
            // One thread. More of them are the program's own business: 20, 36, 49 GB/s with 4, 8, 16.
            touch: Rate::scaled(5_700_000_000),
            // 16 GiB in 0.3 s.
            unregister: Rate::scaled(57 * GB),
            host_memory: u64::MAX,
            // 0.7 ms to create, 2 to 4 ms to map, 4 ms to unmap and release together: half for each.
            device_handles: HandleRates {
                create: Rate::scaled(12_000 * GB),
                map: Rate::scaled(2_900 * GB),
                unmap: Rate::scaled(4_300 * GB),
                release: Rate::scaled(4_300 * GB),
            },
            // 5.5 GB/s to create (1.7 on another machine), 0.16 to 0.2 s to map, 0.04 s to unmap, 0.35 to 0.45 s to
            // release.
            host_handles: HandleRates {
                create: Rate::scaled(5_500_000_000),
                map: Rate::scaled(95 * GB),
                unmap: Rate::scaled(430 * GB),
                release: Rate::scaled(43 * GB),
            },
            launch: Duration::from_micros(4),
            slice: Duration::from_millis(2),
            slice_change: Duration::from_micros(200),
            context_create: Duration::from_millis(10),
            death_release: Duration::from_micros(2_500),
            // 0.32 s with 620 MiB of a context, and 0.95 s with a GiB beside it.
            checkpoint: Duration::from_millis(10),
            checkpoint_out: Rate::scaled(1_700_000_000),
            // 4 MiB of 80 GiB.
            checkpoint_left: 16 << 10,
            // 0.17 s, and 0.34 to 0.43 s.
            restore: Duration::from_micros(5_300),
            restore_in: Rate::scaled(5 * GB),
            poll: Duration::from_micros(100),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_full_of_faults_takes_a_fifth_of_a_second() {
        let constants = Constants::default();
        let full = constants.fault_in.time_for(constants.memory);
        assert_eq!(full.as_millis(), 206);
    }

    #[test]
    fn a_rate_of_zero_is_slow_and_not_a_crash() {
        assert_eq!(Rate(0).time_for(2), Duration::from_secs(2));
    }
}
