//! The real driver below the engine of one card: physical memory, mappings, copies, and registered memory.
//!
//! Calls that need a context borrow a live one of the card for the time of the call. Copies of each direction
//! run in a stream of their own, with an event behind each. If their context is destroyed, they count as
//! failed.

mod fingerprints;
mod host;
mod kernel;
mod room;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use gpushare_proto::Bytes;
use gpushare_proto::page::MAX_GPUS;
use gpushare_sys::fd;

use self::kernel::Fingerprints;
use super::fingerprint::BLOCK;
use super::guard::Guard;
use super::lanes::Hardware;
use super::regions::FreeRegions;
use super::sharing::Sharing;
use super::swap::CHUNK;
use super::vmm::{Direction, HostAddress, MOST_DIGESTS, Span, Tier, Vmm, VmmError};
use crate::driver::contexts::{Contexts, Live};
use crate::driver::types::{
    ACCESS_READ_WRITE, ALLOCATION_PINNED, Access, AllocationProperties, CUDA_ERROR_INVALID_CONTEXT,
    CUDA_ERROR_NOT_READY, CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS, CUdevice, CUdeviceptr, CUmemHandle,
    CUresult, CUstream, EVENT_DISABLE_TIMING, HANDLE_DESCRIPTOR, LOCATION_DEVICE, LOCATION_HOST_NUMA,
    STREAM_NON_BLOCKING,
};
use crate::driver::{Driver, MemoryCalls, try_answer};
use crate::freeze::facts::{NOTED, Noted};
use crate::process::lock;

/// Size of a huge page, and alignment of registered memory.
const HUGE_PAGE: usize = 2 << 20;

/// Address of no context.
const NO_CONTEXT: usize = 0;

/// Error of a fingerprint on a card that computes none.
const UNUSABLE: VmmError = VmmError::Refused(CUDA_ERROR_NOT_SUPPORTED);

/// One card, as its engine uses it.
#[derive(Debug)]
pub(super) struct OnCard {
    driver: &'static Driver,
    calls: MemoryCalls,
    contexts: &'static Contexts,
    guard: &'static Guard,
    sharing: &'static Sharing,
    device: CUdevice,
    /// Kinds of handles by which other processes may get new memory: descriptors, if the device can do that.
    handle_types: AtomicI32,
    /// Devices whose kernels may use this card's memory, as bits.
    peers: AtomicU32,
    copies: Mutex<Copies>,
    /// NUMA node of the host that is next to the card; 0 if that is not known.
    host_node: c_int,
    regions: Mutex<FreeRegions>,
    /// Addresses of the contexts in which regions were registered, by region.
    registered: Mutex<BTreeMap<HostAddress, usize>>,
    fingerprints: Fingerprints,
    /// Descriptions of memory that the program created itself, by the addresses at which it mapped it.
    adopted: Mutex<BTreeMap<CUdeviceptr, AllocationProperties>>,
}

/// Stream of gpushare's own work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Out,
    In,
    /// Kernels that fingerprint chunks.
    Kernel,
}

impl From<Direction> for Stream {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Out => Self::Out,
            Direction::In => Self::In,
        }
    }
}

/// Copies of the card that are under way, in the order of their streams.
#[derive(Debug, Default)]
struct Copies {
    /// Address of the context of the streams, and one for each [`Stream`].
    streams: Option<(usize, [usize; 3])>,
    under_way: [VecDeque<UnderWay>; 2],
}

/// Copy or kernel that is under way.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    /// Address of the context.
    context: usize,
    /// Address of the event behind the copy.
    event: usize,
    address: CUdeviceptr,
}

impl OnCard {
    pub(super) fn new(
        driver: &'static Driver,
        calls: MemoryCalls,
        contexts: &'static Contexts,
        (guard, sharing): (&'static Guard, &'static Sharing),
        device: CUdevice,
        is_paranoid: bool,
    ) -> Self {
        let host_node = driver.host_node(device);
        Self {
            driver,
            calls,
            contexts,
            guard,
            sharing,
            device,
            handle_types: AtomicI32::new(if driver.can_export(device) { HANDLE_DESCRIPTOR } else { 0 }),
            peers: AtomicU32::new(0),
            copies: Mutex::default(),
            host_node: host_node.unwrap_or(0),
            regions: Mutex::new(FreeRegions::near(host_node)),
            registered: Mutex::default(),
            fingerprints: Fingerprints::new(is_paranoid),
            adopted: Mutex::default(),
        }
    }

    /// Reserves addresses for good.
    pub(super) fn reserve(&self, size: Bytes) -> Result<CUdeviceptr, VmmError> {
        let mut address = 0;
        // SAFETY: writes one address; the driver chooses it.
        check(unsafe { (self.calls.address_reserve)(&raw mut address, size.0 as usize, HUGE_PAGE, 0, 0) })?;
        Ok(address)
    }

    /// Returns whether other processes may get the memory.
    pub(super) fn can_export(&self) -> bool {
        self.handle_types.load(Ordering::Relaxed) == HANDLE_DESCRIPTOR
    }

    /// Returns a descriptor of physical memory, by which another process can map it. The memory lives on as
    /// long as the descriptor or any mapping of it.
    pub(super) fn export(&self, handle: CUmemHandle) -> Result<OwnedFd, CUresult> {
        let export = self
            .driver
            .mem_export
            .filter(|_| self.can_export())
            .ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
        let write = |descriptor: &mut c_int| {
            // SAFETY: writes one integer for this kind of handle.
            unsafe { export((&raw mut *descriptor).cast(), handle, HANDLE_DESCRIPTOR, 0) }
        };
        let descriptor = try_answer(-1, write)?;
        // SAFETY: the driver has just opened it for the caller, who owns it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // The driver does not say whether a program that is started from here would inherit it.
        Ok(fd::move_high(descriptor))
    }

    /// Notes the description by which the program has created memory that it mapped at an address. It is
    /// created so again.
    pub(super) fn note_adopted(&self, address: CUdeviceptr, properties: AllocationProperties) {
        lock(&self.adopted).insert(address, properties);
    }

    /// Forgets memory of the program, which was given back or left to it.
    pub(super) fn forget_adopted(&self, address: CUdeviceptr) {
        lock(&self.adopted).remove(&address);
    }

    /// Returns whether there is memory of the program.
    pub(super) fn has_adopted(&self) -> bool {
        !lock(&self.adopted).is_empty()
    }

    /// Returns the addresses of memory of the program that other devices of the bus may reach.
    pub(super) fn adopted_for_rdma(&self) -> Vec<CUdeviceptr> {
        let adopted = lock(&self.adopted);
        let reachable = adopted.iter().filter(|(_, properties)| properties.is_for_rdma());
        reachable.map(|(address, _)| *address).collect()
    }

    fn adopted(&self, address: CUdeviceptr) -> Option<AllocationProperties> {
        lock(&self.adopted).get(&address).copied()
    }

    /// Adds devices whose kernels may use this card's memory from now on, as bits.
    pub(super) fn add_peers(&self, peers: u32) {
        self.peers.fetch_or(peers, Ordering::SeqCst);
    }

    /// Forgets what was made in a context that has ended, and returns the regions that were registered there.
    /// Its copies count as failed, also if another context gets the same address.
    pub(super) fn end_context(&self, context: usize) -> Vec<HostAddress> {
        self.fingerprints.end_context(context);
        let mut copies = lock(&self.copies);
        copies.streams.take_if(|(of, _)| *of == context);
        let under_way = copies.under_way.iter_mut().flatten();
        under_way
            .filter(|copy| copy.context == context)
            .for_each(|copy| copy.context = NO_CONTEXT);
        drop(copies);
        let mut registered = lock(&self.registered);
        let ended = registered.iter().filter(|(_, of)| **of == context).map(|(region, _)| *region);
        let ended: Vec<_> = ended.collect();
        registered.retain(|_, of| *of != context);
        ended
    }

    pub(super) fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// Runs `work` with a live context of the card.
    fn in_context<T>(&self, work: impl FnOnce(&mut Live) -> Result<T, CUresult>) -> Result<T, CUresult> {
        let mut contexts = self.contexts.visit();
        let of_card = |live: &&mut Live| live.device() == self.device && !live.is_part();
        let live = contexts.iter_mut().find(of_card).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        live.try_enter(self.driver, work)
    }

    /// Begins work in one of gpushare's streams, which `submit` gives to the driver.
    fn begin(
        &self,
        stream: Stream,
        address: CUdeviceptr,
        submit: impl FnOnce(&Live, CUstream) -> CUresult,
    ) -> Result<UnderWay, CUresult> {
        let (event_record, event_destroy) = self
            .driver
            .event_record
            .zip(self.driver.event_destroy)
            .ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
        self.in_context(|live| {
            let mut copies = lock(&self.copies);
            let handle = copies.stream(self.driver, live, stream)?;
            // SAFETY: writes one handle; the context is current.
            let create = |event: &mut _| unsafe { (self.driver.event_create)(event, EVENT_DISABLE_TIMING) };
            let event = try_answer(null_mut(), create)?;
            let submitted = submit(live, handle);
            let begun = match submitted {
                // SAFETY: the event and the stream are gpushare's own and of this context.
                CUDA_SUCCESS => unsafe { event_record(event, handle) },
                error => error,
            };
            if begun != CUDA_SUCCESS {
                if submitted == CUDA_SUCCESS {
                    // Nothing would tell when it has ended.
                    // SAFETY: the stream is gpushare's own and of this context.
                    unsafe { (self.driver.stream_synchronize)(handle) };
                }
                // SAFETY: the event is no longer used.
                unsafe { event_destroy(event) };
                return Err(begun);
            }
            let (context, event) = (live.context().addr(), event.expose_provenance());
            let work = UnderWay { context, event, address };
            if stream != Stream::Kernel {
                copies.under_way[stream as usize].push_back(work);
            }
            Ok(work)
        })
    }

    /// Begins a copy between a mapped range and registered memory.
    fn begin_copy(&self, direction: Direction, span: Span, host: HostAddress) -> Result<UnderWay, CUresult> {
        let size = span.size.0 as usize;
        let host: *mut c_void = with_exposed_provenance_mut(host.0 as usize);
        self.begin(direction.into(), span.address, |_, stream| {
            // SAFETY: the range is mapped, and the slot belongs to its chunk until the copy has ended.
            unsafe {
                match direction {
                    Direction::Out => (self.calls.copy_out)(host, span.address, size, stream),
                    Direction::In => (self.calls.copy_in)(span.address, host, size, stream),
                }
            }
        })
    }

    /// Returns the result of work that has begun; `None` while it is under way.
    fn end(&self, copy: UnderWay) -> Option<Result<(), VmmError>> {
        let contexts = self.contexts.visit();
        if !contexts.iter().any(|live| live.context().addr() == copy.context) {
            return Some(Err(VmmError::Refused(CUDA_ERROR_INVALID_CONTEXT)));
        }
        let event = with_exposed_provenance_mut(copy.event);
        // SAFETY: the event lives as long as its context, which the lock keeps.
        let result = unsafe { (self.driver.event_query)(event) };
        if result == CUDA_ERROR_NOT_READY {
            return None;
        }
        if let Some(destroy) = self.driver.event_destroy {
            // SAFETY: the event is gpushare's own and no longer used.
            unsafe { destroy(event) };
        }
        Some(if result == CUDA_SUCCESS { Ok(()) } else { Err(VmmError::of_work(result)) })
    }
}

impl Copies {
    /// Returns one of gpushare's streams in the current context.
    fn stream(&mut self, driver: &Driver, live: &Live, stream: Stream) -> Result<CUstream, CUresult> {
        let context = live.context().addr();
        let known = self.streams.filter(|(of, _)| *of == context);
        let mut streams = known.map_or([0; 3], |(_, streams)| streams);
        for number in 0..streams.len() {
            if streams[number] == 0 {
                // SAFETY: writes one handle; the context is current.
                let create = |stream: &mut _| unsafe { (driver.stream_create)(stream, STREAM_NON_BLOCKING) };
                let created: CUstream = try_answer(null_mut(), create)?;
                streams[number] = created.expose_provenance();
                // Kept although the next one may fail.
                self.streams = Some((context, streams));
            }
        }
        Ok(with_exposed_provenance_mut(streams[stream as usize]))
    }
}

impl OnCard {
    /// Creates physical memory that other processes may get by these kinds of handles.
    fn create_as(&self, handle_types: c_int, tier: Tier, size: Bytes) -> Result<CUmemHandle, VmmError> {
        let location = match tier {
            Tier::Device => [LOCATION_DEVICE, self.device],
            Tier::Host => [LOCATION_HOST_NUMA, self.host_node],
        };
        if tier == Tier::Host {
            // The driver keeps such memory in a pool of its own, also after it was released.
            NOTED.note(Noted::HostHandles);
        }
        self.create_by(&AllocationProperties::new(ALLOCATION_PINNED, handle_types, location), size)
    }

    fn create_by(&self, properties: &AllocationProperties, size: Bytes) -> Result<CUmemHandle, VmmError> {
        let mut handle = 0;
        // SAFETY: reads one structure of the driver's layout and writes one handle.
        let created = unsafe { (self.calls.create)(&raw mut handle, size.0 as usize, properties, 0) };
        check(created).map(|()| handle)
    }
}

impl Vmm for OnCard {
    fn create(&self, tier: Tier, Span { address, size }: Span) -> Result<CUmemHandle, VmmError> {
        let handle_types = match (self.adopted(address), tier) {
            (Some(properties), Tier::Device) => return self.create_by(&properties, size),
            (Some(properties), Tier::Host) => properties.handle_types() & HANDLE_DESCRIPTOR,
            (None, _) => self.handle_types.load(Ordering::Relaxed),
        };
        match self.create_as(handle_types, tier, size) {
            // A virtual device may promise more than it does. Memory that moves is worth more than memory
            // that is shared.
            Err(VmmError::Refused(_)) if handle_types != 0 => {
                let handle = self.create_as(0, tier, size)?;
                if tier == Tier::Device {
                    self.handle_types.store(0, Ordering::Relaxed);
                }
                Ok(handle)
            }
            created => created,
        }
    }

    fn map(&self, span: Span, handle: CUmemHandle) -> Result<(), VmmError> {
        // SAFETY: the range is reserved by gpushare or by the program, and nothing is mapped there.
        check(unsafe { (self.calls.map)(span.address, span.size.0 as usize, 0, handle, 0) })
    }

    fn set_access(&self, span: Span) -> Result<(), VmmError> {
        // Memory that the program has mapped itself is its device's only, or it is not moved.
        let peers = match self.adopted(span.address) {
            None => self.peers.load(Ordering::SeqCst),
            Some(_) => 0,
        };
        let is_peer = |peer: &CUdevice| *peer != self.device && peers & (1 << *peer) != 0;
        let devices = std::iter::once(self.device).chain((0..MAX_GPUS as c_int).filter(is_peer));
        let access = |device| Access { location: [LOCATION_DEVICE, device], flags: ACCESS_READ_WRITE };
        let access: Vec<_> = devices.map(access).collect();
        let size = span.size.0 as usize;
        // SAFETY: reads as many structures of the driver's layout as it is told.
        check(unsafe { (self.calls.set_access)(span.address, size, access.as_ptr(), access.len()) })
    }

    fn unmap(&self, span: Span) -> Result<(), VmmError> {
        // SAFETY: the mapping is a chunk's, and no work uses it: it was freed, or the process is drained.
        check(unsafe { (self.calls.unmap)(span.address, span.size.0 as usize) })
    }

    fn release(&self, handle: CUmemHandle) -> Result<(), VmmError> {
        // SAFETY: the handle is gpushare's own and mapped nowhere.
        check(unsafe { (self.calls.release)(handle) })
    }

    fn digests(&self, spans: &[Span]) -> Result<Vec<u128>, VmmError> {
        let is_unfit = |span: &Span| !span.size.0.is_multiple_of(BLOCK.0) || span.size > CHUNK;
        if spans.len() > MOST_DIGESTS || spans.iter().any(is_unfit) {
            return Err(UNUSABLE);
        }
        let mut known = lock(&self.fingerprints.kernel);
        let kernel = self.kernel(&mut known)?;
        self.compute(&kernel, spans, |kernel| {
            spans
                .iter()
                .enumerate()
                .map(|(place, span)| kernel.fingerprint(place, span.size))
                .collect()
        })
    }

    fn copy(&self, direction: Direction, span: Span, host: HostAddress) -> Result<(), VmmError> {
        self.begin_copy(direction, span, host).map(drop).map_err(VmmError::of_work)
    }
}

impl Hardware for OnCard {
    fn ended(&self) -> Option<(CUdeviceptr, Result<(), VmmError>)> {
        (0..2).find_map(|direction| {
            let first = lock(&self.copies).under_way[direction].front().copied()?;
            let result = self.end(first)?;
            lock(&self.copies).under_way[direction].pop_front();
            Some((first.address, result))
        })
    }

    fn set_guard(&self, is_set: bool) -> Result<(), ()> {
        if is_set {
            return self.guard.set(self.device);
        }
        self.guard.clear(self.device);
        Ok(())
    }

    fn ask_for_proof(&self) {
        self.guard.ask_for_proof();
    }
}

fn check(result: CUresult) -> Result<(), VmmError> {
    if result == CUDA_SUCCESS { Ok(()) } else { Err(result.into()) }
}
