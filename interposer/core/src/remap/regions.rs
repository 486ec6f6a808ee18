//! Address space for regions of host memory, mapped in large steps.
//!
//! The kernel locks the address space of a process while it maps memory or changes what a mapping is for, and waits
//! for page faults meanwhile. So regions that are mapped one by one are touched one after the other, however many
//! threads do it. Regions of one mapping are touched at once.
//!
//! A region that is given back loses its pages and keeps its addresses.
//!
//! Pages come from the NUMA node of the host that is next to the card, because copies from another one are slower. If
//! that node has none left, they come from others.

use std::ffi::{c_int, c_ulong, c_void};
use std::io;
use std::ptr::{null_mut, with_exposed_provenance_mut};

use gpushare_proto::Bytes;

use super::host::{HostError, REGION};
use super::vmm::HostAddress;

/// Size of a mapping. It takes no memory before its pages are touched.
const STEP: Bytes = Bytes::gib(4);
/// Number of NUMA nodes that Linux can have.
const NODES: usize = 1024;
/// Size of the smallest pages.
const PAGE: usize = 4096;
/// Size of a huge page, and alignment of regions.
const HUGE_PAGE: Bytes = Bytes::mib(2);

/// Regions without pages.
#[derive(Debug, Default)]
pub(super) struct FreeRegions {
    free: Vec<HostAddress>,
    /// NUMA node of the host from which pages come, if one is preferred.
    node: Option<u32>,
}

impl FreeRegions {
    /// Regions whose pages come from a NUMA node of the host, if it has some.
    pub(super) fn near(node: Option<c_int>) -> Self {
        Self { free: Vec::new(), node: node.and_then(|node| u32::try_from(node).ok()) }
    }

    /// Takes a region, whose pages are still to be touched.
    ///
    /// # Errors
    /// The system has no addresses for more.
    pub(super) fn take(&mut self) -> Result<HostAddress, HostError> {
        if self.free.is_empty() {
            // A system that promises no more memory than it has may refuse a large step.
            let map = |size| map(size, self.node).map(|first| (first, size));
            let first = map(STEP).or_else(|_| map(REGION));
            let (HostAddress(first), size) = first?;
            let regions = (0..size.0 / REGION.0).rev();
            self.free.extend(regions.map(|number| HostAddress(first + number * REGION.0)));
        }
        self.free.pop().ok_or(HostError::NoMemory { size: REGION, errno: libc::ENOMEM })
    }

    /// Takes a region back that has no pages.
    pub(super) fn give(&mut self, region: HostAddress) {
        self.free.push(region);
    }
}

/// Touches all pages of a region.
///
/// # Errors
/// The system has no memory; the region has no pages.
pub(super) fn touch(region: HostAddress, size: Bytes) -> Result<(), HostError> {
    let bytes = size.0 as usize;
    // SAFETY: the region is gpushare's own, and nothing uses its contents yet.
    unsafe {
        if libc::madvise(pages_of(region), bytes, libc::MADV_POPULATE_WRITE) != 0 {
            let error = error_of(size);
            if error != (HostError::NoMemory { size, errno: libc::EINVAL }) {
                libc::madvise(pages_of(region), bytes, libc::MADV_DONTNEED);
                return Err(error);
            }
            // A kernel before Linux 5.14 does not know it.
            for page in (0..bytes).step_by(PAGE) {
                pages_of(region).cast::<u8>().add(page).write_volatile(0);
            }
        }
    }
    Ok(())
}

/// Gives the pages of a region back to the system.
///
/// # Errors
/// Error of the system; the region keeps its pages.
pub(super) fn drop_pages(region: HostAddress, size: Bytes) -> Result<(), HostError> {
    // SAFETY: the region is gpushare's own, and nothing uses its contents any more.
    match unsafe { libc::madvise(pages_of(region), size.0 as usize, libc::MADV_DONTNEED) } {
        0 => Ok(()),
        _ => Err(error_of(size)),
    }
}

/// Maps anonymous memory, aligned to huge pages, which children and core dumps do not get.
fn map(size: Bytes, node: Option<u32>) -> Result<HostAddress, HostError> {
    let bytes = (size + HUGE_PAGE).0 as usize;
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh mapping at an address that the kernel chooses, and advice about it alone.
    unsafe {
        let memory = libc::mmap(null_mut(), bytes, access, flags | libc::MAP_NORESERVE, -1, 0);
        if memory == libc::MAP_FAILED {
            return Err(error_of(size));
        }
        for advice in [libc::MADV_HUGEPAGE, libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
            libc::madvise(memory, bytes, advice);
        }
        if let Some(node) = node {
            prefer(node, memory, bytes);
        }
        Ok(HostAddress((memory.expose_provenance() as u64).next_multiple_of(HUGE_PAGE.0)))
    }
}

/// Lets a mapping's pages come from a NUMA node, if it has some. A policy that the user chose for the process stays, and
/// so does the usual one if a container may not change it.
///
/// # Safety
/// The mapping is gpushare's own.
unsafe fn prefer(node: u32, memory: *mut c_void, bytes: usize) {
    let mut nodes = [0; NODES / c_ulong::BITS as usize];
    let Some(bits) = nodes.get_mut((node / c_ulong::BITS) as usize) else { return };
    *bits = 1 << (node % c_ulong::BITS);
    let mut policy: c_int = 0;
    // SAFETY: the first call writes one integer. The second one reads the nodes, one fewer than it is told, and changes
    // where pages of the mapping come from.
    unsafe {
        let asked = libc::syscall(libc::SYS_get_mempolicy, &raw mut policy, null_mut::<c_ulong>(), 0, 0, 0);
        if asked == 0 && policy == libc::MPOL_DEFAULT {
            libc::syscall(libc::SYS_mbind, memory, bytes, libc::MPOL_PREFERRED, nodes.as_ptr(), NODES + 1, 0);
        }
    }
}

fn pages_of(HostAddress(address): HostAddress) -> *mut c_void {
    with_exposed_provenance_mut(address as usize)
}

fn error_of(size: Bytes) -> HostError {
    HostError::NoMemory { size, errno: io::Error::last_os_error().raw_os_error().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the region's pages that are in memory.
    fn present(region: HostAddress) -> Bytes {
        let mut pages = vec![0_u8; (REGION.0 / 4096) as usize];
        // SAFETY: the vector has a byte for each page of the region.
        let asked = unsafe { libc::mincore(pages_of(region), REGION.0 as usize, pages.as_mut_ptr()) };
        assert_eq!(asked, 0);
        Bytes(pages.iter().filter(|page| **page & 1 != 0).count() as u64 * 4096)
    }

    #[test]
    fn a_region_has_pages_from_its_touch_until_they_are_dropped() {
        let mut regions = FreeRegions::default();
        let region = regions.take().unwrap();
        assert_eq!(present(region), Bytes::ZERO);
        touch(region, REGION).unwrap();
        assert_eq!(present(region), REGION);
        drop_pages(region, REGION).unwrap();
        assert_eq!(present(region), Bytes::ZERO);
        regions.give(region);
    }

    /// Memory policy of a region, and its nodes below 64; `None` if the system does not say.
    fn policy(HostAddress(region): HostAddress) -> Option<(c_int, c_ulong)> {
        /// `MPOL_F_ADDR`: the policy of an address.
        const OF_ADDRESS: c_ulong = 2;
        let (mut policy, mut nodes) = (0, [0; NODES / 64]);
        // SAFETY: writes one integer and as many bits as the nodes have.
        let asked = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut policy,
                nodes.as_mut_ptr(),
                NODES,
                region,
                OF_ADDRESS,
            )
        };
        (asked == 0).then_some((policy, nodes[0]))
    }

    /// Whether the process may have pages of node 0.
    fn has_first_node() -> bool {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let nodes = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
        nodes.is_none_or(|nodes| nodes.trim().starts_with('0'))
    }

    #[test]
    fn pages_come_from_the_node_next_to_the_card() {
        let [near, anywhere, beyond] =
            [Some(0), None, Some(5_000)].map(|node| FreeRegions::near(node).take().unwrap());
        // A container may forbid these questions, or leave no node 0 to the process.
        let Some(usual) = policy(anywhere).filter(|_| has_first_node()) else { return };
        assert_eq!(policy(beyond), Some(usual), "no such node");
        if usual.0 == libc::MPOL_DEFAULT {
            assert_eq!(policy(near), Some((libc::MPOL_PREFERRED, 1)));
            touch(near, REGION).unwrap();
        } else {
            assert_eq!(policy(near), Some(usual), "the user has chosen");
        }
    }

    #[test]
    fn regions_are_aligned_and_do_not_overlap() {
        let mut regions = FreeRegions::default();
        let mut taken: Vec<_> = (0..40).map(|_| regions.take().unwrap().0).collect();
        assert!(taken.iter().all(|address| address.is_multiple_of(HUGE_PAGE.0)));
        taken.sort_unstable();
        assert!(taken.windows(2).all(|pair| pair[1] - pair[0] >= REGION.0));
    }

    #[test]
    fn a_region_that_was_given_back_is_taken_again() {
        let mut regions = FreeRegions::default();
        let region = regions.take().unwrap();
        regions.give(region);
        assert_eq!(regions.take(), Ok(region));
    }
}
