//! Messages from a process to the daemon.

use serde::{Deserialize, Serialize};

use super::{GpuInfo, Hello};
#[cfg(doc)]
use super::{MAX_UNKNOWN, MAX_UNKNOWN_NAME, NEARLY_DRAINED, Role, TenantReply};
use crate::copies::CopyName;
use crate::dry_run::DryRunSession;
use crate::ids::{GpuId, RequestId, Token};
use crate::page::{GateWord, GoalNumber};
use crate::session::{NewSession, Quota};
use crate::sharing::{ExportName, Meeting};
use crate::units::{Bytes, Nanos};

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
    /// Memory that is shared with another process or a graphics interface.
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
