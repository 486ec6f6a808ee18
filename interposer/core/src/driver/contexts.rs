//! The application's live contexts. Movers borrow them, never retain one: whoever destroys a context
//! holds this list's lock while it does, and movers hold it for each short visit.

use std::sync::{Mutex, MutexGuard};

use crate::driver::Driver;
use crate::driver::types::{
    CUcontext, CUdevice, CUevent, CUstream, EVENT_DISABLE_TIMING, STREAM_NON_BLOCKING,
};
use crate::lock;

/// Whose a context is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The device's own, shared by everybody who retains it.
    Primary,
    /// Made by the application.
    Created,
    /// A part of the card, by its own handle. It dies with that. The primary context lives as long as any part, and has its
    /// memory.
    Green(usize),
}

/// A live context and what the movers keep in it; both die with it.
#[derive(Debug)]
pub struct Live {
    context: CUcontext,
    device: CUdevice,
    kind: Kind,
    /// Users that hold it by the old counting calls.
    users: u32,
    event: Option<CUevent>,
    stream: Option<CUstream>,
}

// SAFETY: the handles are the driver's, which is thread-safe; we only pass them back to it.
unsafe impl Send for Live {}

/// The list.
#[derive(Debug, Default)]
pub struct Contexts {
    live: Mutex<Vec<Live>>,
}

impl Contexts {
    /// A context is alive. Returns [`count`] of the device now, or `None` if it was known.
    pub fn created(&self, context: CUcontext, device: CUdevice, kind: Kind) -> Option<u32> {
        let mut live = self.visit();
        if context.is_null() || live.iter().any(|known| known.context == context) {
            return None;
        }
        live.push(Live { context, device, kind, users: 1, event: None, stream: None });
        Some(count(&live, device))
    }

    /// The device of each live context that takes memory of its own.
    #[must_use]
    pub fn devices(&self) -> Vec<CUdevice> {
        self.visit().iter().filter(|known| !known.is_part()).map(Live::device).collect()
    }

    /// Holds movers off: while the guard lives, contexts may be destroyed.
    pub fn visit(&self) -> MutexGuard<'_, Vec<Live>> {
        lock(&self.live)
    }
}

/// Live contexts on a device; parts of it are none, since they are within another's.
#[must_use]
pub fn count(live: &[Live], device: CUdevice) -> u32 {
    let whole = live.iter().filter(|known| known.device == device && !known.is_part());
    u32::try_from(whole.count()).unwrap_or(u32::MAX)
}

/// One user more of a context, or one less; whether it has any left. Nobody counts a context that is not known.
pub fn use_again(live: &mut [Live], context: CUcontext, more: bool) -> bool {
    let Some(known) = live.iter_mut().find(|known| known.context == context) else {
        return true;
    };
    known.users = if more { known.users.saturating_add(1) } else { known.users.saturating_sub(1) };
    known.users > 0
}

/// Takes a dead context off the list; the device it was on, if it was known.
pub fn remove(live: &mut Vec<Live>, context: CUcontext) -> Option<CUdevice> {
    let at = live.iter().position(|known| known.context == context)?;
    Some(live.swap_remove(at).device)
}

/// The primary context of a device, if it is alive.
#[must_use]
pub fn primary(live: &[Live], device: CUdevice) -> Option<CUcontext> {
    let primary = live.iter().find(|known| known.device == device && known.kind == Kind::Primary);
    primary.map(Live::context)
}

/// The device whose primary context this is, if it is one.
#[must_use]
pub fn primary_of(live: &[Live], context: CUcontext) -> Option<CUdevice> {
    let found = live
        .iter()
        .find(|known| known.context == context && known.kind == Kind::Primary);
    found.map(Live::device)
}

/// The context of a green one, by that one's handle.
#[must_use]
pub fn green(live: &[Live], handle: usize) -> Option<CUcontext> {
    live.iter().find(|known| known.kind == Kind::Green(handle)).map(Live::context)
}

impl Live {
    /// The context.
    #[must_use]
    pub fn context(&self) -> CUcontext {
        self.context
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> CUdevice {
        self.device
    }

    fn is_part(&self) -> bool {
        matches!(self.kind, Kind::Green(_))
    }

    /// Runs `work` with the context current, as a guest of its owner.
    pub fn enter<T>(&mut self, driver: &Driver, work: impl FnOnce(&mut Self) -> T) -> Option<T> {
        // SAFETY: the context is alive: its destroyers need the lock that the caller holds.
        if unsafe { (driver.ctx_push_current)(self.context) } != 0 {
            return None;
        }
        let result = work(self);
        let mut popped = std::ptr::null_mut();
        // SAFETY: pops what was pushed above.
        unsafe { (driver.ctx_pop_current)(&raw mut popped) };
        Some(result)
    }

    /// The mover's event in this context. Call inside [`Self::enter`].
    pub fn event(&mut self, driver: &Driver) -> Option<CUevent> {
        self.event = self.event.or_else(|| {
            let mut event = std::ptr::null_mut();
            // SAFETY: writes one handle; the context is current.
            (unsafe { (driver.event_create)(&raw mut event, EVENT_DISABLE_TIMING) } == 0).then_some(event)
        });
        self.event
    }

    /// The mover's stream in this context. Call inside [`Self::enter`].
    pub fn stream(&mut self, driver: &Driver) -> Option<CUstream> {
        self.stream = self.stream.or_else(|| {
            let mut stream = std::ptr::null_mut();
            // SAFETY: writes one handle; the context is current.
            (unsafe { (driver.stream_create)(&raw mut stream, STREAM_NON_BLOCKING) } == 0).then_some(stream)
        });
        self.stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(number: usize) -> CUcontext {
        std::ptr::without_provenance_mut(number)
    }

    #[test]
    fn contexts_are_counted_by_device_and_known_once() {
        let contexts = Contexts::default();
        assert_eq!(contexts.created(context(1), 0, Kind::Primary), Some(1));
        assert_eq!(contexts.created(context(1), 0, Kind::Primary), None);
        assert_eq!(contexts.created(context(2), 0, Kind::Created), Some(2));
        assert_eq!(contexts.created(context(3), 1, Kind::Created), Some(1));
        let mut live = contexts.visit();
        assert_eq!(primary(&live, 0), Some(context(1)));
        assert_eq!(primary(&live, 1), None);
        assert_eq!((primary_of(&live, context(1)), primary_of(&live, context(2))), (Some(0), None));
        assert_eq!(remove(&mut live, context(1)), Some(0));
        assert_eq!(remove(&mut live, context(1)), None);
        assert_eq!((count(&live, 0), count(&live, 1)), (1, 1));
    }

    #[test]
    fn a_context_is_used_until_its_last_user_detaches() {
        let contexts = Contexts::default();
        contexts.created(context(1), 0, Kind::Created);
        let mut live = contexts.visit();
        assert!(use_again(&mut live, context(1), true));
        assert!(use_again(&mut live, context(1), false));
        assert!(!use_again(&mut live, context(1), false));
        assert!(use_again(&mut live, context(9), false), "of a stranger nobody knows");
    }

    #[test]
    fn a_green_context_is_found_by_its_own_handle() {
        let contexts = Contexts::default();
        contexts.created(context(1), 0, Kind::Primary);
        contexts.created(context(2), 0, Kind::Green(7));
        assert_eq!(green(&contexts.visit(), 7), Some(context(2)));
        assert_eq!(primary(&contexts.visit(), 0), Some(context(1)));
    }

    #[test]
    fn parts_of_a_card_are_no_contexts_of_their_own() {
        let contexts = Contexts::default();
        contexts.created(context(1), 0, Kind::Primary);
        assert_eq!(contexts.created(context(2), 0, Kind::Green(7)), Some(1));
        assert_eq!(contexts.created(context(3), 0, Kind::Created), Some(2));
        assert_eq!(contexts.devices(), [0, 0]);
    }
}
