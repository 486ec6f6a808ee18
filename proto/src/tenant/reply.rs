//! Messages from the daemon to a process, and failures of requests.

use serde::{Deserialize, Serialize};

use super::GpuInfo;
#[cfg(doc)]
use super::{Returning, TenantRequest};
use crate::copies::CopyAnswer;
use crate::dry_run::Forecast;
use crate::follow::Increments;
use crate::frost::FrostView;
use crate::ids::{ClientId, Epoch, GpuId, GpuUuid, RequestId, SessionId, Token};
use crate::page::{GateWord, MemoryRefusal};
use crate::sharing::{ExportName, Meeting};
use crate::units::{Bytes, Nanos};
use crate::utilization::UtilizationPart;
use crate::views::SessionView;

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
