//! Swap engine of one card: decides which chunk takes which step next, so that the card's resident bytes
//! follow the daemon's *goal*.
//!
//! ```text
//!   goal, phase of the gate ──▶ aims of chunks ──▶ orders ──▶ lane of calls    one thread, one call at a time
//!                                   ▲                    ├──▶ lane of copies   up to DEPTH under way
//!                                   │                    └──▶ lane of digests  several together
//!                                   └── answers, ends of copies ◀───┘
//! ```
//!
//! The engine only decides. A lane asks for its next [`Order`], carries it out without a lock, and reports
//! the answer. Nothing is remembered but facts, so a repeated goal or a late one changes nothing.
//!
//! Rules:
//! - While the gate is open, only freed chunks move.
//! - A chunk is unmapped only while the gate is *guarded*: the process has marked it as evicting, so that nobody
//!   opens it onto a hole. The guard is removed when no hole is left.
//! - `resident ≤ max(goal, resident when the goal was set)`. A handle counts from the request to create it until
//!   its release.
//! - Not more leaves than `resident − goal` and one chunk. Without a goal nothing leaves.
//! - A chunk whose step failed goes back, and waits for [`Engine::retry`] or the next goal.

mod aims;
mod births;
mod chunks;
mod loans;
mod loose;
mod orders;
mod resting;
mod views;

use std::collections::BTreeSet;

use gpushare_proto::Bytes;
use gpushare_proto::copies::CopyName;
use gpushare_proto::page::{Goal, GoalNumber};

use super::chunk::{Aim, Change, Chunk};
use super::host::Slot;
use super::vmm::{Answer, Call, Direction, Span, VmmError};
use crate::driver::types::CUdeviceptr;

pub use births::Birth;
use chunks::{Chunks, Sum};
pub use loans::Loan;
pub use loose::GivenUp;
use loose::Loose;
pub use orders::{Lane, Order};
pub use resting::Resting;
pub use views::{Figures, Obstacle};

/// Largest chunk.
pub const CHUNK: Bytes = Bytes::mib(128);
/// Size of small chunks, which begin and end a move, so that neither direction of the bus waits long for the
/// other.
pub const SMALL_CHUNK: Bytes = Bytes::mib(32);
/// Size of most chunks of a process with little memory. Beside the copies of another process the driver
/// takes a millisecond to map a chunk of any size, so smaller ones come in slower than the bus is. Larger
/// ones leave room for the other process only once all of their bytes have left.
pub const MEDIUM_CHUNK: Bytes = Bytes::mib(64);
/// Least power of two into which the rest of a block is cut. Slots of smaller pieces of any one size fill a
/// region but for a sixteenth.
pub const LEAST_PART: Bytes = Bytes::mib(16);
/// Bytes of a process on a card that are cut into small chunks. Moves of less than this use those first.
pub const SMALL_PART: Bytes = Bytes::mib(512);
/// Bytes of a process on a card that are cut into chunks of at most the medium size.
pub const MEDIUM_PART: Bytes = Bytes::gib(8);
/// Most copies that are under way at once.
pub const DEPTH: usize = 3;

/// Goal under a daemon that gives none: all memory is on the card.
pub const UNLIMITED: Goal = Goal { number: GoalNumber::NONE, bytes: Bytes::MAX };

/// Phase of the process, as its gate says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// The gate is open, so work may run at any time.
    #[default]
    Open,
    /// The gate is closed, and the process has proved that nothing is in flight.
    Drained,
    /// The gate is to open once no hole is left. Nothing is in flight.
    Entering,
    /// The process exits: what is under way ends, and nothing begins.
    Parked,
}

/// Whether the gate is marked as evicting, so that nobody opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    Clear,
    Setting,
    Set,
    Clearing,
}

/// Failure of a step, because of which a chunk waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The driver refused a call.
    Driver(Call, VmmError),
    /// The pool has no host memory for the chunk.
    NoSlot,
    /// The goal has no room for the chunk any more, although it had when the allocation of its block began.
    NoRoom,
}

#[derive(Debug)]
struct Entry {
    chunk: Chunk,
    trouble: Option<Trouble>,
    /// Failures since the last retry.
    failures: u32,
    /// Position in the order of work.
    turn: u64,
    /// Number of the goal under which the last handle was asked for.
    created_under: GoalNumber,
    /// Whether the thread that allocates the chunk still drives it.
    is_unborn: bool,
    /// Whether the card had no memory for the chunk since the last retry, so that it is mapped from the host.
    is_refused: bool,
    /// Number of threads that give the handle to other processes. Meanwhile the driver keeps it.
    lent: u32,
    /// Number of the last copy into its slot, which no other copy of the engine has.
    fill: u64,
    /// Name of the bytes that were copied then, if it is known.
    name: Option<CopyName>,
    uses: Uses,
}

/// Whether work named a chunk in each of the last eight spans between two proofs of idleness in which it
/// named any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Uses(u8);

impl Uses {
    const fn add(&mut self, is_used: bool) {
        self.0 = (self.0 << 1) | is_used as u8;
    }

    /// Number of spans in which work named the chunk.
    const fn count(self) -> u32 {
        self.0.count_ones()
    }
}

/// Swap engine of one card. See the [module](self).
#[derive(Debug)]
pub struct Engine {
    chunks: Chunks,
    goal: Goal,
    seen: GoalNumber,
    phase: Phase,
    guard: Guard,
    /// Number of allocations that wait for the mark of the gate, under which they may become holes.
    waiting_for_mark: u32,
    turns: u64,
    /// Number of copies into slots so far.
    fills: u64,
    /// Whether a call of the lane of calls is under way.
    is_calling: bool,
    /// Bytes that may be mapped from the host.
    host_room: Bytes,
    /// Whether the process overflows the card: chunks beyond the goal are mapped from the host.
    overflows: bool,
    /// Whether the process overflowed the card in the turn after which it rests, so that chunks change places.
    may_exchange: bool,
    /// Whether digests check each chunk that leaves (`--paranoid`).
    is_paranoid: bool,
    /// Whether nothing may move any more, since work was missed.
    is_immovable: bool,
    /// Chunk that was written while the process was taken for idle, until it is reported.
    missed: Option<Span>,
    lost: Option<VmmError>,
    loose: Loose,
    /// Bytes that were copied out so far.
    copied_out: Bytes,
    /// Number of changes of the pool by which slots were last handed out.
    supplied_at: u64,
    /// Bytes for which there were no slots then.
    missing: Bytes,
    /// Whether chunks have begun to leave since slots were last handed out.
    has_new_victims: bool,
    /// Ranges of freed chunks, of which nothing is left.
    gone: Vec<Span>,
    /// Whether the aims follow from all facts that are known.
    is_settled: bool,
    /// Whether a look for an order has changed something, so that another lane may have one.
    is_changed: bool,
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            chunks: Chunks::default(),
            goal: UNLIMITED,
            seen: GoalNumber::NONE,
            phase: Phase::Open,
            guard: Guard::Clear,
            waiting_for_mark: 0,
            turns: 0,
            fills: 0,
            is_calling: false,
            host_room: Bytes::ZERO,
            overflows: false,
            may_exchange: false,
            is_paranoid: false,
            is_immovable: false,
            missed: None,
            lost: None,
            loose: Loose::default(),
            copied_out: Bytes::ZERO,
            supplied_at: 0,
            missing: Bytes::ZERO,
            has_new_victims: false,
            gone: Vec::new(),
            is_settled: false,
            is_changed: false,
        }
    }
}

impl Engine {
    /// Creates the engine of a card. If `is_paranoid`, digests prove that no work changes a chunk that
    /// leaves.
    pub fn new(is_paranoid: bool) -> Self {
        Self { is_paranoid, ..Self::default() }
    }

    /// Returns whether the process overflows the card.
    pub const fn overflows(&self) -> bool {
        self.overflows
    }

    /// Sets whether the process overflows the card, so that chunks beyond the goal are mapped from the host.
    /// Once it does not, no more is mapped than before, and that comes to the card as the goal has room.
    pub fn set_overflows(&mut self, overflows: bool) {
        // The daemon takes the flag back once it hears that the process rests, perhaps before the phase says so.
        self.may_exchange |= overflows;
        let room = if overflows { Bytes::MAX } else { self.host_mapped() };
        self.set_host_room(room, overflows);
    }

    /// Sets the bytes that may be mapped from the host, and whether chunks beyond the goal are mapped so.
    /// Without that, only chunks for which the card has no memory are.
    fn set_host_room(&mut self, bytes: Bytes, overflows: bool) {
        self.host_room = bytes;
        self.overflows = overflows;
        self.is_settled = false;
    }

    /// Returns the goal.
    pub const fn goal(&self) -> Goal {
        self.goal
    }

    /// Sets the goal. Goals are compared by number only for equality, since a new daemon counts anew.
    pub fn set_goal(&mut self, goal: Goal) {
        if goal != self.goal {
            self.goal = goal;
            self.retry();
        }
        self.note_seen();
    }

    /// Returns the phase.
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns whether a new block with chunks of `bytes` would be a hole, although the gate is not marked
    /// yet.
    pub fn may_be_hole(&self, bytes: Bytes) -> bool {
        let is_closed = matches!(self.phase, Phase::Drained | Phase::Entering);
        is_closed && self.guard != Guard::Set && self.room() < bytes
    }

    /// Notes that an allocation waits for the mark of the gate, or that it waits no more.
    pub fn wait_for_mark(&mut self, waits: bool) {
        self.waiting_for_mark = match waits {
            true => self.waiting_for_mark + 1,
            false => self.waiting_for_mark.saturating_sub(1),
        };
    }

    /// Returns whether the driver still has something of a freed range, and no step of it has failed.
    pub fn is_freeing(&self, range: Span) -> bool {
        let mut freed = self.chunks.range(range.address..range.end());
        freed.any(|entry| entry.chunk.aim() == Aim::Gone && entry.trouble.is_none())
    }

    /// Notes which chunks work named since the last proof of idleness.
    pub fn note_uses(&mut self, used: &BTreeSet<CUdeviceptr>) {
        self.chunks
            .change_all(|Entry { chunk, uses, .. }| uses.add(used.contains(&chunk.span().address)));
        self.is_settled = false;
    }

    /// Sets the phase. When the gate opens, work may write any chunk, so copies in slots are out of date.
    pub fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
        self.is_settled = false;
        if phase == Phase::Open {
            self.may_exchange = self.overflows;
            self.chunks.change_all(|Entry { chunk, .. }| {
                chunk.note_work();
                if let (Aim::Away | Aim::At(_), Some(tier)) = (chunk.aim(), chunk.tier()) {
                    chunk.set_aim(Aim::At(tier));
                }
            });
        }
    }

    /// Notes that the process has set or removed the mark of its gate, as an order said. If it could not be
    /// set, work may be in flight, until the process is proved idle again.
    pub fn note_guard(&mut self, result: Result<(), ()>) {
        self.is_calling = false;
        self.guard = match (self.guard, result) {
            (Guard::Setting, Ok(())) | (Guard::Clearing, Err(())) => Guard::Set,
            (Guard::Setting, Err(())) => {
                let phase = self.phase;
                self.set_phase(Phase::Open);
                if phase == Phase::Parked {
                    self.phase = phase;
                }
                Guard::Clear
            }
            (Guard::Clearing, Ok(())) => Guard::Clear,
            (guard @ (Guard::Clear | Guard::Set), _) => guard,
        };
    }

    /// Frees the chunk at an address, whose work is over. [`Self::take_gone`] returns its range later.
    pub fn free(&mut self, address: CUdeviceptr) {
        let freed = self.chunks.change(address, |entry| {
            entry.is_unborn = false;
            entry.failures = 0;
            entry.trouble = None;
            entry.chunk.set_aim(Aim::Gone);
        });
        self.is_settled &= freed.is_none();
    }

    /// Frees all chunks, as when the context has ended or is lost.
    pub fn free_all(&mut self) {
        self.chunks.addresses().into_iter().for_each(|address| self.free(address));
    }

    /// Notes that the memory of the context is lost. Nothing moves any more, and the gate may open onto
    /// holes: work on them gets the error of the context.
    pub fn lose(&mut self, error: VmmError) {
        self.lost = Some(error);
        self.is_settled = false;
    }

    /// Returns the error of the context whose memory is lost.
    pub const fn lost(&self) -> Option<VmmError> {
        self.lost
    }

    /// Makes the chunk at an address immovable, and brings it to the card before the gate opens. One that is
    /// mapped from the host stays there.
    pub fn pin(&mut self, address: CUdeviceptr) {
        let pinned = self.chunks.change(address, |entry| entry.chunk.make_immovable());
        self.is_settled &= pinned.is_none();
    }

    /// Makes all chunks immovable, present and later ones.
    pub fn pin_all(&mut self) {
        self.is_immovable = true;
        self.is_settled = false;
        self.chunks.change_all(|entry| entry.chunk.make_immovable());
    }

    /// Lets chunks whose steps failed try again. A chunk that is being allocated does not: its thread hears
    /// of the failure.
    pub fn retry(&mut self) {
        self.chunks.change_all(|entry| {
            if !entry.is_unborn {
                entry.trouble = None;
                entry.failures = 0;
                entry.is_refused = false;
            }
        });
        self.is_settled = false;
    }

    /// Notes the answer to a call that a lane or an allocating thread has made.
    pub fn done(&mut self, address: CUdeviceptr, answer: Answer) {
        let is_open = self.phase == Phase::Open;
        let done = self.chunks.change(address, |Entry { chunk, is_unborn, .. }| {
            let asked = chunk.asked();
            let change = chunk.done(answer);
            // Work may reach a chunk as soon as it is mapped.
            if is_open {
                chunk.note_work();
            }
            (asked, change, *is_unborn)
        });
        let Some((asked, change, is_unborn)) = done else { return };
        if !is_unborn && asked.is_some_and(|call| Lane::of(call) == Lane::Calls) {
            self.is_calling = false;
        }
        if let Some(Call::Release(_)) = asked {
            self.is_settled = false;
        }
        if let Some(Call::Copy(Direction::Out, _)) = asked {
            self.fills += 1;
            let fill = self.fills;
            self.chunks.change(address, |entry| (entry.fill, entry.name) = (fill, None));
        }
        self.note(address, change);
    }

    /// Notes the end of a copy.
    pub fn copied(&mut self, address: CUdeviceptr, result: Result<(), VmmError>) {
        let is_open = self.phase == Phase::Open;
        let copied = self.chunks.change(address, |entry| {
            let direction = entry.chunk.copies();
            let change = entry.chunk.copied(result);
            // The gate may be open onto a copy in, if the memory of another context is lost.
            if is_open {
                entry.chunk.note_work();
            }
            (direction, change, entry.chunk.span().size)
        });
        let Some((direction, change, size)) = copied else { return };
        if (direction, change) == (Some(Direction::Out), Change::Moved) {
            self.copied_out += size;
        }
        // The next pair of chunks may change places.
        self.is_settled &= direction != Some(Direction::In) || self.chunks.count(Sum::Promotable) == 0;
        self.note(address, change);
    }

    fn note(&mut self, address: CUdeviceptr, change: Change) {
        match change {
            Change::Moved => {}
            Change::Failed(call, error) => {
                self.is_settled = false;
                self.chunks.change(address, |entry| {
                    entry.trouble = Some(Trouble::Driver(call, error));
                    entry.failures += 1;
                });
                if let VmmError::ContextLost(_) = error {
                    self.lose(error);
                }
            }
            Change::Written => {
                self.missed = self.chunks.get(address).map(|entry| entry.chunk.span());
                self.pin_all();
            }
        }
        self.note_seen();
    }

    /// The goal is seen once no handle is being created that was asked for under an older one.
    fn note_seen(&mut self) {
        let number = self.goal.number;
        if self.chunks.creating().all(|entry| entry.created_under == number) {
            self.seen = number;
        }
    }

    /// Forgets that the memory of a context was lost, since the context has ended.
    pub fn forget_loss(&mut self) {
        self.lost = None;
        self.is_settled = false;
    }

    /// Takes the chunk that was written while the process was taken for idle, if there is one.
    pub fn take_missed(&mut self) -> Option<Span> {
        self.missed.take()
    }

    /// Takes the ranges of freed chunks of which nothing is left.
    pub fn take_gone(&mut self) -> Vec<Span> {
        std::mem::take(&mut self.gone)
    }

    /// Returns whether a chunk keeps a slot without need.
    pub fn has_kept_slots(&self) -> bool {
        self.chunks.values().any(|entry| entry.chunk.has_spare_slot(false))
    }

    /// Takes slots away from chunks that keep one without need, until `bytes` are taken.
    pub fn take_kept_slots(&mut self, bytes: Bytes) -> Vec<Slot> {
        let (mut slots, mut taken) = (Vec::new(), Bytes::ZERO);
        self.chunks.change_all(|entry| {
            let slot = if taken < bytes { entry.chunk.take_spare_slot(false) } else { None };
            taken += slot.as_ref().map_or(Bytes::ZERO, Slot::size);
            slots.extend(slot);
        });
        slots
    }
}

#[cfg(test)]
mod tests;
