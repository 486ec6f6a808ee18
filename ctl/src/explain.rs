//! `explain`: why a session was refused memory and why it waits, in sentences made of the daemon's facts.

use gpushare_proto::Bytes;
use gpushare_proto::admin::{AdminReply, AdminRequest, LockView};
use gpushare_proto::explain::{CardLimitsView, Explanation, OrphanView, RefusalView, WaitReason, WaitView};
use gpushare_proto::page::LimitKind;
use gpushare_proto::session::SessionPhase;
use gpushare_proto::tenant::FailureCode;
use serde::Serialize;

use crate::cli::ExplainArgs;
use crate::client::{Admin, Client, ClientError};
use crate::exit::CtlError;
use crate::output;
use crate::places::Places;
use crate::table::{Table, harmless, short};

/// Prints what is known of one session.
pub(crate) fn explain(args: &ExplainArgs, places: &Places) -> Result<(), CtlError> {
    let mut client = Client::<Admin>::connect(places.administered())?;
    let which = args.which.clone();
    let AdminReply::Explained(explanation) = client.ask(&AdminRequest::Explain { which })? else {
        return Err(client.unexpected().into());
    };
    let which = explanation.session.session.to_string();
    let orphaned = match client.ask(&AdminRequest::Orphaned { which }) {
        Ok(AdminReply::Orphaned(orphaned)) => orphaned,
        // It ended meanwhile, which it does not as long as there is any.
        Err(ClientError::Refused(failure)) if failure.code == FailureCode::NotFound => Vec::new(),
        Ok(_) => return Err(client.unexpected().into()),
        Err(error) => return Err(error.into()),
    };
    let all = Explained { explanation: *explanation, orphaned };
    if args.json {
        output::print_json(&all)?;
    } else {
        output::print(&page(&all))?;
    }
    Ok(())
}

/// All that the daemon says about one session.
#[derive(Debug, Serialize)]
struct Explained {
    #[serde(flatten)]
    explanation: Explanation,
    /// What its dead processes have on cards still.
    orphaned: Vec<OrphanView>,
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
    lines.push(String::new());
    lines.extend(refusals(facts));
    lines.extend(orphaned(&all.orphaned));
    let text: String = lines.iter().map(|line| harmless(line) + "\n").collect();
    match &facts.cards[..] {
        [] => text,
        cards => format!("{text}\n{}", limits(cards)),
    }
}

/// What keeps it from everything else, and what to do.
fn standing(facts: &Explanation) -> Option<String> {
    let name = &facts.session.name;
    match facts.session.state.standing {
        SessionPhase::Good => None,
        SessionPhase::Paused => Some(format!(
            "it is paused: it keeps its memory and is granted nothing; `gpushare-ctl session resume {name}` lets it go on"
        )),
        SessionPhase::Expired => Some(format!(
            "its time is over: no grants and no new memory; `gpushare-ctl session renew {name} --ttl 2h` lets it go on"
        )),
        SessionPhase::Revoked => Some(
            "it was revoked, which is for good: no grants and no new memory; make another one with `gpushare-ctl session \
             create`, and delete this one when its processes have ended"
            .to_owned(),
        ),
    }
}

fn runs(facts: &Explanation) -> String {
    match &facts.session.lock {
        LockView::Idle => "it waits for nothing: none of its processes asks for a turn".to_owned(),
        LockView::Holding { .. } => "it waits for nothing: it may submit work".to_owned(),
        LockView::Dropping { reason, .. } => format!("it is letting others have their turn: {reason}"),
        LockView::Waiting { reason, .. } => format!("it waits: {reason}"),
    }
}

fn waits(name: &str, wait: &WaitView) -> Vec<String> {
    let mut lines = vec![match &wait.reason {
        WaitReason::Turn => format!("{name} waits, and its turn is next"),
        WaitReason::Holders => format!("{name} waits for its turn"),
        WaitReason::Stuck { name: holder, session, reason } => format!(
            "{name} waits for {holder} ({session}), which does not let go: {reason}; `gpushare-ctl session show {session}` \
             names its processes"
        ),
        WaitReason::Recovering { processes } => format!(
            "the daemon restarted, and {processes} processes of the last one that may use its cards are neither back nor have \
             they ended"
        ),
        WaitReason::Limit { limit } => {
            format!("{name} has used up its compute limit of {limit} for now, and goes on in a moment")
        }
        WaitReason::Standing => format!("{name} waits until somebody lets it go on, as said above"),
    }];
    let stands = matches!(wait.reason, WaitReason::Turn | WaitReason::Holders | WaitReason::Stuck { .. });
    if stands {
        for holder in &wait.holders {
            let rest = match holder.rest_ns.is_zero() {
                true => "its time is over, and its work in flight ends".to_owned(),
                false => format!("about {} of its time left", short(holder.rest_ns)),
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
    lines.push(match wait.about_ns {
        Some(about) => format!(
            "its turn comes in about {}: what is left of the holder's time, {} ahead with their turns one after the other, and {} for \
             each change of turns; sooner if somebody goes idle or fits beside another",
            short(about),
            sessions(wait.ahead.len()),
            short(wait.handoff_ns)
        ),
        None => "how long that takes, the scheduler cannot tell".to_owned(),
    });
    lines
}

fn sessions(count: usize) -> String {
    match count {
        0 => "nobody".to_owned(),
        1 => "1 session".to_owned(),
        more => format!("{more} sessions"),
    }
}

fn refusals(facts: &Explanation) -> Vec<String> {
    let all = facts.session.refusals;
    let Some(last) = facts.refusals.last() else {
        return vec![match all {
            0 => "it was never refused memory".to_owned(),
            _ => format!(
                "it was refused memory {all} times; when and why is in the audit log: `gpushare-ctl audit grep`"
            ),
        }];
    };
    let shown = facts.refusals.len();
    let mut lines = vec![match all {
        1 => "it was refused memory once:".to_owned(),
        _ => format!("it was refused memory {all} times; the last {shown}:"),
    }];
    lines.extend(facts.refusals.iter().rev().map(refusal));
    // About a session whose time is over it is said above.
    if !last.refusal.is_permanent() {
        lines.push(remedy(last.refusal.by, &facts.session.name));
    }
    lines
}

/// What counts as the session's although the process that had it is dead.
fn orphaned(views: &[OrphanView]) -> Vec<String> {
    let mut lines: Vec<String> = views
        .iter()
        .map(|view| {
            format!(
                "{} on {} are of pid {}, which ended {} ago, and the card keeps them",
                view.bytes,
                view.gpu,
                view.pid,
                short(view.ago_ns)
            )
        })
        .collect();
    if !lines.is_empty() {
        lines.push(
            "they are free when the processes have ended that it forked: `fuser -v /dev/nvidia*` names them"
                .to_owned(),
        );
    }
    lines
}

fn refusal(view: &RefusalView) -> String {
    let RefusalView { ago_ns, pid, gpu, refusal, .. } = view;
    if refusal.is_permanent() {
        return format!(
            "  {} ago, pid {pid} on {gpu}: asked for {}, and its time was over or it was revoked; it used {}",
            short(*ago_ns),
            refusal.requested,
            refusal.used
        );
    }
    let limit = match refusal.by {
        LimitKind::Session => "its quota",
        LimitKind::Capacity => "the card's capacity",
        LimitKind::ManagedLimit => "the managed memory of all sessions",
    };
    format!(
        "  {} ago, pid {pid} on {gpu}: asked for {}, and {} of {} are used under {limit}",
        short(*ago_ns),
        refusal.requested,
        refusal.used,
        refusal.limit
    )
}

fn remedy(by: LimitKind, name: &str) -> String {
    match by {
        LimitKind::Session => {
            format!("more: free memory in the session, or `gpushare-ctl set memory 8GiB --session {name}`")
        }
        LimitKind::Capacity => {
            "more: a session is at most as large as the card's capacity unless it is made with --oversubscribe".to_owned()
        }
        LimitKind::ManagedLimit => {
            "more: other sessions free memory, or `gpushare-ctl set managed-limit` raises what all have together".to_owned()
        }
    }
}

fn limits(cards: &[CardLimitsView]) -> String {
    let mut table = Table::new(&["GPU", "USED", "QUOTA", "CAPACITY", "ALL USE", "MANAGED LIMIT"]);
    let limit = |bytes: Bytes| match bytes {
        Bytes::MAX => "none".to_owned(),
        bytes => bytes.to_string(),
    };
    for card in cards {
        table.row(vec![
            card.gpu.to_string(),
            card.used_bytes.to_string(),
            limit(card.limit_bytes.unwrap_or(Bytes::MAX)),
            card.capacity_bytes.to_string(),
            card.all_used_bytes.to_string(),
            limit(card.managed_limit_bytes),
        ]);
    }
    table.render()
}
