//! `cargo xtask imports`: finds circles among the files of each crate that are wider than one folder.
//!
//! A file imports another if it names a path into it: `crate::`, `self::`, `super::`, or the name of a
//! module that it declares. Files that import each other, directly or through others, form one circle.
//! `foo.rs` and everything below `foo/` are one folder, in which circles are allowed. `lib.rs`, `main.rs`
//! and modules of tests do not count.
//!
//! The source is read as a stream of tokens, without a parser: paths are all that matters here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;
use gpushare_tests::cargo;
use serde::Serialize;

use crate::output::{progress, result};

mod source;

use source::{Source, paths_of};

/// Options of `cargo xtask imports`.
#[derive(Args)]
pub(crate) struct Options {
    /// Only the crates in these folders, like `scheduler/core`; all without any
    crates: Vec<String>,
    /// Report circles and end with success all the same
    #[arg(long)]
    report: bool,
}

/// Circles of all crates.
#[derive(Debug, Serialize)]
struct Outcome {
    /// Folders of the crates without a wide circle.
    clean: Vec<String>,
    circles: Vec<Circle>,
}

/// A set of files of which each imports every other, directly or through others.
#[derive(Debug, Serialize)]
struct Circle {
    /// Folder of the crate.
    #[serde(rename = "crate")]
    member: String,
    /// All files of the circle, relative to `src`.
    files: Vec<String>,
    /// Shortest way from a file through another folder back to the same file.
    shortest: Vec<String>,
}

pub(crate) fn run(options: &Options, json: bool) -> anyhow::Result<ExitCode> {
    let outcome = Outcome::of(&options.crates)?;
    let fine = options.report || outcome.circles.is_empty();
    result(&outcome, json)?;
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Number of circles in the crates for whose folder `counts` holds. The circles of all crates are named on
/// stderr.
pub(crate) fn count(counts: impl Fn(&str) -> bool) -> anyhow::Result<usize> {
    let outcome = Outcome::of(&[])?;
    if !outcome.circles.is_empty() {
        progress(&outcome);
    }
    Ok(outcome.circles.iter().filter(|circle| counts(&circle.member)).count())
}

impl Outcome {
    /// Reads the crates in the folders `wanted`, or all crates of the workspace.
    fn of(wanted: &[String]) -> anyhow::Result<Self> {
        #[derive(serde::Deserialize)]
        struct Manifest {
            workspace: Workspace,
        }
        #[derive(serde::Deserialize)]
        struct Workspace {
            members: Vec<String>,
        }
        let root = cargo::workspace();
        let manifest: Manifest = toml::from_str(&fs::read_to_string(root.join("Cargo.toml"))?)?;
        let mut members = manifest.workspace.members;
        if let Some(unknown) = wanted.iter().find(|wanted| !members.contains(wanted)) {
            anyhow::bail!("there is no crate in {unknown}; there are {}", members.join(", "));
        }
        members.retain(|member| wanted.is_empty() || wanted.contains(member));
        let mut outcome = Self { clean: Vec::new(), circles: Vec::new() };
        for member in members {
            let files = read(&root.join(&member).join("src")).with_context(|| member.clone())?;
            let circles = circles(&member, &Graph::of(&files));
            if circles.is_empty() {
                outcome.clean.push(member);
            } else {
                outcome.circles.extend(circles);
            }
        }
        Ok(outcome)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Circle { member, files, shortest } in &self.circles {
            writeln!(f, "{member}: a circle of {} files; the shortest way round is", files.len())?;
            writeln!(f, "    {}", shortest.join(" -> "))?;
            writeln!(f, "    all of them: {}", files.join(" "))?;
        }
        write!(f, "{} circles; without any: {}", self.circles.len(), self.clean.join(", "))
    }
}

/// Reads the files below `src`, by their path relative to it.
fn read(src: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![src.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(src)?.to_str().context("a file name is not UTF-8")?;
                files.insert(name.to_owned(), fs::read_to_string(&path)?);
            }
        }
    }
    ensure!(!files.is_empty(), "there are no files");
    Ok(files)
}

/// Module path of a file: `a/b.rs` and `a/b/mod.rs` are `a::b`, `lib.rs` and `main.rs` are the root.
fn module_of(file: &str) -> Vec<String> {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    let mut module: Vec<String> = path.split('/').map(str::to_owned).collect();
    let last = module.last().map(String::as_str);
    if last == Some("mod") || (module.len() == 1 && matches!(last, Some("lib" | "main"))) {
        module.pop();
    }
    module
}

/// Which file of a crate imports which.
#[derive(Debug)]
struct Graph {
    /// By file, without the root and without modules of tests.
    imports: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    fn of(files: &BTreeMap<String, String>) -> Self {
        let sources: BTreeMap<&String, (Vec<String>, Source)> = files
            .iter()
            .map(|(file, text)| {
                let module = module_of(file);
                (file, (module.clone(), paths_of(&module, text)))
            })
            .collect();
        let is_test = |module: &[String]| {
            sources
                .values()
                .any(|(_, source)| source.tests.iter().any(|test| module.starts_with(test)))
        };
        let counted: BTreeMap<&Vec<String>, &String> = sources
            .iter()
            .filter(|(_, (module, _))| !module.is_empty() && !is_test(module))
            .map(|(file, (module, _))| (module, *file))
            .collect();
        // A name that the root re-exports belongs to the file that defines it.
        let exports: BTreeMap<&String, &Vec<String>> = sources
            .values()
            .filter(|(module, _)| module.is_empty())
            .flat_map(|(_, source)| &source.paths)
            .map(|path| (&path.name, &path.segments))
            .collect();
        let file_of = |path: &[String]| {
            let prefixes = (1..=path.len()).rev().map(|length| path[..length].to_vec());
            prefixes.filter_map(|prefix| counted.get(&prefix)).next()
        };
        let imports = counted.values().map(|file| {
            let paths = sources[*file].1.paths.iter().filter(|path| !path.segments.is_empty());
            let imported = paths.filter_map(|path| {
                let exported = || exports.get(&path.segments[0]).and_then(|path| file_of(path));
                file_of(&path.segments).or_else(exported).filter(|other| *other != file)
            });
            ((*file).clone(), imported.map(|file| (*file).clone()).collect())
        });
        Self { imports: imports.collect() }
    }

    /// Shortest way along imports from `from` to `to`, both included.
    fn way(&self, from: &str, to: &str) -> Option<Vec<String>> {
        let mut before: BTreeMap<&str, &str> = BTreeMap::new();
        let mut queue = VecDeque::from([from]);
        while let Some(file) = queue.pop_front() {
            if file == to {
                let mut way = vec![to.to_owned()];
                let mut at = to;
                while at != from {
                    at = before[at];
                    way.push(at.to_owned());
                }
                way.reverse();
                return Some(way);
            }
            for next in &self.imports[file] {
                if next != from && !before.contains_key(next.as_str()) {
                    before.insert(next, file);
                    queue.push_back(next);
                }
            }
        }
        None
    }
}

/// Top-level folder of a file; a file beside which no folder of its name lies stands for one.
fn folder_of(file: &str) -> &str {
    let first = file.split('/').next().unwrap_or(file);
    first.strip_suffix(".rs").unwrap_or(first)
}

/// Circles that are wider than one folder.
fn circles(member: &str, graph: &Graph) -> Vec<Circle> {
    let mut left: BTreeSet<&String> = graph.imports.keys().collect();
    let mut circles = Vec::new();
    while let Some(file) = left.pop_first() {
        let both = |other: &str| graph.way(file, other).is_some() && graph.way(other, file).is_some();
        let mut files: Vec<&String> = left.iter().copied().filter(|other| both(other)).collect();
        files.insert(0, file);
        left.retain(|other| !files.contains(other));
        let leaves = files
            .iter()
            .flat_map(|file| graph.imports[*file].iter().map(move |next| (*file, next)));
        let ways_round = leaves
            .filter(|(file, next)| files.contains(next) && folder_of(file) != folder_of(next))
            .filter_map(|(file, next)| {
                let mut way = graph.way(next, file)?;
                way.insert(0, file.clone());
                Some(way)
            });
        if let Some(shortest) = ways_round.min_by_key(Vec::len) {
            let files = files.into_iter().cloned().collect();
            circles.push(Circle { member: member.to_owned(), files, shortest });
        }
    }
    circles
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Graph, circles};

    fn shortest(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let files: BTreeMap<String, String> = files
            .iter()
            .map(|(file, text)| ((*file).to_owned(), (*text).to_owned()))
            .collect();
        circles("x", &Graph::of(&files))
            .into_iter()
            .map(|circle| circle.shortest)
            .collect()
    }

    #[test]
    fn a_circle_between_two_folders_is_found_with_its_shortest_way() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use b::c::Leaf;"),
            ("a.rs", "mod inner; use crate::Leaf;"),
            ("a/inner.rs", "fn f() { super::g() }"),
            ("b/mod.rs", "mod c; // crate::a\nuse c::{Leaf as _, Other};"),
            ("b/c.rs", "fn f() { let text = \"crate::b\"; crate::a::inner::g::<u8>() }"),
        ];
        assert_eq!(shortest(&files), [["a.rs", "b/c.rs", "a/inner.rs", "a.rs"].map(str::to_owned).to_vec()]);
    }

    #[test]
    fn circles_within_a_folder_and_through_the_root_or_tests_do_not_count() {
        let files = [
            ("main.rs", "mod a; mod b; use a::Thing;"),
            ("a/mod.rs", "mod c; use c::Leaf; use crate::b::f;"),
            ("a/c.rs", "use super::Thing;"),
            ("b.rs", "#[cfg(test)] mod tests { use crate::a; } #[cfg(test)] mod more; fn f() { crate::f() }"),
            ("b/more.rs", "use crate::a;"),
        ];
        assert!(shortest(&files).is_empty());
    }
}
