//! Pages with every command, flag and environment variable: docs/reference/*.md.

use std::fs;
use std::path::PathBuf;

use clap::builder::Str;
use clap::{Arg, Command};

use super::docs;

/// Source that defines the environment variables, each with a comment for the page.
const NAMES: &str = include_str!("../../../proto/src/names.rs");
/// Columns of a line of prose.
const COLUMNS: usize = 110;

/// Writes the pages and returns their paths.
pub(super) fn write() -> anyhow::Result<Vec<PathBuf>> {
    let folder = docs().join("reference");
    fs::create_dir_all(&folder)?;
    let mut files = Vec::new();
    for (name, page) in pages() {
        let file = folder.join(name);
        fs::write(&file, page)?;
        files.push(file);
    }
    Ok(files)
}

/// Returns the pages by their file names.
fn pages() -> [(&'static str, String); 3] {
    [
        ("gpushare-ctl.md", page(gpushare_ctl::command())),
        ("gpushare-scheduler.md", page(gpushare_scheduler::command())),
        ("environment.md", environment()),
    ]
}

fn page(mut command: Command) -> String {
    command.build();
    let mut page = format!("# {}\n\n", command.get_name());
    page += &wrapped(
        "This page is made by `cargo xtask book reference` from the definitions of the commands, and a test compares \
         the two.",
    );
    describe(&mut page, &command, 1, &[]);
    page
}

/// Returns the page of the environment variables.
fn environment() -> String {
    let mut page = "# Environment variables\n\n".to_owned();
    page += &wrapped(
        "Flags come before variables. This page is made by `cargo xtask book reference` from `proto/src/names.rs`, and \
         a test compares the two.",
    );
    page += "\n| variable | meaning |\n|---|---|\n";
    for part in NAMES.split("/// Environment variable: ").skip(1) {
        let Some((comment, rest)) = part.split_once("pub const ") else { continue };
        let name = rest.split('"').nth(1).unwrap_or_default();
        let words: Vec<&str> = comment.split_whitespace().filter(|word| *word != "///").collect();
        page += &format!("| `{name}` | {} |\n", words.join(" ").trim_end_matches('.'));
    }
    page
}

/// Adds a command and those below it. `inherited` has the flags that the commands above pass down.
fn describe(page: &mut String, command: &Command, depth: usize, inherited: &[&str]) {
    if depth > 1 {
        let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
        *page += &format!("\n{} {name}\n", "#".repeat(depth.min(3)));
    }
    let about = command.get_long_about().or(command.get_about());
    for paragraph in about.map(ToString::to_string).unwrap_or_default().split("\n\n") {
        // The definitions leave out the stop of a summary.
        let stop = if paragraph.ends_with(char::is_alphanumeric) { "." } else { "" };
        *page += &format!("\n{}", wrapped(&format!("{paragraph}{stop}")));
    }
    let usage = command.clone().render_usage().to_string();
    *page += &format!("\n```text\n{}\n```\n", usage.trim_start_matches("Usage: "));
    let is_own = |arg: &&Arg| {
        let id = arg.get_id().as_str();
        !arg.is_hide_set() && !["help", "version"].contains(&id) && !inherited.contains(&id)
    };
    let own: Vec<&Arg> = command.get_arguments().filter(is_own).collect();
    if !own.is_empty() {
        *page += "\n| argument | meaning |\n|---|---|\n";
        for arg in &own {
            *page += &format!("| {} | {} |\n", written(arg), meaning(arg));
        }
    }
    let notes = command.get_after_long_help().or(command.get_after_help());
    for note in notes.map(ToString::to_string).unwrap_or_default().split("\n\n") {
        match note.strip_prefix("Examples:\n") {
            Some(examples) => {
                let lines = examples.lines().map(|line| format!("$ {}\n", line.trim_start()));
                *page += &format!("\n```console\n{}```\n", lines.collect::<String>());
            }
            None if note.is_empty() => {}
            None => *page += &note.lines().map(|line| format!("\n{}", wrapped(line))).collect::<String>(),
        }
    }
    let passed = own.iter().filter(|arg| arg.is_global_set()).map(|arg| arg.get_id().as_str());
    let inherited: Vec<&str> = inherited.iter().copied().chain(passed).collect();
    let visible = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    for inner in command.get_subcommands().filter(visible) {
        describe(page, inner, depth + 1, &inherited);
    }
}

/// Returns an argument as one writes it, like `-n`, `--lines N`.
fn written(arg: &Arg) -> String {
    let names: Vec<&str> = arg.get_value_names().unwrap_or_default().iter().map(Str::as_str).collect();
    let takes_value = arg.get_action().takes_values();
    let value = if takes_value { names.join(" ") } else { String::new() };
    if arg.is_positional() {
        return format!("`{value}`");
    }
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long} {value}").trim_end().to_owned());
    let both: Vec<String> = short.into_iter().chain(long).map(|name| format!("`{name}`")).collect();
    both.join(", ")
}

fn meaning(arg: &Arg) -> String {
    let help = arg
        .get_long_help()
        .or(arg.get_help())
        .map(ToString::to_string)
        .unwrap_or_default();
    let mut meaning = escaped(&help.split_whitespace().collect::<Vec<_>>().join(" ")).replace('|', "\\|");
    if !arg.get_action().takes_values() {
        return meaning;
    }
    let choices: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if !choices.is_empty() {
        meaning += &format!("; one of {}", choices.join(", "));
    }
    if let [default] = arg.get_default_values() {
        meaning += &format!(" [default: {}]", default.to_string_lossy());
    }
    meaning
}

/// Returns one paragraph in lines of at most [`COLUMNS`] columns.
fn wrapped(text: &str) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for word in escaped(text).split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines += &format!("{line}\n");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    format!("{lines}{line}\n")
}

/// Replaces what Markdown would take for HTML.
fn escaped(text: &str) -> String {
    text.replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_reference_is_that_of_the_commands() {
        for (name, page) in pages() {
            let committed = fs::read_to_string(docs().join("reference").join(name)).unwrap_or_default();
            assert!(
                committed == page,
                "docs/reference/{name} differs from the commands; run `cargo xtask book reference` and commit it"
            );
        }
    }

    #[test]
    fn every_visible_flag_is_listed_below_its_command() {
        let [(_, ctl), (_, daemon), (_, environment)] = pages();
        let run = ctl.split_once("\n## gpushare-ctl run\n").unwrap().1;
        let run = run.split_once("\n## ").unwrap().0;
        for row in ["| `-m`, `--memory SIZE` |", "| `--gpu GPU` |", "| `CMD` |"] {
            assert!(run.contains(row), "{run}");
        }
        assert!(run.contains("[default: auto]") && run.contains("\n$ gpushare-ctl run -- python train.py\n"));
        assert!(!run.contains("--runtime-dir"), "a flag of all commands is listed once");
        assert!(daemon.contains("| `--mode MODE` |") && daemon.contains("`time-sliced`"), "{daemon}");
        assert!(!ctl.contains("start-daemon"), "nothing internal is told");
        assert_eq!(environment.matches("\n| `GPUSHARE_").count(), 15, "{environment}");
    }

    #[test]
    fn a_paragraph_is_wrapped_between_words() {
        let text = ["word"; 40].join(" ");
        let lines = wrapped(&text);
        assert_eq!(lines.lines().map(str::len).collect::<Vec<_>>(), [109, 89]);
    }
}
