//! What the log says of an operation: a sentence for people, and the same fields for programs in every record.
//!
//! As JSON a record has `session_id`, `pid`, `operation`, `bytes`, `result` and `error_code`, so that one query fits all
//! of them; 0 and `none` stand where an operation has none of that. As text it is the sentence alone, which says all
//! of it in words.

use std::fmt;

use gpushare_proto::audit::Outcome;
use gpushare_proto::page::{LimitKind, MemoryRefusal};
use gpushare_proto::tenant::FailureCode;
use gpushare_proto::{Bytes, GpuId, SessionId};
use tracing::Level;

/// The fields that text leaves to the sentence.
pub const FIELDS: [&str; 13] = [
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

/// What a program is told that gets no memory.
pub(crate) const OUT_OF_MEMORY: &str = "CUDA_ERROR_OUT_OF_MEMORY";

/// Something that was done, refused or failed.
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
}

impl<'a> Operation<'a> {
    /// One that was done.
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
        }
    }

    /// On this session.
    pub(crate) const fn of(mut self, session: SessionId, name: &'a str) -> Self {
        self.session = Some((session, name));
        self
    }

    /// By or to this process.
    pub(crate) const fn process(mut self, pid: u32) -> Self {
        self.pid = pid;
        self
    }

    /// By or to a process of this user.
    pub(crate) const fn user(mut self, uid: u32) -> Self {
        self.uid = Some(uid);
        self
    }

    /// On this card.
    pub(crate) const fn on(mut self, gpu: GpuId) -> Self {
        self.gpu = Some(gpu);
        self
    }

    /// About so much memory.
    pub(crate) const fn bytes(mut self, bytes: Bytes) -> Self {
        self.bytes = bytes;
        self
    }

    /// It was not done.
    pub(crate) const fn failed(mut self, outcome: Outcome, error_code: &'static str) -> Self {
        self.outcome = outcome;
        self.error_code = error_code;
        self
    }

    /// It was refused by a limit of memory.
    pub(crate) const fn refused(mut self, refusal: MemoryRefusal) -> Self {
        self.refusal = Some(refusal);
        self.bytes = refusal.requested;
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

    fn say(&self, level: Level, sentence: fmt::Arguments<'_>) {
        // The level of a record is part of where it is made, so there is one for each.
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

/// A failure as the wire has it.
pub(crate) const fn code_name(code: FailureCode) -> &'static str {
    match code {
        FailureCode::Protocol => "protocol",
        FailureCode::Permission => "permission",
        FailureCode::NotFound => "not_found",
        FailureCode::BadRequest => "bad_request",
        FailureCode::Unavailable => "unavailable",
    }
}

/// Whether a failure is somebody's decision.
pub(crate) const fn outcome_of(code: FailureCode) -> Outcome {
    match code {
        FailureCode::Permission => Outcome::Refused,
        _ => Outcome::Failed,
    }
}

/// A limit as programs read it.
pub(crate) const fn limit_key(limit: LimitKind) -> &'static str {
    match limit {
        LimitKind::Session => "session",
        LimitKind::Capacity => "capacity",
        LimitKind::ManagedLimit => "managed_limit",
    }
}
