//! Command `status`: prints the state of the daemon, its cards and sessions: in one screen, as tables, or as
//! JSON.

mod compact;

use gpushare_proto::admin::{
    AdminReply, AdminRequest, CapacityView, GpuView, LockView, ResidenceView, SessionView, Status, UserView,
};
use gpushare_proto::session::{Binding, SessionPhase, Terms};
use gpushare_proto::{Bytes, GateState, Nanos};
use serde::Serialize;

use crate::cli::StatusArgs;
use crate::exit::CtlError;
use crate::output;
use crate::places::Places;
use crate::table::{Column, harmless, list, short, table};
use crate::users;
use gpushare_connection::{Admin, Client, ClientError};

/// State of the daemon with what the capacities of its cards consist of, the users of its sessions, and the places
/// of remapped memory.
#[derive(Serialize)]
struct Model {
    #[serde(flatten)]
    status: Status,
    capacities: Vec<CapacityView>,
    users: Vec<UserView>,
    residences: Vec<ResidenceView>,
}

pub(crate) fn status(args: &StatusArgs, places: &Places) -> Result<(), CtlError> {
    let mut client = Client::connect(places.administered())?;
    let status = fetch(&mut client)?;
    if !(args.verbose || args.json) {
        return Ok(output::print(&compact::page(&status, output::Paint::of_stdout()))?);
    }
    let AdminReply::Capacities(capacities) = client.ask(&AdminRequest::Capacities)? else {
        return Err(client.unexpected().into());
    };
    let AdminReply::Users(users) = client.ask(&AdminRequest::Users)? else {
        return Err(client.unexpected().into());
    };
    let AdminReply::Residences(residences) = client.ask(&AdminRequest::Residences)? else {
        return Err(client.unexpected().into());
    };
    let model = Model { status, capacities, users, residences };
    Ok(output::show(args.json, &model, || render(&model))?)
}

pub(crate) fn fetch(client: &mut Client<Admin>) -> Result<Status, ClientError> {
    match client.ask(&AdminRequest::Status)? {
        AdminReply::Status(status) => Ok(*status),
        _ => Err(client.unexpected()),
    }
}

fn render(Model { status, capacities, users, residences }: &Model) -> String {
    let mut page = daemon(status);
    page += "\n";
    page += &if status.gpus.is_empty() {
        "no cards yet; without NVML a card appears with its first process\n".to_owned()
    } else {
        gpus(&status.gpus) + &capacities.iter().map(capacity).collect::<String>()
    };
    page += "\n";
    page += &if status.sessions.is_empty() {
        "no sessions; start one with `gpushare-ctl run -- CMD`\n".to_owned()
    } else {
        sessions(&status.sessions)
    };
    page += &section(
        residences,
        &[
            ("SESSION", |place| place.session.to_string()),
            ("GPU", |place| place.gpu.to_string()),
            ("ON CARD", |place| place.resident_bytes.to_string()),
            ("IN HOST MEMORY", |place| place.hosted_bytes.to_string()),
            ("MAPPED FROM HOST", |place| place.mapped_bytes.to_string()),
            ("MOVING", |place| place.moving_bytes.to_string()),
        ],
    );
    page += &section(
        users,
        &[
            ("USER", |user| users::name(&user.user)),
            ("WEIGHT", |user| user.weight.to_string()),
            ("SESSIONS", |user| user.sessions.to_string()),
        ],
    );
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
        LockView::Holding { .. } => ("holding".to_owned(), String::new()),
        LockView::Dropping { tries, stuck, reason } => {
            let state = if *stuck { "stuck" } else { "dropping" };
            (format!("{state}, try {tries}"), reason.clone())
        }
        LockView::Waiting { ahead, reason } => (format!("waiting, {ahead} ahead"), reason.clone()),
    }
}

pub(crate) fn one_session(session: &SessionView) -> String {
    let (lock, why) = lock(session);
    let Terms { memory, compute, weight, priority, labels, .. } = &session.state.terms;
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
