//! Chunk: the unit in which memory moves. It has a fixed address and at each time at most one handle.
//!
//! A chunk has a *state* and an *aim*. [`Chunk::take`] hands out the one driver call that brings the state
//! closer to the aim, and [`Chunk::done`] takes its answer. So the aim may change between any two calls, and
//! a rollback is a change of the aim.
//!
//! ```text
//!                  create        map         set access      copy in
//!   hole          ───────▶ unmapped ───▶ mapped ───▶ accessible ───▶ copying ───▶ both ── work runs ──┐
//!   (slot or                  │            │             │                         ▲  │               ▼
//!    nothing)     ◀───────────┴────────────┴─────────────┘            copying ─────┘  │            backing
//!                  release        unmap        unmap                     ▲ copy out   │               │
//!                                                                        └────────────┼───────────────┘
//!                 ◀─── release ─── unmapped ◀─── unmap ───────────────────────────────┘
//! ```
//!
//! *Both* means that the slot and the handle hold the same bytes. Such a chunk leaves without a copy, and one
//! that is unmapped but not released returns without one. A digest of the bytes is taken before they are
//! copied out, and is kept with the slot. If the next one is the same, the slot has the bytes already. A slot
//! that other processes use too is never written: a chunk that has changed wants another one. The handle may
//! be memory of the card or of the host ([`Tier`]); a chunk changes between the two through a slot.
//!
//! A call that fails changes nothing. The aim then falls back to the safe side: a chunk that was to leave
//! stays where it is, and one that was to come in becomes a hole again and keeps its slot. The bytes are lost
//! in no case, and the same move can be asked for again.

mod digests;
mod steps;
mod views;

use self::digests::Digests;
use super::host::Slot;
use super::vmm::{Call, Direction, Span, Tier, VmmError};
use crate::driver::types::CUmemHandle;

pub use views::{Footprint, Place};

/// Place to which a chunk is to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// Memory of this kind, mapped at the chunk's address.
    At(Tier),
    /// A slot of host memory. The address is a hole.
    Away,
    /// Nothing: the application has freed the memory.
    Gone,
}

/// Result of a step of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The step was taken.
    Moved,
    /// The driver refused the step. Nothing changed but the aim.
    Failed(Call, VmmError),
    /// The bytes changed between their copy and their unmapping, so work was in flight. The chunk stays where
    /// it is, from now on immovable.
    Written,
}

/// Chunk of memory at a fixed address. See the [module](self).
#[derive(Debug)]
pub struct Chunk {
    span: Span,
    state: State,
    aim: Aim,
    /// Call that was handed out and is not answered.
    asked: Option<Call>,
    /// Whether work ran since that call was handed out.
    was_worked_on: bool,
    is_immovable: bool,
    /// Whether the program created the memory and mapped it at its own address.
    is_adopted: bool,
    digests: Digests,
}

#[derive(Debug)]
enum State {
    /// A hole. The bytes are in the slot; without one there are none.
    Hole { slot: Option<Slot> },
    /// A handle exists.
    Backed { backing: Backing, mapping: Mapping, bytes: Holder },
    /// A copy between the handle and the slot is under way. It is torn if work ran meanwhile.
    Copying { backing: Backing, slot: Slot, direction: Direction, is_torn: bool },
}

/// Physical memory: the driver's handle, and where the memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backing {
    /// Where the memory is.
    pub tier: Tier,
    /// The driver's handle.
    pub handle: CUmemHandle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mapping {
    Unmapped,
    Mapped,
    Accessible,
}

/// Holder of the bytes of a chunk with a handle.
#[derive(Debug)]
enum Holder {
    /// No holder, since nothing was ever written.
    Nobody,
    /// Only the slot.
    Slot(Slot),
    /// Only the handle. A slot may be kept for the next move.
    Handle(Option<Slot>),
    /// Slot and handle have the same bytes.
    Both(Slot),
}

impl Holder {
    fn slot(&self) -> Option<&Slot> {
        match self {
            Self::Nobody => None,
            Self::Slot(slot) | Self::Both(slot) => Some(slot),
            Self::Handle(slot) => slot.as_ref(),
        }
    }

    fn into_slot(self) -> Option<Slot> {
        match self {
            Self::Nobody => None,
            Self::Slot(slot) | Self::Both(slot) => Some(slot),
            Self::Handle(slot) => slot,
        }
    }
}

impl Chunk {
    /// Creates a chunk without memory: a hole. If `is_checked`, digests prove that no work changes it on its
    /// way out.
    pub const fn new(span: Span, is_checked: bool) -> Self {
        Self {
            span,
            state: State::Hole { slot: None },
            aim: Aim::Away,
            asked: None,
            was_worked_on: false,
            is_immovable: false,
            is_adopted: false,
            digests: Digests::new(is_checked),
        }
    }

    /// Creates a chunk of memory that the program created, and that is mapped and usable already. The handle is
    /// now the chunk's. The program may get the memory back later ([`Self::take_memory`]).
    pub const fn adopted(span: Span, backing: Backing, is_checked: bool) -> Self {
        let state = State::Backed { backing, mapping: Mapping::Accessible, bytes: Holder::Handle(None) };
        Self {
            state,
            aim: Aim::At(backing.tier),
            is_adopted: true,
            ..Self::new(span, is_checked)
        }
    }

    /// Takes the memory out of a usable chunk that rests, with the slot that it keeps. The mapping stays, and of
    /// the chunk nothing is left.
    pub fn take_memory(&mut self) -> Option<(Backing, Option<Slot>)> {
        let rests = self.is_usable() && !self.is_busy();
        let aim = self.aim;
        let gone = State::Hole { slot: None };
        match std::mem::replace(&mut self.state, gone) {
            State::Backed { backing, bytes, .. } if rests && aim == Aim::At(backing.tier) => {
                self.aim = Aim::Gone;
                Some((backing, bytes.into_slot()))
            }
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Returns the addresses of the chunk.
    pub const fn span(&self) -> Span {
        self.span
    }

    /// Returns the place to which the chunk is to move.
    pub const fn aim(&self) -> Aim {
        self.aim
    }

    /// Sets the place to which the chunk is to move. Returns `false` if the chunk must not move there: a
    /// freed chunk stays freed, and an immovable one stays at the handle that it has.
    pub fn set_aim(&mut self, aim: Aim) -> bool {
        let may_move = !self.is_immovable;
        let is_allowed = match aim {
            Aim::Gone => true,
            Aim::At(tier) => {
                self.aim != Aim::Gone && (may_move || self.tier().is_none_or(|present| present == tier))
            }
            Aim::Away => self.aim != Aim::Gone && may_move,
        };
        if is_allowed {
            self.aim = aim;
        }
        is_allowed
    }

    /// Keeps the chunk at its handle from now on. Without one it aims at the card.
    pub fn make_immovable(&mut self) {
        self.is_immovable = true;
        self.set_aim(Aim::At(self.tier().unwrap_or(Tier::Device)));
    }

    /// Returns whether the chunk must stay where it is.
    pub const fn is_immovable(&self) -> bool {
        self.is_immovable
    }

    /// Returns whether the program created the memory and mapped it at its own address.
    pub const fn is_adopted(&self) -> bool {
        self.is_adopted
    }

    /// Returns the driver call that brings the chunk closer to its aim; `None` while a call or a copy is
    /// under way, while a slot is missing, and at the aim.
    pub fn next(&self) -> Option<Call> {
        if self.asked.is_some() {
            return None;
        }
        match &self.state {
            State::Hole { .. } => match self.aim {
                Aim::At(tier) => Some(Call::Create(tier)),
                Aim::Away | Aim::Gone => None,
            },
            State::Backed { backing, mapping, bytes } if self.aim == Aim::At(backing.tier) => {
                match (mapping, bytes) {
                    (Mapping::Unmapped, _) => Some(Call::Map(backing.handle)),
                    (Mapping::Mapped, _) => Some(Call::SetAccess),
                    (Mapping::Accessible, Holder::Slot(slot)) => {
                        Some(Call::Copy(Direction::In, slot.address()))
                    }
                    (Mapping::Accessible, _) => None,
                }
            }
            State::Backed { backing, mapping, bytes } => self.next_out(*backing, *mapping, bytes),
            State::Copying { .. } => None,
        }
    }

    /// Returns the next call of a chunk that does not stay at its handle.
    fn next_out(&self, backing: Backing, mapping: Mapping, bytes: &Holder) -> Option<Call> {
        let is_freed = self.aim == Aim::Gone;
        match (mapping, bytes) {
            (Mapping::Accessible, Holder::Handle(slot)) if !is_freed => {
                let slot = slot.as_ref()?;
                match self.digests.is_due(backing.tier) {
                    true => Some(Call::Digest),
                    false if slot.is_shared() => None,
                    false => Some(Call::Copy(Direction::Out, slot.address())),
                }
            }
            (Mapping::Accessible, Holder::Both(_)) if !is_freed => match self.digests.needs_proof() {
                true => Some(Call::Digest),
                false => Some(Call::Unmap),
            },
            // Only the handle has the bytes, so it must be readable first.
            (Mapping::Mapped, Holder::Handle(_)) if !is_freed => Some(Call::SetAccess),
            (Mapping::Unmapped, Holder::Handle(_)) if !is_freed => Some(Call::Map(backing.handle)),
            (Mapping::Accessible | Mapping::Mapped, _) => Some(Call::Unmap),
            (Mapping::Unmapped, _) => Some(Call::Release(backing.handle)),
        }
    }

    /// Returns the next driver call, which the caller makes and answers by [`Self::done`].
    pub fn take(&mut self) -> Option<Call> {
        if self.asked.is_some() {
            return None;
        }
        self.asked = self.next();
        self.was_worked_on = false;
        self.asked
    }

    /// Returns whether a call was handed out that is not answered, or a copy is under way.
    pub const fn is_busy(&self) -> bool {
        self.asked.is_some() || matches!(self.state, State::Copying { .. })
    }

    /// Returns the call that was handed out and is not answered.
    pub const fn asked(&self) -> Option<Call> {
        self.asked
    }

    /// Returns whether a copy is under way.
    pub const fn is_copying(&self) -> bool {
        self.copies().is_some()
    }

    /// Returns the direction of the copy that is under way.
    pub const fn copies(&self) -> Option<Direction> {
        match self.state {
            State::Copying { direction, .. } => Some(direction),
            State::Hole { .. } | State::Backed { .. } => None,
        }
    }

    /// Returns whether the chunk needs a slot to come closer to its aim.
    pub fn wants_slot(&self) -> bool {
        let State::Backed { backing, mapping, bytes: Holder::Handle(slot) } = &self.state else {
            return false;
        };
        let is_missing = match slot {
            None => true,
            // The chunk has changed, or nobody looks whether it has.
            Some(slot) => {
                slot.is_shared() && *mapping == Mapping::Accessible && !self.digests.is_due(backing.tier)
            }
        };
        is_missing && self.asked.is_none() && self.aim != Aim::Gone && self.aim != Aim::At(backing.tier)
    }

    /// Gives the chunk a slot to move to. Returns a slot for which the chunk has no use: this one, or the one
    /// that it had.
    pub fn give_slot(&mut self, slot: Slot) -> Option<Slot> {
        let wants_slot = self.wants_slot();
        match &mut self.state {
            State::Backed { bytes: Holder::Handle(kept), .. }
                if slot.size() >= self.span.size && (wants_slot || kept.is_none()) =>
            {
                let before = kept.replace(slot);
                if before.is_some() {
                    self.digests.lose_slot();
                }
                before
            }
            _ => Some(slot),
        }
    }

    /// Returns the slot of a hole, whose bytes nothing reads or writes now.
    pub const fn resting_slot(&self) -> Option<&Slot> {
        match &self.state {
            State::Hole { slot: Some(slot) } if self.asked.is_none() => Some(slot),
            _ => None,
        }
    }

    /// Exchanges the slot of a hole for another one with the same bytes, and returns the one of which there
    /// is no use.
    pub fn exchange_slot(&mut self, other: Slot) -> Slot {
        let is_idle = self.asked.is_none() && self.aim != Aim::Gone;
        match &mut self.state {
            State::Hole { slot: Some(slot) } if is_idle && other.size() >= self.span.size => {
                std::mem::replace(slot, other)
            }
            _ => other,
        }
    }

    /// Takes a slot away that holds no bytes that are needed: that of a freed chunk, and, unless `keeps`,
    /// that of a chunk that stays at its handle.
    pub fn take_spare_slot(&mut self, keeps: bool) -> Option<Slot> {
        if !self.has_spare_slot(keeps) {
            return None;
        }
        self.digests.lose_slot();
        match &mut self.state {
            State::Hole { slot } => slot.take(),
            State::Backed { bytes, .. } => std::mem::replace(bytes, Holder::Handle(None)).into_slot(),
            State::Copying { .. } => None,
        }
    }

    /// Returns whether [`Self::take_spare_slot`] takes a slot.
    pub fn has_spare_slot(&self, keeps: bool) -> bool {
        let is_freed = self.aim == Aim::Gone;
        let is_spare = match &self.state {
            State::Hole { .. } => is_freed,
            State::Backed { backing, mapping, bytes } => {
                let stays = *mapping == Mapping::Accessible && self.aim == Aim::At(backing.tier);
                match bytes {
                    Holder::Nobody => false,
                    Holder::Slot(_) => is_freed,
                    Holder::Handle(_) | Holder::Both(_) => is_freed || (stays && !keeps),
                }
            }
            State::Copying { .. } => false,
        };
        is_spare && self.asked.is_none() && self.has_slot()
    }

    /// Takes the slot of a chunk that leaves and has not begun to, so that the slot holds no bytes that are
    /// needed. The caller gives it another one.
    pub fn take_stale_slot(&mut self) -> Option<Slot> {
        let (is_leaving, is_idle) = (self.is_leaving() && self.aim != Aim::Gone, self.asked.is_none());
        match &mut self.state {
            State::Backed { bytes: Holder::Handle(slot), .. }
                if is_leaving && is_idle && slot.as_ref().is_none_or(|slot| !slot.is_shared()) =>
            {
                self.digests.lose_slot();
                slot.take()
            }
            _ => None,
        }
    }

    /// Notes that work may have written the chunk, so that a copy in a slot is no longer the same.
    pub fn note_work(&mut self) {
        match &mut self.state {
            State::Backed { bytes, mapping: Mapping::Accessible, .. }
                if !matches!(bytes, Holder::Slot(_)) =>
            {
                *bytes = Holder::Handle(std::mem::replace(bytes, Holder::Nobody).into_slot());
            }
            State::Copying { is_torn, direction: Direction::Out, .. } => *is_torn = true,
            State::Hole { .. } | State::Backed { .. } | State::Copying { .. } => {}
        }
        self.was_worked_on = true;
        self.digests.note_work();
    }
}

#[cfg(test)]
mod tests;
