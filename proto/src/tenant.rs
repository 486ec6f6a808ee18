//! Messages of the tenant socket, between a process that uses a card and the daemon. Any user may connect, so
//! these messages can affect only the peer's own session.
//!
//! ```text
//!   process                                 daemon
//!   Hello ─────────────────────────────────▶        identity: the kernel's credentials, then the token
//!         ◀───────────────────── Welcome + page     a sealed memory file, by SCM_RIGHTS
//!   Attach{uuid} ──────────────────────────▶        before the first context on a card
//!         ◀──────────────────────────── Attached
//!   Reserve | ReservePiece{bytes} ─────────▶        only when the lease is short
//!         ◀───────────────── Reserved | Refused
//!   Headroom{bytes} ───────────────────────▶        after the driver found no memory
//!         ◀──────────────────────────── Headroom
//!   Wait ──────────────────────────────────▶        a thread sleeps at the closed gate
//!         ◀──────────────────────────────── Gate    every change of the gate, also written to the page
//!   Entered / Released ────────────────────▶        memory is on the card / drained, lock given back
//!   NearlyDrained ─────────────────────────▶        work in flight ends within two milliseconds
//!   Resides / MoveFailed ──────────────────▶        remapped memory has moved, as the goal in the page says / could not
//!   CardFull ──────────────────────────────▶        it could not, since the card has less memory than the goal allows
//!   Import{export, meeting} ───────────────▶        before memory of another process is opened
//!         ◀────── ImportAnswered | ImportWanted     to the importer / to the exporter
//! ```
//!
//! Freezing of a process, which is off without [`FEATURE_FREEZE`](crate::page::FEATURE_FREEZE):
//!
//! ```text
//!   Freezable{obstacle} ───────────────────▶        what stands in the way; first on every connection
//!         ◀─────────────────────────── flag         in the page: no call of the driver may begin
//!   Parked{number} ────────────────────────▶        none is under way either
//!   Called ────────────────────────────────▶        a thread waits with a call
//!   Held ──────────────────────────────────▶        the last daemon had set the flag and did not take it back
//! ```
//!
//! Host copies of equal bytes, on a second connection of a process, which is a tool's
//! ([`FEATURE_COPIES`](crate::page::FEATURE_COPIES), [`crate::copies`]):
//!
//! ```text
//!   Copy{name, bytes, chunks} ─────────────▶        chunks of the process have such bytes
//!         ◀────────────── CopyAnswered + file       the file comes with `Fill` and `Made`
//!   EndCopy{name, bytes} ──────────────────▶        it has no such bytes or uses the copy no more
//! ```
//!
//! Enums are append-only: a new message is added at the end, and no variant's fields change.

use serde::{Deserialize, Serialize};

use crate::copies::{CopyAnswer, CopyName};
use crate::dry_run::{DryRunSession, Forecast};
use crate::follow::Increments;
use crate::frost::FrostView;
use crate::ids::{ClientId, Epoch, GpuId, GpuUuid, RequestId, SessionId, Token};
use crate::page::{GateWord, GoalNumber, MemoryRefusal};
use crate::session::Quota;
use crate::sharing::{ExportName, Meeting};
use crate::units::{Bytes, Nanos};
use crate::utilization::UtilizationPart;
use crate::views::SessionView;

pub use crate::gpu_choice::{GpuChoice, UnknownCard};
pub use crate::session::NewSession;

/// Constant bytes at the start of a connection's first message, in front of the protocol version.
pub const MAGIC: [u8; 4] = *b"GPSH";
/// Version of the protocol between processes, tools and the daemon in this build.
pub const PROTOCOL: u16 = 1;

/// Time before the expected end of its work in flight at which a process whose gate was closed reports
/// [`TenantRequest::NearlyDrained`].
pub const NEARLY_DRAINED: Nanos = Nanos::from_millis(2);

/// Maximum number of unknown driver functions that a process reports.
pub const MAX_UNKNOWN: usize = 16;
/// Maximum length of the name of a reported unknown driver function, in bytes.
pub const MAX_UNKNOWN_NAME: usize = 64;

/// Message from a process to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TenantRequest {
    /// First message of every connection.
    Hello(Hello),
    /// Announces that the process will create its first context on a card. Answered by
    /// [`TenantReply::Attached`] or [`TenantReply::Error`].
    Attach(GpuInfo),
    /// Reports the number of CUDA contexts that the process has on a card.
    Contexts {
        /// Number that the daemon assigned to the card.
        gpu: GpuId,
        /// Number of CUDA contexts of the process on the card.
        live: u32,
    },
    /// Asks for more memory quota than the process's lease has. Answered by [`TenantReply::Reserved`] or
    /// [`TenantReply::Refused`].
    Reserve {
        /// Id of this request, which the answer repeats.
        request: RequestId,
        /// Number that the daemon assigned to the card.
        gpu: GpuId,
        /// Bytes that the allocation needs; the daemon may lease more.
        bytes: Bytes,
    },
    /// Reports that the lease has more free bytes than the process needs. The daemon may take bytes back.
    Trim {
        /// Number that the daemon assigned to the card.
        gpu: GpuId,
    },
    /// Reports that a thread of the process sleeps at the closed gate.
    Wait {
        /// Gate word that the thread read before sleeping.
        word: GateWord,
    },
    /// Reports that the process, after a grant, has moved its memory onto the card and opened its gate.
    Entered {
        /// Gate word that the daemon wrote for the grant.
        word: GateWord,
        /// Bytes that the process asked the driver to move to the card.
        moved: Bytes,
        /// Duration of the move of memory to the card.
        took: Nanos,
    },
    /// Gives the lock back: no thread is inside the gate and no work is in flight.
    Released {
        /// Gate word with which the daemon closed the gate, or the present one if the process is idle.
        word: GateWord,
        /// Duration from the closing of the gate to the end of the last work in flight.
        drain: Nanos,
    },
    /// Registers a session for the caller. Answered by [`TenantReply::Session`] or [`TenantReply::Error`].
    Register(NewSession),
    /// Asks for the caller's own session. Answered by [`TenantReply::OwnSession`].
    OwnSession,
    /// Asks for the list of cards. Answered by [`TenantReply::Gpus`].
    Gpus,
    /// Asks for the quota and memory use of the token's session, or of the caller's own without a token.
    /// Answered by [`TenantReply::SessionMemory`].
    SessionMemory(Option<Token>),
    /// Reports the memory of the process on a card that cannot move: native memory, pools, arrays, handles.
    ///
    /// The report never exceeds the true amount. Growth is reported after the allocation, and
    /// [`Self::ReturnFixed`] is sent before the memory is freed.
    Fixed {
        /// Number that the daemon assigned to the card.
        gpu: GpuId,
        /// Total memory of the process on the card that cannot move.
        bytes: Bytes,
    },
    /// Asks for quota for memory that cannot move, otherwise like [`Self::Reserve`]. Granted bytes count as
    /// fixed at once.
    ReserveFixed {
        /// Id of this request, which the answer repeats.
        request: RequestId,
        /// Number that the daemon assigned to the card.
        gpu: GpuId,
        /// Bytes that the allocation needs; the daemon may lease more.
        bytes: Bytes,
    },
    /// Asks after a driver call found no memory whether the card has some: free, or occupied by memory that
    /// the driver can move away. Answered by [`TenantReply::Headroom`].
    Headroom {
        /// Id of this request, which the answer repeats.
        request: RequestId,
        /// Number that the daemon assigned to the card.
        gpu: GpuId,
        /// Bytes of the card that the driver call needs.
        bytes: Bytes,
    },
    /// Returns the quota of freed memory that could not move. The daemon may lease this quota again for
    /// movable memory.
    ReturnFixed {
        /// Number that the daemon assigned to the card.
        gpu: GpuId,
        /// Number of bytes of quota that the process returns.
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
    /// States limits from the environment of the process. The daemon applies them once, and only to a session
    /// that the daemon made for processes without a token.
    Limits {
        /// Largest memory that the session may use, per card.
        memory: Quota,
        /// Largest share of each card's time that the session may use.
        compute: Quota,
    },
    /// Reports an allocation that the process itself refused, since the bytes exceed the session's whole
    /// quota. The daemon verifies, counts and logs the report without a reply. Further refusals until then
    /// are only counted in the shared page ([`LeaseRow::refused`](crate::page::LeaseRow::refused)).
    RefusedLocally {
        /// Number that the daemon assigned to the card.
        gpu: GpuId,
        /// Bytes of memory that the refused allocation needed.
        bytes: Bytes,
    },
    /// Asks for a forecast of memory and waits for a program that is not started. Answered by
    /// [`TenantReply::DryRun`] or [`TenantReply::Error`].
    DryRun(DryRunSession),
    /// Joins the process and all its later descendants to the token's session, even those that lose the
    /// token. Answered by [`TenantReply::SessionMemory`], which is none if no session has the token.
    Join(Token),
    /// Reports that a reconnected process has repeated all its open requests. The daemon then frees bytes
    /// booked for the process beyond these requests and the reported use.
    Reconciled,
    /// Asks for the part that the token's session, or the caller's own without a token, has in the
    /// utilization of each card. Answered by [`TenantReply::UtilizationParts`].
    UtilizationParts(Option<Token>),
    /// Asks for the cards and for the sessions of the caller's user. Answered by
    /// [`TenantReply::OwnSessions`].
    OwnSessions,
    /// Reports that the work in flight of a process whose gate was closed is expected to end within
    /// [`NEARLY_DRAINED`]. Where no memory moves, the next session begins then. Sent only while the page has
    /// [`FLAG_OVERLAPPING`](crate::page::FLAG_OVERLAPPING).
    NearlyDrained {
        /// Gate word with which the daemon closed the gate.
        word: GateWord,
    },
    /// Asks for the wait of the caller's own session. Answered by [`TenantReply::OwnWait`].
    OwnWait,
    /// Asks for another memory limit of the caller's own session, which its user registered. Answered by
    /// [`TenantReply::Resized`] or [`TenantReply::Error`].
    Resize(Quota),
    /// Reports where the process's memory of the backend `remap` is on a card. Sent after each change, and
    /// first on every connection.
    Resides {
        /// Number that the daemon assigned to the card.
        gpu: GpuId,
        /// Number of the latest goal under which the process acts: it creates nothing more under earlier
        /// ones.
        seen: GoalNumber,
        /// Bytes of that memory.
        residence: Residence,
    },
    /// Reports that the process could not move memory as a goal asked.
    MoveFailed {
        /// Number that the daemon assigned to the card.
        gpu: GpuId,
        /// Number of the goal.
        number: GoalNumber,
    },
    /// Reports that the process could not move memory as a goal asked, since the card has no memory for which
    /// the goal has room.
    CardFull {
        /// Number that the daemon assigned to the card.
        gpu: GpuId,
        /// Number of the goal.
        number: GoalNumber,
        /// Bytes for which the card has no memory.
        bytes: Bytes,
    },
    /// Asks that the exporter of memory is told where this process waits for it. Answered by
    /// [`TenantReply::ImportAnswered`]. Sent only if the page has
    /// [`FEATURE_IMPORTS`](crate::page::FEATURE_IMPORTS).
    Import {
        /// Id of this request, which the answer repeats.
        request: RequestId,
        /// Name of the memory, from the handle that the exporter's program gave to this one.
        export: ExportName,
        /// Socket at which this process waits.
        meeting: Meeting,
    },
    /// Reports what keeps the process from being frozen. A process that never sends it is not frozen. Sent
    /// first on a connection and after each change. This message and the next ones are sent only if the page
    /// has [`FEATURE_FREEZE`](crate::page::FEATURE_FREEZE).
    Freezable {
        /// Reason why the process cannot be frozen; none if it can.
        obstacle: Option<FreezeObstacle>,
    },
    /// Reports that no thread of the process is in the driver, and none enters while the page has
    /// [`FLAG_FROZEN`](crate::page::FLAG_FROZEN).
    Parked {
        /// Value of [`Page::freezes`](crate::page::Page::freezes) under which that was proved.
        number: u32,
    },
    /// Reports that a thread waits with a call of the driver since the process is frozen or about to be.
    Called,
    /// Reports after a lost connection that the process has parked for the last daemon, which may have frozen
    /// it. Its calls wait until this daemon has set and cleared [`FLAG_FROZEN`](crate::page::FLAG_FROZEN).
    Held,
    /// Asks that a session of the caller's user is frozen. Answered by [`TenantReply::FrostChanged`] or
    /// [`TenantReply::Error`] at once, while the driver still moves its memory.
    Freeze {
        /// Number (`3`, `s3`) or name of the session.
        which: String,
    },
    /// Asks that the frozen processes of a session of the caller's user come back. Answered by
    /// [`TenantReply::FrostChanged`] or [`TenantReply::Error`].
    Thaw {
        /// Number (`3`, `s3`) or name of the session.
        which: String,
    },
    /// Asks how far a session of the caller's user is frozen. Answered by [`TenantReply::Frost`] or
    /// [`TenantReply::Error`].
    Frost {
        /// Number (`3`, `s3`) or name of the session.
        which: String,
    },
    /// Reports that chunks of the process have the bytes of a name, and asks for a host copy of them.
    /// Answered by [`TenantReply::CopyAnswered`]. It holds until [`Self::EndCopy`] or the end of the
    /// connection, and asking again replaces it. Sent only if the page has
    /// [`FEATURE_COPIES`](crate::page::FEATURE_COPIES), and on a connection with [`Role::Tool`].
    Copy {
        /// Id of this request, which the answer repeats.
        request: RequestId,
        /// Name of the bytes.
        name: CopyName,
        /// Number of the bytes, see [`is_size_of_copy`](crate::copies::is_size_of_copy).
        bytes: Bytes,
        /// Number of chunks of the process with these bytes. Two chunks share a copy, be they of one process
        /// or of two.
        chunks: u32,
    },
    /// Reports that the process has no such bytes any more, or uses no copy of them. Not answered.
    EndCopy {
        /// Name of the bytes.
        name: CopyName,
        /// Number of the bytes.
        bytes: Bytes,
    },
    /// Asks for quota for remapped memory in chunks that the process says it has already, otherwise like
    /// [`Self::Reserve`]. Only sent if the page has [`FEATURE_PIECES`](crate::page::FEATURE_PIECES).
    ReservePiece {
        /// Id of this request, which the answer repeats.
        request: RequestId,
        /// Number that the daemon assigned to the card.
        gpu: GpuId,
        /// Bytes that the allocation needs; the daemon may lease more.
        bytes: Bytes,
    },
}

/// Fact about a process for which the driver would refuse to freeze it, or would lose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FreezeObstacle {
    /// Managed memory.
    Managed,
    /// Handles of host memory.
    HostHandles,
    /// Memory that is shared with another process.
    Shared,
    /// Memory of another card that the process reaches.
    Peers,
    /// Functions of the driver that were found past gpushare, so that their calls would not wait.
    Unseen,
    /// Driver that is too old.
    Driver,
    /// Lack of room in the control groups of the process for what the driver moves into host memory. It may go
    /// away by itself.
    HostMemory,
}

/// Places of the memory of the backend `remap` that one process has on one card. Bytes are those of whole
/// chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Residence {
    /// Bytes on the card: all physical memory there, also what is being created or released.
    pub resident: Bytes,
    /// Bytes that live in host memory and not on the card.
    pub hosted: Bytes,
    /// Bytes of addresses that have no memory at all so far.
    pub unbacked: Bytes,
    /// Part of `resident` that must not move now.
    pub pinned: Bytes,
    /// Bytes of registered host memory beside `hosted`: slots that hold nothing, or a second copy of what is
    /// on the card.
    pub prepared: Bytes,
    /// Part of `hosted` that is mapped from the host, so that kernels reach it over the bus.
    pub mapped: Bytes,
    /// Bytes that were copied out since the process began to use the card. Memory that has not changed leaves
    /// without a copy.
    pub copied_out: Bytes,
}

impl Residence {
    /// Returns the bytes of all chunks, wherever they are.
    pub fn whole(&self) -> Bytes {
        self.resident + self.hosted + self.unbacked
    }
}

/// First message of a connection. The first two fields are the same in every protocol version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Constant bytes [`MAGIC`], which identify the protocol.
    pub magic: [u8; 4],
    /// Protocol version of the sender, [`PROTOCOL`] for this build.
    pub protocol: u16,
    /// Purpose of the connection: a process that uses a card, or a tool.
    pub role: Role,
}

impl Hello {
    /// Returns the first message of a connection, with the protocol version of this build.
    pub fn new(role: Role) -> Self {
        Self { magic: MAGIC, protocol: PROTOCOL, role }
    }
}

/// Purpose of a connection: a process that uses a card, or a command-line tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A process that will use a card.
    Client {
        /// Token of the session, if the process has one.
        token: Option<Token>,
        /// State of a process that reconnects after a lost connection; none for a new process.
        returning: Option<Returning>,
    },
    /// A command-line tool, which registers sessions or asks questions and uses no card.
    Tool,
    /// A process that will use a card, and whose memory moves by goals: that of the backend `remap`.
    Remapping {
        /// Token of the session, if the process has one.
        token: Option<Token>,
        /// State of a process that reconnects after a lost connection; none for a new process.
        returning: Option<Returning>,
    },
}

/// State that a reconnecting process claims. The daemon books the memory, but grants nothing on a claim
/// alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Returning {
    /// Client id of the process before the connection was lost.
    pub client: ClientId,
    /// Session of the process before the connection was lost.
    pub session: SessionId,
    /// Epoch of the grant by which the process still holds the lock; none without the lock.
    pub holding: Option<Epoch>,
    /// Reserved memory and number of CUDA contexts of the process, per card.
    pub gpus: Vec<ReturningGpu>,
    /// Whether a thread of the process sleeps at the closed gate.
    pub waiting: bool,
}

/// Reserved memory and number of CUDA contexts of a reconnecting process on one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReturningGpu {
    /// Identity, name and memory size of the card, as in [`TenantRequest::Attach`].
    pub info: GpuInfo,
    /// Bytes that the process has reserved on the card, allocated or not.
    pub used: Bytes,
    /// Number of CUDA contexts of the process on the card.
    pub contexts: u32,
}

/// Identity, name and memory size of a card, as the driver reports them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// UUID of the card.
    pub uuid: GpuUuid,
    /// Product name of the card.
    pub name: String,
    /// Total memory of the card.
    pub total: Bytes,
}

/// Message from the daemon to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TenantReply {
    /// Answers [`TenantRequest::Hello`] of a process. The file of the shared page comes with this message.
    Welcome(Welcome),
    /// Answers [`TenantRequest::Hello`] of a command-line tool.
    Ready {
        /// Protocol version of the daemon.
        protocol: u16,
    },
    /// Answers [`TenantRequest::Attach`].
    Attached {
        /// UUID of the card.
        uuid: GpuUuid,
        /// Number that the daemon assigned to the card; also the index of the card's row in the shared page.
        gpu: GpuId,
    },
    /// Reports a change of the process's gate, which the shared page also has. `Closed` asks for a drain and
    /// [`TenantRequest::Released`].
    Gate {
        /// New state of the process's gate, with the change number.
        word: GateWord,
        /// Epoch of the grant to which the change belongs.
        epoch: Epoch,
    },
    /// Answers a request for memory quota that was granted.
    Reserved {
        /// Id of the request that this message answers.
        request: RequestId,
        /// Bytes of quota that the process gets in addition to the free bytes of its lease.
        bytes: Bytes,
    },
    /// Answers a request for memory quota that was refused.
    Refused {
        /// Id of the request that this message answers.
        request: RequestId,
        /// Limit that the request would exceed, with the bytes requested and the bytes in use.
        refusal: MemoryRefusal,
    },
    /// Reports why a thread of the process sleeps at the gate. The process prints the reason on stderr.
    Queued {
        /// Number of sessions whose turn comes first.
        ahead: u32,
        /// Sessions that hold the lock, or another reason for the wait, in words.
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
        /// Card that the session is to use; none for any card.
        gpu: Option<GpuUuid>,
    },
    /// Answers [`TenantRequest::OwnSession`]; none if the caller belongs to no session.
    OwnSession(Option<Box<SessionView>>),
    /// Answers [`TenantRequest::Gpus`] with all cards that the daemon knows.
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
        /// Bytes of the request that the card has beside memory that cannot move.
        bytes: Bytes,
    },
    /// Answers [`TenantRequest::DryRun`].
    DryRun(Box<Forecast>),
    /// Answers [`TenantRequest::UtilizationParts`]; none if there is no such session.
    UtilizationParts(Option<Vec<CardPart>>),
    /// Answers [`TenantRequest::OwnSessions`]. Other users' sessions appear only as numbers in the cards'
    /// figures.
    OwnSessions(Box<Increments>),
    /// Answers [`TenantRequest::OwnWait`]; none if the session does not wait, or there is none.
    OwnWait(Option<OwnWait>),
    /// Answers [`TenantRequest::Resize`].
    Resized {
        /// Old memory limit, in words.
        old: String,
        /// New memory limit, in words.
        new: String,
    },
    /// Answers [`TenantRequest::Import`].
    ImportAnswered {
        /// Id of the request that this message answers.
        request: RequestId,
        /// Whether the exporter was told. It was not if it is gone, or is of another user.
        is_told: bool,
    },
    /// Asks the process to send memory that it has exported to a process of the same user.
    ImportWanted {
        /// Name of the memory, as the importer says it. Only the exporter knows whether the secret is right.
        export: ExportName,
        /// Socket at which the importer waits.
        meeting: Meeting,
    },
    /// Answers [`TenantRequest::Freeze`] and [`TenantRequest::Thaw`].
    FrostChanged {
        /// Stage of the session before, in words.
        old: String,
        /// Stage of the session now, in words.
        new: String,
    },
    /// Answers [`TenantRequest::Frost`].
    Frost(FrostView),
    /// Answers [`TenantRequest::Copy`]. A memory file comes with [`CopyAnswer::Fill`] and
    /// [`CopyAnswer::Made`].
    CopyAnswered {
        /// Id of the request that this message answers.
        request: RequestId,
        /// Answer, which says what the file is for.
        answer: CopyAnswer,
    },
}

/// Wait of a session for the lock, as its own user may know it: other users' sessions have no names here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnWait {
    /// Number of sessions whose turn comes first.
    pub ahead: u32,
    /// Names of the same user's sessions that hold the lock or whose turn comes first, in this order.
    pub own: Vec<String>,
    /// Expected duration until the turn, if each session that comes first uses its whole turn. None if the
    /// daemon cannot estimate it.
    pub about_ns: Option<Nanos>,
}

/// Quota and memory use of a session, as NVML queries of its processes report them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionMemory {
    /// Number of the session.
    pub session: SessionId,
    /// Name of the session.
    pub name: String,
    /// Memory quota of the session on each card without a separate quota; none for no limit.
    pub limit: Option<Bytes>,
    /// Memory of the session on each card that the daemon knows.
    pub cards: Vec<CardMemory>,
}

/// Memory of a session on one card, whether or not the session has used the card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardMemory {
    /// Identity, name and memory size of the card.
    pub info: GpuInfo,
    /// Size of the card as the session's programs see it: the smaller of quota and the card's memory.
    pub total: Bytes,
    /// Bytes that the session uses on the card.
    pub used: Bytes,
    /// Bytes that the session may still allocate: `total - used`, or fewer if the card has less.
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

/// Part of a session in the utilization of one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardPart {
    /// Identity of the card.
    pub uuid: GpuUuid,
    /// Part of the session in the card's utilization at present.
    pub part: UtilizationPart,
}

/// Answer to the first message of a process: the client id, the session and the numbers of cards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Protocol version of the daemon.
    pub protocol: u16,
    /// Client id of the process.
    pub client: ClientId,
    /// Number of the process's session.
    pub session: SessionId,
    /// Name of the session, for messages to users.
    pub name: String,
    /// Assigned numbers of the cards of a reconnecting process, in the order of [`Returning::gpus`].
    pub gpus: Vec<GpuId>,
}

/// Failure of a request on the tenant socket or the admin socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Kind of the failure, for programs.
    pub code: FailureCode,
    /// One sentence that says what failed and what to do.
    pub message: String,
}

/// Kind of failure of a request, on which exit codes and retries depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureCode {
    /// The peers use different protocol versions.
    Protocol,
    /// The message is invalid, or not allowed in this state of the connection.
    BadRequest,
    /// The sender lacks the permission for the request.
    Permission,
    /// The request names a session or card that does not exist.
    NotFound,
    /// The request cannot be met now: another daemon has the card, or the daemon has reached a limit.
    Unavailable,
}
