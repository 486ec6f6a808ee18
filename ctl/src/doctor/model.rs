//! Results of the doctor's checks, and the report of all results, printed as text or as JSON.
//!
//! The keys of the JSON document are stable, since scripts depend on them (docs/doctor.md).

use std::fmt;

use gpushare_proto::Backend;
use serde::Serialize;

use super::checks::{CHECKS, Check, Group};
use super::facts::Facts;

/// Version of the report's JSON document. It rises when a key changes its meaning or is removed.
const FORMAT: u32 = 1;

/// Severity of a check's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// The check was skipped, for a reason that the result states.
    Skipped,
    Ok,
    /// The check found that gpushare works with restrictions or not for all programs.
    Warning,
    /// The check found that gpushare does not work.
    Error,
}

/// Memory backend that a check's result decides for, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Choice {
    pub(super) backend: Backend,
    pub(super) why: String,
}

/// Result of a check for one subject: a card, a folder or a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Outcome {
    /// Card, folder or file that was checked; none if the check has only one subject.
    pub(super) subject: Option<String>,
    pub(super) severity: Severity,
    /// Sentence that says what the check found.
    pub(super) finding: String,
    /// Advice on what to do; none without a problem.
    pub(super) hint: Option<String>,
    pub(super) backend: Option<Choice>,
}

impl Outcome {
    fn new(severity: Severity, finding: impl Into<String>) -> Self {
        Self { subject: None, severity, finding: finding.into(), hint: None, backend: None }
    }

    pub(super) fn ok(finding: impl Into<String>) -> Self {
        Self::new(Severity::Ok, finding)
    }

    /// Returns the result of a check that was skipped for the reason `why`.
    pub(super) fn skipped(why: impl Into<String>) -> Self {
        Self::new(Severity::Skipped, why)
    }

    pub(super) fn warning(finding: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(Severity::Warning, finding).hint(hint)
    }

    pub(super) fn error(finding: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(Severity::Error, finding).hint(hint)
    }

    /// Returns an error result for a failure, with the advice after `; ` in its sentence, else with `hint`.
    pub(super) fn failure(error: &impl fmt::Display, hint: &str) -> Self {
        let sentence = error.to_string();
        let (finding, hint) = sentence.rsplit_once("; ").unwrap_or((&sentence, hint));
        Self::error(finding, hint)
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(super) fn of(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    pub(super) fn backend(mut self, backend: Backend, why: impl Into<String>) -> Self {
        let why = why.into();
        self.backend = Some(Choice { backend, why });
        self
    }
}

/// Result of a check, with the check's name and group.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    pub(super) check: &'static str,
    pub(super) group: Group,
    #[serde(flatten)]
    pub(super) outcome: Outcome,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    pub(super) ok: usize,
    pub(super) warning: usize,
    pub(super) error: usize,
    pub(super) skipped: usize,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(super) format: u32,
    pub(super) version: &'static str,
    pub(super) worst: Severity,
    pub(super) exit: u8,
    pub(super) counts: Counts,
    pub(super) findings: Vec<Finding>,
}

impl Report {
    pub(super) fn of(facts: &Facts) -> Self {
        let findings = CHECKS.iter().flat_map(|check| {
            let Check { id, group, look, .. } = *check;
            look(facts)
                .into_iter()
                .map(move |outcome| Finding { check: id, group, outcome })
        });
        Self::from(findings.collect())
    }

    fn from(findings: Vec<Finding>) -> Self {
        let mut counts = Counts::default();
        for finding in &findings {
            *match finding.outcome.severity {
                Severity::Skipped => &mut counts.skipped,
                Severity::Ok => &mut counts.ok,
                Severity::Warning => &mut counts.warning,
                Severity::Error => &mut counts.error,
            } += 1;
        }
        let (worst, exit) = match counts {
            Counts { error: 1.., .. } => (Severity::Error, 2),
            Counts { warning: 1.., .. } => (Severity::Warning, 1),
            _ => (Severity::Ok, 0),
        };
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION"),
            worst,
            exit,
            counts,
            findings,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcomes: Vec<Outcome>) -> Report {
        let of = |outcome| Finding { check: "host.clock", group: Group::Host, outcome };
        Report::from(outcomes.into_iter().map(of).collect())
    }

    #[test]
    fn the_worst_finding_is_the_exit_code_and_what_was_skipped_is_no_fault() {
        assert_eq!(report(vec![]).exit, 0);
        assert_eq!(report(vec![Outcome::ok("a"), Outcome::skipped("b")]).exit, 0);
        assert_eq!(report(vec![Outcome::ok("a"), Outcome::warning("b", "c")]).exit, 1);
        let all = report(vec![
            Outcome::error("a", "b"),
            Outcome::warning("c", "d"),
            Outcome::skipped("e"),
            Outcome::ok("f"),
        ]);
        assert_eq!(all.exit, 2);
        let counts = Counts { ok: 1, warning: 1, error: 1, skipped: 1 };
        assert_eq!(all.counts, counts);
    }

    #[test]
    fn the_document_has_these_keys() {
        let outcome = Outcome::warning("it is slow", "buy a faster one")
            .of("gpu0")
            .backend(Backend::Native, "it cannot fault");
        let json = serde_json::to_value(report(vec![outcome])).unwrap();
        let expected = serde_json::json!({
            "format": 1,
            "version": env!("CARGO_PKG_VERSION"),
            "worst": "warning",
            "exit": 1,
            "counts": {"ok": 0, "warning": 1, "error": 0, "skipped": 0},
            "findings": [{
                "check": "host.clock",
                "group": "host",
                "subject": "gpu0",
                "severity": "warning",
                "finding": "it is slow",
                "hint": "buy a faster one",
                "backend": {"backend": "native", "why": "it cannot fault"},
            }],
        });
        assert_eq!(json, expected);
    }
}
