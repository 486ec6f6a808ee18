//! The archive for the image of a cluster's nodes: the programs at their places below `/`.
//!
//! Only `cargo xtask dist` makes it: checks of the other packages need no second build.

use std::env;
use std::fs::{self, File};
use std::path::Path;

use gpushare_tests::artifacts::Part;
use gpushare_tests::cargo::Progress;

use super::contents::{Binaries, source};
use super::tarball::archive;
use super::tree::{Node, Tree};
use super::{Batch, EARLIEST, VERSION};
use crate::shipped::{self, floor_of};

/// Program with the device plugin, and crate of that name.
const PLUGIN: &str = "gpushare-k8s";

/// Name of the archive.
pub(super) fn name(architecture: &str) -> String {
    format!("gpushare-node-{VERSION}-{architecture}-linux.tar.gz")
}

/// Builds the device plugin and writes the archive.
pub(super) fn write(batch: &Batch<'_>) -> anyhow::Result<String> {
    let plugin = shipped::build_one(batch.architecture, PLUGIN, Progress::Shown)?;
    floor_of(&plugin)?;
    let tree = tree(batch.binaries, fs::read(plugin)?)?;
    let name = name(batch.architecture);
    archive(&tree, batch.time, File::create(batch.folder.join(&name))?)?;
    Ok(name)
}

/// Writes an archive with scripts in place of the programs, and returns its name.
pub(crate) fn stand_in(folder: &Path) -> anyhow::Result<String> {
    let tree = tree(&Binaries::stand_ins(), b"#!/bin/sh\n".to_vec())?;
    let name = name(env::consts::ARCH);
    archive(&tree, EARLIEST, File::create(folder.join(&name))?)?;
    Ok(name)
}

/// Returns the files of the image.
fn tree(binaries: &Binaries, plugin: Vec<u8>) -> anyhow::Result<Tree> {
    let mut tree = Tree::default();
    tree.add(format!("usr/bin/{PLUGIN}"), Node::program(plugin));
    for part in [Part::Scheduler, Part::Ctl] {
        tree.add(format!("usr/bin/{}", part.file()), binaries.get(part));
    }
    tree.add(format!("usr/lib/gpushare/{}", Part::Library.file()), binaries.get(Part::Library));
    tree.add("usr/share/doc/gpushare/LICENSE", Node::data(source("LICENSE")?));
    Ok(tree)
}
