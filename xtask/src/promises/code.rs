//! Shape of the code: formatting, circles of imports, and lines.

use std::fs;
use std::process::Command;

use anyhow::Context;
use gpushare_tests::cargo;
use gpushare_tests::process::output_of;

use crate::imports;
use crate::promise::{Bound, Check, Effort};

/// Folders of what is installed.
const PRODUCT: [&str; 5] = ["proto/", "sys/", "scheduler/", "interposer/", "ctl/"];

/// Crate whose calls and objects still import each other.
const SIMULATED_DRIVER: &str = "tests/simgpu/cuda";

pub(super) const CHECK: Check = Check {
    name: "code",
    effort: Effort::Counted,
    bounds: &[
        Bound::at_most("Rust files that rustfmt would change", 0.0, "files"),
        Bound::at_most(
            "circles of imports wider than one folder, without the simulated driver",
            0.0,
            "circles",
        ),
        Bound::at_most("lines of the product", 45_000.0, "lines"),
        Bound::at_most("lines of all Rust", 108_000.0, "lines"),
    ],
    measure: || {
        let files = listed("*.rs")?;
        let (mut product, mut all) = (0, 0);
        for file in &files {
            let text = fs::read_to_string(cargo::workspace().join(file))?;
            all += text.lines().count();
            if is_product(file) {
                product += without_tests(&text);
            }
        }
        let circles = imports::count(|member| member != SIMULATED_DRIVER)?;
        let values = [unformatted(&files)?, circles, product, all];
        Ok(values.map(|count| count as f64).to_vec())
    },
};

/// Files of the repository whose names match.
pub(super) fn listed(pattern: &str) -> anyhow::Result<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(cargo::workspace())
        .args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let listed = output_of({
        git.arg(pattern);
        git
    })?;
    let exists = |file: &&str| cargo::workspace().join(file).is_file();
    Ok(listed.lines().filter(exists).map(str::to_owned).collect())
}

/// Number of files that rustfmt would change.
fn unformatted(files: &[String]) -> anyhow::Result<usize> {
    let mut rustfmt = Command::new("rustfmt");
    rustfmt
        .current_dir(cargo::workspace())
        .args(["--check", "-l", "--edition", "2024"])
        .args(files);
    let output = rustfmt.output().context("cannot run rustfmt; is it installed?")?;
    let mut changed: Vec<&[u8]> = output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .collect();
    changed.sort_unstable();
    changed.dedup();
    anyhow::ensure!(output.status.success() || !changed.is_empty(), "rustfmt cannot read a file");
    Ok(changed.len())
}

/// Whether a file is a part of what is installed, and no test, benchmark or example.
fn is_product(file: &str) -> bool {
    let names = file.split('/').map(|name| name.strip_suffix(".rs").unwrap_or(name));
    let apart = ["tests", "benches", "examples"];
    PRODUCT.iter().any(|folder| file.starts_with(folder))
        && !names.into_iter().any(|name| apart.contains(&name))
}

/// Number of lines outside of modules that are compiled for tests only.
fn without_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let (mut at, mut count) = (0, 0);
    while let Some(line) = lines.get(at) {
        if let Some(end) = end_of_tests(&lines[at..]) {
            at += end;
            continue;
        }
        let _ = line;
        (at, count) = (at + 1, count + 1);
    }
    count
}

/// Number of lines of the module of tests that begins here.
fn end_of_tests(lines: &[&str]) -> Option<usize> {
    let first = lines[0].trim_start();
    if !first.starts_with("#[cfg(test") && !first.starts_with("#[cfg(all(test") {
        return None;
    }
    let starts = |line: &&&str| line.trim_start().starts_with("#[") || line.trim_start().starts_with("///");
    let module = 1 + lines[1..].iter().take_while(starts).count();
    let line = lines.get(module)?;
    let is_module = line.trim_start().split("mod ").nth(1).is_some_and(|rest| rest.ends_with('{'));
    let close = format!("{}}}", &lines[0][..lines[0].len() - first.len()]);
    let end = lines.iter().position(|line| *line == close)?;
    (is_module && line.contains("mod ")).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_of_tests_are_no_lines_of_the_product() {
        let text = "use a;\n\n#[cfg(test)]\nmod tests {\n    fn f() {\n    }\n}\n#[cfg(test)]\nmod more;\n";
        assert_eq!(without_tests(text), 4);
        assert!(is_product("scheduler/core/src/lib.rs") && !is_product("scheduler/core/src/tests/drawn.rs"));
        assert!(!is_product("ctl/tests/cli.rs") && !is_product("xtask/src/main.rs"));
    }
}
