//! Log records about operations, and failures that are sent to peers.
//!
//! Each record is a sentence for people and fields for programs. As JSON every record has `session_id`,
//! `pid`, `operation`, `bytes`, `result` and `error_code`, so that one query fits all. A missing value is 0
//! or `none`. As text a record is only the sentence, which contains all values.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use gpushare_proto::audit::Outcome;
use gpushare_proto::lookup::MAX_SESSION_NAME;
use gpushare_proto::page::{LimitKind, MemoryRefusal};
use gpushare_proto::tenant::{Failure, FailureCode};
use gpushare_proto::text::is_printable;
use gpushare_proto::{Bytes, GpuId, SessionId};
use gpushare_sys::clock;
use tracing::{Level, warn};

use crate::identity::PeerProcess;
use crate::log::limiter::LogLimiter;

/// Fields that a text record omits, because its sentence contains them.
pub(crate) const FIELDS: [&str; 13] = [
    "session_id",
    "session",
    "pid",
    "uid",
    "operation",
    "bytes",
    "result",
    "error_code",
    "gpu",
    "requested",
    "limit",
    "used",
    "by",
];

/// Error code of a refused memory request, as CUDA returns it to programs.
pub(crate) const OUT_OF_MEMORY: &str = "CUDA_ERROR_OUT_OF_MEMORY";

#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation<'a> {
    name: &'static str,
    session: Option<(SessionId, &'a str)>,
    pid: u32,
    uid: Option<u32>,
    bytes: Bytes,
    gpu: Option<GpuId>,
    refusal: Option<MemoryRefusal>,
    outcome: Outcome,
    error_code: &'static str,
    /// Whether the record is written however many there are, since no tenant decides about their number.
    always: bool,
}

/// Largest number of records that one tenant, or one card, causes in a second. Debug records are not limited.
const RECORDS: u64 = 32;

/// Owner of records that are limited together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    User(u32),
    Session(SessionId),
    Card(GpuId),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Session(session) => write!(f, "session {session}"),
            Self::Card(gpu) => gpu.fmt(f),
        }
    }
}

/// Limiter of the records of all threads.
static LIMITER: Mutex<LogLimiter<Cause, RECORDS>> = Mutex::new(LogLimiter::new());

impl<'a> Operation<'a> {
    /// Creates the log record of a successful operation.
    pub(crate) const fn done(name: &'static str) -> Self {
        Self {
            name,
            session: None,
            pid: 0,
            uid: None,
            bytes: Bytes::ZERO,
            gpu: None,
            refusal: None,
            outcome: Outcome::Ok,
            error_code: "none",
            always: false,
        }
    }

    /// Marks a record about an act of an administrator or of the daemon itself, which is never omitted.
    pub(crate) const fn always(mut self) -> Self {
        self.always = true;
        self
    }

    /// Creates the log record of a successful operation on a session.
    pub(crate) const fn of(operation: &'static str, session: SessionId, name: &'a str) -> Self {
        Self { session: Some((session, name)), ..Self::done(operation) }
    }

    pub(crate) const fn process(mut self, pid: u32) -> Self {
        self.pid = pid;
        self
    }

    pub(crate) const fn user(mut self, uid: u32) -> Self {
        self.uid = Some(uid);
        self
    }

    pub(crate) const fn peer(self, peer: &PeerProcess) -> Self {
        self.process(peer.pid).user(peer.uid)
    }

    pub(crate) const fn on(mut self, gpu: GpuId) -> Self {
        self.gpu = Some(gpu);
        self
    }

    pub(crate) const fn bytes(mut self, bytes: Bytes) -> Self {
        self.bytes = bytes;
        self
    }

    /// Marks the operation of a log record as refused or failed.
    pub(crate) const fn failed(mut self, outcome: Outcome, error_code: &'static str) -> Self {
        self.outcome = outcome;
        self.error_code = error_code;
        self
    }

    pub(crate) const fn refused(mut self, refusal: MemoryRefusal) -> Self {
        self.refusal = Some(refusal);
        self.bytes = refusal.requested;
        self.out_of_memory()
    }

    pub(crate) const fn out_of_memory(self) -> Self {
        self.failed(Outcome::Refused, OUT_OF_MEMORY)
    }

    pub(crate) fn debug(&self, sentence: fmt::Arguments<'_>) {
        self.say(Level::DEBUG, sentence);
    }

    pub(crate) fn info(&self, sentence: fmt::Arguments<'_>) {
        self.say(Level::INFO, sentence);
    }

    pub(crate) fn warn(&self, sentence: fmt::Arguments<'_>) {
        self.say(Level::WARN, sentence);
    }

    /// Returns the tenant or the card that decides how many such records there are.
    fn cause(&self) -> Option<Cause> {
        let session = || self.session.map(|(session, _)| Cause::Session(session));
        let card = || self.gpu.map(Cause::Card);
        let cause = self.uid.map(Cause::User).or_else(session).or_else(card);
        cause.filter(|_| !self.always)
    }

    fn say(&self, level: Level, sentence: fmt::Arguments<'_>) {
        if let Some(cause) = self.cause().filter(|_| level != Level::DEBUG) {
            let mut limiter = LIMITER.lock().unwrap_or_else(PoisonError::into_inner);
            let omitted = limiter.admit(cause, clock::monotonic());
            drop(limiter);
            match omitted {
                None => return,
                Some(0) => {}
                Some(more) => warn!("{more} more records about {cause} were not logged"),
            }
        }
        // `tracing` needs the level at compile time, so there is one call for each level.
        macro_rules! record {
            ($level:expr) => {
                tracing::event!(
                    target: "gpushare_scheduler::operation",
                    $level,
                    session_id = self.session.map_or(0, |(session, _)| session.0),
                    session = self.session.map(|(_, name)| name),
                    pid = self.pid,
                    uid = self.uid,
                    operation = self.name,
                    bytes = self.bytes.0,
                    result = self.outcome.name(),
                    error_code = self.error_code,
                    gpu = self.gpu.map(|gpu| gpu.0),
                    requested = self.refusal.map(|refusal| refusal.requested.0),
                    limit = self.refusal.map(|refusal| refusal.limit.0),
                    used = self.refusal.map(|refusal| refusal.used.0),
                    by = self.refusal.map(|refusal| limit_key(refusal.by)),
                    "{sentence}"
                )
            };
        }
        match level {
            Level::DEBUG => record!(Level::DEBUG),
            Level::WARN => record!(Level::WARN),
            _ => record!(Level::INFO),
        }
    }
}

/// Returns whether records of the level "debug" are written anywhere.
pub(crate) fn are_debug_records_written() -> bool {
    tracing::enabled!(target: "gpushare_scheduler::operation", Level::DEBUG)
}

pub(crate) const fn code_name(code: FailureCode) -> &'static str {
    match code {
        FailureCode::Protocol => "protocol",
        FailureCode::Permission => "permission",
        FailureCode::NotFound => "not_found",
        FailureCode::BadRequest => "bad_request",
        FailureCode::Unavailable => "unavailable",
    }
}

/// Returns the outcome of a failed operation: "refused" if a rule forbids it, else "failed".
pub(crate) const fn outcome_of(code: FailureCode) -> Outcome {
    match code {
        FailureCode::Permission => Outcome::Refused,
        _ => Outcome::Failed,
    }
}

pub(crate) const fn limit_key(limit: LimitKind) -> &'static str {
    match limit {
        LimitKind::Session => "session",
        LimitKind::Capacity => "capacity",
        LimitKind::ManagedLimit => "managed_limit",
        LimitKind::HostMemory => "host_memory",
    }
}

pub(crate) fn failure(code: FailureCode, message: impl Into<String>) -> Failure {
    Failure { code, message: message.into() }
}

/// Creates the failure for a request that makes no sense.
pub(crate) fn bad_request(message: impl Into<String>) -> Failure {
    failure(FailureCode::BadRequest, message)
}

/// Returns a peer's text made safe for a log: shortened, and without characters that move a cursor.
pub(crate) fn plain(text: &str) -> String {
    text.chars().filter(|c| is_printable(*c)).take(MAX_SESSION_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_text_cannot_forge_a_log_line() {
        assert_eq!(plain("a\nb\x1b[2J"), "ab[2J");
        assert_eq!(plain("train\u{202e}1\u{200b}"), "train1");
        assert_eq!(plain(&"x".repeat(99)).len(), MAX_SESSION_NAME);
    }
}
