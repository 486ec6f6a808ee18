//! Lines that `watch` prints: one per event, with the names of sessions from earlier events.

use std::collections::BTreeMap;

use gpushare_proto::SessionId;
use gpushare_proto::admin::{Activity, WatchEvent, WatchEventKind as Kind};

use crate::table::{harmless, short};

/// Names of the sessions, collected from the daemon's events.
#[derive(Debug, Default)]
pub(super) struct Words {
    names: BTreeMap<SessionId, String>,
}

impl Words {
    /// Returns the line of an event, which begins with the duration since the daemon's start.
    pub(super) fn line(&mut self, happening: &WatchEvent) -> String {
        let millis = happening.at_ns.0 / 1_000_000;
        let text = harmless(&self.words(&happening.what)).to_string();
        format!("{:>8}.{:03} s  {text}", millis / 1000, millis % 1000)
    }

    fn words(&mut self, what: &Kind) -> String {
        let before = match what {
            Kind::SessionBegan { session, name } | Kind::SessionRenamed { session, name } => {
                self.names.insert(*session, format!("{name} ({session})"))
            }
            _ => None,
        };
        let named = |session: &SessionId| match self.names.get(session) {
            Some(name) => name.clone(),
            None => session.to_string(),
        };
        match what {
            Kind::Watching { version, pid } => format!("watching gpushare {version}, pid {pid}"),
            Kind::CardFound { gpu, uuid, name, total_bytes } => {
                format!("{gpu} is {name} ({uuid}), {total_bytes}")
            }
            Kind::ModeChanged { gpu, mode, reason } => format!("{gpu} is {mode}: {reason}"),
            Kind::SessionBegan { session, .. } => format!("{} began", named(session)),
            Kind::SessionEnded { session } => format!("{} ended", named(session)),
            Kind::SessionRenamed { session, name } => format!(
                "{} is called {name} from now on: an administrator took its name",
                before.unwrap_or_else(|| session.to_string())
            ),
            Kind::ProcessJoined { session, client, pid } => {
                format!("{} has process {client}, pid {pid}", named(session))
            }
            Kind::ProcessLeft { session, client } => format!("{} lost process {client}", named(session)),
            Kind::Turned { session, to } => match to {
                Activity::Idle => format!("{} is idle", named(session)),
                Activity::Waiting { reason } => format!("{} waits: {reason}", named(session)),
                Activity::Moving => format!("{} brings its memory in", named(session)),
                Activity::Holding => format!("{} may run", named(session)),
                Activity::Dropping => format!("{} must let go", named(session)),
            },
            Kind::Allocated { session, gpu, bytes } => format!("{} has {bytes} on {gpu}", named(session)),
            Kind::Granted { session, quantum_ns, waited_ns } => format!(
                "{} got the lock for {} after {}",
                named(session),
                short(*quantum_ns),
                short(*waited_ns)
            ),
            Kind::Entered { session, handoff_ns } => {
                format!("{} goes on; the handoff took {}", named(session), short(*handoff_ns))
            }
            Kind::Dropped { session, drain_ns } => match drain_ns {
                Some(drain) => format!("{} let go; its drain took {}", named(session), short(*drain)),
                None => format!("{} let go: it was idle", named(session)),
            },
            Kind::DropReopened { session, tries } => {
                format!("{} got its gate back for a thread that waits there (try {tries})", named(session))
            }
            Kind::Stuck { session, reason } => format!("{} does not let go: {reason}", named(session)),
            Kind::Refused { session, gpu, refusal, .. } => format!(
                "refused {} to {} on {gpu}: {} of the limit of {} are in use",
                refusal.requested,
                named(session),
                refusal.used,
                refusal.limit
            ),
            Kind::Recovered { after_ns } => {
                format!("the last daemon's processes are back or gone after {}", short(*after_ns))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_lost_its_name_is_called_by_the_other_one_from_then_on() {
        let (mut words, session) = (Words::default(), SessionId(3));
        let name = |name: &str| name.to_owned();
        let (began, renamed) = (name("b"), name("b-3"));
        words.words(&Kind::SessionBegan { session, name: began });
        assert_eq!(
            words.words(&Kind::SessionRenamed { session, name: renamed }),
            "b (s3) is called b-3 from now on: an administrator took its name"
        );
        assert_eq!(words.words(&Kind::SessionEnded { session }), "b-3 (s3) ended");
    }
}
