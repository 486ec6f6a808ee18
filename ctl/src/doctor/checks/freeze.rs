//! Checks whether sessions can be frozen: by the driver, by the daemon, and by what they use.

use gpushare_proto::admin::FreezingView;

use super::super::facts::{DaemonFacts, Facts, KeptWarm};
use super::super::model::Outcome;
use crate::explain;
use crate::table::{count, harmless, short};

/// Largest number of sessions that are named.
const MOST: usize = 8;

pub(super) fn driver(facts: &Facts) -> Vec<Outcome> {
    vec![match facts.cuda.facts.checkpoint {
        None => Outcome::skipped("there is no driver to check"),
        Some(true) => {
            Outcome::ok("the driver can freeze processes; its version decides whether the daemon lets it")
        }
        Some(false) => Outcome::ok(
            "the driver cannot freeze processes: it has no `cuCheckpointProcessLock`, which came with CUDA 12.8",
        ),
    }]
}

pub(super) fn daemon(facts: &Facts) -> Vec<Outcome> {
    let views = facts
        .daemons
        .iter()
        .filter_map(|daemon| Some((daemon, daemon.freezing.as_ref()?)));
    views
        .flat_map(|(daemon, view)| {
            of_view(view)
                .into_iter()
                .map(|outcome| outcome.of(daemon.dir.root().display().to_string()))
        })
        .collect()
}

fn of_view(view: &FreezingView) -> Vec<Outcome> {
    let after = view.freeze_after_ns.map(short);
    if view.obstacles.is_empty() {
        return vec![Outcome::ok(match after {
            Some(after) => format!("sessions are frozen after {after} without work, and on request"),
            None => "sessions are frozen on request, and after the idle time that they have of their own"
                .to_owned(),
        })];
    }
    let outcome = |obstacle: &String| {
        let finding = format!("not every session can be frozen: {}", harmless(obstacle));
        match after {
            None => Outcome::ok(finding),
            Some(_) => Outcome::warning(
                finding,
                "change that, or take freeze_after out of the daemon's configuration; `gpushare-ctl explain` says it of a \
                 session",
            ),
        }
    };
    view.obstacles.iter().map(outcome).collect()
}

/// Checks what the sessions use. What a tenant's program uses is no fault of the installation.
pub(super) fn sessions(facts: &Facts) -> Vec<Outcome> {
    facts.daemons.iter().flat_map(of_sessions).collect()
}

fn of_sessions(daemon: &DaemonFacts) -> Vec<Outcome> {
    let Some(view) = &daemon.freezing else {
        return Vec::new();
    };
    // The daemon's own obstacles keep every session from being frozen, and are a finding of their own.
    let is_daemons = |session: &KeptWarm| {
        let obstacle = session.frost.obstacle.as_deref();
        obstacle.is_some_and(|obstacle| view.obstacles.iter().any(|daemons| daemons.starts_with(obstacle)))
    };
    let own = daemon.kept_warm.iter().filter(|session| !is_daemons(session));
    let mut outcomes: Vec<Outcome> = own
        .filter_map(|session| Some((&session.name, explain::kept_warm(&session.frost)?)))
        .map(|(name, words)| Outcome::ok(words).of(format!("session {name}")))
        .collect();
    let more = outcomes.len().saturating_sub(MOST);
    outcomes.truncate(MOST);
    match (outcomes.len(), more) {
        (0, _) => outcomes.push(Outcome::ok("no session has an obstacle of its own")),
        (_, 0) => {}
        (_, more) => outcomes.push(Outcome::ok(format!(
            "{} cannot be frozen now; `gpushare-ctl explain NAME` says why",
            count(more, "more session")
        ))),
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use gpushare_connection::ClientError;
    use gpushare_proto::Nanos;
    use gpushare_proto::admin::{FrostStage, FrostView};
    use gpushare_proto::names::RuntimeDir;

    use super::super::super::model::Severity::{Ok, Warning};
    use super::*;

    #[test]
    fn what_cannot_be_frozen_is_a_warning_only_where_idle_sessions_are_to_be() {
        let judged = |obstacles: &[&str], after| {
            let obstacles = obstacles.iter().map(|&obstacle| obstacle.to_owned()).collect();
            of_view(&FreezingView { obstacles, freeze_after_ns: after })
        };
        let after = Some(Nanos::from_secs(600));
        let severities =
            |outcomes: Vec<Outcome>| outcomes.iter().map(|outcome| outcome.severity).collect::<Vec<_>>();
        assert_eq!(
            judged(&[], after)[0].finding,
            "sessions are frozen after 10m00s without work, and on request"
        );
        let both = ["the driver was not tried", "gpu0 is not in persistence mode"];
        assert_eq!(severities(judged(&both, None)), [Ok, Ok]);
        assert_eq!(severities(judged(&both, after)), [Warning, Warning]);
        assert_eq!(
            judged(&both, None)[1].finding,
            "not every session can be frozen: gpu0 is not in persistence mode"
        );
    }

    fn kept(name: &str, stage: FrostStage, obstacle: &str) -> KeptWarm {
        let obstacle = Some(obstacle.to_owned());
        let frost = FrostView { stage, obstacle, freeze_after_ns: None, idle_ns: None };
        KeptWarm { name: name.to_owned(), frost }
    }

    /// Findings about these sessions, each with its subject.
    fn told(daemons: &[&str], kept_warm: Vec<KeptWarm>) -> Vec<(String, String)> {
        let obstacles = daemons.iter().map(|&obstacle| obstacle.to_owned()).collect();
        let outcomes = of_sessions(&DaemonFacts {
            dir: RuntimeDir::new("/run/x"),
            tenant: Err(ClientError::Absent("/run/x/tenant/scheduler.sock".into())),
            admin: Err(ClientError::Absent("/run/x/admin.sock".into())),
            freezing: Some(FreezingView { obstacles, freeze_after_ns: Some(Nanos::from_secs(600)) }),
            kept_warm,
        });
        assert!(outcomes.iter().all(|outcome| outcome.severity == Ok), "{outcomes:?}");
        let words = |outcome: Outcome| (outcome.subject.unwrap_or_default(), outcome.finding);
        outcomes.into_iter().map(words).collect()
    }

    #[test]
    fn sessions_that_cannot_be_frozen_are_named_with_their_obstacle() {
        let said = |subject: &str, finding: &str| (subject.to_owned(), finding.to_owned());
        assert_eq!(told(&[], Vec::new()), [said("", "no session has an obstacle of its own")]);
        let untried = "this driver is not known to freeze processes (version 12.6)";
        let sessions = vec![
            kept("a", FrostStage::Warm, "process 7: it has managed memory"),
            kept("b", FrostStage::Freezing, "process 8: a debugger holds it"),
            kept("c", FrostStage::Frozen, "process 9: a debugger holds it"),
            kept("d", FrostStage::Warm, untried),
        ];
        assert_eq!(
            told(&[&format!("{untried}; a variable freezes all the same")], sessions),
            [
                said("session a", "cannot be frozen: process 7: it has managed memory"),
                said("session b", "is being frozen, and waits: process 8: a debugger holds it"),
            ]
        );
    }

    #[test]
    fn sessions_beyond_the_eighth_are_counted() {
        let sessions = |number: usize| {
            let session = |number| kept(&format!("s{number}"), FrostStage::Warm, "it has managed memory");
            told(&[], (0..number).map(session).collect())
        };
        assert_eq!(sessions(8).len(), 8);
        let more = sessions(10);
        assert_eq!((more.len(), &*more[7].0), (9, "session s7"));
        assert_eq!(more[8].1, "2 more sessions cannot be frozen now; `gpushare-ctl explain NAME` says why");
    }
}
