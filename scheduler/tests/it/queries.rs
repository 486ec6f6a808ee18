//! Queries of the Grafana dashboard and of the alerts: every metric and label in them exists.
//!
//! `cargo xtask ci-extra grafana` parses the same queries with promtool.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use gpushare_scheduler::metrics::{FAMILIES, Family, Kind};
use serde_json::Value;

/// Labels that Prometheus adds to every series.
const OF_TARGETS: [&str; 2] = ["instance", "job"];
/// Functions, operators and clauses of PromQL that the queries use.
const WORDS: [&str; 9] =
    ["absent", "by", "histogram_quantile", "increase", "max", "min", "rate", "sum", "le"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/grafana")
}

/// Returns all values of a key, at any depth.
fn values<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get(key));
            map.values().for_each(|value| values(value, key, found));
        }
        Value::Array(list) => list.iter().for_each(|value| values(value, key, found)),
        _ => {}
    }
}

/// Query with the texts that name its labels: legend or annotations.
struct Query {
    expr: String,
    words: String,
}

/// Queries of the panels. Grafana's own variables become a duration or a text.
fn panels() -> Vec<Query> {
    let text = fs::read_to_string(folder().join("dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut targets = Vec::new();
    values(&dashboard, "targets", &mut targets);
    let of = |target: &Value, key: &str| target[key].as_str().unwrap().to_owned();
    let targets = targets.into_iter().flat_map(|list| list.as_array().unwrap());
    targets
        .map(|target| Query { expr: of(target, "expr"), words: of(target, "legendFormat") })
        .collect()
}

/// Queries of the alerts, each with what is said about it.
fn alerts() -> Vec<Query> {
    let text = fs::read_to_string(folder().join("alerts.yaml")).unwrap();
    let rules = text.split("- alert: ").skip(1);
    let expr = |rule: &str| {
        let line = rule.lines().find_map(|line| line.trim().strip_prefix("expr: "));
        line.expect("an expr on one line").to_owned()
    };
    rules
        .map(|rule| Query { expr: expr(rule), words: rule.replace("$labels.", "") })
        .collect()
}

/// Returns the family of a metric in a query, by its name or that of a histogram's parts.
fn family(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| match family.kind {
        Kind::Histogram => {
            let part = name.strip_prefix(family.name);
            part.is_some_and(|part| matches!(part, "_bucket" | "_sum" | "_count"))
        }
        _ => family.name == name,
    })
}

/// Removes texts in quotes and durations in brackets, in which no metric stands.
fn bare(expr: &str) -> String {
    let mut outside = true;
    let text: String = expr
        .chars()
        .filter(|c| {
            outside ^= *c == '"';
            outside || *c == '"'
        })
        .collect();
    let mut parts = text.split('[');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(']').map_or("", |(_, rest)| rest))
}

fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic()))
}

/// Checks one query. Returns the metrics in it.
fn check(query: &Query) -> BTreeSet<&'static str> {
    let expr = bare(&query.expr);
    let families: Vec<&Family> = identifiers(&expr).filter_map(family).collect();
    assert!(!families.is_empty(), "no metric in {expr}");
    let mut labels: BTreeSet<&str> = OF_TARGETS.into();
    labels.extend(families.iter().flat_map(|family| family.labels()));
    for word in identifiers(&expr) {
        let is_known = family(word).is_some() || labels.contains(word) || WORDS.contains(&word);
        assert!(is_known, "`{word}` in {} is neither a metric nor a label of its metrics", query.expr);
    }
    // A selector's labels are those of its own metric.
    for part in expr.split("gpushare_").skip(1) {
        let Some((name, rest)) = part.split_once('{') else { continue };
        let Some(family) = family(&format!("gpushare_{name}")) else { continue };
        for label in identifiers(rest.split('}').next().unwrap_or_default()) {
            assert!(family.labels().contains(&label), "{} has no label {label}", family.name);
        }
    }
    for named in query.words.split("{{").skip(1) {
        let label = named.split("}}").next().unwrap_or_default().trim();
        assert!(label == "$value" || labels.contains(label), "{} has no label {label}", query.expr);
    }
    families.into_iter().map(|family| family.name).collect()
}

#[test]
fn every_metric_and_label_of_the_dashboard_exists() {
    let panels = panels();
    let shown: BTreeSet<_> = panels.iter().flat_map(check).collect();
    assert!(panels.len() > 20 && shown.len() > 20, "{shown:?}");
    let text = fs::read_to_string(folder().join("dashboard.json")).unwrap();
    for variable in text.split("label_values(").skip(1) {
        let (metric, label) = variable.split(')').next().unwrap().split_once(", ").unwrap();
        assert!(family(metric).unwrap().labels().contains(&label), "{metric} has no label {label}");
    }
}

#[test]
fn every_metric_and_label_of_the_alerts_exists() {
    let alerts = alerts();
    assert_eq!(alerts.iter().map(check).filter(|metrics| !metrics.is_empty()).count(), 9);
    let tests = fs::read_to_string(folder().join("alerts.test.yaml")).unwrap();
    for series in tests.split("series: '").skip(1) {
        let (name, labels) = series.split('\'').next().unwrap().split_once('{').unwrap();
        let family = family(name).unwrap_or_else(|| panic!("{name} is no metric"));
        let bare = bare(labels);
        let known =
            |label: &str| OF_TARGETS.contains(&label) || label == "le" || family.labels().contains(&label);
        assert!(identifiers(&bare).all(known), "{series}");
    }
    // Each alert has a case in which it fires.
    let text = fs::read_to_string(folder().join("alerts.yaml")).unwrap();
    for rule in text.split("- alert: ").skip(1) {
        let name = rule.lines().next().unwrap();
        assert!(tests.contains(&format!("{{alertname=\"{name}\"}}', value: 1")), "{name} has no test");
    }
}

#[test]
fn a_wrong_metric_and_a_wrong_label_are_found() {
    let fails = |expr: &str, words: &str| {
        let query = Query { expr: expr.to_owned(), words: words.to_owned() };
        std::panic::catch_unwind(|| check(&query)).is_err()
    };
    assert!(!fails("sum by (gpu) (rate(gpushare_gpu_turns_total{gpu=~\"$gpu\"}[5m]))", "gpu{{gpu}}"));
    assert!(fails("sum by (gpu) (rate(gpushare_gpu_turn_total[5m]))", ""));
    assert!(fails("gpushare_ready{gpu=\"0\"}", ""));
    assert!(fails("sum by (name) (gpushare_gpu_waiters)", ""));
    assert!(fails("gpushare_gpu_waiters", "{{session}}"));
    assert!(fails("gpushare_gpu_wait_seconds", ""), "a histogram has no series of its own name");
    assert!(fails("gpushare_gpu_waiters * foreign_metric", ""));
}
