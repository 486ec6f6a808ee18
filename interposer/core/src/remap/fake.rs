//! Card for tests, which holds real values, fails on demand, and panics at each misuse that would lose bytes.

use std::collections::BTreeMap;
use std::sync::Mutex;

use gpushare_proto::Bytes;

use super::host::{HostError, HostMemory};
use super::lanes::Hardware;
use super::vmm::{Direction, HostAddress, Span, Tier, Vmm, VmmError};
use crate::driver::types::{CUdeviceptr, CUmemHandle};
use crate::process::lock;

/// Value of memory that a copy left half written.
const GARBAGE: u64 = u64::MAX;

#[derive(Debug, Default)]
pub(crate) struct FakeCard(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    calls: usize,
    /// Numbers of the calls that fail, counted from 0.
    fails: Vec<usize>,
    /// Most bytes of the card, and of host memory for mappings.
    capacity: Option<Bytes>,
    host_capacity: Option<Bytes>,
    pieces: BTreeMap<CUmemHandle, Piece>,
    mapped: BTreeMap<CUdeviceptr, Mapped>,
    copies: BTreeMap<CUdeviceptr, Flying>,
    slots: BTreeMap<HostAddress, u64>,
    /// Regions of host memory, and whether each is registered.
    regions: BTreeMap<HostAddress, bool>,
    next: u64,
    /// Whether the gate is marked as evicting.
    is_marked: bool,
    /// Number of marks that are refused from now on.
    refused_marks: usize,
    asked_for_proofs: usize,
    most_digests: usize,
}

#[derive(Debug)]
struct Piece {
    tier: Tier,
    size: Bytes,
    /// Stands for all bytes of the piece.
    value: u64,
}

#[derive(Debug)]
struct Mapped {
    handle: CUmemHandle,
    size: Bytes,
    is_accessible: bool,
}

#[derive(Debug)]
struct Flying {
    direction: Direction,
    host: HostAddress,
    /// Number of the call that began the copy.
    began: u64,
    /// Value of the source when the copy began.
    value: u64,
}

impl FakeCard {
    /// Lets the calls with these numbers fail, counted from now on.
    pub(crate) fn fail_at(&self, numbers: &[usize]) {
        let mut inner = lock(&self.0);
        inner.calls = 0;
        inner.fails = numbers.to_vec();
    }

    /// Most digests that were computed by one call.
    pub(crate) fn most_digests(&self) -> usize {
        lock(&self.0).most_digests
    }

    pub(crate) fn calls(&self) -> usize {
        lock(&self.0).calls
    }

    pub(crate) fn set_capacity(&self, capacity: Bytes) {
        lock(&self.0).capacity = Some(capacity);
    }

    pub(crate) fn set_host_capacity(&self, capacity: Bytes) {
        lock(&self.0).host_capacity = Some(capacity);
    }

    /// Work that reads the memory at an address, and then writes it. A copy out of it becomes garbage.
    pub(crate) fn work(&self, address: CUdeviceptr, value: u64) -> u64 {
        let mut inner = lock(&self.0);
        let flying = inner.copies.get(&address);
        assert!(flying.is_none_or(|flying| flying.direction == Direction::Out), "work on bytes that come in");
        inner.write(address, value)
    }

    /// Work that a proof of idleness has missed.
    pub(crate) fn missed_work(&self, address: CUdeviceptr, value: u64) {
        lock(&self.0).write(address, value);
    }

    pub(crate) fn at(&self, address: CUdeviceptr) -> Option<u64> {
        let inner = lock(&self.0);
        let mapped = inner.mapped.get(&address).filter(|mapped| mapped.is_accessible)?;
        Some(inner.pieces[&mapped.handle].value)
    }

    pub(crate) fn in_slot(&self, host: HostAddress) -> Option<u64> {
        lock(&self.0).slots.get(&host).copied()
    }

    pub(crate) fn in_piece(&self, handle: CUmemHandle) -> u64 {
        lock(&self.0).pieces[&handle].value
    }

    /// Ends the copy at an address. The call that ends it can fail like any other.
    pub(crate) fn land(&self, address: CUdeviceptr) -> Result<(), VmmError> {
        let mut inner = lock(&self.0);
        let flying = inner.copies.remove(&address).expect("a copy is under way");
        let failed = inner.call();
        let source = match flying.direction {
            Direction::Out => inner.value_at(address),
            Direction::In => inner.slots[&flying.host],
        };
        assert!(
            source == flying.value || flying.direction == Direction::Out,
            "a slot changed while it was copied"
        );
        // A copy of memory that was written meanwhile is torn.
        let is_whole = failed.is_ok() && source == flying.value;
        let value = if is_whole { source } else { GARBAGE };
        match flying.direction {
            Direction::Out => {
                inner.slots.insert(flying.host, value);
            }
            Direction::In => {
                inner.write(address, value);
            }
        }
        failed
    }

    /// Addresses that are copied now, in the order in which their copies began.
    pub(crate) fn copies(&self) -> Vec<CUdeviceptr> {
        let inner = lock(&self.0);
        let mut copies: Vec<_> =
            inner.copies.iter().map(|(&address, flying)| (flying.began, address)).collect();
        copies.sort_unstable();
        copies.into_iter().map(|(_, address)| address).collect()
    }

    /// Sum of all physical memory of a kind.
    pub(crate) fn bytes(&self, tier: Tier) -> Bytes {
        lock(&self.0).bytes(tier)
    }

    /// Panics if anything is left.
    pub(crate) fn assert_empty(&self) {
        let inner = lock(&self.0);
        assert!(inner.pieces.is_empty(), "handles leak: {:?}", inner.pieces);
        assert!(inner.mapped.is_empty(), "mappings leak: {:?}", inner.mapped);
        assert!(inner.copies.is_empty(), "copies are under way: {:?}", inner.copies);
    }

    /// Refuses to mark the gate so many times.
    pub(crate) fn refuse_marks(&self, count: usize) {
        lock(&self.0).refused_marks = count;
    }

    pub(crate) fn asked_for_proofs(&self) -> usize {
        lock(&self.0).asked_for_proofs
    }

    pub(crate) fn is_marked(&self) -> bool {
        lock(&self.0).is_marked
    }

    /// Holds a copy that other processes share, with this value.
    pub(crate) fn hold_copy(&self, address: HostAddress, value: u64) {
        let mut inner = lock(&self.0);
        inner.slots.insert(address, value);
        inner.regions.insert(address, false);
    }

    pub(crate) fn regions(&self) -> usize {
        lock(&self.0).regions.len()
    }
}

impl Inner {
    fn call(&mut self) -> Result<(), VmmError> {
        let number = self.calls;
        self.calls += 1;
        if self.fails.contains(&number) { Err(VmmError::Refused(1)) } else { Ok(()) }
    }

    fn bytes(&self, tier: Tier) -> Bytes {
        self.pieces
            .values()
            .filter(|piece| piece.tier == tier)
            .map(|piece| piece.size)
            .sum()
    }

    fn mapped(&self, address: CUdeviceptr) -> &Mapped {
        let mapped = self.mapped.get(&address).expect("an access to a hole");
        assert!(mapped.is_accessible, "an access without the right");
        mapped
    }

    fn value_at(&self, address: CUdeviceptr) -> u64 {
        self.pieces[&self.mapped(address).handle].value
    }

    fn write(&mut self, address: CUdeviceptr, value: u64) -> u64 {
        let handle = self.mapped(address).handle;
        let piece = self.pieces.get_mut(&handle).expect("mapped memory");
        std::mem::replace(&mut piece.value, value)
    }
}

impl Vmm for FakeCard {
    fn create(&self, tier: Tier, Span { size, .. }: Span) -> Result<CUmemHandle, VmmError> {
        let mut inner = lock(&self.0);
        inner.call()?;
        let capacity = match tier {
            Tier::Device => inner.capacity,
            Tier::Host => inner.host_capacity,
        };
        if inner.bytes(tier) + size > capacity.unwrap_or(Bytes::MAX) {
            return Err(VmmError::OutOfMemory);
        }
        inner.next += 1;
        let handle = inner.next;
        inner.pieces.insert(handle, Piece { tier, size, value: 0 });
        Ok(handle)
    }

    fn map(&self, span: Span, handle: CUmemHandle) -> Result<(), VmmError> {
        let mut inner = lock(&self.0);
        inner.call()?;
        assert_eq!(inner.pieces[&handle].size, span.size);
        assert!(inner.mapped.values().all(|mapped| mapped.handle != handle), "mapped twice");
        let before = inner.mapped.range(..span.end()).next_back();
        let is_free = before.is_none_or(|(&start, mapped)| start + mapped.size.0 <= span.address);
        assert!(is_free, "a mapping over another");
        let mapped = Mapped { handle, size: span.size, is_accessible: false };
        inner.mapped.insert(span.address, mapped);
        Ok(())
    }

    fn set_access(&self, span: Span) -> Result<(), VmmError> {
        let mut inner = lock(&self.0);
        inner.call()?;
        inner.mapped.get_mut(&span.address).expect("a mapping").is_accessible = true;
        Ok(())
    }

    fn unmap(&self, span: Span) -> Result<(), VmmError> {
        let mut inner = lock(&self.0);
        inner.call()?;
        assert!(!inner.copies.contains_key(&span.address), "unmapped while it is copied");
        inner.mapped.remove(&span.address).expect("a mapping");
        Ok(())
    }

    fn release(&self, handle: CUmemHandle) -> Result<(), VmmError> {
        let mut inner = lock(&self.0);
        inner.call()?;
        assert!(inner.mapped.values().all(|mapped| mapped.handle != handle), "released while mapped");
        inner.pieces.remove(&handle).expect("a handle");
        Ok(())
    }

    fn digests(&self, spans: &[Span]) -> Result<Vec<u128>, VmmError> {
        let mut inner = lock(&self.0);
        inner.call()?;
        inner.most_digests = inner.most_digests.max(spans.len());
        Ok(spans.iter().map(|span| inner.value_at(span.address).into()).collect())
    }

    fn copy(&self, direction: Direction, span: Span, host: HostAddress) -> Result<(), VmmError> {
        let mut inner = lock(&self.0);
        inner.call()?;
        let value = match direction {
            Direction::Out => inner.value_at(span.address),
            Direction::In => inner.slots[&host],
        };
        inner.mapped(span.address);
        assert!(inner.copies.values().all(|flying| flying.host != host), "a slot in two copies");
        inner.next += 1;
        let flying = Flying { direction, host, began: inner.next, value };
        assert!(inner.copies.insert(span.address, flying).is_none(), "copied twice at once");
        Ok(())
    }
}

impl Hardware for FakeCard {
    fn ended(&self) -> Option<(CUdeviceptr, Result<(), VmmError>)> {
        let address = self.copies().first().copied()?;
        Some((address, self.land(address)))
    }

    fn set_guard(&self, is_set: bool) -> Result<(), ()> {
        let mut inner = lock(&self.0);
        if is_set && inner.refused_marks > 0 {
            inner.refused_marks -= 1;
            return Err(());
        }
        inner.is_marked = is_set;
        Ok(())
    }

    fn ask_for_proof(&self) {
        lock(&self.0).asked_for_proofs += 1;
    }
}

impl HostMemory for FakeCard {
    fn touch(&self, size: Bytes) -> Result<HostAddress, HostError> {
        let mut inner = lock(&self.0);
        inner.call().map_err(|_| HostError::NoMemory { size, errno: 12 })?;
        inner.next += 1;
        let address = HostAddress(inner.next << 32);
        inner.regions.insert(address, false);
        Ok(address)
    }

    fn register(&self, address: HostAddress, _: Bytes) -> Result<(), HostError> {
        let mut inner = lock(&self.0);
        inner.call().map_err(|_| HostError::Refused(1))?;
        let registered = inner.regions.insert(address, true);
        assert_eq!(registered, Some(false));
        Ok(())
    }

    fn unregister(&self, address: HostAddress, _: Bytes) -> Result<(), HostError> {
        let mut inner = lock(&self.0);
        inner.call().map_err(|_| HostError::Refused(1))?;
        let registered = inner.regions.insert(address, false);
        assert_eq!(registered, Some(true));
        Ok(())
    }

    fn unmap(&self, address: HostAddress, _: Bytes) -> Result<(), HostError> {
        let mut inner = lock(&self.0);
        inner.call().map_err(|_| HostError::NoMemory { size: Bytes::ZERO, errno: 12 })?;
        assert_eq!(inner.regions.remove(&address), Some(false), "given back while registered");
        Ok(())
    }

    fn register_to_read(&self, address: HostAddress, size: Bytes) -> Result<(), HostError> {
        self.register(address, size)
    }

    fn end_copy(&self, address: HostAddress, _: Bytes) {
        let mut inner = lock(&self.0);
        assert_eq!(inner.regions.remove(&address), Some(false), "given up while registered");
        inner.slots.remove(&address);
    }
}
