//! Addresses of a card's memory, reserved once.
//!
//! A reservation costs no memory and is never given back, so an address means the same memory from its
//! allocation to its free, wherever the bytes are. Ranges are multiples of [`GRANULE`] and never cross two
//! reservations.

use gpushare_proto::Bytes;
use range_alloc::RangeAllocator;

use super::vmm::{Span, VmmError};
use crate::driver::types::CUdeviceptr;

/// Granularity of physical memory, and so of addresses (`CU_MEM_ALLOC_GRANULARITY_MINIMUM` on every card since
/// Pascal).
pub const GRANULE: Bytes = Bytes::mib(2);
/// Least size of a reservation: more than the memory of a card, so that one is mostly enough.
const RESERVATION: Bytes = Bytes::gib(256);

/// Returns `size` rounded up to whole granules; `None` if that exceeds 64 bits.
pub fn round_up(size: Bytes) -> Option<Bytes> {
    size.0.checked_next_multiple_of(GRANULE.0).map(Bytes)
}

/// Reserved addresses and the ranges that are in use.
#[derive(Debug, Default)]
pub struct Space {
    reservations: Vec<RangeAllocator<CUdeviceptr>>,
}

impl Space {
    /// Takes a range of `size` bytes, rounded up to whole granules. If no reservation has room, `reserve` makes
    /// another of the size it is given and returns its address.
    ///
    /// # Errors
    /// Error of `reserve`, or [`VmmError::OutOfMemory`] for a size that no card has.
    pub fn take(
        &mut self,
        size: Bytes,
        reserve: impl FnOnce(Bytes) -> Result<CUdeviceptr, VmmError>,
    ) -> Result<Span, VmmError> {
        let size = round_up(size).filter(|size| !size.is_zero()).ok_or(VmmError::OutOfMemory)?;
        let in_reservation = |space: &mut RangeAllocator<CUdeviceptr>| space.allocate_range(size.0).ok();
        let range = match self.reservations.iter_mut().find_map(in_reservation) {
            Some(range) => range,
            None => {
                let whole = size.max(RESERVATION);
                let start = reserve(whole)?;
                let end = start.checked_add(whole.0).ok_or(VmmError::OutOfMemory)?;
                let mut space = RangeAllocator::new(start..end);
                let range = in_reservation(&mut space);
                self.reservations.push(space);
                range.ok_or(VmmError::OutOfMemory)?
            }
        };
        Ok(Span { address: range.start, size })
    }

    /// Takes a range back, under which no memory is mapped any more. Ignores a range that is not reserved.
    pub fn put(&mut self, span: Span) {
        let own = |space: &&mut RangeAllocator<CUdeviceptr>| {
            space.initial_range().start <= span.address && span.end() <= space.initial_range().end
        };
        if let Some(space) = self.reservations.iter_mut().find(own) {
            space.free_range(span.address..span.end());
        }
    }

    /// Returns whether an address is in a reservation, whether or not it is in use.
    pub fn has(&self, address: CUdeviceptr) -> bool {
        self.reservations.iter().any(|space| space.initial_range().contains(&address))
    }

    /// Returns whether no range is in use.
    pub fn is_unused(&self) -> bool {
        self.reservations.iter().all(RangeAllocator::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: CUdeviceptr = 1 << 40;

    #[test]
    fn one_reservation_serves_until_it_is_full() {
        let mut space = Space::default();
        let mut reserved = Vec::new();
        let mut take = |space: &mut Space, size| {
            space
                .take(size, |whole| {
                    reserved.push(whole);
                    Ok(BASE << reserved.len())
                })
                .unwrap()
        };
        let first = take(&mut space, Bytes(1));
        assert_eq!(first, Span { address: BASE << 1, size: GRANULE });
        let second = take(&mut space, Bytes::gib(200));
        assert_eq!(second.address, first.end());
        let third = take(&mut space, Bytes::gib(100));
        assert_eq!(third.address, BASE << 2);
        let huge = take(&mut space, Bytes::gib(1024));
        assert_eq!(huge.address, BASE << 3);
        assert_eq!(reserved, [RESERVATION, RESERVATION, Bytes::gib(1024)]);
        assert!(space.has(second.address) && space.has(second.end()) && !space.has(BASE));
        [first, second, third, huge].into_iter().for_each(|span| space.put(span));
        assert!(space.is_unused());
    }

    #[test]
    fn a_refused_reservation_and_an_absurd_size_change_nothing() {
        let mut space = Space::default();
        let refuse = |_| Err(VmmError::Refused(1));
        assert_eq!(space.take(GRANULE, refuse), Err(VmmError::Refused(1)));
        assert_eq!(space.take(Bytes::MAX, refuse), Err(VmmError::OutOfMemory));
        assert_eq!(space.take(Bytes::ZERO, refuse), Err(VmmError::OutOfMemory));
        assert!(space.take(GRANULE, |_| Ok(BASE)).is_ok());
    }
}
