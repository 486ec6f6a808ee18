//! Agenda: the sessions and cards that may have changed, and the timers that add sessions and cards to it.
//!
//! ```text
//!   an event ──▶ touches the sessions and cards that it is about ──┐
//!   a timer that is due ──▶ touches what it was set for ───────────┼──▶ settle looks at all of these
//!   a card whose mode, users or line changed ──▶ its sessions ─────┘
//! ```
//!
//! A session that is touched needlessly costs time and changes nothing. An invariant checks that no change is
//! overlooked: after each event it settles everything again and expects no effects.

use std::collections::BTreeSet;

use gpushare_proto::{GpuId, Nanos, SessionId};

use crate::machine::Core;
use crate::values::gpu_set::GpuSet;

/// Action for which a timer was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// Updates the state of a session's lock.
    Session(SessionId),
    /// Chooses the mode of a card again.
    Mode(GpuId),
    /// Tells sessions in a long queue their places.
    Places(GpuId),
    /// Tells the next sessions on a card their memory figures.
    Figures(GpuId),
    /// Looks at moves of remapped memory on a card that may be late.
    Moves(GpuId),
}

/// Sessions and cards that settling must look at, and pending timers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Agenda {
    /// Sessions to look at, each once: `Session::touched` marks them.
    sessions: Vec<SessionId>,
    cards: GpuSet,
    timers: BTreeSet<(Nanos, Timer)>,
    /// Sessions that were removed since the agenda was last emptied.
    removed: Vec<SessionId>,
    /// Sessions that the last settling looked at, and those removed before it.
    looked_at: Vec<SessionId>,
}

impl Agenda {
    /// Adds a card to the agenda.
    pub(crate) fn look_at(&mut self, gpu: GpuId) {
        self.cards.insert(gpu);
    }

    pub(crate) fn cards(&self) -> GpuSet {
        self.cards
    }

    /// Number of sessions to look at. Sessions may be added at the end while others are looked at.
    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    pub(crate) fn session(&self, at: usize) -> SessionId {
        self.sessions[at]
    }

    /// Sets, moves or stops a timer. `armed` is the point in time for which the timer is set.
    pub(crate) fn set_timer(&mut self, timer: Timer, armed: &mut Option<Nanos>, at: Option<Nanos>) {
        if *armed == at {
            return;
        }
        if let Some(old) = *armed {
            self.timers.remove(&(old, timer));
        }
        if let Some(new) = at {
            self.timers.insert((new, timer));
        }
        *armed = at;
    }

    /// Point in time at which the next timer is due.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// Takes out a timer that is due.
    fn due(&mut self, now: Nanos) -> Option<Timer> {
        let (_, timer) = *self.timers.first().filter(|(at, _)| *at <= now)?;
        self.timers.pop_first();
        Some(timer)
    }
}

impl Core {
    /// Returns the sessions that the last event may have changed, removed ones included.
    #[must_use]
    pub fn changed(&self) -> &[SessionId] {
        &self.agenda.looked_at
    }

    /// Adds a session to the agenda.
    pub(crate) fn touch(&mut self, id: SessionId) {
        if let Some(session) = self.view.sessions.get_mut(id)
            && !session.touched
        {
            session.touched = true;
            self.agenda.sessions.push(id);
        }
    }

    /// Adds all cards and all sessions, and marks the memory figures of the sessions as changed.
    pub(crate) fn touch_all(&mut self) {
        self.view.sessions.ids().into_iter().for_each(|id| self.touch_wholly(id));
        self.agenda.cards.extend(self.view.cards.keys());
    }

    /// Adds a card and all sessions on it, and marks their memory figures as changed.
    pub(crate) fn touch_members(&mut self, gpu: GpuId) {
        let members = self.view.cards.get(gpu).map(|card| card.index.members.clone());
        members.into_iter().flatten().for_each(|id| self.touch_wholly(id));
        self.agenda.look_at(gpu);
    }

    /// Adds a session and marks its memory figures as changed.
    pub(crate) fn touch_wholly(&mut self, id: SessionId) {
        if let Some(session) = self.view.sessions.get_mut(id) {
            session.figures_moved = true;
            self.touch(id);
        }
    }

    /// Handles the timers that are due.
    pub(crate) fn fire_timers(&mut self) {
        while let Some(timer) = self.agenda.due(self.view.now) {
            if let Some(alarm) = self.armed_at(timer) {
                *alarm = None;
            }
            match timer {
                Timer::Session(id) => self.touch(id),
                Timer::Mode(gpu) => self.agenda.look_at(gpu),
                Timer::Moves(gpu) => self.look_at_moves(gpu),
                Timer::Places(gpu) => self.tell_places_again(gpu),
                Timer::Figures(gpu) => self.tell_figures(gpu),
            }
        }
    }

    /// Returns the field that holds the point in time for which a timer is set.
    fn armed_at(&mut self, timer: Timer) -> Option<&mut Option<Nanos>> {
        match timer {
            Timer::Session(id) => Some(&mut self.view.sessions.get_mut(id)?.alarm),
            Timer::Mode(gpu) => Some(&mut self.view.cards.get_mut(gpu)?.alarms.mode),
            Timer::Places(gpu) => Some(&mut self.view.cards.get_mut(gpu)?.alarms.places),
            Timer::Figures(gpu) => Some(&mut self.view.cards.get_mut(gpu)?.alarms.figures),
            Timer::Moves(gpu) => Some(&mut self.view.cards.get_mut(gpu)?.alarms.moves),
        }
    }

    /// Empties the agenda and sets the timers of the sessions and cards on it.
    pub(crate) fn close_agenda(&mut self) {
        for at in 0..self.agenda.len() {
            let id = self.agenda.session(at);
            let Some(session) = self.view.sessions.get(id) else {
                continue;
            };
            let frost = session.frost_deadline(self.view.now);
            let idle = session.idle_deadline(self.view.now);
            let deadline = self.view.lock_deadline(session).into_iter().chain(frost).chain(idle).min();
            let armed = session.alarm;
            if let Some(session) = self.view.sessions.get_mut(id) {
                session.touched = false;
                if deadline != armed {
                    self.agenda.set_timer(Timer::Session(id), &mut session.alarm, deadline);
                }
            }
        }
        self.agenda.looked_at.clear();
        self.agenda.looked_at.append(&mut self.agenda.removed);
        self.agenda.looked_at.append(&mut self.agenda.sessions);
        for gpu in std::mem::take(&mut self.agenda.cards) {
            if let Some(card) = self.view.cards.get_mut(gpu) {
                let deadline = card.mode.deadline(&self.view.config);
                self.agenda.set_timer(Timer::Mode(gpu), &mut card.alarms.mode, deadline);
            }
        }
    }

    /// Removes a session from the agenda and stops its timer.
    pub(crate) fn remove_session(&mut self, id: SessionId) {
        if let Some(mut session) = self.view.sessions.remove(id) {
            self.agenda.set_timer(Timer::Session(id), &mut session.alarm, None);
            self.agenda.sessions.retain(|touched| *touched != id);
            self.agenda.removed.push(id);
        }
    }
}
