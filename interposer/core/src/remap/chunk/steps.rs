//! Steps of a chunk: what an answer of the driver changes, and where the aim falls back after a failure.

use super::digests::Comparison;
use super::{Aim, Backing, Change, Chunk, Holder, Mapping, State};
use crate::remap::vmm::{Answer, Call, Direction, VmmError};

impl Chunk {
    /// Notes the answer to the call that was handed out.
    pub fn done(&mut self, answer: Answer) -> Change {
        let Some(call) = self.asked.take() else { return Change::Moved };
        let change = self.apply(call, answer);
        // A copy may have begun before the work, and a digest may be older than it.
        if self.was_worked_on {
            self.note_work();
        }
        change
    }

    fn apply(&mut self, call: Call, answer: Answer) -> Change {
        if let Answer::Failed(error) = answer {
            let is_lost = matches!(error, VmmError::ContextLost(_));
            if call == Call::Digest && !is_lost && self.digests.do_without() {
                return Change::Moved;
            }
            self.fall_back(call);
            return Change::Failed(call, error);
        }
        match (call, answer) {
            (Call::Create(tier), Answer::Created(handle)) => self.create(Backing { tier, handle }),
            (Call::Map(_), _) => self.set_mapping(Mapping::Mapped),
            (Call::SetAccess, _) => self.set_mapping(Mapping::Accessible),
            (Call::Unmap, _) => self.set_mapping(Mapping::Unmapped),
            (Call::Release(_), _) => self.release(),
            (Call::Copy(direction, _), _) => self.begin_copy(direction),
            (Call::Digest, Answer::Digest(digest)) => return self.compare(digest),
            // An answer of another call: nothing is known to have changed.
            (Call::Create(_) | Call::Digest, _) => {}
        }
        Change::Moved
    }

    /// Notes the end of a copy.
    pub fn copied(&mut self, result: Result<(), VmmError>) -> Change {
        let State::Copying { backing, slot, direction, is_torn } =
            std::mem::replace(&mut self.state, State::Hole { slot: None })
        else {
            return Change::Moved;
        };
        let call = Call::Copy(direction, slot.address());
        let bytes = match (direction, result) {
            // What came in was not checked, so a checked chunk is copied out again.
            (Direction::In, Ok(())) if self.digests.is_checked() => Holder::Handle(Some(slot)),
            (Direction::Out, Ok(())) if !is_torn => {
                self.digests.keep();
                Holder::Both(slot)
            }
            (Direction::In, Ok(())) if !is_torn => Holder::Both(slot),
            (Direction::Out, _) => Holder::Handle(Some(slot)),
            (Direction::In, _) => Holder::Slot(slot),
        };
        self.state = State::Backed { backing, mapping: Mapping::Accessible, bytes };
        match result {
            Ok(()) => Change::Moved,
            Err(error) => {
                self.fall_back(call);
                Change::Failed(call, error)
            }
        }
    }

    /// Sets the aim after a call that failed: a chunk on its way out stays, and one on its way in becomes a
    /// hole again. A freed chunk stays freed.
    fn fall_back(&mut self, call: Call) {
        if matches!(call, Call::Digest | Call::Copy(Direction::Out, _)) {
            // The copy that a digest was to confirm is made again, and the slot may be half filled.
            self.note_work();
            self.digests.lose_slot();
        }
        if self.aim == Aim::Gone {
            return;
        }
        let stays = self.tier().map_or(self.aim, Aim::At);
        self.aim = match call {
            Call::Digest | Call::Copy(Direction::Out, _) | Call::Unmap => stays,
            // The mapping of bytes that only the handle has is tried again.
            Call::Map(_) | Call::SetAccess if self.has_only_handle() => stays,
            Call::Create(_) | Call::Map(_) | Call::SetAccess | Call::Copy(Direction::In, _) => Aim::Away,
            Call::Release(_) => self.aim,
        };
    }

    fn has_only_handle(&self) -> bool {
        matches!(self.state, State::Backed { bytes: Holder::Handle(_), .. })
    }

    fn create(&mut self, backing: Backing) {
        if let State::Hole { slot } = &mut self.state {
            let bytes = slot.take().map_or(Holder::Nobody, Holder::Slot);
            self.state = State::Backed { backing, mapping: Mapping::Unmapped, bytes };
        }
    }

    fn set_mapping(&mut self, new: Mapping) {
        if let State::Backed { mapping, .. } = &mut self.state {
            *mapping = new;
        }
    }

    fn release(&mut self) {
        let state = std::mem::replace(&mut self.state, State::Hole { slot: None });
        self.state = match state {
            State::Backed { bytes, .. } => State::Hole { slot: bytes.into_slot() },
            other => other,
        };
        self.digests.note_work();
    }

    fn begin_copy(&mut self, direction: Direction) {
        if direction == Direction::Out {
            self.digests.begin_copy();
        }
        let state = std::mem::replace(&mut self.state, State::Hole { slot: None });
        self.state = match state {
            State::Backed { backing, bytes: Holder::Slot(slot) | Holder::Handle(Some(slot)), .. } => {
                State::Copying { backing, slot, direction, is_torn: false }
            }
            other => other,
        };
    }

    /// Compares a digest of the handle's bytes with an earlier one.
    fn compare(&mut self, digest: u128) -> Change {
        let State::Backed { bytes, .. } = &mut self.state else { return Change::Moved };
        let is_copied = matches!(bytes, Holder::Both(_));
        match (self.digests.add(digest, is_copied), std::mem::replace(bytes, Holder::Nobody)) {
            (Comparison::SameAsSlot, Holder::Handle(Some(slot))) => *bytes = Holder::Both(slot),
            (_, before) => *bytes = before,
        }
        if self.digests.has_failed() {
            self.note_work();
            self.make_immovable();
            return Change::Written;
        }
        Change::Moved
    }
}
