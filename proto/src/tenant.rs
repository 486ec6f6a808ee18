//! The tenant socket: what a sharing process and the daemon say to each other. Anyone may connect, so
//! nothing here administers anything but the peer's own session.
//!
//! ```text
//!   process                                 daemon
//!   Hello ─────────────────────────────────▶        who is it? kernel's facts, then the token
//!         ◀───────────────────── Welcome + page     a sealed memory file, by SCM_RIGHTS
//!   Attach{uuid} ──────────────────────────▶        before the first context on a card
//!         ◀──────────────────────────── Attached
//!   Reserve{bytes} ────────────────────────▶        only when the lease is short
//!         ◀───────────────── Reserved | Refused
//!   Room{bytes} ───────────────────────────▶        before the driver takes memory of its own
//!         ◀──────────────────────────────── Room
//!   Wait ──────────────────────────────────▶        a thread sleeps at the closed gate
//!         ◀──────────────────────────────── Gate    every change of the gate, also written to the page
//!   Entered / Released ────────────────────▶        memory is in / drained and let go
//! ```
//!
//! Enums are append-only: a new message goes to the end, no variant ever changes its fields.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::admin::SessionView;
use crate::dry_run::{DryRunSession, Forecast};
use crate::ids::{ClientId, Epoch, GpuId, GpuUuid, RequestId, SessionId, Token};
use crate::page::{GateWord, MemoryRefusal};
use crate::session::{Quota, Terms};
use crate::units::{Bytes, Nanos};

/// What stands in front of the protocol version in the first message.
pub const MAGIC: [u8; 4] = *b"GPSH";
/// The protocol spoken by this build.
pub const PROTOCOL: u16 = 1;

/// How many functions that nobody knows a process tells of.
pub const MAX_UNKNOWN: usize = 16;
/// How long the name of such a function can be, in bytes.
pub const MAX_UNKNOWN_NAME: usize = 64;

/// From a process to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TenantRequest {
    /// The first message of every connection.
    Hello(Hello),
    /// The process is about to use a card. Answered by [`TenantReply::Attached`] or [`TenantReply::Error`].
    Attach(GpuInfo),
    /// How many contexts the process has on a card now.
    Contexts {
        /// The card.
        gpu: GpuId,
        /// Live contexts.
        live: u32,
    },
    /// Asks for bytes beyond the lease. Answered by [`TenantReply::Reserved`] or [`TenantReply::Refused`].
    Reserve {
        /// Comes back in the answer.
        request: RequestId,
        /// The card.
        gpu: GpuId,
        /// What the allocation needs. The daemon may lease more.
        bytes: Bytes,
    },
    /// More lease lies free in the page than is useful: the daemon may take it back.
    Trim {
        /// The card.
        gpu: GpuId,
    },
    /// A thread sleeps at the gate since this change.
    Wait {
        /// The word it saw.
        word: GateWord,
    },
    /// Memory has been brought in after a grant and the gate is open.
    Entered {
        /// The word that granted.
        word: GateWord,
        /// Bytes asked to move to the card.
        moved: Bytes,
        /// Time it took.
        took: Nanos,
    },
    /// No thread is inside and nothing is in flight: the lock is back.
    Released {
        /// The word that closed the gate, or the one under which the process went idle.
        word: GateWord,
        /// From the gate's closing to the end of the last work in flight.
        drain: Nanos,
    },
    /// Registers a session for the caller. Answered by [`TenantReply::Session`] or [`TenantReply::Error`].
    Register(NewSession),
    /// Asks for the caller's own session. Answered by [`TenantReply::OwnSession`].
    OwnSession,
    /// Asks which cards there are. Answered by [`TenantReply::Gpus`].
    Gpus,
    /// Asks what a session may use and uses: that of the token as in a hello, else the caller's own. Answered by
    /// [`TenantReply::SessionMemory`].
    SessionMemory(Option<Token>),
    /// How many of the bytes that the process has on a card never move: native allocations, pools, arrays, handles.
    /// Never more than is true: told late when they grow, and taken back by [`Self::ReturnFixed`] before they shrink.
    Fixed {
        /// The card.
        gpu: GpuId,
        /// All of them.
        bytes: Bytes,
    },
    /// As [`Self::Reserve`], for bytes that will never move. If they are given they count among the fixed ones at once.
    ReserveFixed {
        /// Comes back in the answer.
        request: RequestId,
        /// The card.
        gpu: GpuId,
        /// What the allocation needs. The daemon may lease more.
        bytes: Bytes,
    },
    /// The driver is about to take memory that is nobody's quota: a context, a module. Asks for physical room before,
    /// or after the driver found none. Answered by [`TenantReply::Headroom`], when there is room or none will come.
    Headroom {
        /// Comes back in the answer.
        request: RequestId,
        /// The card.
        gpu: GpuId,
        /// How much the driver may need.
        bytes: Bytes,
    },
    /// Bytes that counted as fixed are free, and lie nowhere: they are the daemon's, which may put them into the page,
    /// where movable memory may take them.
    ReturnFixed {
        /// The card.
        gpu: GpuId,
        /// How many.
        bytes: Bytes,
    },
    /// The driver handed the process a function that its library does not know: what that does to memory is not
    /// seen, so the process's memory must stay where it is. At most [`MAX_UNKNOWN`] are told.
    UnknownFunction {
        /// What the process asked for; at most [`MAX_UNKNOWN_NAME`] bytes.
        name: String,
        /// The CUDA version it asked for, as `cuGetProcAddress` counts; 0 for a `dlsym`.
        version: u32,
    },
    /// What the process's environment says that its session may have. It counts for a session that the daemon made for
    /// processes without a token, and for that only once.
    Limits {
        /// Memory.
        memory: Quota,
        /// Time.
        compute: Quota,
    },
    /// The process refused an allocation itself: it is larger than the whole quota, so the answer was in the page. Not
    /// answered; for the daemon to count and to log, if it is so.
    RefusedLocally {
        /// The card.
        gpu: GpuId,
        /// What the allocation needed.
        bytes: Bytes,
    },
    /// What a program would get that is not started yet; nothing is made of it. Answered by [`TenantReply::DryRun`] or
    /// [`TenantReply::Error`].
    DryRun(DryRunSession),
    /// The process and all that it starts belong to the session of this token from now on, also those that throw the token
    /// away. Answered by [`TenantReply::SessionMemory`]; none if there is no such session.
    Join(Token),
    /// A process that came back has asked again whatever it asked on its last connection. What is booked for it beyond that, and
    /// beyond what it said that it uses, it gave back there unheard.
    Reconciled,
}

/// The first message of a connection. Its first two fields are the same in every protocol version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: [u8; 4],
    /// [`PROTOCOL`] of the sender.
    pub protocol: u16,
    /// What the connection is for.
    pub role: Role,
}

impl Hello {
    /// A hello of this build.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Self { magic: MAGIC, protocol: PROTOCOL, role }
    }
}

/// What a connection is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A process that will use a GPU.
    Client {
        /// The session's secret, if the process has one.
        token: Option<Token>,
        /// What the process holds, if it comes back after a lost connection.
        returning: Option<Returning>,
    },
    /// A command-line tool: registers or asks, uses no GPU.
    Tool,
}

/// What a process had when it lost its daemon. A claim: it is booked, and no grant rests on it alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Returning {
    /// Who it was.
    pub client: ClientId,
    /// The session it belonged to.
    pub session: SessionId,
    /// The epoch it holds, if it has not let go of it.
    pub holding: Option<Epoch>,
    /// Per card: what it has reserved and how many contexts it has.
    pub gpus: Vec<ReturningGpu>,
    /// Whether a thread sleeps at its gate.
    pub waiting: bool,
}

/// One card of a returning process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReturningGpu {
    /// The card, as at [`TenantRequest::Attach`].
    pub info: GpuInfo,
    /// Bytes reserved, committed or about to be.
    pub used: Bytes,
    /// Live contexts.
    pub contexts: u32,
}

/// A card as the process sees it through the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// Its identity.
    pub uuid: GpuUuid,
    /// Its name, for people.
    pub name: String,
    /// Its memory.
    pub total: Bytes,
}

/// A session to be registered by `gpushare-ctl run`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewSession {
    /// A name for people; the daemon makes one up if there is none.
    pub name: Option<String>,
    /// What it may have.
    pub terms: Terms,
    /// Whether one session may be larger than a card's capacity.
    pub oversubscribe: bool,
    /// Which card it wants.
    pub gpu: GpuChoice,
}

/// Which card a session wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuChoice {
    /// The least loaded one.
    Auto,
    /// By the daemon's index.
    Index(u8),
    /// By identity.
    Uuid(GpuUuid),
    /// By the beginning of its identity, as `CUDA_VISIBLE_DEVICES` takes it (`GPU-0a1b`).
    Prefix(String),
}

/// A text that names no card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a card; write its number in `gpushare-ctl status` (0 or gpu0) or its UUID")]
pub struct UnknownCard(String);

/// As people write it: `auto`, `0`, `gpu0`, a UUID or its beginning, in any case.
impl FromStr for GpuChoice {
    type Err = UnknownCard;

    fn from_str(text: &str) -> Result<Self, UnknownCard> {
        let text = text.trim();
        if text == "auto" {
            return Ok(Self::Auto);
        }
        if let Ok(index) = text.strip_prefix("gpu").unwrap_or(text).parse() {
            return Ok(Self::Index(index));
        }
        // The kind is written large everywhere, the digits small.
        let (kind, digits) = text.split_at_checked(4).unwrap_or((text, ""));
        let spelled = format!("{}{}", kind.to_ascii_uppercase(), digits.to_ascii_lowercase());
        if let Ok(uuid) = spelled.parse() {
            return Ok(Self::Uuid(uuid));
        }
        let is_beginning = (spelled.starts_with("GPU-") || spelled.starts_with("MIG-"))
            && !digits.is_empty()
            && digits.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        match is_beginning {
            true => Ok(Self::Prefix(spelled)),
            false => Err(UnknownCard(text.to_owned())),
        }
    }
}

impl fmt::Display for GpuChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Index(index) => index.fmt(f),
            Self::Uuid(uuid) => uuid.fmt(f),
            Self::Prefix(prefix) => f.write_str(prefix),
        }
    }
}

/// From the daemon to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TenantReply {
    /// Answers a client's hello. The page's memory file comes with this message.
    Welcome(Welcome),
    /// Answers a tool's hello.
    Ready {
        /// The daemon's protocol.
        protocol: u16,
    },
    /// The card's number.
    Attached {
        /// Which card.
        uuid: GpuUuid,
        /// Its number with this daemon, and its row in the page.
        gpu: GpuId,
    },
    /// The gate changed; the page says the same. `Closed` asks for a drain and [`TenantRequest::Released`].
    Gate {
        /// The new word.
        word: GateWord,
        /// The grant that it belongs to.
        epoch: Epoch,
    },
    /// The lease grew; the bytes are in the page already, or with the request if it was asked for.
    Reserved {
        /// The question.
        request: RequestId,
        /// Bytes that are the caller's now, beyond what lies in the page.
        bytes: Bytes,
    },
    /// The bytes are not to be had.
    Refused {
        /// The question.
        request: RequestId,
        /// Why.
        refusal: MemoryRefusal,
    },
    /// What a sleeping thread waits for, for its one line on stderr.
    Queued {
        /// Sessions ahead.
        ahead: u32,
        /// Who holds the card, or what else it waits for.
        reason: String,
    },
    /// A session was registered.
    Session {
        /// Its number.
        session: SessionId,
        /// Its name.
        name: String,
        /// Its secret.
        token: Token,
        /// The card it was placed on, if one was chosen.
        gpu: Option<GpuUuid>,
    },
    /// The caller's own session.
    OwnSession(Option<Box<SessionView>>),
    /// The cards.
    Gpus(Vec<GpuInfo>),
    /// The request failed.
    Error(Failure),
    /// What a session may use and uses; none if there is no such session.
    SessionMemory(Option<SessionMemory>),
    /// Answers [`TenantRequest::Headroom`].
    Headroom {
        /// The question.
        request: RequestId,
        /// What is free on the card beside all that cannot move.
        bytes: Bytes,
    },
    /// Answers [`TenantRequest::DryRun`].
    DryRun(Box<Forecast>),
}

/// The one story about a session's memory, for whoever asks on its behalf without being a client of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionMemory {
    /// The session's number.
    pub session: SessionId,
    /// Its name.
    pub name: String,
    /// Its quota on any card, also one that the daemon has not met; none for none.
    pub limit: Option<Bytes>,
    /// The cards that the daemon knows.
    pub cards: Vec<CardMemory>,
}

/// A session on one card, whether or not it was ever there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardMemory {
    /// The card.
    pub info: GpuInfo,
    /// How large the card is to the session: its quota, or the card where that is less.
    pub total: Bytes,
    /// What the session uses.
    pub used: Bytes,
    /// What it may still allocate. Not always the rest: a card may be unable to back all of a quota.
    pub free: Bytes,
    /// The session's processes on it.
    pub processes: Vec<ProcessMemory>,
}

/// One process of a session on one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    /// Its pid as the caller sees it, where both are in one PID namespace; else as the daemon does.
    pub pid: u32,
    /// Its pid as the kernel told the daemon.
    pub outer_pid: u32,
    /// What it uses.
    pub used: Bytes,
}

/// Answers a client's hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The daemon's protocol.
    pub protocol: u16,
    /// Who the process is from now on.
    pub client: ClientId,
    /// Its session.
    pub session: SessionId,
    /// The session's name, for messages.
    pub name: String,
    /// Row numbers of the cards of a returning process, in its order.
    pub gpus: Vec<GpuId>,
}

/// Why a request failed, on either socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// For programs.
    pub code: FailureCode,
    /// One sentence with what to do.
    pub message: String,
}

/// The kinds of failure, as exit codes and retries need them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureCode {
    /// The peers speak different protocols.
    Protocol,
    /// The message makes no sense here.
    BadRequest,
    /// The peer may not do that.
    Permission,
    /// There is no such thing.
    NotFound,
    /// Another daemon has the card, or a limit of the daemon is reached.
    Unavailable,
}
