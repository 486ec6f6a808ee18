//! Joined processes: processes that entered a session with its token, for themselves and for their children.
//!
//! `run --session NAME` enters the session before it becomes the program. So a child that discards the token
//! stays in the session, even if none of its parents ever used a GPU.
//!
//! The kernel says which process it is; the token only says which session. The process stays joined until it
//! ends or the session is over, also over restarts of the daemon. A process is in one session at a time: the
//! session that it entered or registered last.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use gpushare_proto::SessionId;
use serde::{Deserialize, Serialize};

use crate::identity::{Principal, ProcessId, Watch};

/// Entry of the registry about a process that entered a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JoinedProcess {
    pub(crate) process: ProcessId,
    /// User and container whose limit counts the process, because watching it costs the daemon a descriptor.
    #[serde(rename = "household")]
    pub(crate) principal: Principal,
}

/// Session of a joined process, with the watch for the death of the process.
#[derive(Debug)]
struct Membership {
    joined: JoinedProcess,
    session: SessionId,
    _watch: Watch,
}

/// Table of joined processes by pid, with indexes by session and by principal.
#[derive(Debug, Default)]
pub(crate) struct JoinedProcesses {
    all: BTreeMap<u32, Membership>,
    sessions: BTreeSet<(SessionId, u32)>,
    counts: HashMap<Principal, usize>,
}

impl JoinedProcesses {
    /// Adds a process to a session, and removes it from its previous session.
    pub(crate) fn enter(&mut self, joined: JoinedProcess, session: SessionId, watch: Watch) {
        let pid = joined.process.pid;
        self.remove_pid(pid);
        self.sessions.insert((session, pid));
        *self.counts.entry(joined.principal.clone()).or_default() += 1;
        self.all.insert(pid, Membership { joined, session, _watch: watch });
    }

    /// Moves a joined process to the session that it registered. Does nothing for other processes.
    pub(crate) fn move_to(&mut self, process: ProcessId, session: SessionId) {
        if let Some(member) = self.all.get_mut(&process.pid)
            && member.joined.process == process
        {
            self.sessions.remove(&(member.session, process.pid));
            self.sessions.insert((session, process.pid));
            member.session = session;
        }
    }

    pub(crate) fn session_of(&self, process: ProcessId) -> Option<SessionId> {
        let member = self.all.get(&process.pid)?;
        (member.joined.process == process).then_some(member.session)
    }

    pub(crate) fn count_of(&self, principal: &Principal) -> usize {
        self.counts.get(principal).copied().unwrap_or(0)
    }

    pub(crate) fn of_session(&self, session: SessionId) -> Vec<JoinedProcess> {
        let members = self.pids_of(session).filter_map(|pid| self.all.get(&pid));
        members.map(|member| member.joined.clone()).collect()
    }

    pub(crate) fn remove(&mut self, process: ProcessId) {
        if self.session_of(process).is_some() {
            self.remove_pid(process.pid);
        }
    }

    pub(crate) fn remove_session(&mut self, session: SessionId) {
        let pids: Vec<u32> = self.pids_of(session).collect();
        pids.into_iter().for_each(|pid| self.remove_pid(pid));
    }

    fn pids_of(&self, session: SessionId) -> impl Iterator<Item = u32> {
        self.sessions.range((session, 0)..=(session, u32::MAX)).map(|&(_, pid)| pid)
    }

    fn remove_pid(&mut self, pid: u32) {
        let Some(Membership { joined, session, .. }) = self.all.remove(&pid) else {
            return;
        };
        self.sessions.remove(&(session, pid));
        if let Entry::Occupied(mut count) = self.counts.entry(joined.principal) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);

    fn process(pid: u32, start: u64) -> JoinedProcess {
        let process = ProcessId { pid, start };
        let principal = Principal::own();
        JoinedProcess { process, principal }
    }

    #[test]
    fn a_process_is_in_the_session_that_it_entered_last() {
        let mut joined = JoinedProcesses::default();
        let (one, other) = (process(5, 50), process(6, 60));
        joined.enter(one.clone(), A, Watch::default());
        joined.enter(other.clone(), A, Watch::default());
        joined.enter(one.clone(), B, Watch::default());
        assert_eq!(joined.session_of(one.process), Some(B));
        assert_eq!(joined.of_session(A), std::slice::from_ref(&other));
        joined.move_to(other.process, B);
        joined.remove(one.process);
        assert_eq!(joined.session_of(one.process), None);
        assert_eq!(joined.count_of(&Principal::own()), 1);
        joined.remove_session(B);
        assert_eq!(joined.session_of(other.process), None);
    }

    #[test]
    fn a_reused_pid_is_not_the_joined_process() {
        let mut joined = JoinedProcesses::default();
        joined.enter(process(5, 50), A, Watch::default());
        let later = process(5, 51);
        joined.move_to(later.process, B);
        joined.remove(later.process);
        assert_eq!(joined.session_of(later.process), None);
        assert_eq!(joined.session_of(process(5, 50).process), Some(A));
        joined.enter(later.clone(), B, Watch::default());
        joined.remove(process(5, 50).process);
        assert_eq!(joined.session_of(later.process), Some(B));
    }
}
