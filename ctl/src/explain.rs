//! Command `explain`: prints the daemon's facts about a session's refused memory requests and waits as
//! sentences.

use gpushare_proto::admin::{AdminReply, AdminRequest, FrostStage, FrostView, LockView, ResidenceView};
use gpushare_proto::explain::{CardLimitsView, Explanation, OrphanView, RefusalView, WaitReason, WaitView};
use gpushare_proto::handoff::{CardHandoffs, Direction, Handoff};
use gpushare_proto::page::{LimitKind, MemoryRefusal};
use gpushare_proto::session::SessionPhase;
use gpushare_proto::tenant::FailureCode;
use gpushare_proto::{Bytes, Nanos, SessionId};
use serde::Serialize;

use crate::cli::ExplainArgs;
use crate::exit::CtlError;
use crate::output;
use crate::places::Places;
use crate::status;
use crate::table::{count, harmless, short, table};
use gpushare_connection::{Admin, Client, ClientError};

pub(crate) fn explain(args: &ExplainArgs, places: &Places) -> Result<(), CtlError> {
    let mut client = Client::<Admin>::connect(places.administered())?;
    let which = args.which.clone();
    let AdminReply::Explained(explanation) = client.ask(&AdminRequest::Explain { which })? else {
        return Err(client.unexpected().into());
    };
    let which = explanation.session.session.to_string();
    let orphaned = match client.ask(&AdminRequest::Orphaned { which }) {
        Ok(AdminReply::Orphaned(orphaned)) => orphaned,
        // The session has just ended; a session with orphaned memory does not end.
        Err(ClientError::Refused(failure)) if failure.code == FailureCode::NotFound => Vec::new(),
        Ok(_) => return Err(client.unexpected().into()),
        Err(error) => return Err(error.into()),
    };
    // An older daemon does not know the question, and closes the connection.
    let mut residences = match client.ask(&AdminRequest::Residences) {
        Ok(AdminReply::Residences(residences)) => residences,
        _ => Vec::new(),
    };
    residences.retain(|place| place.session == explanation.session.session);
    let which = explanation.session.session.to_string();
    let frost = match client.ask(&AdminRequest::Frost { which: which.clone() }) {
        Ok(AdminReply::Frost(frost)) => Some(frost),
        _ => None,
    };
    // Without remapped memory there is no handoff to show.
    let mut handoffs = match residences.is_empty() {
        true => Vec::new(),
        false => match client.ask(&AdminRequest::HandoffsOf { which }) {
            Ok(AdminReply::Handoffs(handoffs)) => handoffs,
            _ => Vec::new(),
        },
    };
    keep_own(&mut handoffs, explanation.session.session, &residences);
    let all = Explained { explanation: *explanation, orphaned, residences, handoffs, frost };
    Ok(output::show(args.json, &all, || page(&all))?)
}

/// Facts of the daemon about one session's refused memory requests, waits and dead processes.
#[derive(Debug, Serialize)]
struct Explained {
    #[serde(flatten)]
    explanation: Explanation,
    /// Memory of the session's dead processes that the driver has not freed yet.
    orphaned: Vec<OrphanView>,
    /// Places of the session's remapped memory, by card.
    residences: Vec<ResidenceView>,
    /// Running and last handoff on each card that move or moved the session's memory; none from an older daemon.
    handoffs: Vec<CardHandoffs>,
    /// Extent to which the session is frozen, and what stands in the way of it; none from an older daemon.
    frost: Option<FrostView>,
}

fn page(all: &Explained) -> String {
    let facts = &all.explanation;
    let name = &facts.session.name;
    let mut lines = vec![format!("session {name} ({})", facts.session.session)];
    lines.extend(standing(facts));
    lines.push(String::new());
    lines.extend(match &facts.wait {
        Some(wait) => waits(name, wait),
        None => vec![runs(facts)],
    });
    lines.extend(all.residences.iter().map(place));
    lines.extend(all.handoffs.iter().flat_map(|card| handoffs(facts.session.session, card)));
    lines.extend(all.frost.as_ref().and_then(|frost| frozen(name, frost)));
    lines.push(String::new());
    lines.extend(refusals(facts));
    lines.extend(orphaned(&all.orphaned));
    let text: String = lines.iter().map(|line| harmless(line) + "\n").collect();
    match &facts.cards[..] {
        [] => text,
        cards => format!("{text}\n{}", limits(cards)),
    }
}

/// Returns the sentence for a session that is frozen or cannot be.
fn frozen(name: &str, frost: &FrostView) -> Option<String> {
    match (frost.stage, &frost.obstacle) {
        (FrostStage::Frozen, _) => Some(format!(
            "it is frozen: its memory is in host memory, and comes back with its next call of the driver, or by \
             `gpushare-ctl session thaw {name}`"
        )),
        (FrostStage::Freezing, None) => Some("it is being frozen".to_owned()),
        (FrostStage::Thawing, _) => Some("it was frozen, and comes back".to_owned()),
        (FrostStage::Freezing | FrostStage::Warm | FrostStage::Unexamined, Some(_)) => {
            kept_warm(frost).map(|words| format!("it {words}"))
        }
        (FrostStage::Warm | FrostStage::Unexamined, None) => to_freeze(frost),
    }
}

/// Returns what keeps a session from being frozen, in words that follow its name; none if nothing does.
pub(crate) fn kept_warm(frost: &FrostView) -> Option<String> {
    let obstacle = frost.obstacle.as_ref()?;
    match frost.stage {
        FrostStage::Freezing => Some(format!("is being frozen, and waits: {obstacle}")),
        FrostStage::Warm | FrostStage::Unexamined => Some(format!("cannot be frozen: {obstacle}")),
        FrostStage::Frozen | FrostStage::Thawing => None,
    }
}

/// Returns the sentence for a session that is frozen after it was idle for a while.
fn to_freeze(frost: &FrostView) -> Option<String> {
    let after = short(frost.freeze_after_ns?);
    Some(match frost.idle_ns {
        Some(idle) => format!("it is idle for {}, and is frozen after {after}", short(idle)),
        None => format!("it is frozen after {after} without work"),
    })
}

/// Returns the sentence for a session that is paused, expired or revoked.
fn standing(facts: &Explanation) -> Option<String> {
    let name = &facts.session.name;
    match facts.session.state.standing {
        SessionPhase::Good => None,
        SessionPhase::Paused => Some(format!(
            "it is paused: it keeps its memory and gets no turns; `gpushare-ctl session resume {name}` resumes it"
        )),
        SessionPhase::Expired => Some(format!(
            "it has expired: it gets no turns and no new memory; `gpushare-ctl session renew {name} --ttl 2h` renews it"
        )),
        SessionPhase::Revoked => Some(
            "it was revoked: it gets no turns and no new memory, and cannot be renewed; create another session with \
            `gpushare-ctl session create`, and delete this one when its processes have ended"
            .to_owned(),
        ),
    }
}

fn runs(facts: &Explanation) -> String {
    match &facts.session.lock {
        LockView::Idle => "it waits for nothing: none of its processes asks for a turn".to_owned(),
        LockView::Frozen => "it waits for nothing: none of its processes calls the driver".to_owned(),
        LockView::Holding { .. } => "it waits for nothing: it may submit work".to_owned(),
        LockView::Dropping { reason, .. } => format!("it is giving the card to others: {reason}"),
        LockView::Waiting { reason, .. } => format!("it waits: {reason}"),
    }
}

fn waits(name: &str, wait: &WaitView) -> Vec<String> {
    let mut lines = vec![match &wait.reason {
        WaitReason::Turn => format!("{name} waits, and its turn is next"),
        WaitReason::Holders => format!("{name} waits for its turn"),
        WaitReason::Stuck { name: holder, session, reason } => format!(
            "{name} waits for {holder} ({session}), which does not give the card back: {reason}; `gpushare-ctl session show \
            {session}` lists its processes"
        ),
        WaitReason::Recovering { processes: 0 } => {
            "the daemon restarted just now, and waits for the processes that use cards to come back"
                .to_owned()
        }
        WaitReason::Recovering { processes } => format!(
            "the daemon restarted, and {processes} processes that may use the session's cards have neither reconnected nor \
            ended"
        ),
        WaitReason::Limit { limit } => {
            format!("{name} has used up its compute limit of {limit} for now, and continues shortly")
        }
        WaitReason::Memory { reason, .. } => format!("{name} waits for its memory: {reason}"),
        WaitReason::Thaw { reason } => format!("{name} waits for its processes: {reason}"),
        WaitReason::Standing => format!("{name} waits until it is resumed or renewed, see above"),
    }];
    let stands = matches!(wait.reason, WaitReason::Turn | WaitReason::Holders | WaitReason::Stuck { .. });
    if stands {
        for holder in &wait.holders {
            let rest = match holder.rest_ns.is_zero() {
                true => "its turn is over, and its work in flight is ending".to_owned(),
                false => format!("about {} of its turn left", short(holder.rest_ns)),
            };
            lines.push(format!("  now    {} ({}): {rest}", holder.name, holder.session));
        }
        for (number, ahead) in (1..).zip(&wait.ahead) {
            let turn = short(ahead.turn_ns);
            lines.push(format!(
                "  ahead  {number}. {} ({}): a turn of about {turn}",
                ahead.name, ahead.session
            ));
        }
    }
    lines.push(match (wait.about_ns, &wait.reason) {
        (Some(about), WaitReason::Memory { missing_bytes, .. }) => format!(
            "{missing_bytes} are missing on its cards; they come in at about {}/s and are there in about {}",
            per_second(*missing_bytes, about),
            short(about)
        ),
        (None, WaitReason::Memory { missing_bytes, .. }) => {
            format!("{missing_bytes} are missing on its cards; the daemon cannot tell how long that takes")
        }
        (Some(about), _) => format!(
            "its turn comes in about {}: the rest of the holder's turn, {} ahead with a whole turn each, and {} for each \
            handoff; sooner if a session becomes idle or two fit beside each other",
            short(about),
            if wait.ahead.is_empty() { "no session".to_owned() } else { count(wait.ahead.len(), "session") },
            short(wait.handoff_ns)
        ),
        (None, _) => "the daemon cannot tell how long that takes".to_owned(),
    });
    lines
}

/// Returns the rate from which the daemon's estimate `about` of a move follows.
fn per_second(bytes: Bytes, about: Nanos) -> Bytes {
    let rate = u128::from(bytes.0) * 1_000_000_000 / u128::from(about.0.max(1));
    Bytes(u64::try_from(rate).unwrap_or(u64::MAX))
}

fn refusals(facts: &Explanation) -> Vec<String> {
    let all = facts.session.refusals;
    let Some(last) = facts.refusals.last() else {
        return vec![match all {
            0 => "it was never refused memory".to_owned(),
            _ => format!(
                "it was refused memory {all} times; the audit log has the details: `gpushare-ctl audit grep`"
            ),
        }];
    };
    let shown = facts.refusals.len();
    let mut lines = vec![match all {
        1 => "it was refused memory once:".to_owned(),
        _ => format!("it was refused memory {all} times; the last {shown}:"),
    }];
    lines.extend(facts.refusals.iter().rev().map(refusal));
    // For an expired session the remedy is given above.
    if !last.refusal.is_permanent() {
        lines.push(remedy(last.refusal.by, &facts.session.name));
    }
    lines
}

/// Returns the sentence about where remapped memory is.
fn place(view: &ResidenceView) -> String {
    let &ResidenceView { gpu, resident_bytes, hosted_bytes, mapped_bytes, moving_bytes, .. } = view;
    let mut line = match mapped_bytes.is_zero() {
        true => format!("{resident_bytes} of its memory are on {gpu}, {hosted_bytes} in host memory"),
        false => format!(
            "{gpu} has room for {resident_bytes} of its memory; {mapped_bytes} are mapped from the host, and kernels reach \
             them at the speed of the bus"
        ),
    };
    if !moving_bytes.is_zero() {
        line += &format!("; {moving_bytes} are to move");
    }
    line
}

/// Removes the handoffs that do not concern a session.
///
/// A running handoff concerns it as soon as memory of it is to move. An ended one has moved memory of it.
fn keep_own(handoffs: &mut Vec<CardHandoffs>, session: SessionId, residences: &[ResidenceView]) {
    for card in &mut *handoffs {
        let here = |place: &ResidenceView| place.gpu == card.gpu && !place.moving_bytes.is_zero();
        let is_to_move = residences.iter().any(here);
        card.running
            .take_if(|running| !is_to_move && own_bytes(session, running) == [None; 2]);
        card.last.take_if(|last| own_bytes(session, &last.handoff) == [None; 2]);
    }
    handoffs.retain(|card| card.running.is_some() || card.last.is_some());
}

/// Returns the bytes of a session that moved out and in; none for a direction without memory of it.
fn own_bytes(session: SessionId, handoff: &Handoff) -> [Option<Bytes>; 2] {
    let own = |way: &Direction| {
        let mut moves = way.sessions.iter();
        moves.find(|moved| moved.session == session).map(|moved| moved.bytes)
    };
    [own(&handoff.out), own(&handoff.into)]
}

/// Returns the sentences about the running handoff of a card and the session's last one there.
fn handoffs(session: SessionId, card: &CardHandoffs) -> Vec<String> {
    let gpu = card.gpu;
    let line = |which: String, handoff: &Handoff| {
        let [out, into] = own_bytes(session, handoff).map(Option::unwrap_or_default);
        format!("{which}: {}; {out} out and {into} in of it are its own", status::course(handoff))
    };
    let running = card
        .running
        .iter()
        .map(|running| line(format!("a handoff on {gpu} is under way"), running));
    let last = card.last.iter().map(|last| {
        let ago = short(last.ago_ns);
        line(format!("its last handoff on {gpu} ended {ago} ago"), &last.handoff)
    });
    running.chain(last).collect()
}

/// Returns the lines about the memory of dead processes, which counts against the session's quota.
fn orphaned(views: &[OrphanView]) -> Vec<String> {
    let mut lines: Vec<String> = views
        .iter()
        .map(|view| {
            format!(
                "{} on {} belong to pid {}, which ended {} ago, and are still on the card",
                view.bytes,
                view.gpu,
                view.pid,
                short(view.ago_ns)
            )
        })
        .collect();
    if !lines.is_empty() {
        lines.push(
            "they are freed when the processes that it forked have ended: `fuser -v /dev/nvidia*` lists them"
                .to_owned(),
        );
    }
    lines
}

fn refusal(RefusalView { ago_ns, pid, gpu, refusal, .. }: &RefusalView) -> String {
    format!("  {} ago, pid {pid} on {gpu}: {}", short(*ago_ns), asked(refusal))
}

/// Returns words for the bytes that were requested and for the limit that the request would exceed.
pub(crate) fn asked(refusal: &MemoryRefusal) -> String {
    let MemoryRefusal { requested, limit, used, by } = refusal;
    if refusal.is_permanent() {
        return format!("asked for {requested}, but the session was expired or revoked; it used {used}");
    }
    let name = match by {
        LimitKind::Session => "its quota",
        LimitKind::Capacity => "the card's capacity",
        LimitKind::ManagedLimit => "the limit on managed memory",
        LimitKind::HostMemory => "the card and the host memory together",
    };
    format!("asked for {requested}; {used} of {name} of {limit} are in use")
}

fn remedy(by: LimitKind, name: &str) -> String {
    match by {
        LimitKind::Session => {
            format!("to get more: free memory in the session, or `gpushare-ctl set memory 8GiB --session {name}`")
        }
        LimitKind::Capacity => {
            "to get more: make the session with --oversubscribe, which lifts the limit of the card's capacity".to_owned()
        }
        LimitKind::ManagedLimit => {
            "to get more: free memory in other sessions, or raise the limit with `gpushare-ctl set managed-limit`".to_owned()
        }
        LimitKind::HostMemory => "to get more: free memory in other sessions on the node, or raise `host_budget`".to_owned(),
    }
}

fn limits(cards: &[CardLimitsView]) -> String {
    fn limit(bytes: Bytes) -> String {
        match bytes {
            Bytes::MAX => "none".to_owned(),
            bytes => bytes.to_string(),
        }
    }
    table(
        cards,
        &[
            ("GPU", |card| card.gpu.to_string()),
            ("USED", |card| card.used_bytes.to_string()),
            ("QUOTA", |card| limit(card.limit_bytes.unwrap_or(Bytes::MAX))),
            ("CAPACITY", |card| card.capacity_bytes.to_string()),
            ("ALL USE", |card| card.all_used_bytes.to_string()),
            ("MANAGED LIMIT", |card| limit(card.managed_limit_bytes)),
        ],
    )
}
