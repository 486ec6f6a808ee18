//! Lines of the audit log: acts of administrators, refusals, sampled leases, and acts of the daemon itself.
//!
//! Acts of administrators always get a line. A tenant gets at most [`LINES`] a second, so that no tenant can
//! fill the log: a user with all its sessions, or a session that an administrator made. The next line reports
//! the number of omitted lines, and so does the end of a session.

use gpushare_proto::admin::{AdminReply, Change, ConfigChange, Knob, SessionRequest, Setting};
use gpushare_proto::audit::{Action, Allocation, Entry, Outcome, Refusal};
use gpushare_proto::page::MemoryRefusal;
use gpushare_proto::tenant::{Failure, FailureCode, TenantReply};
use gpushare_proto::{Bytes, ClientId, GpuId, GpuUuid, SessionId};
use gpushare_sys::clock;

use crate::audit::Audit;
use crate::clients::table::Client;
use crate::identity::{PeerProcess, User};
use crate::log::limiter::LogLimiter;
use crate::operation::{OUT_OF_MEMORY, Operation, code_name, outcome_of, plain};
use crate::sessions::{Session, Sessions};

/// Largest number of audit lines for one tenant in a second.
const LINES: u64 = 32;
/// Largest length of a text in an audit line, in characters.
const LONGEST: usize = 512;
const RESERVE: &str = "memory.reserve";

/// Audit log, with the limiter of each tenant's lines.
#[derive(Debug, Default)]
pub(crate) struct AuditTrail {
    pub(crate) log: Audit,
    lines: LogLimiter<Tenant, LINES>,
}

/// Tenant whose audit lines are limited together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tenant {
    /// Session that an administrator made.
    Session(SessionId),
    User(User),
}

impl Tenant {
    fn of(id: SessionId, session: Option<&Session>) -> Self {
        session.and_then(Session::user).map_or(Self::Session(id), Self::User)
    }
}

/// Description of a request that is about to be carried out for a peer.
#[derive(Debug, Default)]
pub(crate) struct Intent {
    operation: &'static str,
    session: Option<SessionId>,
    name: Option<String>,
    gpu: Option<GpuId>,
}

/// Result of a successful request: the created session, and the old and new value as text.
#[derive(Default)]
struct Done {
    session: Option<(SessionId, String)>,
    old: Option<String>,
    new: Option<String>,
}

impl AuditTrail {
    pub(crate) fn write_act(&self, act: Action) {
        self.log.write(Entry::Action(act));
    }

    pub(crate) fn set(&self, peer: &PeerProcess, setting: Setting, answer: &Result<AdminReply, Failure>) {
        let operation = match setting.knob {
            Knob::Quantum(_) => "gpu.set_quantum",
            Knob::Mode(_) => "gpu.set_mode",
            Knob::Capacity(_) => "gpu.set_capacity",
            Knob::ManagedLimit(_) => "gpu.set_managed_limit",
            Knob::Epsilon(_) => "gpu.set_epsilon",
            Knob::WindowTarget(_) => "gpu.set_window_target",
            Knob::ContextReserve(_) => "gpu.set_context_reserve",
        };
        let intent = Intent { operation, gpu: setting.gpu, ..Intent::default() };
        self.write_act(record(peer, intent, answer.as_ref().map(changed)));
    }

    /// Returns the audit line about a change of a user's weight.
    pub(crate) fn user_weight(
        &self,
        peer: &PeerProcess,
        user: &str,
        answer: &Result<AdminReply, Failure>,
    ) -> Action {
        let words = |weight: Option<String>| weight.map(|weight| format!("{} {weight}", plain(user)));
        let done = answer.as_ref().map(|reply| {
            let Done { session, old, new } = changed(reply);
            Done { session, old: words(old), new: words(new) }
        });
        record(peer, Intent { operation: "user.set_weight", ..Intent::default() }, done)
    }

    /// Logs that an administrator got a link to the page, without the link.
    pub(crate) fn linked(&self, peer: &PeerProcess, read_only: bool, answer: &Result<AdminReply, Failure>) {
        let role = if read_only { "look" } else { "change" };
        let done = |_: &AdminReply| Done { session: None, old: None, new: Some(format!("may {role}")) };
        let intent = Intent { operation: "dashboard.link", ..Intent::default() };
        self.write_act(record(peer, intent, answer.as_ref().map(done)));
    }

    pub(crate) fn reloaded(&self, peer: Option<&PeerProcess>, changes: &[ConfigChange]) {
        for ConfigChange { key, old, new, live } in changes {
            let at = if *live { "" } else { " (at the next start)" };
            self.write_act(Action {
                old: Some(short(format!("{key} {old}"))),
                new: Some(short(format!("{key} {new}{at}"))),
                ..act_of("daemon.reload", peer)
            });
        }
    }

    pub(crate) fn reload_failed(&self, peer: Option<&PeerProcess>, why: &str) {
        self.write_act(Action {
            result: Outcome::Failed,
            error_code: Some(code_name(FailureCode::BadRequest).to_owned()),
            why: Some(short(why.to_owned())),
            ..act_of("daemon.reload", peer)
        });
    }

    /// Logs that a session lost its name to a new session of an administrator.
    pub(crate) fn renamed(&self, peer: &PeerProcess, session: SessionId, old: &str, new: &str) {
        let (old, new) = (Some(old.to_owned()), Some(new.to_owned()));
        let intent = Intent {
            operation: "session.rename",
            session: Some(session),
            name: new.clone(),
            gpu: None,
        };
        let done = Done { session: None, old, new };
        self.write_act(record(peer, intent, Ok(done)));
    }

    /// Logs that a session has expired.
    pub(crate) fn expired(&self, id: SessionId, name: &str, was: &str) {
        Operation::of("session.expire", id, name)
            .always()
            .info(format_args!("the time of session {name} ({id}) is over"));
        self.write_act(Action {
            session_id: Some(id),
            session: Some(name.to_owned()),
            old: Some(was.to_owned()),
            new: Some("expired".to_owned()),
            ..act_of("session.expire", None)
        });
    }

    /// Logs that the daemon killed a process, or failed to.
    pub(crate) fn killed(
        &self,
        client: ClientId,
        (session, name): (SessionId, String),
        (pid, uid): (u32, Option<u32>),
        cause: Option<&std::io::Error>,
    ) {
        let operation = Operation::of("process.kill", session, &name).process(pid).always();
        let operation = uid.map_or(operation, |uid| operation.user(uid));
        match cause {
            None => operation.warn(format_args!("ended {client} (pid {pid}): it did not let go of the GPU")),
            Some(cause) => operation.failed(Outcome::Failed, "kill").warn(format_args!(
                "cannot end {client} (pid {pid}), which does not let go of the GPU: {cause}"
            )),
        }
        self.write_act(Action {
            session_id: Some(session),
            session: Some(name),
            old: Some(format!("pid {pid} does not let go of the GPU")),
            new: cause.is_none().then(|| format!("pid {pid} is ended")),
            result: if cause.is_none() { Outcome::Ok } else { Outcome::Failed },
            error_code: cause.map(|_| "kill".to_owned()),
            why: cause.map(ToString::to_string),
            ..act_of("process.kill", None)
        });
    }

    /// Logs an administrative request of a peer that is not an administrator.
    pub(crate) fn trespassed(&mut self, (pid, uid): (u32, u32), why: String) {
        if self.passes(&Tenant::User(User::Uid(uid)), uid, "") {
            self.write_act(Action {
                uid,
                pid,
                result: Outcome::Refused,
                error_code: Some(code_name(FailureCode::Permission).to_owned()),
                why: Some(short(why)),
                ..act_of("daemon.administrate", None)
            });
        }
    }

    /// Returns the audit line about the registration of a session; none if the user has too many lines.
    pub(crate) fn registered(
        &mut self,
        peer: &PeerProcess,
        wished: Option<&str>,
        answer: &Result<TenantReply, Failure>,
        sessions: &Sessions,
    ) -> Option<Action> {
        if !self.passes(&Tenant::User(peer.owner()), peer.uid, "") {
            return None;
        }
        let result = answer.as_ref().map(|reply| match reply {
            TenantReply::Session { session, name, .. } => made(*session, name, sessions),
            _ => Done::default(),
        });
        let name = wished.map(plain);
        Some(record(peer, Intent { operation: "session.register", name, ..Intent::default() }, result))
    }

    /// Returns the audit line about a user's `operation` on a session of their own; none if the user has too many
    /// lines.
    pub(crate) fn changed_own(
        &mut self,
        peer: &PeerProcess,
        operation: &'static str,
        session: Option<SessionId>,
        answer: &Result<TenantReply, Failure>,
        sessions: &Sessions,
    ) -> Option<Action> {
        if !self.passes(&Tenant::User(peer.owner()), peer.uid, "") {
            return None;
        }
        let done = answer.as_ref().map(|reply| match reply {
            TenantReply::Resized { old, new } | TenantReply::FrostChanged { old, new } => {
                Done { session: None, old: Some(old.clone()), new: Some(new.clone()) }
            }
            _ => Done::default(),
        });
        let name = session.map(|session| sessions.name(session));
        Some(record(peer, Intent { operation, session, name, gpu: None }, done))
    }

    pub(crate) fn refused(
        &mut self,
        session: SessionId,
        sessions: &Sessions,
        (pid, uid): (u32, u32),
        (gpu, uuid): (GpuId, Option<GpuUuid>),
        (MemoryRefusal { requested, limit, used, by }, times): (MemoryRefusal, u64),
    ) {
        let name = sessions.name(session);
        let tenant = Tenant::of(session, sessions.get(session));
        let passes = self.passes(&tenant, uid, &name);
        self.lines.omit(&tenant, times.saturating_sub(1));
        if !passes {
            return;
        }
        self.log.write(Entry::Refusal(Refusal {
            operation: RESERVE.to_owned(),
            session_id: session,
            session: name,
            uid,
            pid,
            gpu,
            uuid,
            requested,
            limit,
            used,
            by,
            result: Outcome::Refused,
            error_code: OUT_OF_MEMORY.to_owned(),
        }));
    }

    /// Logs a lease. Every lease gets a debug line in the log, and some leases get a line in the audit log.
    pub(crate) fn leased(&mut self, client: &Client, sessions: &Sessions, gpu: GpuId, bytes: Bytes) {
        let (session, pid) = (client.session, client.peer.pid);
        let name = sessions.name(session);
        Operation::of(RESERVE, session, &name)
            .process(pid)
            .on(gpu)
            .bytes(bytes)
            .debug(format_args!("{name} got {bytes} on {gpu}, pid {pid}"));
        if let Some(one_in) = self.log.samples_reservation() {
            self.log.write(Entry::Allocation(Allocation {
                operation: RESERVE.to_owned(),
                session_id: session,
                session: name,
                uid: client.peer.uid,
                pid,
                gpu,
                bytes,
                leased: client.page.leased(gpu).unwrap_or_default(),
                result: Outcome::Ok,
                one_in,
            }));
        }
    }

    /// Logs the number of omitted audit lines of a session that is over.
    pub(crate) fn forget(&mut self, id: SessionId, session: &Session) {
        let tenant = Tenant::of(id, Some(session));
        let left_out = match tenant {
            Tenant::Session(_) => self.lines.remove(&tenant),
            // The user goes on being limited.
            Tenant::User(_) => self.lines.sum_up(&tenant),
        };
        self.sum_up(&tenant, session.uid(), &session.name, left_out);
    }

    /// Returns whether a tenant may get an audit line now. First logs the number of lines omitted before.
    fn passes(&mut self, tenant: &Tenant, uid: u32, session: &str) -> bool {
        let left_out = self.lines.admit(tenant.clone(), clock::monotonic());
        self.sum_up(tenant, uid, session, left_out.unwrap_or(0));
        left_out.is_some()
    }

    fn sum_up(&self, tenant: &Tenant, uid: u32, session: &str, count: u64) {
        if count > 0 {
            let (session_id, uid) = match tenant {
                Tenant::Session(id) => (Some(*id), None),
                Tenant::User(_) => (None, Some(uid)),
            };
            let session = session_id.map(|_| session.to_owned());
            self.log.write(Entry::Omitted { session_id, session, uid, count });
        }
    }
}

/// Describes an administrator's request before it is carried out.
pub(crate) fn intent(request: &SessionRequest, sessions: &Sessions) -> Intent {
    let (operation, which) = match request {
        SessionRequest::Create { new, .. } => {
            // The name may be another session's until this one is made.
            let name = new.name.as_deref().map(plain);
            return Intent { operation: "session.create", name, ..Intent::default() };
        }
        SessionRequest::Change { which, change } => {
            let operation = match change {
                Change::Memory(_) => "session.set_memory",
                Change::Compute(_) => "session.set_compute",
                Change::Weight(_) => "session.set_weight",
                Change::Priority(_) => "session.set_priority",
                Change::FreezeAfter(_) => "session.set_freeze_after",
            };
            (operation, which)
        }
        SessionRequest::Renew { which, .. } | SessionRequest::Endless { which } => ("session.renew", which),
        SessionRequest::Revoke { which } => ("session.revoke", which),
        SessionRequest::Delete { which } => ("session.delete", which),
        SessionRequest::Pause { which } => ("session.pause", which),
        SessionRequest::Resume { which } => ("session.resume", which),
        SessionRequest::Token { which } => ("session.token", which),
        SessionRequest::Freeze { which } => ("session.freeze", which),
        SessionRequest::Thaw { which } => ("session.thaw", which),
    };
    let which = plain(which);
    let session = sessions.named(&which).ok();
    let name = session.map_or(which, |session| sessions.name(session));
    Intent { operation, session, name: Some(name), gpu: None }
}

/// Logs an administrator's request with its answer. Returns the audit line, which is written when the result
/// is certain.
pub(crate) fn acted(
    peer: &PeerProcess,
    intent: Intent,
    answer: &Result<AdminReply, Failure>,
    sessions: &Sessions,
) -> Action {
    let result = answer.as_ref().map(|reply| match reply {
        AdminReply::Created { session, name, .. } => made(*session, name, sessions),
        AdminReply::Token { session, name, .. } => {
            let new = Some("another token".to_owned());
            Done { session: Some((*session, name.clone())), old: None, new }
        }
        reply => changed(reply),
    });
    record(peer, intent, result)
}

fn changed(reply: &AdminReply) -> Done {
    match reply {
        AdminReply::Changed { old, new } => {
            Done { session: None, old: Some(old.clone()), new: Some(new.clone()) }
        }
        _ => Done::default(),
    }
}

fn made(session: SessionId, name: &str, sessions: &Sessions) -> Done {
    let terms = sessions.get(session).map(|known| {
        let state = known.state(clock::boot());
        let ends = state.expires_in_ns.map_or(String::new(), |left| format!(", ends in {left}"));
        format!("memory {}, for {}{ends}", state.terms.memory, state.binding)
    });
    Done { session: Some((session, name.to_owned())), old: None, new: terms }
}

/// Logs a request with its result. Returns the audit line about the request.
fn record(peer: &PeerProcess, intent: Intent, result: Result<Done, &Failure>) -> Action {
    let Intent { operation, session, name, gpu } = intent;
    let (Done { session: found, old, new }, failure) = match result {
        Ok(done) => (done, None),
        Err(failure) => (Done::default(), Some(failure)),
    };
    let (session, name) = match found {
        Some((session, name)) => (Some(session), Some(name)),
        None => (session, name),
    };
    let record = match (session, &name) {
        (Some(session), Some(name)) => Operation::of(operation, session, name),
        _ => Operation::done(operation),
    };
    let mut record = record.peer(peer).always();
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
    let outcome = match (failure, &old, &new) {
        (Some(failure), ..) => {
            record = record.failed(outcome_of(failure.code), code_name(failure.code));
            format!(" failed: {}", failure.message)
        }
        (None, Some(old), Some(new)) => format!(": {old} → {new}"),
        (None, _, Some(new)) => format!(": {new}"),
        (None, ..) => String::new(),
    };
    record.info(format_args!("pid {pid}, user {uid}: {operation}{on}{outcome}"));
    Action {
        session_id: session,
        session: name,
        gpu,
        old: old.map(short),
        new: new.map(short),
        result: failure.map_or(Outcome::Ok, |failure| outcome_of(failure.code)),
        error_code: failure.map(|failure| code_name(failure.code).to_owned()),
        why: failure.map(|failure| short(failure.message.clone())),
        ..act_of(operation, Some(peer))
    }
}

/// Returns an audit line about a successful act of `peer`, or of the daemon itself without a peer.
fn act_of(operation: &str, peer: Option<&PeerProcess>) -> Action {
    Action {
        operation: operation.to_owned(),
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

fn short(text: String) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
