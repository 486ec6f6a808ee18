//! The alerts and the Grafana dashboard by Prometheus' own tool: rules and queries parse, and each alert fires
//! in its test and in no other. The tool comes from Debian's package, unpacked below `target/`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use gpushare_tests::cargo;
use gpushare_tests::process::output_of;
use serde_json::Value;

use crate::debian::Debian;

pub(super) fn check() -> anyhow::Result<()> {
    let root = Debian::of_this_machine().unpack("prometheus", &["prometheus"])?;
    let promtool = root.join("usr/bin/promtool");
    let folder = cargo::workspace().join("docs/grafana");
    let run = |what: &str, file: &Path| {
        let mut tool = Command::new(&promtool);
        tool.current_dir(&folder).args([what, "rules"]).arg(file);
        output_of(tool).map(drop)
    };
    run("check", Path::new("alerts.yaml"))?;
    run("test", Path::new("alerts.test.yaml"))?;
    // The tool reads rules only, so each query of the dashboard becomes one.
    let text = fs::read_to_string(folder.join("dashboard.json"))?;
    let mut queries = Vec::new();
    expressions(&serde_json::from_str(&text)?, &mut queries);
    ensure!(queries.len() > 20, "the dashboard has only {} queries", queries.len());
    let rules = root.join("dashboard.yaml");
    fs::write(&rules, as_rules(&queries)?)?;
    run("check", &rules).context("a query of docs/grafana/dashboard.json is wrong")
}

/// Returns the queries of the panels.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get("expr").and_then(Value::as_str).map(str::to_owned));
            map.values().for_each(|value| expressions(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

/// Writes queries as a file of rules. Grafana's periods become one that Prometheus knows.
fn as_rules(queries: &[String]) -> anyhow::Result<String> {
    let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    for (number, query) in queries.iter().enumerate() {
        let query = query.replace("$__rate_interval", "5m").replace("$__range", "1h");
        // A text of JSON is one of YAML too.
        let query = serde_json::to_string(&query)?;
        writeln!(rules, "      - record: gpushare:query{number}\n        expr: {query}")?;
    }
    Ok(rules)
}
