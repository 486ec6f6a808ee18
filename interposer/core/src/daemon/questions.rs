//! Questions to the daemon for which a thread waits. A daemon that restarts is asked again.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gpushare_proto::page::MemoryRefusal;
use gpushare_proto::sharing::{ExportName, Meeting};
use gpushare_proto::tenant::{Failure, GpuInfo, TenantReply, TenantRequest};
use gpushare_proto::{Bytes, GpuId, RequestId};

use super::MemoryKind;
use crate::driver::types::CUdevice;
use crate::process::lock;

/// Reason why a question to the daemon failed.
#[derive(Debug)]
pub enum AskError {
    /// The daemon did not answer the question in time.
    Silence,
    /// The daemon refused the request for memory, for this reason.
    Memory(MemoryRefusal),
    /// The daemon refused the request to use a card, for this reason.
    Card(Failure),
    /// Memory that cannot move leaves too little of the card.
    NoRoom,
    /// The process that exported the memory is gone, or is of another user.
    NoExporter,
}

/// Amount of memory of one device, as requested from the daemon or granted by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// CUDA ordinal of the device in this process.
    pub device: CUdevice,
    /// Number of bytes of the session's quota.
    pub bytes: Bytes,
    /// Whether the bytes can leave the card.
    pub kind: MemoryKind,
}

#[derive(Clone, Debug)]
pub(super) enum Subject {
    Memory(Grant),
    Piece(Grant),
    Headroom { device: CUdevice, bytes: Bytes },
    Card(GpuInfo),
    Import(ExportName, Meeting),
}

/// Answer to a question: the daemon's number of a card for a question about a card, else nothing.
type Answer = Result<Option<GpuId>, AskError>;

#[derive(Debug)]
struct Question {
    subject: Subject,
    answer: Option<Answer>,
    /// Whether no thread waits for the answer any more. Memory in a late answer goes back to the daemon.
    abandoned: bool,
}

#[derive(Debug, Default)]
pub(super) struct Questions {
    open: Mutex<Open>,
    answered: Condvar,
}

/// Unanswered questions to the daemon, by the request number that the answer repeats.
#[derive(Debug, Default)]
pub(super) struct Open {
    last: u64,
    questions: BTreeMap<RequestId, Question>,
}

impl Questions {
    pub(super) fn lock(&self) -> MutexGuard<'_, Open> {
        lock(&self.open)
    }

    /// Sends a question by `send` and waits for the answer. `gpu` is the daemon's number of the device.
    pub(super) fn ask(
        &self,
        subject: Subject,
        gpu: Option<GpuId>,
        patience: Duration,
        send: impl FnOnce(&TenantRequest) -> bool,
    ) -> Answer {
        let deadline = Instant::now() + patience;
        let mut open = self.lock();
        open.last += 1;
        let id = RequestId(open.last);
        if let Some(request) = subject.request(id, |_| gpu) {
            send(&request);
        }
        open.questions.insert(id, Question { subject, answer: None, abandoned: false });
        loop {
            let Some(question) = open.questions.get_mut(&id) else { return Err(AskError::Silence) };
            if let Some(answer) = question.answer.take() {
                open.questions.remove(&id);
                return answer;
            }
            let Some(rest) = deadline.checked_duration_since(Instant::now()) else {
                question.abandoned = true;
                return Err(AskError::Silence);
            };
            open = self.answered.wait_timeout(open, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Records an answer. `count` counts granted memory before the asking thread continues. Returns granted
    /// memory for which no thread waits any more.
    pub(super) fn answer(&self, reply: TenantReply, count: impl FnOnce(Grant)) -> Option<Grant> {
        let mut open = self.lock();
        let (id, answer, given) = match reply {
            TenantReply::Reserved { request, bytes } => (request, Ok(None), Some(bytes)),
            TenantReply::Refused { request, refusal } => (request, Err(AskError::Memory(refusal)), None),
            TenantReply::Headroom { request, bytes } => {
                let answer = if open.asks_for_more_room(request, bytes) {
                    Err(AskError::NoRoom)
                } else {
                    Ok(None)
                };
                (request, answer, None)
            }
            TenantReply::ImportAnswered { request, is_told } => {
                (request, if is_told { Ok(None) } else { Err(AskError::NoExporter) }, None)
            }
            TenantReply::Attached { uuid, gpu } => {
                (open.card(|info| info.uuid == uuid)?, Ok(Some(gpu)), None)
            }
            // Only a question for a card fails with words, and there is one at a time.
            TenantReply::Error(failure) => (open.card(|_| true)?, Err(AskError::Card(failure)), None),
            // Other replies answer no question of a client.
            _ => return None,
        };
        let question = open.questions.get_mut(&id)?;
        let grant = match (&question.subject, given) {
            (Subject::Memory(asked) | Subject::Piece(asked), Some(bytes)) => Some(Grant { bytes, ..*asked }),
            _ => None,
        };
        if let Some(grant) = grant {
            count(grant);
        }
        if question.abandoned {
            open.questions.remove(&id);
            return grant;
        }
        question.answer = Some(answer);
        self.answered.notify_all();
        None
    }
}

impl Open {
    pub(super) fn requests(
        &self,
        gpu: impl Fn(CUdevice) -> Option<GpuId>,
    ) -> impl Iterator<Item = TenantRequest> {
        let unanswered = self.questions.iter().filter(|(_, question)| question.answer.is_none());
        unanswered.filter_map(move |(&id, question)| question.subject.repeated().request(id, &gpu))
    }

    fn asks_for_more_room(&self, request: RequestId, room: Bytes) -> bool {
        let question = self.questions.get(&request);
        matches!(question, Some(Question { subject: Subject::Headroom { bytes, .. }, .. }) if *bytes > room)
    }

    /// Returns whether a thread gave up waiting for headroom and the answer has not come since.
    pub(super) fn owes_headroom(&self) -> bool {
        self.questions
            .values()
            .any(|question| matches!(question.subject, Subject::Headroom { .. }) && question.abandoned)
    }

    /// Returns the latest unanswered question about a card that satisfies `is_meant`.
    fn card(&self, is_meant: impl Fn(&GpuInfo) -> bool) -> Option<RequestId> {
        let mut latest_first = self.questions.iter().rev();
        let meant = |question: &Question| match &question.subject {
            Subject::Card(info) => question.answer.is_none() && is_meant(info),
            Subject::Memory(_) | Subject::Piece(_) | Subject::Headroom { .. } | Subject::Import(..) => false,
        };
        latest_first.find(|(_, question)| meant(question)).map(|(&id, _)| id)
    }
}

impl Subject {
    /// Returns the question for another daemon, which knows no chunks yet, and perhaps no pieces.
    fn repeated(&self) -> Self {
        match self {
            Self::Piece(grant) => Self::Memory(*grant),
            other => other.clone(),
        }
    }

    /// Returns the message for this question; `None` if the daemon has no number for the device yet.
    fn request(&self, request: RequestId, gpu: impl Fn(CUdevice) -> Option<GpuId>) -> Option<TenantRequest> {
        Some(match self {
            Self::Memory(Grant { device, bytes, kind }) => {
                let (gpu, bytes) = (gpu(*device)?, *bytes);
                match kind {
                    MemoryKind::Movable => TenantRequest::Reserve { request, gpu, bytes },
                    MemoryKind::Fixed => TenantRequest::ReserveFixed { request, gpu, bytes },
                }
            }
            Self::Piece(Grant { device, bytes, .. }) => {
                TenantRequest::ReservePiece { request, gpu: gpu(*device)?, bytes: *bytes }
            }
            Self::Headroom { device, bytes } => {
                TenantRequest::Headroom { request, gpu: gpu(*device)?, bytes: *bytes }
            }
            Self::Card(info) => TenantRequest::Attach(info.clone()),
            Self::Import(export, meeting) => {
                TenantRequest::Import { request, export: *export, meeting: *meeting }
            }
        })
    }
}
