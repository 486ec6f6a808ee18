//! Views of a chunk: where it is, what it takes, and whether work may reach it.

use gpushare_proto::Bytes;

use super::{Aim, Chunk, Holder, Mapping, State};
use crate::driver::types::CUmemHandle;
use crate::remap::host::Slot;
use crate::remap::vmm::{Call, Direction, Tier};

/// Place of a chunk, in the words of the accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A hole without bytes: memory that was never backed, or that is gone.
    Empty,
    /// A hole, whose bytes are in a slot of registered host memory.
    Pinned,
    /// On the card.
    Device,
    /// On the card, where it must stay.
    Immovable,
    /// In memory of the host that kernels reach at the chunk's address.
    HostMapped,
    /// Between two places, or in the middle of a driver call.
    Moving,
}

/// Number of bytes that a chunk takes from the card and the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of the card, also those of a handle that is not mapped.
    pub device: Bytes,
    /// Bytes of the host in a handle (`HOST_NUMA`).
    pub host_handle: Bytes,
    /// Bytes of the host in a slot.
    pub slot: Bytes,
}

impl Chunk {
    /// Returns the kind of memory of the chunk's handle; `None` without a handle.
    pub const fn tier(&self) -> Option<Tier> {
        match &self.state {
            State::Hole { .. } => None,
            State::Backed { backing, .. } | State::Copying { backing, .. } => Some(backing.tier),
        }
    }

    /// Returns kind and handle of the memory, if the chunk stays there for good and no step of it is under way.
    pub fn fixed_handle(&self) -> Option<(Tier, CUmemHandle)> {
        let stays = self.is_immovable && self.is_usable() && !self.is_busy();
        match &self.state {
            State::Backed { backing, .. } if stays && self.aim == Aim::At(backing.tier) => {
                Some((backing.tier, backing.handle))
            }
            _ => None,
        }
    }

    /// Returns whether kernels find the right bytes at the chunk's address, and nothing of a move is under way.
    pub const fn is_usable(&self) -> bool {
        matches!(
            self.state,
            State::Backed {
                mapping: Mapping::Accessible,
                bytes: Holder::Nobody | Holder::Handle(_) | Holder::Both(_),
                ..
            }
        )
    }

    /// Returns whether work on the chunk's address might fault or find wrong bytes. A copy out harms no work.
    pub const fn is_hole(&self) -> bool {
        match &self.state {
            State::Copying { direction, .. } => matches!(direction, Direction::In),
            // Nobody knows whether it is unmapped already.
            State::Backed { .. } if matches!(self.asked, Some(Call::Unmap)) => true,
            State::Hole { .. } | State::Backed { .. } => !self.is_usable(),
        }
    }

    /// Returns whether the chunk is to leave its handle.
    pub fn is_leaving(&self) -> bool {
        self.tier().is_some_and(|tier| self.aim != Aim::At(tier))
    }

    /// Returns whether the slot of the chunk has the same bytes as its handle, so that it leaves without a copy.
    pub const fn is_clean(&self) -> bool {
        matches!(self.state, State::Backed { bytes: Holder::Nobody | Holder::Both(_), .. })
    }

    /// Returns whether the chunk has a slot.
    pub fn has_slot(&self) -> bool {
        !self.footprint().slot.is_zero()
    }

    /// Returns whether the chunk is where it aims, with no call left to make.
    pub fn is_settled(&self) -> bool {
        !self.is_busy() && self.next().is_none() && !self.wants_slot()
    }

    /// Returns whether nothing is left of a freed chunk.
    pub const fn is_gone(&self) -> bool {
        matches!((&self.state, self.aim), (State::Hole { slot: None }, Aim::Gone)) && self.asked.is_none()
    }

    /// Returns the place of the chunk.
    pub fn place(&self) -> Place {
        if self.is_busy() {
            return Place::Moving;
        }
        match &self.state {
            State::Hole { slot: None } => Place::Empty,
            State::Hole { slot: Some(_) } => Place::Pinned,
            State::Backed { backing, .. } if self.is_usable() => match backing.tier {
                Tier::Device if self.is_immovable => Place::Immovable,
                Tier::Device => Place::Device,
                Tier::Host => Place::HostMapped,
            },
            State::Backed { .. } | State::Copying { .. } => Place::Moving,
        }
    }

    /// Returns the number of bytes that the chunk takes. A handle that the driver is asked to create counts.
    pub fn footprint(&self) -> Footprint {
        let asked = match self.asked {
            Some(Call::Create(tier)) => Some(tier),
            _ => None,
        };
        let of = |tier| if self.tier().or(asked) == Some(tier) { self.span.size } else { Bytes::ZERO };
        let slot = match &self.state {
            State::Hole { slot } => slot.as_ref(),
            State::Backed { bytes, .. } => bytes.slot(),
            State::Copying { slot, .. } => Some(slot),
        };
        Footprint {
            device: of(Tier::Device),
            host_handle: of(Tier::Host),
            slot: slot.map_or(Bytes::ZERO, Slot::size),
        }
    }
}
