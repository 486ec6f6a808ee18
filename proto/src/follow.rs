//! Increments: what changed in the daemon's state since the last message, for `gpushare-ctl top`.
//!
//! ```text
//!   state of the daemon ── compared with what followers know, once a second ──▶ increments ──▶ every follower
//! ```
//!
//! Facts change seldom, figures often. Each is sent whole, and only if it differs from the last one sent.

use serde::{Deserialize, Serialize};

use crate::handoff::Handoff;
use crate::ids::{GpuId, GpuUuid, SessionId};
use crate::session::{Priority, Quota, SessionPhase};
use crate::settings::Mode;
use crate::units::{Bytes, Nanos, Percent};
use crate::views::ResidenceView;

/// Largest number of waiting sessions that [`CardFigures`] names.
pub const MAX_QUEUE: usize = 32;
/// Largest number of latest waits that the daemon keeps of a session.
pub const MAX_WAITS: usize = 64;

/// Increments of one message, with the time to which they belong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Increments {
    /// Duration from the daemon's start to this message.
    pub at_ns: Nanos,
    /// Whether cards and sessions without an increment here do not exist.
    pub whole: bool,
    /// Changes since the message before; the whole state in the first message.
    pub changes: Vec<Increment>,
}

/// Change of the daemon's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Increment {
    /// Identity and recovery of the daemon.
    Daemon(DaemonFacts),
    /// A card appeared.
    Card(CardFacts),
    /// The figures of a card changed.
    CardFigures(CardFigures),
    /// The sensors of a card were read.
    Sensors(Sensors),
    /// A session appeared, or its name, terms or processes changed.
    Session(SessionFacts),
    /// The figures of a session changed.
    SessionFigures(SessionFigures),
    /// A session got the lock for a turn, once or more often.
    Granted {
        /// Number of the session.
        session: SessionId,
        /// Durations from the entries into the queue to the grants, oldest first, at most [`MAX_WAITS`].
        waits_ns: Vec<Nanos>,
        /// Duration for which the session may keep the lock by the last grant while others wait.
        quantum_ns: Nanos,
    },
    /// A session ended.
    SessionEnded {
        /// Number of the session.
        session: SessionId,
    },
    /// The places of a session's remapped memory changed.
    Residence {
        /// Number of the session.
        session: SessionId,
        /// Places of the session's memory on each card where it has remapped memory.
        places: Vec<ResidenceView>,
    },
    /// The remapped memory on a card changed.
    CardResidence(CardResidence),
    /// A handoff of remapped memory runs, or the last one has ended.
    CardHandoff(CardHandoff),
}

/// Identity and recovery of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonFacts {
    /// Package version of the daemon.
    pub version: String,
    /// Pid of the daemon in its own PID namespace.
    pub pid: u32,
    /// Number of processes of the previous daemon that have neither reconnected nor ended.
    pub recovering: u32,
}

/// Identity and size of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardFacts {
    /// Number that the daemon assigned to the card.
    pub gpu: GpuId,
    /// UUID of the card.
    pub uuid: GpuUuid,
    /// Product name of the card.
    pub name: String,
    /// Total memory of the card.
    pub total_bytes: Bytes,
}

/// Memory, mode and turns of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardFigures {
    /// Number that the daemon assigned to the card.
    pub gpu: GpuId,
    /// Capacity of the card: bytes that may be resident at the same time.
    pub capacity_bytes: Bytes,
    /// Bytes that all sessions have allocated on the card.
    pub allocated_bytes: Bytes,
    /// Present mode of the card.
    pub mode: Mode,
    /// Reason of the present mode, in words.
    pub reason: String,
    /// Number of sessions that hold the card's lock.
    pub holding: u32,
    /// Sessions that hold the card's lock, at most [`MAX_QUEUE`].
    pub holders: Vec<SessionId>,
    /// Number of sessions that wait for the card's lock.
    pub waiting: u32,
    /// Sessions that wait for the card's lock, in the order of their turns, at most [`MAX_QUEUE`].
    pub queue: Vec<SessionId>,
    /// Duration for which the next session may keep the lock while others wait.
    pub quantum_ns: Nanos,
    /// Duration from the daemon's start to the end of the first holder's quantum; none without turns.
    pub turn_ends_ns: Option<Nanos>,
    /// Number of grants in serialized mode since the daemon's start.
    pub handoffs: u64,
}

/// Values of a card's sensors, as NVML reports them; none for a value that NVML does not report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sensors {
    /// Number that the daemon assigned to the card.
    pub gpu: GpuId,
    /// Share of NVML's last sample period in which the card ran a kernel, in percent.
    pub busy_percent: Option<u32>,
    /// Memory of the card in use, by anybody.
    pub used_bytes: Option<Bytes>,
    /// Temperature of the card in degrees Celsius.
    pub celsius: Option<u32>,
    /// Power draw of the card in milliwatts.
    pub milliwatts: Option<u32>,
}

/// Name, user, terms and processes of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionFacts {
    /// Number of the session.
    pub session: SessionId,
    /// Name of the session.
    pub name: String,
    /// User id in digits, or the path of a container's control group. None for an administrator's session
    /// without a process.
    pub user: Option<String>,
    /// Largest memory that the session may use.
    pub memory: Quota,
    /// Weight of the session.
    pub weight: u32,
    /// Priority class of the session.
    pub priority: Priority,
    /// Present phase of the session.
    pub phase: SessionPhase,
    /// Pids of the session's connected processes in the daemon's PID namespace.
    pub pids: Vec<u32>,
}

/// Lock, memory and time of a session. None of them changes while the session waits or is idle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionFigures {
    /// Number of the session.
    pub session: SessionId,
    /// State of the session's lock.
    pub lock: LockState,
    /// Memory of the session on each card that it uses.
    pub memory: Vec<CardUse>,
    /// Total duration for which the session could submit work, times the number of its cards.
    pub gpu_time_ns: Nanos,
    /// Number of the session's refused memory requests.
    pub refusals: u64,
}

/// Memory of a session on one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardUse {
    /// Number that the daemon assigned to the card.
    pub gpu: GpuId,
    /// Bytes that the session has allocated on the card.
    pub allocated_bytes: Bytes,
    /// Memory quota of the session on the card; none for no limit.
    pub limit_bytes: Option<Bytes>,
}

/// Places of the remapped memory of all sessions on one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardResidence {
    /// Number that the daemon assigned to the card.
    pub gpu: GpuId,
    /// Bytes on the card.
    pub resident_bytes: Bytes,
    /// Bytes in host memory, or without a place yet.
    pub hosted_bytes: Bytes,
    /// Bytes that have to leave the card or to come in, as the goals ask.
    pub moving_bytes: Bytes,
}

/// Running handoff of a card, or else the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardHandoff {
    /// Number that the daemon assigned to the card.
    pub gpu: GpuId,
    /// Whether memory still has to move.
    pub running: bool,
    /// Duration of the handoff, up to now if it has not ended.
    pub took_ns: Nanos,
    /// Bytes that have left the card.
    pub out_bytes: Bytes,
    /// Bytes that left in a second, on average.
    pub out_bytes_per_second: Bytes,
    /// Bytes that have come onto the card.
    pub in_bytes: Bytes,
    /// Bytes that came in in a second, on average.
    pub in_bytes_per_second: Bytes,
    /// Part of the duration in which both directions moved, in hundredths of a percent.
    pub overlap: Percent,
}

impl CardHandoff {
    /// Returns the figures of a handoff, without the sessions whose memory moves.
    pub const fn of(handoff: &Handoff, running: bool) -> Self {
        let Handoff { gpu, took_ns, out, into, overlap, .. } = handoff;
        Self {
            gpu: *gpu,
            running,
            took_ns: *took_ns,
            out_bytes: out.bytes,
            out_bytes_per_second: out.bytes_per_second,
            in_bytes: into.bytes,
            in_bytes_per_second: into.bytes_per_second,
            overlap: *overlap,
        }
    }
}

impl CardResidence {
    /// Returns the places on a card without remapped memory.
    pub const fn none_on(gpu: GpuId) -> Self {
        Self {
            gpu,
            resident_bytes: Bytes::ZERO,
            hosted_bytes: Bytes::ZERO,
            moving_bytes: Bytes::ZERO,
        }
    }
}

/// State of a session's lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockState {
    /// The session neither holds the lock nor waits for it.
    #[default]
    Idle,
    /// The session waits for the lock.
    Waiting,
    /// The session has the lock and moves its memory onto the card.
    Moving,
    /// The session has the lock and may submit work.
    Holding,
    /// The session waits for its work in flight to end, to give the lock back.
    Dropping,
    /// The session keeps the lock for so long that the daemon reports it as stuck.
    Stuck,
    /// The session is frozen: all that its processes had on the cards is in memory of the host.
    Frozen,
}
