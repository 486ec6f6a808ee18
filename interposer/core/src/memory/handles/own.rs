//! Memory by handle that gpushare can move.
//!
//! ```text
//!   create ──▶ with the driver ── mapped once, whole, for its own device ──▶ adopted: a chunk of the engine
//!                    ▲                                                          │
//!                    └── another mapping, export, other access, unmapped ───────┘
//! ```
//!
//! The application has a *name* for it, which no driver gives out. While the memory is with the driver,
//! gpushare keeps one handle of it, and the name stands for that. Adopted memory has the handle that its
//! chunk has at the moment. So before a call of the driver that is given a name, the memory goes back to the
//! driver.

use gpushare_proto::Bytes;

use super::{Charge, Handles, Named, Piece, PieceId, mapped_in};
use crate::driver::types::{AllocationProperties, CUdevice, CUdeviceptr, CUmemHandle};
use crate::remap::chunk::Backing;
use crate::remap::vmm::{Span, Tier};

/// Upper bits of all names. As an address it would be invalid, so no driver's handle looks like it.
const TAG: CUmemHandle = 0x6770;
/// Place of the upper bits.
const TAG_SHIFT: u32 = 48;

/// Returns whether a handle is a name that gpushare gave out, or could have.
pub(crate) const fn is_name(handle: CUmemHandle) -> bool {
    handle >> TAG_SHIFT == TAG
}

/// Memory that has a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    properties: AllocationProperties,
    place: Place,
    /// Whether the application has used the memory in a way for which it must stay where it is.
    stays: bool,
}

/// Holder of the handle of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// gpushare keeps the handle for the application.
    Driver(Backing),
    /// The engine has the handle, if there is one.
    Adopted,
}

impl Own {
    /// Returns the memory whose handle gpushare keeps.
    pub(super) const fn held(self) -> Option<Backing> {
        match self.place {
            Place::Driver(backing) => Some(backing),
            Place::Adopted => None,
        }
    }
}

/// Memory that the engine moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Adopted {
    piece: PieceId,
    pub(crate) device: CUdevice,
    /// Addresses at which the application has mapped it.
    pub(crate) span: Span,
}

/// Memory that the engine may move from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Adoptable {
    piece: PieceId,
    pub(crate) span: Span,
    pub(crate) backing: Backing,
    pub(crate) properties: AllocationProperties,
}

impl Handles {
    /// Enters memory of the driver's `handle`, and returns its name.
    pub(crate) fn create_own(
        &mut self,
        handle: CUmemHandle,
        charge: Charge,
        properties: AllocationProperties,
    ) -> CUmemHandle {
        let place = Place::Driver(Backing { tier: Tier::Device, handle });
        let piece = self.add(charge, Some(Own { properties, place, stays: false }));
        self.handles.insert(name(piece), Named { piece, references: 1 });
        name(piece)
    }

    /// Adds a reference to the memory around an address, and returns its name; `None` for memory without one.
    pub(crate) fn retain_own(&mut self, address: CUdeviceptr) -> Option<CUmemHandle> {
        let piece = self.mapped_at(address)?;
        self.pieces.get(&piece)?.own?;
        self.handles
            .entry(name(piece))
            .or_insert(Named { piece, references: 0 })
            .references += 1;
        self.add_use(piece);
        Some(name(piece))
    }

    /// Returns the description by which the memory of a name was created.
    pub(crate) fn properties(&self, handle: CUmemHandle) -> Option<AllocationProperties> {
        Some(self.pieces.get(&self.handles.get(&handle)?.piece)?.own?.properties)
    }

    /// Returns the driver's handle for a handle of the application; `None` for adopted memory, and for a name
    /// that means nothing.
    pub(crate) fn with_driver(&self, handle: CUmemHandle) -> Option<CUmemHandle> {
        if !is_name(handle) {
            return Some(handle);
        }
        let piece = self.pieces.get(&self.handles.get(&handle)?.piece)?;
        Some(piece.own?.held()?.handle)
    }

    /// Returns the adopted memory of which a part is in a range.
    pub(crate) fn adopted_in(&self, range: Span) -> Vec<Adopted> {
        mapped_in(&self.mapped, range)
            .filter_map(|(span, piece)| self.adopted(piece, span))
            .collect()
    }

    /// Returns the memory of a name, if it is adopted.
    pub(crate) fn adopted_of(&self, handle: CUmemHandle) -> Vec<Adopted> {
        let named = self.handles.get(&handle).filter(|_| is_name(handle));
        let found = named.and_then(|named| {
            let mut mapped = self.mapped.iter().filter(|(_, (_, piece))| *piece == named.piece);
            let (&address, &(size, piece)) = mapped.next()?;
            self.adopted(piece, Span { address, size })
        });
        found.into_iter().collect()
    }

    fn adopted(&self, piece: PieceId, span: Span) -> Option<Adopted> {
        let Piece { charge, own, .. } = self.pieces.get(&piece)?;
        (own.as_ref()?.place == Place::Adopted).then_some(Adopted { piece, device: charge.device, span })
    }

    /// Returns the adopted memory that makes up a range, if all of it ends when the range is unmapped. At the
    /// exit of the process it ends although it has names, which mean nothing any more then and may be
    /// released.
    pub(crate) fn ends_with(&self, range: Span, is_exiting: bool) -> Option<Vec<Adopted>> {
        let mut inside = self.adopted_in(range);
        inside.sort_by_key(|adopted| adopted.span.address);
        let mut next = range.address;
        for Adopted { piece, span, .. } in &inside {
            let is_last_use = is_exiting || self.pieces.get(piece)?.uses == 1;
            if span.address != next || !is_last_use {
                return None;
            }
            next = span.end();
        }
        (next == range.end() && !inside.is_empty()).then_some(inside)
    }

    /// Notes that adopted memory is with the driver again.
    pub(crate) fn give_to_driver(&mut self, adopted: Adopted, backing: Backing) {
        if let Some(own) = self.own(adopted.piece) {
            own.place = Place::Driver(backing);
        }
    }

    /// Notes that the engine has memory.
    pub(crate) fn note_adopted(&mut self, adoptable: Adoptable) {
        if let Some(own) = self.own(adoptable.piece) {
            own.place = Place::Adopted;
        }
    }

    /// Lets all memory of which a part is in a range stay where it is from now on.
    pub(crate) fn keep_in(&mut self, range: Span) {
        self.keep_but(range, None);
    }

    /// Lets memory of which a part is in a range stay where it is from now on, but for memory of one device.
    pub(crate) fn keep_but(&mut self, range: Span, device: Option<CUdevice>) {
        for (_, piece) in mapped_in(&self.mapped, range) {
            if let Some(piece) = self.pieces.get_mut(&piece)
                && Some(piece.charge.device) != device
                && let Some(own) = &mut piece.own
            {
                own.stays = true;
            }
        }
    }

    /// Lets the memory of a name stay where it is from now on.
    pub(crate) fn keep_named(&mut self, handle: CUmemHandle) {
        if let Some(piece) = self.handles.get(&handle).map(|named| named.piece)
            && let Some(own) = self.own(piece)
        {
            own.stays = true;
        }
    }

    /// Returns the memory of a device with the driver that is mapped in a range, whole, and has no other use
    /// but its name.
    pub(crate) fn adoptable_in(&self, range: Span, device: CUdevice) -> Vec<Adoptable> {
        let mapped = self.mapped.range(range.address..range.end());
        let adoptable = |(&address, &(size, id)): (&CUdeviceptr, &(Bytes, PieceId))| {
            let Piece { charge, uses, own } = self.pieces.get(&id)?;
            let own = own.filter(|own| !own.stays && charge.device == device)?;
            let references = self.handles.get(&name(id)).map_or(0, |named| named.references);
            let span = Span { address, size };
            let is_simple = size == charge.bytes && *uses == references + 1 && span.end() <= range.end();
            let backing = own.held().filter(|_| is_simple)?;
            Some(Adoptable { piece: id, span, backing, properties: own.properties })
        };
        mapped.filter_map(adoptable).collect()
    }

    fn own(&mut self, piece: PieceId) -> Option<&mut Own> {
        self.pieces.get_mut(&piece)?.own.as_mut()
    }
}

/// Name of a piece of memory.
const fn name(PieceId(piece): PieceId) -> CUmemHandle {
    (TAG << TAG_SHIFT) | piece
}
