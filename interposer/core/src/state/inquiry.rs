//! Memory limits and use of the process's session, which the daemon tells on a short connection. A framework
//! asks for the size of a card before the process is a client, and `nvidia-smi` never becomes one.
//!
//! An inquiry creates no client, no shared page and no thread. Only a process of a session asks: one with a
//! token, or a client. An answer is kept for a moment, so that several questions of a tool get equal answers.
//! After a failure the last answer stays; without one the caller returns the card's own figures.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpushare_proto::tenant::{CardMemory, SessionMemory};
use gpushare_proto::{Bytes, GpuUuid};
use gpushare_sys::unwind::uncancelled;

use super::State;
use crate::daemon::address::Address;
use crate::process::fork::{self, ForkCell};
use crate::process::lock;

/// Time for which an answer of the daemon is kept.
const FRESH: Duration = Duration::from_millis(50);
/// Pause without inquiries after an inquiry that failed.
const REST: Duration = Duration::from_secs(1);

static INQUIRY: ForkCell<Inquiry> = ForkCell::new();

#[derive(Debug)]
struct Inquiry {
    /// Address of the daemon; `None` if the environment names a token that cannot be read.
    address: Option<Address>,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    answer: Option<Arc<SessionMemory>>,
    /// Point in time until which the daemon is not asked again.
    until: Option<Instant>,
}

impl Inquiry {
    fn of_process() -> &'static Self {
        INQUIRY.get().unwrap_or_else(|| {
            fork::register(super::in_child, super::at_exit);
            INQUIRY.set(Self { address: Address::from_environment().ok(), last: Mutex::default() })
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
    let mut last = lock(&inquiry.last);
    if last.until.is_none_or(|until| until <= Instant::now()) {
        // A thread that is cancelled here would leave the lock held.
        let answer = uncancelled(|| address.session_memory());
        let pause = if answer.is_ok() { FRESH } else { REST };
        last.until = Some(Instant::now() + pause);
        if let Ok(answer) = answer {
            last.answer = answer.map(Arc::new);
        }
    }
    last.answer.clone()
}

/// Discards the kept answer, after the process itself attached to a card.
pub(super) fn invalidate() {
    if let Some(inquiry) = INQUIRY.get() {
        lock(&inquiry.last).until = None;
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
