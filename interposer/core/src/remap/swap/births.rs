//! New chunks: how a block is cut into chunks, and where each of them is at first.

use gpushare_proto::Bytes;
use gpushare_proto::page::GoalNumber;

use super::{
    CHUNK, Engine, Entry, LEAST_PART, MEDIUM_CHUNK, MEDIUM_PART, Phase, SMALL_CHUNK, SMALL_PART, Trouble,
    Uses,
};
use crate::driver::types::CUdeviceptr;
use crate::remap::chunk::{Aim, Chunk};
use crate::remap::vmm::{Call, Span, Tier};

/// Place of a new chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Birth {
    /// The goal has room, or the process overflows the card and the chunk is mapped from the host. The
    /// calling thread drives the chunk by [`Engine::take_own`] and then calls [`Engine::born`].
    Backed,
    /// The goal has no room, and the gate is closed: the chunk is a hole, which is backed before the gate
    /// opens. Its address is handed out once [`Engine::is_guarded`] holds.
    Hole,
    /// The goal has no room, and the gate is open: the caller asks the daemon for a higher goal.
    NoRoom,
}

impl Engine {
    /// Cuts a block into chunks: small ones first, then medium ones, then large ones, by what the process
    /// has. What is no whole chunk is cut into powers of two and a last piece, so that the slots of all
    /// chunks fill the regions of the pool.
    pub fn cut(&self, block: Span) -> Vec<Span> {
        let kept = || self.chunks.values().filter(|entry| entry.chunk.aim() != Aim::Gone);
        let sizes = || kept().map(|entry| entry.chunk.span().size);
        let up_to = |most: Bytes| sizes().filter(|size| *size <= most).sum::<Bytes>();
        let (mut small, mut medium) = (up_to(SMALL_CHUNK), up_to(MEDIUM_CHUNK));
        let (mut spans, mut address) = (Vec::new(), block.address);
        while address < block.end() {
            let rest = Bytes(block.end() - address);
            let most = match () {
                () if small < SMALL_PART => SMALL_CHUNK,
                () if medium < MEDIUM_PART => MEDIUM_CHUNK,
                () => CHUNK,
            };
            let size = match rest {
                _ if rest >= most => most,
                _ if rest >= LEAST_PART => Bytes(1 << rest.0.ilog2()),
                _ => rest,
            };
            let counts = |most| if size <= most { size } else { Bytes::ZERO };
            small += counts(SMALL_CHUNK);
            medium += counts(MEDIUM_CHUNK);
            spans.push(Span { address, size });
            address += size.0;
        }
        spans
    }

    /// Adds a chunk without memory, and says where it is to be.
    pub fn add(&mut self, span: Span) -> Birth {
        let host_room = self.host_room.saturating_sub(self.host_mapped());
        let may_overflow = self.overflows && host_room >= span.size;
        let (birth, aim) = match self.phase {
            _ if self.room() >= span.size => (Birth::Backed, Aim::At(Tier::Device)),
            Phase::Open | Phase::Parked if may_overflow => (Birth::Backed, Aim::At(Tier::Host)),
            Phase::Open | Phase::Parked => return Birth::NoRoom,
            Phase::Drained | Phase::Entering => (Birth::Hole, Aim::Away),
        };
        let mut chunk = Chunk::new(span, self.is_paranoid);
        if self.is_immovable {
            chunk.make_immovable();
        }
        chunk.set_aim(aim);
        self.insert(chunk, birth == Birth::Backed);
        birth
    }

    /// Enters a chunk as the last in the order of work.
    pub(super) fn insert(&mut self, chunk: Chunk, is_unborn: bool) {
        self.turns += 1;
        let address = chunk.span().address;
        let entry = Entry {
            chunk,
            trouble: None,
            failures: 0,
            turn: self.turns,
            created_under: GoalNumber::NONE,
            is_unborn,
            is_refused: false,
            lent: 0,
            fill: 0,
            name: None,
            uses: Uses::default(),
        };
        self.chunks.insert(address, entry);
        self.is_settled = false;
    }

    /// Returns the next call of a chunk that the calling thread allocates; `None` once it is usable or has
    /// failed.
    pub fn take_own(&mut self, address: CUdeviceptr) -> Option<Call> {
        let (number, present) = (self.goal.number, self.present());
        let room = self.goal.bytes - present;
        let taken = self.chunks.change(address, |entry| {
            if !entry.is_unborn || entry.failures > 0 {
                return None;
            }
            let call = entry.chunk.next()?;
            // The goal may have fallen or ended since the chunk was added.
            if call == Call::Create(Tier::Device) && room < entry.chunk.span().size {
                entry.trouble = Some(Trouble::NoRoom);
                entry.failures += 1;
                return None;
            }
            entry.created_under = number;
            entry.chunk.take()
        });
        taken.flatten()
    }

    /// Returns whether a chunk that is being allocated cannot be backed: a call of it has failed, or the goal
    /// has no room for it any more.
    pub fn has_failed(&self, address: CUdeviceptr) -> bool {
        self.chunks
            .get(address)
            .is_some_and(|entry| entry.is_unborn && entry.failures > 0)
    }

    /// Hands a chunk over to the engine. If it could not be backed, the caller frees it.
    ///
    /// # Errors
    /// Reason why the chunk could not be backed.
    pub fn born(&mut self, address: CUdeviceptr) -> Result<(), Trouble> {
        let trouble = self.chunks.change(address, |entry| {
            entry.is_unborn = false;
            entry.trouble
        });
        self.is_settled &= trouble.is_none();
        trouble.flatten().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::page::Goal;

    use super::*;
    use crate::remap::vmm::{Answer, VmmError};

    #[test]
    fn an_allocation_that_fails_is_an_error_whatever_the_daemon_says_meanwhile() {
        let span = Span { address: 1 << 40, size: SMALL_CHUNK };
        for steps_before in 0..3 {
            let mut engine = Engine::new(false);
            assert_eq!(engine.add(span), Birth::Backed);
            for _ in 0..steps_before {
                let answer = match engine.take_own(span.address) {
                    Some(Call::Create(_)) => Answer::Created(7),
                    _ => Answer::Done,
                };
                engine.done(span.address, answer);
            }
            let refused = engine.take_own(span.address).unwrap();
            engine.done(span.address, Answer::Failed(VmmError::OutOfMemory));
            engine.set_goal(Goal { number: GoalNumber(2), bytes: Bytes::gib(1) });
            engine.retry();
            assert_eq!(engine.take_own(span.address), None);
            assert_eq!(engine.born(span.address), Err(Trouble::Driver(refused, VmmError::OutOfMemory)));
        }
    }

    #[test]
    fn a_chunk_without_room_under_a_new_goal_is_no_failure_of_the_driver() {
        let span = Span { address: 1 << 40, size: SMALL_CHUNK };
        let without_room = [Goal::default(), Goal { number: GoalNumber(2), bytes: SMALL_CHUNK - Bytes(1) }];
        for goal in without_room {
            let mut engine = Engine::new(false);
            assert_eq!(engine.add(span), Birth::Backed);
            engine.set_goal(goal);
            assert_eq!((engine.take_own(span.address), engine.has_failed(span.address)), (None, true));
            // Another chunk of the block may have a handle under the older goal, so all of it begins again.
            engine.set_goal(Goal { number: GoalNumber(3), bytes: Bytes::gib(1) });
            assert_eq!((engine.take_own(span.address), engine.trouble()), (None, None));
            assert_eq!(engine.born(span.address), Err(Trouble::NoRoom), "{goal:?}");
        }
    }
}
