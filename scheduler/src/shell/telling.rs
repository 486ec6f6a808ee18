//! What is told of acts beside the log: the audit log's lines.
//!
//! A tenant that is refused in a loop, or registers in one, gets so many lines a second and their sum: nobody pushes what
//! administrators did out of the audit log.

use gpushare_proto::admin::{AdminReply, Change, ConfigChange, Knob, SessionRequest, Setting};
use gpushare_proto::audit::{Action, Entry, Outcome};
use gpushare_proto::tenant::{Failure, FailureCode, TenantReply};
use gpushare_proto::{ClientId, GpuId, SessionId};
use gpushare_sys::clock;

use super::Shell;
use super::tenant::plain;
use crate::audit::Audit;
use crate::identity::PeerProcess;
use crate::log_limiter::LogLimiter;
use crate::operation::{Operation, code_name, outcome_of};

/// Lines of the audit log that one tenant gets in a second.
const LINES: u64 = 32;
/// The longest text in a line.
const LONGEST: usize = 512;

/// What was told, and to whom it goes.
#[derive(Debug)]
pub(super) struct Telling {
    pub(super) audit: Audit,
    lines: LogLimiter<Whose>,
}

impl Default for Telling {
    fn default() -> Self {
        Self { audit: Audit::default(), lines: LogLimiter::lines(LINES) }
    }
}

/// Who gets so many lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Whose {
    Session(SessionId),
    User(u32),
}

/// Something that is about to be done on somebody's behalf.
#[derive(Debug)]
pub(super) struct Intent {
    operation: &'static str,
    session: Option<SessionId>,
    name: Option<String>,
    gpu: Option<GpuId>,
}

/// What came of it.
struct Done {
    session: Option<(SessionId, String)>,
    old: Option<String>,
    new: Option<String>,
}

impl Shell {
    /// Writes acts and refusals there from now on.
    pub(crate) fn audit_in(&mut self, audit: Audit) {
        self.telling.audit = audit;
    }

    /// The audit log, to be ended.
    pub(crate) fn take_audit(&mut self) -> Audit {
        std::mem::take(&mut self.telling.audit)
    }

    pub(super) fn audit(&self) -> &Audit {
        &self.telling.audit
    }

    /// What an administrator wants with sessions.
    pub(super) fn intent(&self, request: &SessionRequest) -> Intent {
        let (operation, which) = match request {
            SessionRequest::Create { new, .. } => ("session.create", new.name.as_deref()),
            SessionRequest::Change { which, change } => {
                let operation = match change {
                    Change::Memory(_) => "session.set_memory",
                    Change::Compute(_) => "session.set_compute",
                    Change::Weight(_) => "session.set_weight",
                    Change::Priority(_) => "session.set_priority",
                };
                (operation, Some(which.as_str()))
            }
            SessionRequest::Renew { which, .. } => ("session.renew", Some(which.as_str())),
            SessionRequest::Revoke { which } => ("session.revoke", Some(which.as_str())),
            SessionRequest::Delete { which } => ("session.delete", Some(which.as_str())),
            SessionRequest::Pause { which } => ("session.pause", Some(which.as_str())),
            SessionRequest::Resume { which } => ("session.resume", Some(which.as_str())),
            SessionRequest::Endless { which } => ("session.renew", Some(which.as_str())),
            SessionRequest::Token { which } => ("session.token", Some(which.as_str())),
        };
        let name = which.map(plain);
        // A session that is to be made is none that is there under that name.
        let there = name.as_ref().filter(|_| operation != "session.create");
        let session = there.and_then(|name| self.sessions.named(name).ok());
        Intent {
            operation,
            session,
            name: session.map(|session| self.sessions.name(session)).or(name),
            gpu: None,
        }
    }

    /// An administrator's request was answered; its line, which is written when it is known what became of it.
    pub(super) fn acted(
        &self,
        peer: &PeerProcess,
        intent: Intent,
        answer: &Result<AdminReply, Failure>,
    ) -> Action {
        let result = answer.as_ref().map(|reply| match reply {
            AdminReply::Created { session, name, .. } => Done {
                session: Some((*session, name.clone())),
                old: None,
                new: self.terms_in_words(*session),
            },
            AdminReply::Changed { old, new } => {
                Done { session: None, old: Some(old.clone()), new: Some(new.clone()) }
            }
            AdminReply::Token { session, name, .. } => Done {
                session: Some((*session, name.clone())),
                old: None,
                new: Some("another token".to_owned()),
            },
            _ => Done { session: None, old: None, new: None },
        });
        self.done(peer, intent, result)
    }

    /// A setting was changed, or not.
    pub(super) fn was_set(&self, peer: &PeerProcess, setting: Setting, answer: &Result<AdminReply, Failure>) {
        let operation = match setting.knob {
            Knob::Quantum(_) => "gpu.set_quantum",
            Knob::Mode(_) => "gpu.set_mode",
            Knob::Capacity(_) => "gpu.set_capacity",
            Knob::ManagedLimit(_) => "gpu.set_managed_limit",
            Knob::Epsilon(_) => "gpu.set_epsilon",
            Knob::WindowTarget(_) => "gpu.set_window_target",
        };
        let intent = Intent { operation, session: None, name: None, gpu: setting.gpu };
        self.write_act(self.acted(peer, intent, answer));
    }

    /// The configuration was read again, and says so much else.
    pub(super) fn was_reconfigured(&self, peer: Option<&PeerProcess>, changes: &[ConfigChange]) {
        for ConfigChange { key, old, new, live } in changes {
            let at = if *live { "" } else { " (at the next start)" };
            self.write_act(Action {
                old: Some(short(format!("{key} {old}"))),
                new: Some(short(format!("{key} {new}{at}"))),
                ..reload(peer)
            });
        }
    }

    /// It was read again, and refused.
    pub(super) fn was_not_reconfigured(&self, peer: Option<&PeerProcess>, why: &str) {
        self.write_act(Action {
            result: Outcome::Failed,
            error_code: Some(code_name(FailureCode::BadRequest).to_owned()),
            why: Some(short(why.to_owned())),
            ..reload(peer)
        });
    }

    /// Somebody who is no administrator asked for administration.
    pub(super) fn trespassed(&mut self, (pid, uid): (u32, u32), why: String) {
        if !self.gets_a_line(Whose::User(uid)) {
            return;
        }
        self.write_act(Action {
            operation: "daemon.administrate".to_owned(),
            uid,
            pid,
            session_id: None,
            session: None,
            gpu: None,
            old: None,
            new: None,
            result: Outcome::Refused,
            error_code: Some(code_name(FailureCode::Permission).to_owned()),
            why: Some(short(why)),
        });
    }

    /// A session lost its name to one that an administrator makes.
    pub(super) fn renamed(&mut self, peer: &PeerProcess, session: SessionId, old: &str, new: &str) {
        let intent = Intent {
            operation: "session.rename",
            session: Some(session),
            name: Some(new.to_owned()),
            gpu: None,
        };
        let done = Done { session: None, old: Some(old.to_owned()), new: Some(new.to_owned()) };
        let act = self.done(peer, intent, Ok(done));
        self.write_act(act);
        self.keeping.changed();
    }

    /// The time of a session is over.
    pub(super) fn expired(&self, id: SessionId, was: &str) {
        self.write_act(Action {
            operation: "session.expire".to_owned(),
            uid: rustix::process::geteuid().as_raw(),
            pid: std::process::id(),
            session_id: Some(id),
            session: Some(self.sessions.name(id)),
            gpu: None,
            old: Some(was.to_owned()),
            new: Some("expired".to_owned()),
            result: Outcome::Ok,
            error_code: None,
            why: None,
        });
    }

    pub(super) fn write_act(&self, act: Action) {
        self.telling.audit.write(Entry::Action(act));
    }

    /// A process registered a session for itself, or was not let; its line, if it gets one.
    pub(super) fn registered(
        &mut self,
        peer: &PeerProcess,
        wished: Option<&str>,
        answer: &Result<TenantReply, Failure>,
    ) -> Option<Action> {
        if !self.gets_a_line(Whose::User(peer.user)) {
            return None;
        }
        let result = answer.as_ref().map(|reply| match reply {
            TenantReply::Session { session, name, .. } => Done {
                session: Some((*session, name.clone())),
                old: None,
                new: self.terms_in_words(*session),
            },
            _ => Done { session: None, old: None, new: None },
        });
        let intent =
            Intent { operation: "session.register", session: None, name: wished.map(plain), gpu: None };
        Some(self.done(peer, intent, result))
    }

    /// The daemon itself ended a process, or could not.
    pub(super) fn killed(
        &self,
        client: ClientId,
        session: SessionId,
        (pid, uid): (u32, Option<u32>),
        cause: Option<&std::io::Error>,
    ) {
        let name = self.sessions.name(session);
        let operation = Operation::done("process.kill").of(session, &name).process(pid);
        let operation = uid.map_or(operation, |uid| operation.user(uid));
        match cause {
            None => operation.warn(format_args!("ended {client} (pid {pid}): it did not let go of the GPU")),
            Some(cause) => operation.failed(Outcome::Failed, "kill").warn(format_args!(
                "cannot end {client} (pid {pid}), which does not let go of the GPU: {cause}"
            )),
        }
        self.telling.audit.write(Entry::Action(Action {
            operation: "process.kill".to_owned(),
            uid: rustix::process::geteuid().as_raw(),
            pid: std::process::id(),
            session_id: Some(session),
            session: Some(name),
            gpu: None,
            old: Some(format!("pid {pid} does not let go of the GPU")),
            new: cause.is_none().then(|| format!("pid {pid} is ended")),
            result: if cause.is_none() { Outcome::Ok } else { Outcome::Failed },
            error_code: cause.map(|_| "kill".to_owned()),
            why: cause.map(ToString::to_string),
        }));
    }

    /// One line in the log, and one for the audit log.
    fn done(&self, peer: &PeerProcess, intent: Intent, result: Result<Done, &Failure>) -> Action {
        let Intent { operation, session, name, gpu } = intent;
        let (found, old, new, failure) = match result {
            Ok(result) => (result.session, result.old, result.new, None),
            Err(failure) => (None, None, None, Some(failure)),
        };
        let (session, name) = match found {
            Some((session, name)) => (Some(session), Some(name)),
            None => (session, name),
        };
        let mut record = Operation::done(operation).process(peer.pid).user(peer.uid);
        if let (Some(session), Some(name)) = (session, &name) {
            record = record.of(session, name);
        }
        if let Some(gpu) = gpu {
            record = record.on(gpu);
        }
        let on = match (session, &name, gpu) {
            (Some(session), Some(name), _) => format!(" {name} ({session})"),
            (None, Some(name), _) => format!(" {name}"),
            (_, _, Some(gpu)) => format!(" of {gpu}"),
            _ => String::new(),
        };
        let (pid, uid) = (peer.pid, peer.uid);
        match (failure, &old, &new) {
            (Some(failure), ..) => record
                .failed(outcome_of(failure.code), code_name(failure.code))
                .info(format_args!("pid {pid}, user {uid}: {operation}{on} failed: {}", failure.message)),
            (None, Some(old), Some(new)) => {
                record.info(format_args!("pid {pid}, user {uid}: {operation}{on}: {old} → {new}"));
            }
            (None, _, Some(new)) => {
                record.info(format_args!("pid {pid}, user {uid}: {operation}{on}: {new}"));
            }
            (None, ..) => record.info(format_args!("pid {pid}, user {uid}: {operation}{on}")),
        }
        Action {
            operation: operation.to_owned(),
            uid,
            pid,
            session_id: session,
            session: name,
            gpu,
            old: old.map(short),
            new: new.map(short),
            result: failure.map_or(Outcome::Ok, |failure| outcome_of(failure.code)),
            error_code: failure.map(|failure| code_name(failure.code).to_owned()),
            why: failure.map(|failure| short(failure.message.clone())),
        }
    }

    fn terms_in_words(&self, session: SessionId) -> Option<String> {
        let known = self.sessions.get(session)?;
        let state = known.state(clock::monotonic());
        let ends = state.expires_in_ns.map_or(String::new(), |left| format!(", ends in {left}"));
        Some(format!("memory {}, for {}{ends}", state.terms.memory, state.binding))
    }

    /// Whether a tenant gets a line now; those that got none are summed up first.
    pub(super) fn gets_a_line(&mut self, whose: Whose) -> bool {
        let Some(left_out) = self.telling.lines.admit(whose, clock::monotonic()) else {
            return false;
        };
        self.more(whose, None, left_out);
        true
    }

    /// A session is no more: what it got no line for is summed up.
    pub(super) fn sum_up(&mut self, session: SessionId, name: &str) {
        let left_out = self.telling.lines.remove(&Whose::Session(session));
        self.more(Whose::Session(session), Some(name.to_owned()), left_out);
    }

    fn more(&self, whose: Whose, name: Option<String>, count: u64) {
        if count == 0 {
            return;
        }
        let (session_id, uid) = match whose {
            Whose::Session(session) => (Some(session), None),
            Whose::User(uid) => (None, Some(uid)),
        };
        let session = name.or_else(|| session_id.map(|session| self.sessions.name(session)));
        self.telling.audit.write(Entry::Omitted { session_id, session, uid, count });
    }
}

fn short(text: String) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The configuration was read again for `peer`. Who sent a signal is not known: then the daemon did it.
fn reload(peer: Option<&PeerProcess>) -> Action {
    Action {
        operation: "daemon.reload".to_owned(),
        uid: peer.map_or_else(|| rustix::process::geteuid().as_raw(), |peer| peer.uid),
        pid: peer.map_or_else(std::process::id, |peer| peer.pid),
        session_id: None,
        session: None,
        gpu: None,
        old: None,
        new: None,
        result: Outcome::Ok,
        error_code: None,
        why: None,
    }
}
