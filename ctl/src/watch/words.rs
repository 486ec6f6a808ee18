//! One line per happening, with the names that were told before.

use std::collections::BTreeMap;

use gpushare_proto::SessionId;
use gpushare_proto::admin::{Activity, Happened, Happening};

use crate::table::{harmless, short};

/// Knows the sessions' names.
#[derive(Debug, Default)]
pub(super) struct Words {
    names: BTreeMap<SessionId, String>,
}

impl Words {
    /// The line, which begins with the daemon's time.
    pub(super) fn line(&mut self, happening: &Happening) -> String {
        let millis = happening.at_ns.0 / 1_000_000;
        let text = harmless(&self.words(&happening.what)).to_string();
        format!("{:>8}.{:03} s  {text}", millis / 1000, millis % 1000)
    }

    fn words(&mut self, what: &Happened) -> String {
        if let Happened::SessionBegan { session, name } = what {
            self.names.insert(*session, format!("{name} ({session})"));
        }
        let named = |session: &SessionId| match self.names.get(session) {
            Some(name) => name.clone(),
            None => session.to_string(),
        };
        match what {
            Happened::Watching { version, pid } => format!("watching gpushare {version}, pid {pid}"),
            Happened::CardFound {
                gpu,
                uuid,
                name,
                total_bytes,
            } => format!("{gpu} is {name} ({uuid}), {total_bytes}"),
            Happened::ModeChanged { gpu, mode, reason } => {
                format!("{gpu} is {mode}: {reason}")
            }
            Happened::SessionBegan { session, .. } => format!("{} began", named(session)),
            Happened::SessionEnded { session } => format!("{} ended", named(session)),
            Happened::ProcessJoined { session, client, pid } => {
                format!("{} has process {client}, pid {pid}", named(session))
            }
            Happened::ProcessLeft { session, client } => {
                format!("{} lost process {client}", named(session))
            }
            Happened::Turned { session, to } => match to {
                Activity::Idle => format!("{} is idle", named(session)),
                Activity::Waiting { reason } => format!("{} waits: {reason}", named(session)),
                Activity::Moving => format!("{} brings its memory in", named(session)),
                Activity::Holding => format!("{} may run", named(session)),
                Activity::Dropping => format!("{} must let go", named(session)),
            },
            Happened::Allocated { session, gpu, bytes } => {
                format!("{} has {bytes} on {gpu}", named(session))
            }
            Happened::Granted {
                session,
                quantum_ns,
                waited_ns,
            } => format!(
                "{} got the lock for {} after {}",
                named(session),
                short(*quantum_ns),
                short(*waited_ns)
            ),
            Happened::Entered { session, handoff_ns } => {
                format!(
                    "{} goes on; the handoff took {}",
                    named(session),
                    short(*handoff_ns)
                )
            }
            Happened::Dropped { session, drain_ns } => match drain_ns {
                Some(drain) => format!("{} let go; its drain took {}", named(session), short(*drain)),
                None => format!("{} let go: it was idle", named(session)),
            },
            Happened::DropReopened { session, tries } => {
                format!(
                    "{} got its gate back for a thread that waits there (try {tries})",
                    named(session)
                )
            }
            Happened::Stuck { session, reason } => format!("{} does not let go: {reason}", named(session)),
            Happened::Refused {
                session,
                gpu,
                refusal,
                ..
            } => format!(
                "refused {} to {} on {gpu}: {} of {} are used",
                refusal.requested,
                named(session),
                refusal.used,
                refusal.limit
            ),
            Happened::Recovered { after_ns } => {
                format!(
                    "the last daemon's processes are back or gone after {}",
                    short(*after_ns)
                )
            }
        }
    }
}
