//! Messages of the tenant socket, between a process that uses a card and the daemon. Any user may connect, so
//! these messages can affect only the peer's own session.
//!
//! ```text
//!   process                                 daemon
//!   Hello ─────────────────────────────────▶        identity: the kernel's credentials, then the token
//!         ◀───────────────────── Welcome + page     a sealed memory file, by SCM_RIGHTS
//!   Attach{uuid} ──────────────────────────▶        before the first context on a card
//!         ◀──────────────────────────── Attached
//!   Reserve{bytes} ────────────────────────▶        only when the lease is short
//!         ◀───────────────── Reserved | Refused
//!   Headroom{bytes} ───────────────────────▶        before the driver takes memory of its own
//!         ◀──────────────────────────── Headroom
//!   Wait ──────────────────────────────────▶        a thread sleeps at the closed gate
//!         ◀──────────────────────────────── Gate    every change of the gate, also written to the page
//!   Entered / Released ────────────────────▶        memory is on the card / drained, lock given back
//! ```
//!
//! Enums are append-only: a new message is added at the end, and no variant changes its fields.

use serde::{Deserialize, Serialize};

use crate::dry_run::{DryRunSession, Forecast};
use crate::ids::{ClientId, Epoch, GpuId, GpuUuid, RequestId, SessionId, Token};
use crate::page::{GateWord, MemoryRefusal};
use crate::session::Quota;
use crate::units::{Bytes, Nanos};
use crate::views::SessionView;

pub use crate::gpu_choice::{GpuChoice, UnknownCard};
pub use crate::session::NewSession;

/// Bytes in front of the protocol version in the first message.
pub const MAGIC: [u8; 4] = *b"GPSH";
/// Protocol version of this build.
pub const PROTOCOL: u16 = 1;

/// Maximum number of unknown driver functions that a process reports.
pub const MAX_UNKNOWN: usize = 16;
/// Maximum length of the name of a reported unknown driver function, in bytes.
pub const MAX_UNKNOWN_NAME: usize = 64;

/// Message from a process to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TenantRequest {
    /// First message of every connection.
    Hello(Hello),
    /// Announces that the process is about to use a card. Answered by [`TenantReply::Attached`] or
    /// [`TenantReply::Error`].
    Attach(GpuInfo),
    /// Reports the number of contexts that the process has on a card.
    Contexts {
        /// The daemon's number of the card.
        gpu: GpuId,
        /// Number of live contexts of the process on the card.
        live: u32,
    },
    /// Asks for bytes of quota beyond the lease. Answered by [`TenantReply::Reserved`] or
    /// [`TenantReply::Refused`].
    Reserve {
        /// Id of this request; the answer repeats it.
        request: RequestId,
        /// The daemon's number of the card.
        gpu: GpuId,
        /// Bytes that the allocation needs; the daemon may lease more.
        bytes: Bytes,
    },
    /// Offers unused lease: the page holds more free bytes than is useful, and the daemon may take them back.
    Trim {
        /// The daemon's number of the card.
        gpu: GpuId,
    },
    /// Reports that a thread sleeps at the closed gate.
    Wait {
        /// Gate word that the thread saw.
        word: GateWord,
    },
    /// Reports that the process has brought its memory onto the card after a grant and opened the gate.
    Entered {
        /// Gate word of the grant.
        word: GateWord,
        /// Bytes that the process asked the driver to move to the card.
        moved: Bytes,
        /// Duration of the move.
        took: Nanos,
    },
    /// Gives the lock back: no thread is inside the gate and no work is in flight.
    Released {
        /// Gate word that closed the gate, or under which the process became idle.
        word: GateWord,
        /// Time from the closing of the gate to the end of the last work in flight.
        drain: Nanos,
    },
    /// Registers a session for the caller. Answered by [`TenantReply::Session`] or [`TenantReply::Error`].
    Register(NewSession),
    /// Asks for the caller's own session. Answered by [`TenantReply::OwnSession`].
    OwnSession,
    /// Asks for the list of cards. Answered by [`TenantReply::Gpus`].
    Gpus,
    /// Asks for the quota and memory use of a session: the token's, else the caller's own. Answered by
    /// [`TenantReply::SessionMemory`].
    SessionMemory(Option<Token>),
    /// Reports the fixed bytes of the process on a card, which cannot move: native allocations, pools,
    /// arrays, handles.
    ///
    /// The report never exceeds the truth: growth is reported after the allocation, and [`Self::ReturnFixed`]
    /// takes bytes back before they are freed.
    Fixed {
        /// The daemon's number of the card.
        gpu: GpuId,
        /// Total of the process's fixed bytes on the card.
        bytes: Bytes,
    },
    /// Asks for bytes of quota that will never move, else like [`Self::Reserve`]. Granted bytes count as
    /// fixed at once.
    ReserveFixed {
        /// Id of this request; the answer repeats it.
        request: RequestId,
        /// The daemon's number of the card.
        gpu: GpuId,
        /// Bytes that the allocation needs; the daemon may lease more.
        bytes: Bytes,
    },
    /// Asks for physical memory for the driver's own use (a context, a module), which no quota covers.
    ///
    /// Sent before the driver allocates, or after it failed. Answered by [`TenantReply::Headroom`] as soon as
    /// there is headroom, or when none can be made.
    Headroom {
        /// Id of this request; the answer repeats it.
        request: RequestId,
        /// The daemon's number of the card.
        gpu: GpuId,
        /// Bytes of the card that the driver may need for itself.
        bytes: Bytes,
    },
    /// Returns freed bytes that counted as fixed. The daemon may lease them again through the page, for
    /// movable memory.
    ReturnFixed {
        /// The daemon's number of the card.
        gpu: GpuId,
        /// Number of bytes returned.
        bytes: Bytes,
    },
    /// Reports a driver function that gpushare does not know. Its effect on memory cannot be seen, so the
    /// memory of the process must not be moved. A process reports at most [`MAX_UNKNOWN`].
    UnknownFunction {
        /// Name of the function, at most [`MAX_UNKNOWN_NAME`] bytes.
        name: String,
        /// CUDA version that the process asked `cuGetProcAddress` for; 0 for a `dlsym`.
        version: u32,
    },
    /// Limits from the environment of the process. The daemon applies them once, and only to a session that
    /// it made itself for processes without a token.
    Limits {
        /// Memory limit per card.
        memory: Quota,
        /// Limit of each card's time.
        compute: Quota,
    },
    /// Reports an allocation that the process refused itself because it exceeds the whole quota in the page.
    /// The report has no reply; the daemon verifies, counts and logs it.
    RefusedLocally {
        /// The daemon's number of the card.
        gpu: GpuId,
        /// Bytes that the allocation needed.
        bytes: Bytes,
    },
    /// Asks for a forecast for a program that is not started; changes nothing. Answered by
    /// [`TenantReply::DryRun`] or [`TenantReply::Error`].
    DryRun(DryRunSession),
    /// Joins the process and all its later descendants to the token's session, even those that drop the
    /// token. Answered by [`TenantReply::SessionMemory`], which is none if no session has the token.
    Join(Token),
    /// Ends the reports of a process that reconnected: it has repeated all its open requests. The daemon
    /// frees the bytes booked for the process beyond these requests and its reported use; their return was
    /// lost.
    Reconciled,
}

/// First message of a connection. Its first two fields are the same in every protocol version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The bytes [`MAGIC`].
    pub magic: [u8; 4],
    /// Protocol version of the sender, [`PROTOCOL`] for this build.
    pub protocol: u16,
    /// Purpose of the connection.
    pub role: Role,
}

impl Hello {
    /// Returns the hello of this build.
    pub fn new(role: Role) -> Self {
        Self { magic: MAGIC, protocol: PROTOCOL, role }
    }
}

/// Purpose of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A process that will use a card.
    Client {
        /// Token of the session, if the process has one.
        token: Option<Token>,
        /// State of a process that reconnects after a lost connection; none for a new one.
        returning: Option<Returning>,
    },
    /// A command-line tool: registers sessions or asks questions and uses no card.
    Tool,
}

/// State of a process that reconnects to a daemon. It is a claim: the daemon books it, and does not grant on
/// it alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Returning {
    /// The process's client id from before.
    pub client: ClientId,
    /// The process's session from before.
    pub session: SessionId,
    /// Epoch of the grant that the process still holds.
    pub holding: Option<Epoch>,
    /// Reserved bytes and contexts of the process, per card.
    pub gpus: Vec<ReturningGpu>,
    /// Whether a thread of the process sleeps at its gate.
    pub waiting: bool,
}

/// One card of a process that reconnects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReturningGpu {
    /// The card as in [`TenantRequest::Attach`].
    pub info: GpuInfo,
    /// Bytes that the process has reserved on the card, allocated or not.
    pub used: Bytes,
    /// Number of live contexts of the process on the card.
    pub contexts: u32,
}

/// A card as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// Identity of the card.
    pub uuid: GpuUuid,
    /// Product name of the card.
    pub name: String,
    /// Total memory of the card.
    pub total: Bytes,
}

/// Message from the daemon to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TenantReply {
    /// Answers the hello of a process. The memory file of its page comes with this message.
    Welcome(Welcome),
    /// Answers the hello of a tool.
    Ready {
        /// Protocol version of the daemon.
        protocol: u16,
    },
    /// Answers [`TenantRequest::Attach`].
    Attached {
        /// Identity of the card.
        uuid: GpuUuid,
        /// The daemon's number of the card, which is also its row in the page.
        gpu: GpuId,
    },
    /// Reports a change of the gate, which is also in the page. `Closed` asks for a drain and
    /// [`TenantRequest::Released`].
    Gate {
        /// New gate word.
        word: GateWord,
        /// Epoch of the grant to which the change belongs.
        epoch: Epoch,
    },
    /// Answers a reservation that succeeded.
    Reserved {
        /// Id of the request that this message answers.
        request: RequestId,
        /// Bytes that the process now has, in addition to the free lease in the page.
        bytes: Bytes,
    },
    /// Answers a reservation that was refused.
    Refused {
        /// Id of the request that this message answers.
        request: RequestId,
        /// Limit and figures of the refusal.
        refusal: MemoryRefusal,
    },
    /// Reports why a thread of the process sleeps; the process prints it on stderr.
    Queued {
        /// Number of sessions whose turn comes first.
        ahead: u32,
        /// Holders of the card, or another reason for the wait, in words.
        reason: String,
    },
    /// Answers [`TenantRequest::Register`].
    Session {
        /// Number of the new session.
        session: SessionId,
        /// Name of the new session.
        name: String,
        /// Token of the new session.
        token: Token,
        /// Card on which the session was placed; none if it was not asked for.
        gpu: Option<GpuUuid>,
    },
    /// Answers [`TenantRequest::OwnSession`]; none if the caller belongs to no session.
    OwnSession(Option<Box<SessionView>>),
    /// Answers [`TenantRequest::Gpus`].
    Gpus(Vec<GpuInfo>),
    /// Answers a request that failed.
    Error(Failure),
    /// Answers [`TenantRequest::SessionMemory`] and [`TenantRequest::Join`]; none if there is no such
    /// session.
    SessionMemory(Option<SessionMemory>),
    /// Answers [`TenantRequest::Headroom`].
    Headroom {
        /// Id of the request that this message answers.
        request: RequestId,
        /// Bytes of the card that unmovable memory does not occupy.
        bytes: Bytes,
    },
    /// Answers [`TenantRequest::DryRun`].
    DryRun(Box<Forecast>),
}

/// Quota and memory use of a session, as NVML queries of its processes report them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionMemory {
    /// Number of the session.
    pub session: SessionId,
    /// Name of the session.
    pub name: String,
    /// Quota of the session on each card that has no quota of its own; none for no limit.
    pub limit: Option<Bytes>,
    /// Memory of the session on each card that the daemon knows.
    pub cards: Vec<CardMemory>,
}

/// Memory of a session on one card, whether or not the session has used the card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardMemory {
    /// The daemon's number of the card.
    pub info: GpuInfo,
    /// Apparent size of the card to the session: the smaller of quota and card.
    pub total: Bytes,
    /// Bytes that the session uses on the card.
    pub used: Bytes,
    /// Bytes that the session may still allocate; less than `total - used` if the card cannot back the whole
    /// quota.
    pub free: Bytes,
    /// Processes of the session on the card.
    pub processes: Vec<ProcessMemory>,
}

/// Memory of one process on one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    /// Pid of the process in the caller's PID namespace if both share one, else in the daemon's.
    pub pid: u32,
    /// Pid of the process in the daemon's PID namespace.
    pub outer_pid: u32,
    /// Bytes that the process uses on the card.
    pub used: Bytes,
}

/// Answer to the hello of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Protocol version of the daemon.
    pub protocol: u16,
    /// Client id of the process.
    pub client: ClientId,
    /// Session of the process.
    pub session: SessionId,
    /// Name of the session, for messages.
    pub name: String,
    /// Numbers of the cards of a process that reconnects, in the order of its [`Returning::gpus`].
    pub gpus: Vec<GpuId>,
}

/// Failure of a request on either socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Kind of the failure, for programs.
    pub code: FailureCode,
    /// One sentence that says what failed and what to do.
    pub message: String,
}

/// Kind of failure; exit codes and retries depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureCode {
    /// The peers use different protocol versions.
    Protocol,
    /// The message is invalid in this state of the connection.
    BadRequest,
    /// The request needs a permission that its sender lacks.
    Permission,
    /// The request names a session or card that does not exist.
    NotFound,
    /// The request cannot be met now: another daemon has the card, or the daemon has reached a limit.
    Unavailable,
}
