//! Facts about the process's session, which the daemon tells on a short connection: memory limits and use,
//! and the part in the utilization of cards. A framework asks for the size of a card before the process is a
//! client, and `nvidia-smi` never becomes one.
//!
//! An inquiry creates no client, no shared page and no thread. Only a process of a session asks: one with a
//! token, or a client. An answer is kept for a moment, so that several questions of a tool get equal answers.
//! After a failure the last answer stays; without one the caller returns the card's own figures.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpushare_proto::tenant::{CardMemory, CardPart, SessionMemory};
use gpushare_proto::{Bytes, GpuUuid, UtilizationPart};
use gpushare_sys::unwind::uncancelled;

use super::State;
use crate::daemon::address::{Address, ConnectError};
use crate::process::fork::{self, ForkCell};
use crate::process::lock;

/// Time for which the session's memory is kept.
const MEMORY_FRESH: Duration = Duration::from_millis(50);
/// Time for which the session's parts in the utilization are kept. The daemon updates them every second, and
/// a tool may ask many times a second.
const PARTS_FRESH: Duration = Duration::from_secs(3);
/// Pause without inquiries after an inquiry that failed.
const REST: Duration = Duration::from_secs(1);

static INQUIRY: ForkCell<Inquiry> = ForkCell::new();

#[derive(Debug)]
struct Inquiry {
    /// Address of the daemon; `None` if the environment names a token that cannot be read.
    address: Option<Address>,
    /// Last answers, behind one lock, since only one connection may be open.
    answers: Mutex<Answers>,
}

#[derive(Debug, Default)]
struct Answers {
    memory: Kept<SessionMemory>,
    parts: Kept<Vec<CardPart>>,
}

/// Last answer of the daemon to one question.
#[derive(Debug)]
struct Kept<T> {
    answer: Option<Arc<T>>,
    /// Point in time until which the daemon is not asked again.
    until: Option<Instant>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { answer: None, until: None }
    }
}

impl<T> Kept<T> {
    /// Returns the last answer; asks the daemon if that answer is older than `fresh`.
    fn get(
        &mut self,
        fresh: Duration,
        ask: impl FnOnce() -> Result<Option<T>, ConnectError>,
    ) -> Option<Arc<T>> {
        if self.until.is_none_or(|until| until <= Instant::now()) {
            // A thread that is cancelled here would leave the lock held.
            let answer = uncancelled(ask);
            let pause = if answer.is_ok() { fresh } else { REST };
            self.until = Some(Instant::now() + pause);
            if let Ok(answer) = answer {
                self.answer = answer.map(Arc::new);
            }
        }
        self.answer.clone()
    }
}

impl Inquiry {
    fn of_process() -> &'static Self {
        INQUIRY.get().unwrap_or_else(|| {
            fork::register(super::in_child, super::at_exit);
            let address = Address::from_environment().ok();
            INQUIRY.set(Self { address, answers: Mutex::default() })
        })
    }

    /// Returns the daemon's address, if the process is in a session.
    fn session(&self) -> Option<&Address> {
        let address = self.address.as_ref();
        address.filter(|address| State::is_shared() || address.has_token())
    }
}

/// Returns whether the process is in a session, without a question to the daemon.
pub(crate) fn is_in_session() -> bool {
    Inquiry::of_process().session().is_some()
}

/// Returns memory limits and use of the process's session; `None` without a session or any answer.
pub(crate) fn session_memory() -> Option<Arc<SessionMemory>> {
    let inquiry = Inquiry::of_process();
    let address = inquiry.session()?;
    let mut answers = lock(&inquiry.answers);
    answers.memory.get(MEMORY_FRESH, || address.session_memory())
}

/// Returns the session's part in the utilization of a card; `None` without a session or any answer, and for a
/// card that the daemon does not know.
pub(crate) fn utilization_part(uuid: GpuUuid) -> Option<UtilizationPart> {
    let inquiry = Inquiry::of_process();
    let address = inquiry.session()?;
    let mut answers = lock(&inquiry.answers);
    let parts = answers.parts.get(PARTS_FRESH, || address.utilization_parts())?;
    parts.iter().find(|card| card.uuid == uuid).map(|card| card.part)
}

/// Discards the kept answers, after the process itself attached to a card.
pub(super) fn invalidate() {
    if let Some(inquiry) = INQUIRY.get() {
        let mut answers = lock(&inquiry.answers);
        answers.memory.until = None;
        answers.parts.until = None;
    }
}

/// Returns the size of a card as the session sees it; [`Bytes::MAX`] without a limit on that card.
pub(crate) fn total(session: &SessionMemory, uuid: GpuUuid) -> Bytes {
    card(session, uuid).map_or(session.limit.unwrap_or(Bytes::MAX), |card| card.total)
}

/// Returns the session's memory on one card, if the daemon knows the card.
pub(crate) fn card(session: &SessionMemory, uuid: GpuUuid) -> Option<&CardMemory> {
    session.cards.iter().find(|card| card.info.uuid == uuid)
}

pub(super) fn forget() {
    INQUIRY.forget();
}
