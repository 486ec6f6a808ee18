//! Part of a session's state that watching tools see. It borrows from the decision machine and allocates
//! nothing, since far more sessions are looked at than change.

use gpushare_proto::admin::Activity;
use gpushare_proto::{Bytes, ClientId, GateState, GpuId, SessionId};

use crate::machine::Core;
use crate::session::Session;
use crate::session::lock::Lock;

/// State of a session as watching tools see it.
#[derive(Clone, Copy, Debug)]
pub struct SessionSight<'a>(&'a Session);

impl Core {
    /// Returns the state of one session as watching tools see it.
    #[must_use]
    pub fn session_sight(&self, id: SessionId) -> Option<SessionSight<'_>> {
        self.view.sessions.get(id).map(SessionSight)
    }
}

impl<'a> SessionSight<'a> {
    /// Returns the activity of the session. The reason for a wait is empty.
    #[must_use]
    pub fn activity(self) -> Activity {
        match &self.0.lock {
            Lock::Idle => Activity::Idle,
            Lock::Waiting(_) => Activity::Waiting { reason: String::new() },
            Lock::Holding(_) if self.is_moving() => Activity::Moving,
            Lock::Holding(_) => Activity::Holding,
            Lock::Dropping(..) => Activity::Dropping,
        }
    }

    /// Returns the processes of the session, in ascending order.
    pub fn clients(self) -> impl Iterator<Item = ClientId> + 'a {
        self.0.clients.iter().map(|(client, _)| client)
    }

    /// Returns the bytes that the session has allocated on each of its cards, in ascending order of the cards.
    pub fn allocated(self) -> impl Iterator<Item = (GpuId, Bytes)> + 'a {
        self.0.cards.iter().map(|(gpu, on)| (gpu, on.sums.used.get()))
    }

    fn is_moving(self) -> bool {
        let mut processes = self.0.clients.iter();
        processes.any(|(_, process)| process.gate.state() == GateState::Moving)
    }
}
