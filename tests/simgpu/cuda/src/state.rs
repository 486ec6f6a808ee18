//! Objects of the driver in tables by number, with one lock around all of them.
//!
//! The card knows contexts, streams, events and allocations too, by the same numbers. What only matters on
//! this side (flags, captures, graphs, modules) is only here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use simgpu_card::ids::{ContextId, EventId, StreamId};
use simgpu_card::ptx;
use simgpu_card::wire::Kind;

use crate::arrays::{Array, Mipmap};
use crate::capture::Capture;
use crate::codes::{Answer, Code};
use crate::graphs::{Exec, Frontier, Graph};
use crate::handles::{Handle, Tag};
use crate::mapping::Reservation;
use crate::physical::{Mapping, Physical};
use crate::pools::{DevicePools, Pool};

#[derive(Debug)]
pub(crate) struct State {
    next_id: u32,
    pub(crate) contexts: HashMap<ContextId, Context>,
    pub(crate) primaries: Vec<Primary>,
    pub(crate) streams: HashMap<StreamId, Stream>,
    pub(crate) events: HashMap<EventId, Event>,
    pub(crate) modules: HashMap<u32, Arc<ptx::Module>>,
    pub(crate) functions: HashMap<u32, Function>,
    pub(crate) allocations: BTreeMap<u64, Allocation>,
    /// Registered memory of the caller that the card cannot reach in place: length and flags by address.
    pub(crate) staged: BTreeMap<u64, (u64, u32)>,
    pub(crate) arrays: HashMap<u32, Array>,
    pub(crate) mipmaps: HashMap<u32, Mipmap>,
    /// Addresses reserved for mappings, by where they start.
    pub(crate) reserved: BTreeMap<u64, Reservation>,
    pub(crate) physical: HashMap<u32, Physical>,
    pub(crate) pools: HashMap<u32, Pool>,
    pub(crate) device_pools: HashMap<i32, DevicePools>,
    pub(crate) captures: BTreeMap<u32, Capture>,
    pub(crate) graphs: HashMap<u32, Graph>,
    pub(crate) graph_execs: HashMap<u32, Exec>,
}

#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) device: i32,
    pub(crate) flags: u32,
    pub(crate) primary: bool,
    /// A part of the card, which is a user of its primary context.
    pub(crate) part: bool,
    /// Users of the context: its maker, and each attachment since.
    pub(crate) users: u32,
    pub(crate) legacy: StreamId,
    /// A stream of our own for the events of `cuCtxRecordEvent`, which order nothing.
    pub(crate) markers: StreamId,
    pub(crate) peers: Vec<ContextId>,
}

/// The primary context of a device.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Primary {
    pub(crate) context: Option<ContextId>,
    pub(crate) references: u32,
    pub(crate) flags: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct Stream {
    pub(crate) context: ContextId,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    pub(crate) kind: simgpu_card::wire::StreamKind,
    /// Pieces of work put in so far.
    pub(crate) submitted: u64,
    pub(crate) capture: Option<u32>,
}

#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) context: ContextId,
    pub(crate) timing: bool,
    pub(crate) recorded: Recorded,
    /// Number of records that were sent to the card.
    pub(crate) records: u64,
    /// Whether the card was asked for it since the last record.
    pub(crate) asked: bool,
    /// Whether graphs record it too, so that only the card knows the number.
    pub(crate) in_graphs: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Recorded {
    Never,
    InStream,
    /// In a capture: what a stream that waits for it comes to depend on.
    InCapture(u32, Frontier),
}

#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) module: u32,
    pub(crate) entry: ptx::Entry,
}

#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) len: u64,
    pub(crate) kind: Kind,
    pub(crate) context: ContextId,
    pub(crate) flags: u32,
    pub(crate) device: i32,
    pub(crate) source: Source,
}

/// How an allocation came to be, and what gives its addresses back when dropped.
#[derive(Debug)]
pub(crate) enum Source {
    /// By itself.
    Own(#[expect(dead_code, reason = "held for its drop")] Reservation),
    /// From a pool.
    Pool(u32, Reservation),
    /// By a node of a graph: it is there after each launch, until it is freed again.
    Graph(#[expect(dead_code, reason = "held for its drop")] Reservation),
    /// Physical memory mapped into a reservation.
    Mapping(Mapping),
    /// The caller's own pages, for which the card's memory with this inode stands in.
    Registered { inode: u64 },
}

impl State {
    pub(crate) fn new(devices: usize) -> Self {
        Self {
            next_id: 1,
            contexts: HashMap::new(),
            primaries: vec![Primary::default(); devices],
            streams: HashMap::new(),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            allocations: BTreeMap::new(),
            staged: BTreeMap::new(),
            arrays: HashMap::new(),
            mipmaps: HashMap::new(),
            reserved: BTreeMap::new(),
            physical: HashMap::new(),
            pools: HashMap::new(),
            device_pools: HashMap::new(),
            captures: BTreeMap::new(),
            graphs: HashMap::new(),
            graph_execs: HashMap::new(),
        }
    }

    /// A number that was never used in this process.
    pub(crate) fn fresh(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    pub(crate) fn context(&self, handle: Handle) -> Answer<ContextId> {
        let id = Tag::Context.id(handle).map(ContextId);
        id.filter(|id| self.contexts.contains_key(id)).ok_or(Code::INVALID_CONTEXT)
    }

    pub(crate) fn event(&self, handle: Handle) -> Answer<EventId> {
        let id = Tag::Event.id(handle).map(EventId);
        id.filter(|id| self.events.contains_key(id)).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn stream(&mut self, id: StreamId) -> Answer<&mut Stream> {
        self.streams.get_mut(&id).ok_or(Code::INVALID_HANDLE)
    }

    /// The allocation around an address, and where it starts.
    pub(crate) fn allocation_at(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (&start, allocation) = self.allocations.range(..=address).next_back()?;
        (address - start < allocation.len).then_some((start, allocation))
    }

    /// Whether a range is in one allocation, or in mappings side by side.
    pub(crate) fn covers(&self, address: u64, len: u64) -> bool {
        let Some(end) = address.checked_add(len) else {
            return false;
        };
        let mut at = address;
        while let Some((start, allocation)) = self.allocation_at(at) {
            if start + allocation.len >= end {
                return true;
            }
            if !matches!(allocation.source, Source::Mapping(_)) {
                return false;
            }
            at = start + allocation.len;
        }
        false
    }

    /// Kind of memory at an address of the card; `None` for memory of the host.
    pub(crate) fn kind_at(&self, address: u64) -> Option<Kind> {
        self.allocation_at(address).map(|(_, allocation)| allocation.kind)
    }

    /// The staged registered memory around an address: start, length, flags.
    pub(crate) fn staged_at(&self, address: u64) -> Option<(u64, u64, u32)> {
        let (&start, &(len, flags)) = self.staged.range(..=address).next_back()?;
        (address - start < len).then_some((start, len, flags))
    }

    /// Whether any part of a range is registered or memory of the card.
    pub(crate) fn is_taken(&self, address: u64, len: u64) -> bool {
        let before = self.staged.range(..address.saturating_add(len)).next_back();
        let staged = before.is_some_and(|(start, (len, _))| start + len > address);
        staged || self.is_mapped(address, len)
    }

    /// Whether an address is reserved and nothing is mapped there. Nobody can use it.
    pub(crate) fn is_hole(&self, address: u64) -> bool {
        let before = self.reserved.range(..=address).next_back();
        before.is_some_and(|(_, found)| found.holds(address, 1)) && self.allocation_at(address).is_none()
    }
}
