//! The shared page: memory that one process shares with the daemon. It holds the gate of the process and, per
//! card, a lease of quota and the session's part in the utilization. So launches, allocations and questions
//! for the utilization seldom need a message.
//!
//! ```text
//!   byte 0     gate     change number and state of the gate
//!        4     flags    whether other sessions use the card, wait for it; whether there is a compute limit
//!        8     layout   version of this layout
//!        12    drain    target duration of a drop, in microseconds
//!        16    bell     rung after each change of gate or flags; the futex of all sleeping threads
//!        20    features what the daemon does beyond this layout's version
//!        64    gpus[0]  free lease, quota, bytes of sibling processes, ceiling, part in the utilization, refusals
//!        128   gpus[1]  ...
//!        1088  goals[0] most movable bytes that may be on the card
//!        1096  goals[1] ...
//!        1216  host_targets[0] bytes of host memory to have ready for what leaves the card
//!        1224  host_targets[1] ...
//!        1344  freezes  number of times that the process was asked to park
//!        1348  restores cards on which the driver brings a frozen process back
//!        1352  creations[0] contexts that the process is creating
//!        1356  creations[1] ...
//!        1416  capacities[0] most bytes that a grant brings to the card
//!        1424  capacities[1] ...
//! ```
//!
//! The daemon writes every field. The process writes two by compare-and-swap: the *state* of the gate under
//! an unchanged change number, and `free`, from which it takes and to which it returns bytes. It also rings
//! the bell, counts its refusals and its creations of contexts, and owns the flags [`FLAGS_OF_PROCESS`] and the bit
//! [`GateWord::EVICTING`].
//! The daemon does not trust the page: other writes of a process affect only that process's own accounts.
//!
//! A thread that is about to sleep reads the bell before it reads the gate and the flags, and then sleeps
//! while the bell has that value. So no change between its look and its sleep is lost.

use std::sync::atomic::{AtomicU32, AtomicU64};

use serde::{Deserialize, Serialize};

use crate::ids::GpuId;
use crate::units::Bytes;
use crate::utilization::UtilizationPart;

/// Size of the shared page, in bytes.
pub const PAGE_SIZE: usize = 4096;
/// Maximum number of cards that one daemon can manage.
pub const MAX_GPUS: usize = 16;
/// Version of the shared page's layout, stored in [`Page::layout`].
pub const PAGE_LAYOUT: u32 = 3;

/// Flag in [`Page::flags`]: another session uses a card of this process. The process bounds its work in
/// flight and waits for streams outside the gate.
pub const FLAG_CONTENDED: u32 = 1;
/// Flag in [`Page::flags`]: another session waits for the lock. An idle process gives the lock back.
pub const FLAG_WANTED: u32 = 2;
/// Flag in [`Page::flags`]: the session has a compute limit. The process bounds its work in flight.
pub const FLAG_LIMITED: u32 = 4;
/// Flag in [`Page::flags`], set by the process itself: a stream capture has begun and not ended. The process
/// notes which of its streams get work meanwhile.
pub const FLAG_CAPTURING: u32 = 8;
/// Flag in [`Page::flags`]: switches on the cards of this process overlap, so they cost little. A process
/// gives the lock back after a shorter pause, and reports that its work in flight is about to end.
pub const FLAG_OVERLAPPING: u32 = 16;
/// Flag in [`Page::flags`]: the host memory is too full for what must leave the cards. A process whose memory
/// is remapped gives back the slots that no chunk needs, and prepares none.
pub const FLAG_HOST_FULL: u32 = 32;
/// Flag in [`Page::flags`], set by the process itself: remapped memory of it is mapped from the host. The
/// process notes which addresses its kernels are given, and gives the lock back when it is idle, so that
/// memory that work uses comes to the card.
pub const FLAG_MAPPED: u32 = 64;
/// Flags in [`Page::flags`] that the process sets.
pub const FLAGS_OF_PROCESS: u32 = FLAG_CAPTURING | FLAG_MAPPED;
/// Flag in [`Page::flags`]: the process is frozen, or is to be. No thread of it calls the driver, and one
/// that would waits until the flag is gone.
pub const FLAG_FROZEN: u32 = 128;
/// Position of the first of [`MAX_GPUS`] flags in [`Page::flags`], one for each card. See [`flag_overflows`].
const OVERFLOW_FLAGS: u32 = 16;

/// Flag in [`Page::flags`]: the remapped memory of the process overflows this card, which has no more room
/// for it. What the goal has no room for is mapped from the host. A number beyond [`MAX_GPUS`] has no flag.
pub const fn flag_overflows(gpu: GpuId) -> u32 {
    match 1_u32.checked_shl(OVERFLOW_FLAGS + gpu.0 as u32) {
        Some(flag) => flag,
        None => 0,
    }
}

/// Bit of a card in [`Page::restores`]. A number beyond [`MAX_GPUS`] has none.
pub const fn card_bit(gpu: GpuId) -> u32 {
    if (gpu.0 as usize) < MAX_GPUS { 1 << gpu.0 } else { 0 }
}

/// Feature in [`Page::features`]: the daemon takes the number of refusals from [`LeaseRow::refused`] when it
/// handles a report, so a process reports only the first of them.
pub const FEATURE_REFUSALS: u32 = 1;
/// Feature in [`Page::features`]: the daemon gives goals ([`Goal`]) to processes of the backend `remap`.
/// Without it such a process keeps all its memory on the card.
pub const FEATURE_GOALS: u32 = 2;
/// Feature in [`Page::features`]: the daemon tells a process which other one wants memory that it has
/// exported.
pub const FEATURE_IMPORTS: u32 = 4;
/// Feature in [`Page::features`]: the daemon freezes processes that say what stands in the way
/// ([`Freezable`](crate::tenant::TenantRequest::Freezable)), and hears their other messages about that.
pub const FEATURE_FREEZE: u32 = 8;
/// Feature in [`Page::features`]: the daemon keeps host copies of equal bytes for the processes of a user
/// ([`Copy`](crate::tenant::TenantRequest::Copy)).
pub const FEATURE_COPIES: u32 = 16;
/// Feature in [`Page::features`]: the daemon knows requests for pieces of shared blocks
/// ([`ReservePiece`](crate::tenant::TenantRequest::ReservePiece)).
pub const FEATURE_PIECES: u32 = 32;
/// Feature in [`Page::features`]: the daemon says on which cards frozen processes come back
/// ([`Page::restores`]), and waits for contexts that are being created there ([`Page::creations`]).
pub const FEATURE_RESTORES: u32 = 64;

/// State of a process's gate, which decides whether a thread that submits work passes or sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum GateState {
    /// Threads that submit work sleep, and the process asks for the lock.
    Closed = 0,
    /// Threads that submit work sleep. The process has the lock and moves its memory onto the card.
    Moving = 1,
    /// Threads may submit work.
    Open = 2,
    /// The gate is open, and the process checks whether it has no work in flight, to give the lock back
    /// early. A thread that submits work sets [`Self::Open`] again and passes.
    Idle = 3,
}

/// State of a process's gate in 32 bits: 29 bits count the daemon's changes, 2 bits are a [`GateState`], and
/// the highest one is [`Self::EVICTING`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GateWord(pub u32);

impl GateWord {
    /// Bit that the process sets while memory of it is away from a card, so that addresses are holes. Nobody
    /// but the process clears it.
    pub const EVICTING: u32 = 1 << 31;

    /// Returns the gate word with the low 29 bits of `change` and with `state`.
    pub const fn new(change: u32, state: GateState) -> Self {
        Self(((change << 2) & !Self::EVICTING) | state as u32)
    }

    /// Returns the state of the gate. An open gate acts as *moving* while memory is away.
    pub const fn state(self) -> GateState {
        match self.0 & 3 {
            0 => GateState::Closed,
            2 if self.is_evicting() => GateState::Moving,
            2 => GateState::Open,
            3 if !self.is_evicting() => GateState::Idle,
            _ => GateState::Moving,
        }
    }

    /// Returns whether work may pass: the gate is open, and no memory is away. This is one comparison.
    pub const fn is_open(self) -> bool {
        self.0 & (Self::EVICTING | 3) == GateState::Open as u32
    }

    /// Returns whether memory of the process is away from a card.
    pub const fn is_evicting(self) -> bool {
        self.0 & Self::EVICTING != 0
    }

    /// Returns the word as the daemon wrote it, without [`Self::EVICTING`].
    #[must_use]
    pub const fn plain(self) -> Self {
        Self(self.0 & !Self::EVICTING)
    }

    /// Returns the change number, which the daemon raises at every change of the gate word.
    pub const fn change(self) -> u32 {
        self.plain().0 >> 2
    }

    /// Returns the gate word with the same change number and another state, as a process may write it.
    #[must_use]
    pub const fn with(self, state: GateState) -> Self {
        Self::new(self.change(), state)
    }

    /// Returns the gate word with the next change number and with `state`, as the daemon may write it.
    #[must_use]
    pub const fn next(self, state: GateState) -> Self {
        Self::new(self.change().wrapping_add(1), state)
    }
}

/// Row of the shared page for one card: the process's lease of memory quota, the limits, and the session's
/// part in the card's utilization.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct LeaseRow {
    /// Bytes of memory quota that the process may still allocate without asking the daemon.
    pub free: AtomicU64,
    /// Memory quota of the session on the card, in bytes; `u64::MAX` for no quota.
    pub limit: AtomicU64,
    /// Bytes that the other processes of the session use on the card.
    pub siblings: AtomicU64,
    /// Bytes that a session may use on the card at present, even if the session's quota is larger.
    pub ceiling: AtomicU64,
    /// Part of the session in the card's utilization, [`UtilizationPart`] as bits.
    pub part: AtomicU64,
    /// Number of allocations that the process refused without asking, since the daemon took the number last.
    /// The process reports the one that raises it from zero.
    pub refused: AtomicU64,
}

impl LeaseRow {
    /// Returns the row of a card with no leased bytes and without limits.
    pub const fn new() -> Self {
        Self {
            free: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
            siblings: AtomicU64::new(0),
            ceiling: AtomicU64::new(u64::MAX),
            part: AtomicU64::new(UtilizationPart::WHOLE.to_bits()),
            refused: AtomicU64::new(0),
        }
    }
}

/// Number of a goal for the memory of one process on one card. The daemon counts from 1 in each new page, and
/// 0 is no goal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GoalNumber(pub u64);

impl GoalNumber {
    /// Number of no goal.
    pub const NONE: Self = Self(0);

    /// Returns the number of the next goal.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Goal of the daemon for the movable memory of a process on one card. It is a state and not a message, so
/// lost and repeated ones do no harm. A page begins without a goal.
///
/// Under the backend `remap`, nothing leaves the card and nothing comes in without a goal. For managed memory
/// a goal is a hint: what is beyond it should leave while the gate is closed. The largest goal lifts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Goal {
    /// Number of the goal, below 2⁴⁰. At a thousand goals a second that lasts 35 years.
    pub number: GoalNumber,
    /// Most bytes of the process that may be on the card, in whole units of 2 MiB.
    pub bytes: Bytes,
}

impl Goal {
    /// Size of the unit in which a goal is written.
    const UNIT: Bytes = Bytes::mib(2);
    /// Bits of a word for the units: up to 32 TiB.
    const UNIT_BITS: u32 = 24;

    /// Returns the goal as one word of the page. Bytes are rounded down to whole units.
    pub const fn to_bits(self) -> u64 {
        let (units, most) = (self.bytes.0 / Self::UNIT.0, (1 << Self::UNIT_BITS) - 1);
        (self.number.0 << Self::UNIT_BITS) | if units > most { most } else { units }
    }

    /// Returns whether the goal bounds memory: it was given, and is not the largest one, which lifts those
    /// before.
    pub const fn is_bound(self) -> bool {
        self.number.0 > 0 && self.bytes.0 < ((1 << Self::UNIT_BITS) - 1) * Self::UNIT.0
    }

    /// Returns the goal in a word of the page.
    pub const fn from_bits(bits: u64) -> Self {
        let units = bits & ((1 << Self::UNIT_BITS) - 1);
        Self { number: GoalNumber(bits >> Self::UNIT_BITS), bytes: Bytes(units * Self::UNIT.0) }
    }
}

/// The shared page: memory that one process shares with the daemon. Both map the same sealed memory file.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Page {
    /// State of the process's gate, a [`GateWord`].
    pub gate: AtomicU32,
    /// Bit set of [`FLAG_CONTENDED`], [`FLAG_WANTED`], [`FLAG_LIMITED`], [`FLAG_CAPTURING`],
    /// [`FLAG_OVERLAPPING`], [`FLAG_HOST_FULL`], [`FLAG_MAPPED`] and [`FLAG_FROZEN`], and of
    /// [`flag_overflows`] for each card.
    pub flags: AtomicU32,
    /// Version of the shared page's layout, [`PAGE_LAYOUT`].
    pub layout: AtomicU32,
    /// Time in which this process should give the lock back when asked, in microseconds; zero for no target.
    pub drain_target: AtomicU32,
    /// Number that rises after each change of `gate` or `flags`, on which threads sleep.
    pub bell: AtomicU32,
    /// Bit set of what the daemon does beyond the layout's version: [`FEATURE_REFUSALS`], [`FEATURE_GOALS`],
    /// [`FEATURE_IMPORTS`], [`FEATURE_FREEZE`], [`FEATURE_COPIES`], [`FEATURE_PIECES`] and [`FEATURE_RESTORES`].
    pub features: AtomicU32,
    /// Leases and limits of memory, one row per card, indexed by [`GpuId`].
    pub gpus: [LeaseRow; MAX_GPUS],
    /// [`Goal`] of each card as bits, written by the daemon and indexed by [`GpuId`].
    pub goals: [AtomicU64; MAX_GPUS],
    /// Bytes of registered host memory, used and unused, that a process of the backend `remap` should have
    /// ready for what leaves each card. Written by the daemon and indexed by [`GpuId`]. Without a goal it
    /// means nothing.
    pub host_targets: [AtomicU64; MAX_GPUS],
    /// Number of times that [`FLAG_FROZEN`] was set in this page. Written by the daemon before it sets the
    /// flag.
    pub freezes: AtomicU32,
    /// Bit set of the cards ([`card_bit`]) on which a frozen process is about to come back, or does. Written by the
    /// daemon, which rings the bells of the card's processes when it clears a bit. No process begins to create a
    /// context there meanwhile.
    pub restores: AtomicU32,
    /// Number of contexts that the process is creating on each card, written by the process and indexed by [`GpuId`].
    /// Before a frozen process comes back the daemon waits for them, for two seconds at most.
    pub creations: [AtomicU32; MAX_GPUS],
    /// Capacity of each card in bytes: most movable memory that can be there at once. Written by the daemon before it
    /// gives the lock, and indexed by [`GpuId`]. An older daemon leaves zero, which bounds nothing.
    pub capacities: [AtomicU64; MAX_GPUS],
}

impl Page {
    /// Returns a shared page without limits whose gate is in `state`, for a process without a daemon.
    pub const fn new(state: GateState) -> Self {
        Self {
            gate: AtomicU32::new(GateWord::new(0, state).0),
            flags: AtomicU32::new(0),
            layout: AtomicU32::new(PAGE_LAYOUT),
            drain_target: AtomicU32::new(0),
            bell: AtomicU32::new(0),
            features: AtomicU32::new(0),
            gpus: [const { LeaseRow::new() }; MAX_GPUS],
            goals: [const { AtomicU64::new(0) }; MAX_GPUS],
            host_targets: [const { AtomicU64::new(0) }; MAX_GPUS],
            freezes: AtomicU32::new(0),
            restores: AtomicU32::new(0),
            creations: [const { AtomicU32::new(0) }; MAX_GPUS],
            capacities: [const { AtomicU64::new(0) }; MAX_GPUS],
        }
    }
}

const _: () = assert!(size_of::<Page>() <= PAGE_SIZE);

/// Facts about a refused memory request: the limit, the bytes requested and the bytes in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryRefusal {
    /// Bytes that the request asked for.
    pub requested: Bytes,
    /// Limit that the request would exceed, in bytes.
    pub limit: Bytes,
    /// Bytes in use that count against the limit.
    pub used: Bytes,
    /// Kind of the limit that the request would exceed.
    pub by: LimitKind,
}

impl MemoryRefusal {
    /// Returns whether the session is expired or revoked (quota zero), so that no later request can succeed.
    pub fn is_permanent(&self) -> bool {
        self.by == LimitKind::Session && self.limit.is_zero()
    }
}

/// Kind of limit that refuses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// Memory quota of the session.
    Session,
    /// Capacity of the card, which bounds each session that was made without `--oversubscribe`.
    Capacity,
    /// Limit `managed_limit` of the card on the managed memory of all sessions together.
    ManagedLimit,
    /// Host memory of the node, in which remapped memory of all sessions lives beside the card's capacity.
    HostMemory,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_word_keeps_its_parts() {
        let word = GateWord::new(7, GateState::Moving);
        assert_eq!((word.change(), word.state()), (7, GateState::Moving));
        assert_eq!(word.with(GateState::Open), GateWord::new(7, GateState::Open));
        assert_eq!(word.next(GateState::Closed), GateWord::new(8, GateState::Closed));
        let last = GateWord::new(u32::MAX >> 2, GateState::Open);
        assert_eq!(last.next(GateState::Closed), GateWord::new(0, GateState::Closed));
    }

    #[test]
    fn each_card_has_a_flag_of_its_own() {
        let others =
            [FLAG_CONTENDED, FLAG_WANTED, FLAG_LIMITED, FLAG_OVERLAPPING, FLAG_HOST_FULL, FLAG_FROZEN];
        let others = others.into_iter().fold(FLAGS_OF_PROCESS, |flags, flag| flags | flag);
        assert_eq!(others.count_ones(), 8);
        let all = (0..MAX_GPUS as u8).fold(others, |flags, gpu| {
            let flag = flag_overflows(GpuId(gpu));
            assert_eq!((flag.count_ones(), flag & flags), (1, 0), "card {gpu}");
            flags | flag
        });
        assert_eq!(all.count_ones(), others.count_ones() + MAX_GPUS as u32);
        assert_eq!(flag_overflows(GpuId(MAX_GPUS as u8)), 0);
        assert_eq!((card_bit(GpuId(15)), card_bit(GpuId(16)), card_bit(GpuId(255))), (1 << 15, 0, 0));
    }

    #[test]
    fn an_open_gate_acts_as_moving_while_memory_is_away() {
        let away = |state| GateWord(GateWord::new(7, state).0 | GateWord::EVICTING);
        let states = [GateState::Closed, GateState::Moving, GateState::Open, GateState::Idle];
        let acts = [GateState::Closed, GateState::Moving, GateState::Moving, GateState::Moving];
        assert_eq!(states.map(|state| away(state).state()), acts);
        let words = states.map(|state| GateWord::new(7, state)).into_iter().chain(states.map(away));
        assert!(
            words
                .into_iter()
                .all(|word| word.is_open() == (word.state() == GateState::Open))
        );
        assert!(states.iter().all(|&state| away(state).plain() == GateWord::new(7, state)));
        assert_eq!(away(GateState::Open).change(), 7);
    }

    #[test]
    fn a_goal_is_one_word() {
        let goal = Goal { number: GoalNumber((1 << 40) - 1), bytes: Bytes::gib(80) };
        assert_eq!(Goal::from_bits(goal.to_bits()), goal);
        let number = GoalNumber(1);
        let rounded = Goal { number, bytes: Bytes::mib(3) };
        assert_eq!(Goal::from_bits(rounded.to_bits()).bytes, Bytes::mib(2));
        let most = Goal { number, bytes: Bytes::MAX };
        let kept = Goal { number, bytes: Bytes::gib(32 << 10) - Bytes::mib(2) };
        assert_eq!(Goal::from_bits(most.to_bits()), kept);
        assert_eq!(Goal::from_bits(0), Goal { number: GoalNumber::NONE, bytes: Bytes::ZERO });
    }

    #[test]
    fn the_layout_is_the_one_every_released_library_maps() {
        assert_eq!(std::mem::offset_of!(Page, gate), 0);
        assert_eq!(std::mem::offset_of!(Page, flags), 4);
        assert_eq!(std::mem::offset_of!(Page, layout), 8);
        assert_eq!(std::mem::offset_of!(Page, drain_target), 12);
        assert_eq!(std::mem::offset_of!(Page, bell), 16);
        assert_eq!(std::mem::offset_of!(Page, features), 20);
        assert_eq!(std::mem::offset_of!(Page, gpus), 64);
        assert_eq!(std::mem::offset_of!(Page, goals), 1088);
        assert_eq!(std::mem::offset_of!(Page, host_targets), 1216);
        assert_eq!(std::mem::offset_of!(Page, freezes), 1344);
        assert_eq!(std::mem::offset_of!(Page, restores), 1348);
        assert_eq!(std::mem::offset_of!(Page, creations), 1352);
        assert_eq!(std::mem::offset_of!(Page, capacities), 1416);
        assert_eq!(size_of::<LeaseRow>(), 64);
        assert_eq!(std::mem::offset_of!(LeaseRow, part), 32);
        assert_eq!(std::mem::offset_of!(LeaseRow, refused), 40);
    }
}
