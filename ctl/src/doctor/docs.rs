//! docs/doctor.md, made of the table of checks.

use super::checks::{CHECKS, Check, Group};

/// The reference of all checks, in Markdown.
fn reference() -> String {
    let mut page = INTRODUCTION.to_owned();
    for group in Group::ALL {
        page += &format!("\n## {}\n\n| check | looks at | bad if |\n|---|---|---|\n", group.title());
        for Check { id, looks_at, bad_if, .. } in CHECKS.iter().filter(|check| check.group == group) {
            page += &format!("| `{id}` | {looks_at} | {bad_if} |\n");
        }
    }
    page
}

const INTRODUCTION: &str = "\
# The doctor

`gpushare-ctl doctor` looks at everything that sharing needs and says what is wrong and what to do about it. It
changes nothing and makes no context. The list below is made of the table in `ctl/src/doctor/checks/mod.rs`; do not
edit it, run `GPUSHARE_REGENERATE=1 cargo test -p gpushare-ctl doctor::docs` after changing that.

```console
$ gpushare-ctl doctor
$ gpushare-ctl doctor --program python
$ gpushare-ctl doctor --json
$ gpushare-ctl doctor --bundle report.tar.gz
```

Exit codes: 0 fine, 1 warnings, 2 errors (also if the doctor itself fails). Run it where the program runs: as the same
user, in the same container, with the same variables.

The driver is asked by processes of their own. One that crashes or hangs (`--timeout`, 30 seconds unless given) is a
finding that names the call, and everything else is looked at all the same.

## The document

`--json` prints one document. Keys stay; `format` rises if one changes its meaning.

| key | meaning |
|---|---|
| `format` | 1 |
| `version` | of this gpushare-ctl |
| `worst` | `ok`, `warning` or `error` |
| `exit` | the exit code |
| `counts` | how many findings there are of each severity: `ok`, `warning`, `error`, `skipped` |
| `findings[].check` | the name below, `group.name` |
| `findings[].group` | `driver`, `cards`, `platform`, `libc`, `preload`, `daemon`, `caller` or `host` |
| `findings[].subject` | which card (`cuda0` as the driver counts, `nvml0` as NVML does), file or folder; null if there is only one |
| `findings[].severity` | `ok`, `warning` (works, with less or not for everybody), `error` (does not work) or `skipped` (could not be looked at; the finding says why) |
| `findings[].finding` | what was found |
| `findings[].hint` | what to do, or null |
| `findings[].backend` | null, or the memory backend that this decides for and `why`: `managed` (the driver moves pages), `native` (memory stays), `remap` (to come) |

## The support archive

`--bundle FILE.tar.gz` writes an archive (mode 0600, never over another file) with the report as text and JSON, the
status, versions, GPUSHARE_, CUDA_ and NVIDIA_ variables, the configuration, the end of the daemon's log, `nvidia-smi
-q`, the kernel's lines about Xid errors, kernel and distribution. What is in it and what is left out is told on stderr.

Taken out of all of it: tokens and other secrets, names of users and hosts, home folders, UUIDs, serial numbers, IP,
MAC and mail addresses. The same thing gets the same pseudonym everywhere (`GPU-[uuid-1]`), so that lines still belong together. Names
of sessions stay, and so does what nobody can recognise as a secret: look through it before you send it.
";

#[cfg(test)]
mod tests {
    use std::{env, fs};

    use super::*;

    #[test]
    fn the_committed_page_is_the_tables() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/doctor.md");
        if env::var_os("GPUSHARE_REGENERATE").is_some() {
            fs::write(path, reference()).unwrap();
        }
        let committed = fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == reference(),
            "docs/doctor.md is not what the table says; run \
             `GPUSHARE_REGENERATE=1 cargo test -p gpushare-ctl doctor::docs` and commit it"
        );
    }
}
