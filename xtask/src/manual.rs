//! `cargo xtask manual`: the manual pages of all commands, made from the definitions that also make `--help`.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command};
use clap_mangen::Man;
use gpushare_tests::cargo;
use serde::Serialize;

use crate::output::result;

/// Options of `cargo xtask manual`.
#[derive(Args)]
pub(crate) struct Options {
    /// Folder for the pages [default: target/manual]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Result of the command.
#[derive(Serialize)]
struct Outcome {
    folder: PathBuf,
    pages: Vec<String>,
}

pub(crate) fn run(options: &Options, json: bool) -> anyhow::Result<ExitCode> {
    let folder = options.out.clone().unwrap_or_else(|| cargo::workspace().join("target/manual"));
    fs::create_dir_all(&folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let pages = pages()?;
    for (name, page) in &pages {
        fs::write(folder.join(name), page)?;
    }
    result(&Outcome { folder, pages: pages.into_keys().collect() }, json)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the manual pages by their file names, like `gpushare-ctl-run.1`.
pub(crate) fn pages() -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let mut pages = BTreeMap::new();
    let mut commands = vec![("gpushare-ctl".to_owned(), gpushare_ctl::command())];
    while let Some((name, mut command)) = commands.pop() {
        // Global flags reach the subcommands only in a built command.
        command.build();
        let inner = command.get_subcommands().filter(|command| command.get_name() != "help");
        commands.extend(inner.map(|inner| (format!("{name}-{}", inner.get_name()), inner.clone())));
        pages.insert(format!("{name}.1"), page(command, &name, "1")?);
    }
    pages.insert(
        "gpushare-scheduler.8".to_owned(),
        page(gpushare_scheduler::command(), "gpushare-scheduler", "8")?,
    );
    Ok(pages)
}

fn page(command: Command, name: &str, section: &str) -> anyhow::Result<Vec<u8>> {
    let version = env!("CARGO_PKG_VERSION");
    let command = command.display_name(name.to_owned()).version(version);
    let man = Man::new(command).title(name.to_uppercase()).section(section);
    let man = man.source(format!("gpushare {version}")).manual("gpushare");
    let mut page = Vec::new();
    man.render(&mut page)?;
    // clap_mangen's heading for what follows the flags in the help: examples and exit codes.
    Ok(String::from_utf8(page)?.replace("\n.SH EXTRA\n", "\n.SH NOTES\n").into_bytes())
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pages are in {}", self.pages.len(), self.folder.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_all_its_flags() {
        let pages = pages().unwrap();
        let mut commands = vec![
            ("gpushare-ctl".to_owned(), "1", gpushare_ctl::command()),
            ("gpushare-scheduler".to_owned(), "8", gpushare_scheduler::command()),
        ];
        let mut flags = 0;
        while let Some((name, section, command)) = commands.pop() {
            let file = format!("{name}.{section}");
            let page = String::from_utf8(pages[&file].clone()).unwrap();
            assert!(page.contains(&format!(".TH {} {section} ", name.to_uppercase())), "{page}");
            for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
                let long = argument.get_long().unwrap_or_default().replace('-', "\\-");
                assert!(page.contains(&long), "{file} has no {long}");
                flags += 1;
            }
            let inner = command.get_subcommands();
            commands.extend(inner.map(|inner| (format!("{name}-{}", inner.get_name()), "1", inner.clone())));
        }
        assert!(pages.len() > 30 && flags > 90, "{} pages, {flags} flags", pages.len());
    }

    #[test]
    fn examples_stay_on_lines_of_their_own_and_nothing_internal_is_told() {
        let pages = pages().unwrap();
        let run = String::from_utf8(pages["gpushare-ctl-run.1"].clone()).unwrap();
        assert!(
            run.contains("\n.SH NOTES\nExamples:\n  gpushare\\-ctl run \\-\\- python train.py\n"),
            "{run}"
        );
        assert!(pages.keys().all(|name| !name.contains("probe") && !name.contains("start")), "{pages:?}");
    }
}
