//! Writes docs/metrics.md from the table, and checks that the committed page is the same.

use std::{env, fs};

use super::table::{BUCKETS, FAMILIES, Family};
use super::{picture, sessions};

/// Returns the reference of all metrics, in Markdown.
fn reference() -> String {
    let mut page = INTRODUCTION
        .replace("{most}", &sessions::MOST.to_string())
        .replace("{ended}", &picture::MOST_ENDED.to_string())
        .replace("{grace}", &(picture::GRACE.0 / 60_000_000_000).to_string())
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

/// Returns the longest section prefix that the name has.
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

The daemon exports metrics for Prometheus. This page is made from the table in
`scheduler/src/metrics/table.rs`. After a change of the table, this command writes the page again:
`GPUSHARE_REGENERATE=1 cargo test -p gpushare-scheduler --lib metrics`.

## Endpoint

The system's daemon serves metrics at `127.0.0.1:9402`. A user's own daemon serves them only on request:

```console
$ gpushare-scheduler --user --metrics 127.0.0.1:9402
```

The key `metrics = \"127.0.0.1:9402\"` of the configuration file does the same, and `off` turns metrics off.
If the port is taken, the daemon logs that and runs without metrics.

There is no encryption and no password: every local user can read what is at `127.0.0.1`. So sessions have
numbers there and no names, and `gpushare-ctl session list` tells an administrator which is which.
`--metrics-names`, or the key `metrics_names = true`, adds the names for everybody who can reach the address.

| path | answer |
|---|---|
| `/metrics` | all metrics, in Prometheus' text format |
| `/healthz` | 200 if the scheduler answers within two seconds, else 503 |
| `/readyz` | 200 if grants are given, 503 while the daemon waits for processes of the last daemon after a restart |

At most 32 connections are open at a time. A new connection is always accepted. If there are too many, the
oldest one that has sent no request is closed, or else the oldest of all.

## Labels and figures

`gpu` is the daemon's number of a card, and `uuid` its identity. `session` is the number of a session,
which is never reused, and `name` is its name, if names are shown. At most {most} sessions are shown by
themselves, the oldest first. All others are summed up as `session=\"other\"`. The last figures of an ended
session stay for {grace} minutes, for at most {ended} sessions, so that a scraper sees what a short job used.

Figures are at most a quarter of a second old, those of NVML at most a second.

Histograms have buckets up to
{buckets} seconds,
and one for all observations.

No metric tells how much of a session's managed memory is resident: the driver moves it page by page, and no
call reports where it is. `gpushare_gpu_memory_used_bytes` has the memory in use on the card by all processes
together.

Of memory under `--backend remap` the places are known: those of each card are `gpushare_gpu_remapped_…`,
those of each session `gpushare_session_remapped_…`. A direction of a handoff lasts from its first byte to its
last one. So `rate(gpushare_gpu_remapped_moved_bytes_total[5m])` divided by
`rate(gpushare_gpu_remapped_move_seconds_sum[5m])` is its rate while it moves, and the sum of `both` divided
by that of `gpushare_gpu_remapped_handoff_seconds` is the overlap.
";

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
