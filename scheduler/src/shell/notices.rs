//! The core's notices as lines in the log: words for people, fields for programs.

use gpushare_core::Notice;
use gpushare_proto::page::LimitKind;
use tracing::{debug, info, warn};

use super::Shell;
use crate::cards::mode_name;

/// Says it, with the names that only the shell knows.
pub(super) fn log(notice: &Notice, shell: &Shell) {
    let named = |session| shell.sessions.name(session);
    match notice {
        Notice::ModeChanged { gpu, mode, reason } => {
            info!(%gpu, "{gpu} is {} now: {reason}", mode_name(*mode));
        }
        Notice::Granted {
            session,
            epoch,
            quantum,
            waited,
            ..
        } => {
            debug!(%session, %epoch, "{} got the lock for {quantum}, {waited} after it asked", named(*session));
        }
        Notice::Entered { session, handoff, .. } => {
            debug!(%session, "{} goes on; the handoff took {handoff}", named(*session));
        }
        Notice::Dropped {
            session,
            epoch,
            drain,
            ..
        } => match drain {
            Some(drain) => debug!(%session, %epoch, "{} let go after {drain}", named(*session)),
            None => debug!(%session, %epoch, "{} let go of its own accord", named(*session)),
        },
        Notice::DropReopened { session, tries } => info!(
            %session,
            "{} got its gate back: work in flight seems to wait for a thread there (try {tries})",
            named(*session)
        ),
        Notice::Stuck { session, reason } => {
            let stopped = shell
                .stopped(*session)
                .map_or(String::new(), |stopped| format!("; {stopped}"));
            warn!(%session, "{} does not let go: {reason}{stopped}", named(*session));
        }
        Notice::Refused {
            client,
            session,
            gpu,
            refusal,
        } => {
            let pid = shell.clients.get(client).map_or(0, |client| client.peer.pid);
            warn!(
                %session,
                %gpu,
                pid,
                requested = refusal.requested.0,
                limit = refusal.limit.0,
                used = refusal.used.0,
                "refused {} to {} on {gpu}: {} of {} are used under {}",
                refusal.requested,
                named(*session),
                refusal.used,
                refusal.limit,
                limit_name(refusal.by)
            );
        }
        Notice::Recovered { after } => {
            info!("all processes of the last daemon are back or gone after {after}; grants begin");
        }
    }
}

fn limit_name(limit: LimitKind) -> &'static str {
    match limit {
        LimitKind::Session => "its quota",
        LimitKind::Capacity => "the card's capacity",
        LimitKind::ManagedLimit => "the card's managed limit",
    }
}
