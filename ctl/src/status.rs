//! Command `status`: prints the state of the daemon, its cards and sessions: in one screen, as tables, or as
//! JSON.

mod compact;
mod words;

pub(crate) use self::words::course;

use gpushare_proto::admin::{
    AdminReply, AdminRequest, CapacityView, CopiesView, GpuView, LockView, ResidenceView, SessionView,
    Status, UserView,
};
use gpushare_proto::handoff::CardHandoffs;
use gpushare_proto::session::{Binding, FreezeAfter, SessionPhase, Terms};
use gpushare_proto::{Bytes, GateState, Nanos};
use serde::Serialize;

use crate::cli::StatusArgs;
use crate::exit::CtlError;
use crate::output;
use crate::places::Places;
use crate::table::{Column, harmless, list, short, table};
use crate::users;
use gpushare_connection::{Admin, Client, ClientError};

/// State of the daemon with what the capacities of its cards consist of, the users of its sessions, the
/// places of remapped memory, its handoffs, and the host copies that processes share. What an older daemon
/// does not tell is none.
#[derive(Serialize)]
struct Model {
    #[serde(flatten)]
    status: Status,
    capacities: Option<Vec<CapacityView>>,
    users: Option<Vec<UserView>>,
    residences: Option<Vec<ResidenceView>>,
    handoffs: Option<Vec<CardHandoffs>>,
    copies: Option<CopiesView>,
}

/// Connection to a daemon that may be older than this program.
struct Asker<'a> {
    client: Client<Admin>,
    places: &'a Places,
}

impl Asker<'_> {
    /// Asks a question that an older daemon may not know. Such a daemon closes the connection without an
    /// answer, so the next question needs another one.
    fn ask<T>(
        &mut self,
        request: &AdminRequest,
        answer: impl FnOnce(AdminReply) -> Option<T>,
    ) -> Result<Option<T>, ClientError> {
        match self.client.ask(request) {
            Ok(reply) => answer(reply).map(Some).ok_or_else(|| self.client.unexpected()),
            Err(ClientError::Closed(_)) => {
                self.client = Client::connect(self.places.administered())?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn residences(&mut self) -> Result<Option<Vec<ResidenceView>>, ClientError> {
        self.ask(&AdminRequest::Residences, |reply| match reply {
            AdminReply::Residences(places) => Some(places),
            _ => None,
        })
    }

    fn copies(&mut self) -> Result<Option<CopiesView>, ClientError> {
        self.ask(&AdminRequest::Copies, |reply| match reply {
            AdminReply::Copies(copies) => Some(copies),
            _ => None,
        })
    }

    fn handoffs(&mut self) -> Result<Option<Vec<CardHandoffs>>, ClientError> {
        self.ask(&AdminRequest::Handoffs, |reply| match reply {
            AdminReply::Handoffs(handoffs) => Some(handoffs),
            _ => None,
        })
    }
}

pub(crate) fn status(args: &StatusArgs, places: &Places) -> Result<(), CtlError> {
    let mut asker = Asker { client: Client::connect(places.administered())?, places };
    let status = fetch(&mut asker.client)?;
    if !(args.verbose || args.json) {
        let residences = asker.residences()?.unwrap_or_default();
        // Without remapped memory there are no handoffs and no copies to show.
        let (handoffs, copies) = match residences.is_empty() {
            true => (None, None),
            false => (asker.handoffs()?, asker.copies()?),
        };
        let (handoffs, copies) = (handoffs.unwrap_or_default(), copies.unwrap_or_default());
        let remapped = compact::Remapped { residences, handoffs, copies };
        return Ok(output::print(&compact::page(&status, &remapped, output::Paint::of_stdout()))?);
    }
    let model = Model {
        capacities: asker.ask(&AdminRequest::Capacities, |reply| match reply {
            AdminReply::Capacities(capacities) => Some(capacities),
            _ => None,
        })?,
        users: asker.ask(&AdminRequest::Users, |reply| match reply {
            AdminReply::Users(users) => Some(users),
            _ => None,
        })?,
        residences: asker.residences()?,
        handoffs: asker.handoffs()?,
        copies: asker.copies()?,
        status,
    };
    Ok(output::show(args.json, &model, || render(&model))?)
}

pub(crate) fn fetch(client: &mut Client<Admin>) -> Result<Status, ClientError> {
    match client.ask(&AdminRequest::Status)? {
        AdminReply::Status(status) => Ok(*status),
        _ => Err(client.unexpected()),
    }
}

fn render(model: &Model) -> String {
    let Model { status, capacities, users, residences, handoffs, copies } = model;
    let mut page = daemon(status);
    page += "\n";
    page += &if status.gpus.is_empty() {
        "no cards yet; without NVML a card appears with its first process\n".to_owned()
    } else {
        gpus(&status.gpus) + &capacities.iter().flatten().map(capacity).collect::<String>()
    };
    page += "\n";
    page += &if status.sessions.is_empty() {
        "no sessions; start one with `gpushare-ctl run -- CMD`\n".to_owned()
    } else {
        sessions(&status.sessions)
    };
    page += &section(
        residences.as_deref().unwrap_or_default(),
        &[
            ("SESSION", |place| place.session.to_string()),
            ("GPU", |place| place.gpu.to_string()),
            ("ON CARD", |place| place.resident_bytes.to_string()),
            ("IN HOST MEMORY", |place| place.hosted_bytes.to_string()),
            ("MAPPED FROM HOST", |place| place.mapped_bytes.to_string()),
            ("MOVING", |place| place.moving_bytes.to_string()),
        ],
    );
    page += &section(&handoffs.iter().flatten().flat_map(words::rows).collect::<Vec<_>>(), &words::COLUMNS);
    if let Some(line) = copies.as_ref().and_then(words::copies) {
        page += &format!("\n{line}");
    }
    page += &section(
        users.as_deref().unwrap_or_default(),
        &[
            ("USER", |user| users::name(&user.user)),
            ("WEIGHT", |user| user.weight.to_string()),
            ("SESSIONS", |user| user.sessions.to_string()),
        ],
    );
    let older =
        [capacities.is_none(), users.is_none(), residences.is_none(), handoffs.is_none(), copies.is_none()];
    if older.contains(&true) {
        page += "\nthe daemon is older than gpushare-ctl and does not tell everything; restart it when that suits\n";
    }
    page + &unevictable(&status.sessions)
}

fn daemon(status: &Status) -> String {
    let daemon = &status.daemon;
    let mut line =
        format!("gpushare {}, pid {}, up {}", harmless(&daemon.version), daemon.pid, short(daemon.uptime_ns));
    if daemon.recovering > 0 {
        line +=
            &format!("; grants on their cards wait for {} processes of the last daemon", daemon.recovering);
    }
    line + "\n"
}

fn gpus(gpus: &[GpuView]) -> String {
    table(
        gpus,
        &[
            ("GPU", |gpu| gpu.gpu.to_string()),
            ("NAME", |gpu| gpu.name.clone()),
            ("MODE", |gpu| gpu.mode.name().to_owned()),
            ("CAPACITY", |gpu| gpu.capacity_bytes.to_string()),
            ("ALLOCATED", |gpu| gpu.allocated_bytes.to_string()),
            ("HOLDERS", |gpu| list(&gpu.holders)),
            ("QUEUE", |gpu| list(&gpu.queue)),
            ("QUANTUM", |gpu| short(gpu.quantum_ns)),
            ("HANDOFFS", |gpu| gpu.handoffs.to_string()),
            ("WHY", |gpu| gpu.reason.clone()),
        ],
    )
}

/// Returns a line about what the capacity of a card consists of, and what another program can use.
fn capacity(card: &CapacityView) -> String {
    let CapacityView { gpu, total_bytes, set_bytes, contexts_bytes, fixed_bytes, .. } = card;
    let base = match set_bytes {
        Some(set) => format!("{set} by the administrator"),
        None => format!("{total_bytes} less {contexts_bytes} for contexts"),
    };
    let next = match set_bytes {
        Some(_) => String::new(),
        None => format!(" beside its context, taken as {}", card.next_context_bytes),
    };
    let usable = card.usable_bytes;
    format!(
        "{gpu}: capacity {base} less {fixed_bytes} that cannot move; another program can use {usable}{next}\n"
    )
}

/// Returns the table of sessions for `status` and `session list`.
pub(crate) fn sessions(sessions: &[SessionView]) -> String {
    table(
        sessions,
        &[
            ("SESSION", |session| session.session.to_string()),
            ("NAME", |session| session.name.clone()),
            ("MEMORY", memory),
            ("LOCK", |session| lock(session).0),
            ("WAITED", |session| short(session.waited_ns)),
            ("PROCESSES", |session| list(session.clients.iter().map(|client| client.pid))),
            ("WHY", |session| lock(session).1),
        ],
    )
}

/// Returns words for a session's allocated bytes per card and its memory quota.
fn memory(session: &SessionView) -> String {
    let used = match &session.gpus[..] {
        [] => Bytes::ZERO.to_string(),
        [only] => only.allocated_bytes.to_string(),
        several => list(several.iter().map(|gpu| format!("{} on {}", gpu.allocated_bytes, gpu.gpu))),
    };
    let quota = &session.state.terms.memory;
    match quota.amounts().next() {
        Some(_) => format!("{used} of {quota}"),
        None => used,
    }
}

/// Returns words for a session's lock state, or for a phase that prevents grants, and for the reason.
fn lock(session: &SessionView) -> (String, String) {
    let standing = match session.state.standing {
        SessionPhase::Good => "idle",
        SessionPhase::Paused => "paused",
        SessionPhase::Expired => "expired",
        SessionPhase::Revoked => "revoked",
    };
    match &session.lock {
        LockView::Idle => (standing.to_owned(), String::new()),
        LockView::Waiting { reason, .. } if session.state.standing != SessionPhase::Good => {
            (standing.to_owned(), reason.clone())
        }
        LockView::Frozen if session.state.standing == SessionPhase::Good => {
            ("frozen".to_owned(), String::new())
        }
        LockView::Frozen => (format!("{standing}, frozen"), String::new()),
        LockView::Holding { .. } => ("holding".to_owned(), String::new()),
        LockView::Dropping { tries, stuck, reason } => {
            let state = if *stuck { "stuck" } else { "dropping" };
            (format!("{state}, try {tries}"), reason.clone())
        }
        LockView::Waiting { ahead, reason } => (format!("waiting, {ahead} ahead"), reason.clone()),
    }
}

fn frozen_after(after: FreezeAfter) -> String {
    match after {
        FreezeAfter::Idle(time) => format!("after {} of idleness", short(time)),
        FreezeAfter::Never => "on request only".to_owned(),
        FreezeAfter::Usual => "as the daemon's freeze_after says".to_owned(),
    }
}

pub(crate) fn one_session(session: &SessionView) -> String {
    let (lock, why) = lock(session);
    let Terms { memory, compute, weight, priority, labels, freeze_after, .. } = &session.state.terms;
    let default = Terms::default();
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let made_by = match (session.implicit, session.state.kept) {
        (true, _) => "the daemon, for processes without a token",
        (false, true) => "gpushare-ctl session create",
        (false, false) => "gpushare-ctl run",
    };
    let ends = |left: Nanos| {
        if left.is_zero() {
            "is over".to_owned()
        } else {
            format!("in {}", short(left))
        }
    };
    let binding = &session.state.binding;
    let figures = [
        ("session", Some(session.session.to_string())),
        ("name", Some(session.name.clone())),
        ("made by", Some(made_by.to_owned())),
        ("quota", Some(memory.to_string())),
        ("lock", Some(if why.is_empty() { lock } else { format!("{lock}: {why}") })),
        ("waited", Some(short(session.waited_ns))),
        ("held", Some(short(session.held_ns))),
        ("refusals", Some(session.refusals.to_string())),
        ("compute", (*compute != default.compute).then(|| compute.to_string())),
        ("weight", (*weight != default.weight).then(|| weight.to_string())),
        ("priority", (*priority != default.priority).then(|| priority.to_string())),
        ("freezes", (*freeze_after != default.freeze_after).then(|| frozen_after(*freeze_after))),
        ("belongs", (*binding != Binding::Token).then(|| binding.to_string())),
        ("ends", session.state.expires_in_ns.map(ends)),
        ("labels", (!labels.is_empty()).then(|| labels.join(", "))),
    ];
    let lines = figures.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let page: String = lines.map(|(name, value)| format!("{name:<10}{}\n", harmless(&value))).collect();
    page + &cards_of(session) + &processes_of(session) + &unevictable(std::slice::from_ref(session))
}

/// Returns a line for each process whose memory may not be moved off the card, with the reason.
fn unevictable(sessions: &[SessionView]) -> String {
    let mut lines = String::new();
    for session in sessions {
        for client in session.clients.iter().filter(|client| !client.evictable) {
            let (pid, name) = (client.pid, &session.name);
            let line = match &client.unknown_functions[..] {
                [] => format!("process {pid} of {name} is reported as not evictable"),
                functions => format!(
                    "process {pid} of {name} is reported as not evictable: it uses driver functions that gpushare does not \
                     know ({}); update gpushare",
                    list(functions)
                ),
            };
            lines += &format!("\n{}\n", harmless(&line));
        }
    }
    lines
}

fn cards_of(session: &SessionView) -> String {
    section(
        &session.gpus,
        &[
            ("GPU", |gpu| gpu.gpu.to_string()),
            ("ALLOCATED", |gpu| gpu.allocated_bytes.to_string()),
            ("LEASED", |gpu| gpu.leased_bytes.to_string()),
            ("PEAK", |gpu| gpu.peak_bytes.to_string()),
        ],
    )
}

fn processes_of(session: &SessionView) -> String {
    section(
        &session.clients,
        &[
            ("PROCESS", |client| client.client.to_string()),
            ("PID", |client| client.pid.to_string()),
            ("GATE", |client| gate(client.gate).to_owned()),
            ("SLEEPS AT IT", |client| if client.waiting { "yes" } else { "no" }.to_owned()),
        ],
    )
}

/// Returns an empty line and a table of `items`; an empty text without items.
fn section<T>(items: &[T], columns: &[Column<T>]) -> String {
    if items.is_empty() {
        String::new()
    } else {
        format!("\n{}", table(items, columns))
    }
}

fn gate(state: GateState) -> &'static str {
    match state {
        GateState::Closed => "closed",
        GateState::Moving => "moving memory in",
        GateState::Open => "open",
        GateState::Idle => "proving idle",
    }
}
