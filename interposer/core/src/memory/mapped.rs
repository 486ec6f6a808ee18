//! Facts about memory that the application has created by handle and mapped itself, as the driver stated
//! them.
//!
//! While gpushare has such memory away, the driver knows nothing of it, and memory that comes back is new
//! memory to the driver, with another number. So gpushare asks the driver once, when it begins to move the
//! memory. The facts hold until the application removes the mapping. Questions take this table's own lock,
//! which no call of the driver is made under.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::driver::types::{CUdevice, CUdeviceptr};
use crate::process::lock;
use crate::remap::vmm::Span;

/// Table of mapped memory, by address.
#[derive(Debug, Default)]
pub(crate) struct Mapped(Mutex<BTreeMap<CUdeviceptr, (Span, Facts)>>);

/// Facts about device memory, which do not depend on where its bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Addresses of the allocation.
    pub(crate) range: Span,
    pub(crate) device: CUdevice,
    /// Address of the context of the allocation.
    pub(crate) context: usize,
    /// Number of the allocation, which no other one of the process has.
    pub(crate) buffer: u64,
}

impl Mapped {
    /// Enters the memory at `span` with the facts that `ask` returns, unless it is known already.
    pub(crate) fn note(&self, span: Span, ask: impl FnOnce() -> Facts) {
        if self.around(span.address).is_none() {
            let facts = ask();
            lock(&self.0).insert(span.address, (span, facts));
        }
    }

    /// Returns the facts about the memory around an address; `None` for other memory.
    pub(crate) fn around(&self, address: CUdeviceptr) -> Option<Facts> {
        let mapped = lock(&self.0);
        let (_, (span, facts)) = mapped.range(..=address).next_back()?;
        (address < span.end()).then_some(*facts)
    }

    /// Forgets the mappings in a range, which have ended.
    pub(crate) fn forget(&self, range: Span) {
        lock(&self.0).retain(|address, _| !(range.address..range.end()).contains(address));
    }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::Bytes;

    use super::*;

    const SPAN: Span = Span { address: 0x10000, size: Bytes(0x1000) };

    fn facts(buffer: u64) -> Facts {
        Facts { range: SPAN, device: 0, context: 0, buffer }
    }

    #[test]
    fn memory_keeps_its_number_until_it_is_unmapped() {
        let mapped = Mapped::default();
        mapped.note(SPAN, || facts(1));
        mapped.note(SPAN, || unreachable!("it is asked once"));
        let all = [0xffff, 0x10000, 0x10fff, 0x11000].map(|address| mapped.around(address));
        assert_eq!(all, [None, Some(facts(1)), Some(facts(1)), None]);
        mapped.forget(Span { address: 0x11000, ..SPAN });
        assert!(mapped.around(0x10000).is_some());
        mapped.forget(SPAN);
        mapped.note(SPAN, || facts(2));
        assert_eq!(mapped.around(0x10000), Some(facts(2)), "it may be other memory");
    }
}
