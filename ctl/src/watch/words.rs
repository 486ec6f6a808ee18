//! Lines that `watch` prints: one per event, with the names of sessions from earlier events.

use std::collections::BTreeMap;

use gpushare_proto::SessionId;
use gpushare_proto::admin::{Activity, WatchEvent, WatchEventKind as Kind};
use gpushare_proto::handoff::{Direction, Handoff};

use crate::table::{harmless, list, short, whole_percent};

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
            Kind::HandedOver(handoff) => {
                let moved = |way: &Direction, to: &str| {
                    let sessions = way.sessions.iter();
                    let who = list(sessions.map(|of| format!("{} of {}", of.bytes, named(&of.session))));
                    (!way.bytes.is_zero()).then(|| format!("{who} {to} at {}/s", way.bytes_per_second))
                };
                let out = moved(&handoff.out, "out").map(|out| out + &copied(handoff));
                let ways = [out, moved(&handoff.into, "in")];
                format!(
                    "{} handed over: {}{}",
                    handoff.gpu,
                    list(ways.into_iter().flatten()),
                    duration(handoff)
                )
            }
            Kind::HandingOver(handoff) => {
                let Handoff { gpu, out, into, took_ns, .. } = handoff;
                let ways = [progress(out, "out"), progress(into, "in")];
                let took = short(*took_ns);
                format!("{gpu} has been handing over for {took}: {}", list(ways.into_iter().flatten()))
            }
        }
    }
}

/// Returns how much of what left was copied, if not all of it was.
fn copied(handoff: &Handoff) -> String {
    let copied = handoff.copied_out_bytes;
    match copied < handoff.out.bytes {
        true => format!(", of which {copied} were copied"),
        false => String::new(),
    }
}

/// Returns how long a handoff took, and for which part of it both directions moved.
fn duration(handoff: &Handoff) -> String {
    let took = short(handoff.took_ns);
    match handoff.out.bytes.is_zero() || handoff.into.bytes.is_zero() {
        true => format!(", in {took}"),
        false => format!(", in {took}, {} of it both ways at once", whole_percent(handoff.overlap)),
    }
}

/// Returns how much of how much has moved in one direction of a handoff; none if nothing has to move there.
fn progress(way: &Direction, to: &str) -> Option<String> {
    let all = way.bytes + way.rest_bytes;
    let moved = match way.bytes.is_zero() {
        true => format!("nothing of {all} {to}"),
        false => format!("{} of {all} {to} at {}/s", way.bytes, way.bytes_per_second),
    };
    (!all.is_zero()).then_some(moved)
}

#[cfg(test)]
mod tests {
    use gpushare_proto::handoff::SessionMove;
    use gpushare_proto::{Bytes, GpuId, Nanos, Percent};

    use super::*;

    fn way(session: u64, gibs: u64, rest: u64) -> Direction {
        let (session, bytes) = (SessionId(session), Bytes::gib(gibs));
        Direction {
            sessions: vec![SessionMove { session, bytes }],
            bytes,
            rest_bytes: Bytes::gib(rest),
            took_ns: Nanos::from_millis(100),
            bytes_per_second: Bytes::gib(10 * gibs),
        }
    }

    fn handoff(out: Direction, into: Direction) -> Handoff {
        let (took_ns, both_ns) = (Nanos::from_millis(125), Nanos::from_millis(100));
        let copied_out_bytes = out.bytes;
        Handoff {
            gpu: GpuId(0),
            took_ns,
            out,
            copied_out_bytes,
            into,
            both_ns,
            overlap: Percent(8049),
        }
    }

    #[test]
    fn a_handoff_is_told_with_bytes_rates_duration_and_overlap() {
        let mut words = Words::default();
        words.words(&Kind::SessionBegan { session: SessionId(3), name: "train".to_owned() });
        let both = handoff(way(3, 4, 0), way(4, 3, 0));
        assert_eq!(
            words.words(&Kind::HandedOver(both)),
            "gpu0 handed over: 4GiB of train (s3) out at 40GiB/s, 3GiB of s4 in at 30GiB/s, in 125ms, 80% of it \
             both ways at once"
        );
        let only = handoff(way(3, 4, 0), Direction::default());
        assert_eq!(
            words.words(&Kind::HandedOver(only.clone())),
            "gpu0 handed over: 4GiB of train (s3) out at 40GiB/s, in 125ms"
        );
        let unchanged = Handoff { copied_out_bytes: Bytes::gib(1), ..only };
        assert_eq!(
            words.words(&Kind::HandedOver(unchanged)),
            "gpu0 handed over: 4GiB of train (s3) out at 40GiB/s, of which 1GiB were copied, in 125ms"
        );
    }

    #[test]
    fn progress_tells_how_much_of_how_much_has_moved() {
        let mut words = Words::default();
        let begun = handoff(way(3, 4, 2), Direction { rest_bytes: Bytes::gib(6), ..Direction::default() });
        assert_eq!(
            words.words(&Kind::HandingOver(begun)),
            "gpu0 has been handing over for 125ms: 4GiB of 6GiB out at 40GiB/s, nothing of 6GiB in"
        );
        let only = handoff(Direction::default(), way(4, 3, 1));
        assert_eq!(
            words.words(&Kind::HandingOver(only)),
            "gpu0 has been handing over for 125ms: 3GiB of 4GiB in at 30GiB/s"
        );
    }

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
