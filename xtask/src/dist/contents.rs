//! Contents of all packages: the programs, the library, and what else belongs on a machine.

use std::collections::BTreeMap;
use std::env;
use std::fs;

use anyhow::{Context, ensure};
use clap_complete::Shell;
use gpushare_tests::artifacts::Part;
use gpushare_tests::cargo::{self, Progress};

use super::jupyter;
use super::tree::{Node, Tree};
use crate::manual;
use crate::shipped::cross::{self, Tools};
use crate::shipped::{Linking, floor_of};
use crate::stage;

/// Files from the source tree, by their paths below the prefix.
const SOURCES: [(&str, &str); 6] = [
    ("lib/systemd/system/gpushare-scheduler.service", "scheduler/systemd/gpushare-scheduler.service"),
    ("lib/systemd/system/gpushare-scheduler.socket", "scheduler/systemd/gpushare-scheduler.socket"),
    (
        "lib/systemd/system/gpushare-scheduler-admin.socket",
        "scheduler/systemd/gpushare-scheduler-admin.socket",
    ),
    ("lib/tmpfiles.d/gpushare.conf", "scheduler/systemd/gpushare.tmpfiles"),
    ("share/doc/gpushare/LICENSE", "LICENSE"),
    ("share/doc/gpushare/README.md", "README.md"),
];

/// Completions by their paths below the prefix.
const COMPLETIONS: [(&str, Shell); 3] = [
    ("share/bash-completion/completions/NAME", Shell::Bash),
    ("share/zsh/site-functions/_NAME", Shell::Zsh),
    ("share/fish/vendor_completions.d/NAME.fish", Shell::Fish),
];

/// The short name of the command line, a link.
pub(super) const SHORT: &str = "gpushare";

/// Stripped release builds of what users get.
pub(super) struct Binaries(BTreeMap<Part, Vec<u8>>);

impl Binaries {
    /// Builds them for an architecture: this machine's, or aarch64 on x86-64.
    pub(super) fn build(architecture: &str) -> anyhow::Result<Self> {
        let mut files = BTreeMap::new();
        if architecture == env::consts::ARCH {
            let stage = stage::build()?;
            files.extend(Part::SHIPPED.map(|part| (part, stage.folder().join(part.file()))));
        } else {
            ensure!(
                architecture == cross::ARCHITECTURE && env::consts::ARCH == "x86_64",
                "files for {architecture} cannot be built on {}; run this on a machine of that kind",
                env::consts::ARCH
            );
            let packages = Part::SHIPPED.map(Part::package);
            let mut built = Tools::fetch()?.build(&packages, Linking::Full, Progress::Shown)?;
            for part in Part::SHIPPED {
                let file = built.remove(part.target()).with_context(|| format!("no {}", part.file()))?;
                floor_of(&file)?;
                files.insert(part, file);
            }
        }
        let read = |(part, file)| Ok((part, fs::read(file)?));
        files.into_iter().map(read).collect::<anyhow::Result<_>>().map(Self)
    }

    /// Scripts that do nothing, in place of the programs and the library.
    pub(super) fn stand_ins() -> Self {
        Self(Part::SHIPPED.map(|part| (part, b"#!/bin/sh\n".to_vec())).into())
    }

    pub(super) fn get(&self, part: Part) -> Node {
        Node::program(self.0[&part].clone())
    }
}

/// A file of the source tree.
pub(super) fn source(path: &str) -> anyhow::Result<Vec<u8>> {
    fs::read(cargo::workspace().join(path)).with_context(|| format!("cannot read {path}"))
}

/// Everything below the prefix that an administrator installs.
pub(super) fn tree(binaries: &Binaries) -> anyhow::Result<Tree> {
    let mut tree = Tree::default();
    tree.add("bin/gpushare-ctl", binaries.get(Part::Ctl));
    tree.add(format!("bin/{SHORT}"), Node::Link("gpushare-ctl".to_owned()));
    tree.add("bin/gpushare-scheduler", binaries.get(Part::Scheduler));
    tree.add("lib/gpushare/libgpushare.so", binaries.get(Part::Library));
    for (path, from) in SOURCES {
        tree.add(path, Node::data(source(from)?));
    }
    tree.extend(for_people()?);
    Ok(tree)
}

/// Manual pages, completions, and the wheel of the IPython extension.
pub(super) fn for_people() -> anyhow::Result<Tree> {
    let mut tree = Tree::default();
    tree.add(jupyter::path(), Node::data(jupyter::bytes()?));
    for (name, page) in manual::pages()? {
        let section = name.rsplit('.').next().unwrap_or("1");
        tree.add(format!("share/man/man{section}/{name}"), Node::data(page));
    }
    tree.add(format!("share/man/man1/{SHORT}.1"), Node::data(".so man1/gpushare-ctl.1\n"));
    for name in ["gpushare-ctl", SHORT] {
        for (path, shell) in COMPLETIONS {
            let text = gpushare_ctl::completions(shell, name);
            tree.add(path.replace("NAME", name), Node::data(text));
        }
    }
    Ok(tree)
}
