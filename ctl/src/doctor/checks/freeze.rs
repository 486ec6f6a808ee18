//! Checks whether sessions can be frozen: by the driver, and by the daemon.

use gpushare_proto::admin::FreezingView;

use super::super::facts::Facts;
use super::super::model::Outcome;
use crate::table::{harmless, short};

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

#[cfg(test)]
mod tests {
    use gpushare_proto::Nanos;

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
}
