//! What the process's session may use and uses, asked of the daemon on a short connection: before the process is a client
//! (a framework reads the size of a card before its first context), and in a process that never will be (`nvidia-smi`).
//!
//! Asking makes no client, no page and no thread: hello, question, answer, closed. Only a process that belongs to
//! a session asks: one with a token, or one that is a client already. What was heard is true for a moment, so that a
//! tool's many questions cost one and fit together; without an answer the last one stays, and where there was none
//! the caller sees what the card itself says.
//!
//! Like the state, all of it hangs on one pointer that the child of a fork forgets.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpushare_proto::tenant::{CardMemory, SessionMemory};
use gpushare_proto::{Bytes, GpuUuid};
use gpushare_sys::unwind::uncancelled;

use crate::connection::Address;
use crate::process::State;
use crate::{lifecycle, lock};

/// How long an answer is taken for the present.
const FRESH: Duration = Duration::from_millis(50);
/// How long nobody is asked after a question without an answer.
const REST: Duration = Duration::from_secs(1);

static DESK: AtomicPtr<Desk> = AtomicPtr::new(null_mut());

/// Where the questions are asked, and what was heard.
#[derive(Debug)]
struct Desk {
    /// None where the environment names a token that cannot be read.
    address: Option<Address>,
    heard: Mutex<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    account: Option<Arc<SessionMemory>>,
    /// Until when nothing is asked.
    until: Option<Instant>,
}

/// The account of the session; `None` for a process without one, and as long as no daemon ever answered.
#[must_use]
pub fn present() -> Option<Arc<SessionMemory>> {
    let desk = Desk::get();
    let address = desk.address.as_ref()?;
    let is_client = State::existing().is_some_and(|state| state.link().is_some());
    if !is_client && !address.has_token() {
        return None;
    }
    let mut heard = lock(&desk.heard);
    if heard.until.is_none_or(|until| until <= Instant::now()) {
        // A thread that is cancelled here would leave the desk to nobody's question.
        let answer = uncancelled(|| address.account());
        let pause = if answer.is_ok() { FRESH } else { REST };
        heard.until = Some(Instant::now() + pause);
        if let Ok(account) = answer {
            heard.account = account.map(Arc::new);
        }
    }
    heard.account.clone()
}

/// What was heard is out of date: the process itself came to a card.
pub fn outdated() {
    // SAFETY: null, or leaked.
    if let Some(desk) = unsafe { DESK.load(Ordering::Acquire).as_ref() } {
        lock(&desk.heard).until = None;
    }
}

/// How large a card is to the session; [`Bytes::MAX`] if the session has no limit there.
#[must_use]
pub fn total(account: &SessionMemory, uuid: GpuUuid) -> Bytes {
    on(account, uuid).map_or(account.limit.unwrap_or(Bytes::MAX), |card| card.total)
}

/// The session on one card, if the daemon knows the card.
#[must_use]
pub fn on(account: &SessionMemory, uuid: GpuUuid) -> Option<&CardMemory> {
    account.cards.iter().find(|card| card.info.uuid == uuid)
}

/// In the child of a fork: as if nothing was ever asked. What the parent had is leaked, its lock with it.
pub fn forget() {
    DESK.store(null_mut(), Ordering::Release);
}

impl Desk {
    fn get() -> &'static Self {
        // SAFETY: null, or leaked.
        if let Some(desk) = unsafe { DESK.load(Ordering::Acquire).as_ref() } {
            return desk;
        }
        lifecycle::watch();
        let address = Address::from_environment().ok();
        let fresh = Box::into_raw(Box::new(Self { address, heard: Mutex::default() }));
        match DESK.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked just now.
            Ok(_) => unsafe { &*fresh },
            // SAFETY: nobody else has seen `fresh`; `theirs` is leaked.
            Err(theirs) => unsafe {
                drop(Box::from_raw(fresh));
                &*theirs
            },
        }
    }
}
