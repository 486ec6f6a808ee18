//! Report of the doctor as text: check results by group, each with advice below.

use std::io::{IsTerminal as _, stdout};

use super::checks::Group;
use super::model::{Finding, Report, Severity};
use crate::table::{count, harmless};

/// Returns whether severities are coloured: on a terminal unless `NO_COLOR` is set (no-color.org).
pub(super) fn is_coloured() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    stdout().is_terminal() && !refused
}

/// Returns the name of a severity, coloured if `coloured` and padded to the longest name.
fn paint(severity: Severity, coloured: bool) -> String {
    let (code, name) = match severity {
        Severity::Skipped => ("2", "skipped"),
        Severity::Ok => ("32", "ok"),
        Severity::Warning => ("33", "warning"),
        Severity::Error => ("1;31", "error"),
    };
    if coloured {
        format!("\u{1b}[{code}m{name:<7}\u{1b}[0m")
    } else {
        format!("{name:<7}")
    }
}

pub(super) fn render(report: &Report, coloured: bool) -> String {
    let mut page = format!("gpushare-ctl {} doctor\n", report.version);
    let width = report.findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    for &group in Group::ALL {
        page += &format!("\n{}\n", group.title());
        let mut findings = report.findings.iter().filter(|finding| finding.group == group).peekable();
        while let Some(finding) = findings.next() {
            // Checks that were skipped for the same reason share one line; the JSON document has all of them.
            let mut more = 0;
            while findings.next_if(|next| is_same_skip(finding, next)).is_some() {
                more += 1;
            }
            page += &line(finding, more, width, coloured);
        }
    }
    page + "\n" + &summary(report)
}

fn is_same_skip(one: &Finding, next: &Finding) -> bool {
    let (one, next) = (&one.outcome, &next.outcome);
    one.severity == Severity::Skipped && next.severity == Severity::Skipped && one.finding == next.finding
}

/// Returns the lines of a check result with its advice; `more` equal results are only counted.
fn line(finding: &Finding, more: usize, width: usize, coloured: bool) -> String {
    let outcome = &finding.outcome;
    let severity = paint(outcome.severity, coloured);
    let subject = outcome
        .subject
        .as_ref()
        .map_or(String::new(), |subject| format!("{}: ", harmless(subject)));
    let more = match more {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let mut text =
        format!("  {severity}  {:<width$}  {subject}{}{more}\n", finding.check, harmless(&outcome.finding));
    let below = " ".repeat(2 + 7 + 2 + width + 2);
    if let Some(hint) = &outcome.hint {
        text += &format!("{below}→ {}\n", harmless(hint));
    }
    if let Some(choice) = &outcome.backend {
        text += &format!("{below}backend {}: {}\n", choice.backend, harmless(&choice.why));
    }
    text
}

fn summary(report: &Report) -> String {
    let counts = report.counts;
    let next = match report.worst {
        Severity::Error => "; gpushare does not work here until the errors are gone",
        Severity::Warning => "; gpushare works, the warnings say with what less",
        Severity::Ok | Severity::Skipped => "; all is well",
    };
    format!(
        "{}, {}, {} ok, {} skipped{next}\n",
        count(counts.error, "error"),
        count(counts.warning, "warning"),
        counts.ok,
        counts.skipped
    )
}

#[cfg(test)]
mod tests {
    use gpushare_proto::Backend;

    use super::super::model::{Counts, Outcome};
    use super::*;

    fn report() -> Report {
        let finding = |check, group, outcome| Finding { check, group, outcome };
        Report {
            format: 1,
            version: "0.1.0",
            worst: Severity::Error,
            exit: 2,
            counts: Counts { ok: 1, warning: 0, error: 1, skipped: 0 },
            findings: vec![
                finding(
                    "cards.managed",
                    Group::Cards,
                    Outcome::ok("concurrent managed access")
                        .of("cuda0")
                        .backend(Backend::Managed, "pages move"),
                ),
                finding("host.shm", Group::Host, Outcome::error("it\u{1b}[2J is small", "make it larger")),
            ],
        }
    }

    #[test]
    fn findings_are_grouped_and_aligned_with_their_hints_below() {
        let page = render(&report(), false);
        let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("  ")).collect();
        assert_eq!(
            lines,
            [
                "  ok       cards.managed  cuda0: concurrent managed access",
                "                          backend managed: pages move",
                "  error    host.shm       it?[2J is small",
                "                          → make it larger",
            ]
        );
        assert!(page.contains("\nCards\n  ok"), "{page}");
        assert!(page.ends_with(
            "1 error, 0 warnings, 1 ok, 0 skipped; gpushare does not work here until the errors are gone\n"
        ));
    }

    #[test]
    fn what_is_skipped_for_one_reason_is_one_line() {
        let mut report = report();
        let skipped =
            |check, why: &str| Finding { check, group: Group::Cards, outcome: Outcome::skipped(why) };
        report.findings = vec![
            skipped("cards.seen", "no card"),
            skipped("cards.vmm", "no card"),
            skipped("cards.fd", "no card"),
            skipped("cards.mig", "no NVML"),
        ];
        let page = render(&report, false);
        assert!(
            page.contains("  skipped  cards.seen  no card (and 2 more)\n  skipped  cards.mig   no NVML\n"),
            "{page}"
        );
    }

    #[test]
    fn colours_are_for_terminals_only() {
        assert!(!render(&report(), false).contains('\u{1b}'));
        assert!(render(&report(), true).contains("\u{1b}[1;31merror  \u{1b}[0m"));
    }
}
