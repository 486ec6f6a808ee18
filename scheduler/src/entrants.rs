//! The processes that said with a session's token that they, and all that they start, belong to it: `run --session NAME` says so
//! before it becomes the program. So a child stays in that throws the token away, also where none of its parents ever used a GPU.
//!
//! Who says so is the kernel's word, the token only says to what. It holds until the process is dead or its session is over,
//! over restarts of the daemon too. A process is in one session at a time: the one that it entered or registered last.

use std::collections::BTreeMap;

use gpushare_proto::SessionId;
use serde::{Deserialize, Serialize};

use crate::identity::Principal;
use crate::identity::{ProcessId, Watch};

/// One of them, as it outlives a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entrant {
    pub(crate) process: ProcessId,
    /// With whom it is counted: each is watched, which costs a descriptor.
    #[serde(rename = "household")]
    pub(crate) principal: Principal,
}

/// Where one is, as long as somebody watches for its death.
#[derive(Debug)]
struct Stay {
    entrant: Entrant,
    session: SessionId,
    _watch: Watch,
}

/// All of them, by pid.
#[derive(Debug, Default)]
pub(crate) struct Entrants(BTreeMap<u32, Stay>);

impl Entrants {
    /// A process enters a session, and leaves the one that it was in.
    pub(crate) fn enter(&mut self, entrant: Entrant, session: SessionId, watch: Watch) {
        let pid = entrant.process.pid;
        let stay = Stay { entrant, session, _watch: watch };
        self.0.insert(pid, stay);
    }

    /// A process that has entered a session is in another one by now.
    pub(crate) fn moved(&mut self, process: ProcessId, session: SessionId) {
        if let Some(stay) = self.0.get_mut(&process.pid)
            && stay.entrant.process == process
        {
            stay.session = session;
        }
    }

    pub(crate) fn session_of(&self, process: ProcessId) -> Option<SessionId> {
        let stay = self.0.get(&process.pid)?;
        (stay.entrant.process == process).then_some(stay.session)
    }

    /// How many of a principal's there are.
    pub(crate) fn of(&self, principal: &Principal) -> usize {
        let ours = |stay: &&Stay| stay.entrant.principal == *principal;
        self.0.values().filter(ours).count()
    }

    /// Those of one session.
    pub(crate) fn in_session(&self, session: SessionId) -> Vec<Entrant> {
        let inside = self.0.values().filter(|stay| stay.session == session);
        inside.map(|stay| stay.entrant.clone()).collect()
    }

    /// The process is dead.
    pub(crate) fn gone(&mut self, process: ProcessId) {
        if self.session_of(process).is_some() {
            self.0.remove(&process.pid);
        }
    }

    /// The session is over.
    pub(crate) fn over(&mut self, session: SessionId) {
        self.0.retain(|_, stay| stay.session != session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);

    fn entrant(pid: u32, start: u64) -> Entrant {
        let process = ProcessId { pid, start };
        let principal = Principal::own();
        Entrant { process, principal }
    }

    #[test]
    fn a_process_is_where_it_entered_last_until_it_is_dead_or_that_is_over() {
        let mut entrants = Entrants::default();
        let (one, other) = (entrant(5, 50), entrant(6, 60));
        entrants.enter(one.clone(), A, Watch::default());
        entrants.enter(other.clone(), A, Watch::default());
        entrants.enter(one.clone(), B, Watch::default());
        assert_eq!(entrants.session_of(one.process), Some(B));
        assert_eq!(entrants.in_session(A), std::slice::from_ref(&other));
        entrants.moved(other.process, B);
        entrants.gone(one.process);
        assert_eq!(entrants.session_of(one.process), None);
        assert_eq!(entrants.of(&Principal::own()), 1);
        entrants.over(B);
        assert_eq!(entrants.session_of(other.process), None);
    }

    #[test]
    fn a_pid_that_was_given_away_again_is_nobody_who_entered() {
        let mut entrants = Entrants::default();
        entrants.enter(entrant(5, 50), A, Watch::default());
        let later = entrant(5, 51);
        entrants.moved(later.process, B);
        entrants.gone(later.process);
        assert_eq!(entrants.session_of(later.process), None);
        assert_eq!(entrants.session_of(entrant(5, 50).process), Some(A));
        entrants.enter(later.clone(), B, Watch::default());
        entrants.gone(entrant(5, 50).process);
        assert_eq!(entrants.session_of(later.process), Some(B));
    }
}
