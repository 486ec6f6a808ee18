//! Clients of the last daemon: who is still awaited, in words, and who may come back that was never written down.
//!
//! A join is on the disk some 20 ms and an fsync after it, since an fsync for each would hold up them all. A daemon that is
//! killed within that time leaves a client that no registry knows. It comes back by itself, within the first second if nothing keeps
//! it, and the kernel's word is that its process is older than this daemon. That is no proof that it was a client, so it gets
//! nothing by it but what costs itself: what it says it uses counts, as far as its session's quota has room, and what it says it may have
//! in flight must end before anybody else runs there.

use gpushare_core::WaitsFor;
use gpushare_proto::audit::Outcome;
use gpushare_proto::{ClientId, Nanos, SessionId, Token};
use gpushare_sys::{clock, peer, process};

use super::Shell;
use crate::identity::PeerProcess;
use crate::operation::Operation;

/// So many awaited processes are named.
const NAMED: usize = 5;

impl Shell {
    /// Whether a process that the registry does not know may have been a client of the last daemon.
    pub(super) fn may_be_unwritten(&self, peer: &PeerProcess) -> bool {
        let patience = self.settings.core.recovery_min.max(self.settings.core.stuck_after);
        let older = peer.id.is_some_and(|process| process.start <= self.born);
        older && clock::monotonic() < self.started + patience
    }

    /// The session of a token. Who comes back to one that was revoked has memory that must count; it gets nothing new there.
    pub(super) fn by_token(&self, token: &Token, returning: bool) -> Option<SessionId> {
        match returning {
            true => self.sessions.by_any_token(token),
            false => self.sessions.by_token(token),
        }
    }

    /// A client of the last daemon lives and does not come back.
    pub(super) fn overdue(&self, client: ClientId, after: Nanos) {
        let Some(entry) = self.expected.get(&client) else {
            return;
        };
        let pid = entry.process.pid;
        let name = self.sessions.name(entry.session);
        let cards = match entry.cards.is_empty() {
            true => "any card".to_owned(),
            false => {
                let cards = entry.cards.iter();
                let words = cards.map(|of| format!("{} of {}", of.used, of.card.uuid));
                words.collect::<Vec<_>>().join(", ")
            }
        };
        let policy = match self.settings.core.stuck_policy {
            gpushare_core::config::StuckPolicy::Kill => "it is ended",
            gpushare_core::config::StuckPolicy::RunOthers if !entry.cards.is_empty() => {
                "others run that fit beside that"
            }
            _ => "nothing is granted there until it comes back or ends",
        };
        Operation::done("process.return")
            .of(entry.session, &name)
            .process(pid)
            .failed(Outcome::Failed, "overdue")
            .warn(format_args!(
                "pid {pid} of {name}, a process of the last daemon{}, is not back after {after} and may use {cards}; {policy}",
                stopped(pid)
            ));
    }

    /// Ends an awaited process; none if it is not awaited.
    pub(super) fn kill_awaited(&self, client: ClientId) -> Option<()> {
        let entry = self.expected.get(&client)?;
        let (session, pid) = (entry.session, entry.process.pid);
        // One that is dead by now is heard of from its pidfd.
        let pidfd = entry.process.open()?;
        let cause = peer::kill(&pidfd).err();
        self.killed(client, session, (pid, None), cause.as_ref());
        Some(())
    }

    /// For whom a session waits after a restart, in words; nothing if it waits for something else.
    pub(super) fn awaited_in_words(&self, session: SessionId, waits_for: &WaitsFor) -> Option<String> {
        let WaitsFor::Return(_) = waits_for else {
            return None;
        };
        let all = self.core.awaited_by(session);
        let awaited = all.iter().filter_map(|client| self.expected.get(client));
        let named: Vec<String> = awaited
            .take(NAMED)
            .map(|entry| {
                let pid = entry.process.pid;
                format!("pid {pid} of {}{}", self.sessions.name(entry.session), stopped(pid))
            })
            .collect();
        let more = match all.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        (!named.is_empty()).then(|| format!("{}{more}", named.join(", ")))
    }
}

fn stopped(pid: u32) -> &'static str {
    match process::is_stopped(pid) {
        true => " (it is stopped)",
        false => "",
    }
}
