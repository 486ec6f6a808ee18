//! docs/metrics.md, made of the table.

use super::ended;
use super::table::{BUCKETS, FAMILIES, Family};
use super::tenants;

/// The reference of all metrics, in Markdown.
#[must_use]
pub fn reference() -> String {
    let mut page = INTRODUCTION
        .replace("{most}", &tenants::MOST.to_string())
        .replace("{ended}", &ended::MOST.to_string())
        .replace("{grace}", &(ended::GRACE.0 / 60_000_000_000).to_string())
        .replace("{buckets}", &BUCKETS.map(|bound| bound.to_string()).join(", "));
    for (title, prefix) in SECTIONS {
        page.push_str(&format!("\n## {title}\n\n| name | type | labels | meaning |\n|---|---|---|---|\n"));
        for family in FAMILIES.iter().filter(|family| section(family) == prefix) {
            page.push_str(&line(family));
        }
    }
    page
}

const SECTIONS: [(&str, &str); 3] =
    [("The daemon", "gpushare_"), ("Cards", "gpushare_gpu_"), ("Sessions", "gpushare_session_")];

/// The longest of the sections' prefixes that the name has.
fn section(family: &Family) -> &'static str {
    let prefixes = SECTIONS.iter().map(|(_, prefix)| *prefix);
    prefixes
        .filter(|prefix| family.name.starts_with(prefix))
        .max_by_key(|prefix| prefix.len())
        .unwrap_or_default()
}

fn line(family: &Family) -> String {
    let labels: Vec<String> = family.labels().iter().map(|label| format!("`{label}`")).collect();
    let labels = match labels.as_slice() {
        [] => "–".to_owned(),
        labels => labels.join(", "),
    };
    format!("| `{}` | {} | {labels} | {} |\n", family.name, family.kind.name(), family.help)
}

const INTRODUCTION: &str = "\
# Metrics

The daemon tells Prometheus how its cards are shared. This page is made of the table in
`scheduler/src/metrics/table.rs`; do not edit it, run
`GPUSHARE_REGENERATE=1 cargo test -p gpushare-scheduler --lib metrics` after changing that.

The system's daemon serves metrics at `127.0.0.1:9402`, a user's own only when asked to:

```console
$ gpushare-scheduler --user --metrics 127.0.0.1:9402
```

or by the key `metrics = \"127.0.0.1:9402\"` of the configuration file; `off` turns them off. There is neither
encryption nor a password: an address other than the loopback's tells everybody who can reach it the names of sessions. If the port
is taken the daemon says so in its log and goes on without.

| path | answer |
|---|---|
| `/metrics` | everything below, in Prometheus' text format |
| `/healthz` | 200 if the daemon is alive and decides, 503 if its scheduler does not answer within two seconds |
| `/readyz` | 200 if it gives grants, 503 while processes of the last daemon are awaited after a restart |

Labels: `gpu` is the daemon's number of a card and `uuid` its identity; `session` is the number of a session, which is never
used twice, and `name` its name. At most {most} sessions are told apart, the oldest first; the rest together is
`session=\"other\"`. The last figures of a session that ended stay for {grace} minutes, of at most {ended} sessions, so that a
scraper finds what a short job used. Figures are at most a quarter of a second old, those of NVML a second.

Histograms have the buckets {buckets} seconds and one for everything.

A session has no series of resident bytes today: its memory is managed memory, which the driver moves page by page, and
no call tells how much of it is on the card. `gpushare_gpu_memory_used_bytes` says what is there, of everybody
together. The series comes with the handoff engine, which moves the memory itself and so knows where it is.

At most 32 connections are served at a time. Another one is always taken, and then the oldest is closed that has asked
for nothing, or else the oldest of all.
";

#[cfg(test)]
mod tests {
    use std::{env, fs};

    use super::*;

    #[test]
    fn the_committed_page_is_the_tables() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
        if env::var_os("GPUSHARE_REGENERATE").is_some() {
            fs::write(path, reference()).unwrap();
        }
        let committed = fs::read_to_string(path).unwrap();
        assert!(
            committed == reference(),
            "docs/metrics.md is not what the table says; run \
             `GPUSHARE_REGENERATE=1 cargo test -p gpushare-scheduler --lib metrics` and commit it"
        );
    }

    #[test]
    fn every_metric_is_in_one_section() {
        let page = reference();
        for family in FAMILIES {
            assert_eq!(page.matches(&format!("| `{}` |", family.name)).count(), 1);
        }
    }
}
