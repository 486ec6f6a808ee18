//! The Debian package: everything below /usr, an empty configuration, and scripts that start the units.

use std::fs;
use std::io::Write as _;
use std::process::Command;

use anyhow::Context;
use flate2::{Compression, GzBuilder};
use gpushare_tests::process::output_of;

use super::contents::{Binaries, source, tree};
use super::tree::{Node, Tree};
use super::{Batch, SUMMARY, VERSION};
use crate::shipped::FLOOR;
use crate::tools;

const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];
const CONFIGURATION: &str = "etc/gpushare/config.toml";

pub(super) fn write(batch: &Batch<'_>) -> anyhow::Result<String> {
    tools::need("dpkg-deb", "dpkg")?;
    let architecture = match batch.architecture {
        "aarch64" => "arm64",
        _ => "amd64",
    };
    let tree = contents(batch.binaries)?;
    let bytes: usize = tree.iter().map(|(_, node)| size(node)).sum();
    let mut control = Tree::default();
    control.add("control", Node::data(fields(architecture, bytes)));
    control.add("conffiles", Node::data(format!("/{CONFIGURATION}\n")));
    for script in SCRIPTS {
        control.add(script, Node::program(source(&format!("xtask/packages/deb/{script}"))?));
    }
    let root = batch.folder.join("deb");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    tree.write(&root)?;
    control.write(&root.join("DEBIAN"))?;

    let name = format!("gpushare_{VERSION}_{architecture}.deb");
    let mut build = Command::new("dpkg-deb");
    // dpkg-deb takes this time for all files that are newer.
    build.env("SOURCE_DATE_EPOCH", batch.time.to_string());
    build
        .args(["--root-owner-group", "-Zxz", "--build"])
        .arg(&root)
        .arg(batch.folder.join(&name));
    output_of(build).context("cannot build the Debian package")?;
    fs::remove_dir_all(&root)?;
    Ok(name)
}

fn contents(binaries: &Binaries) -> anyhow::Result<Tree> {
    let mut below = Tree::default();
    for (path, node) in tree(binaries)?.iter() {
        match node {
            // Debian compresses manual pages, and keeps licences where they are common to all packages.
            Node::File { bytes, .. } if path.starts_with("share/man/") => {
                below.add(format!("{path}.gz"), Node::data(compressed(bytes)?));
            }
            _ if path.ends_with("/LICENSE") => {}
            // Debian's zsh has another folder for the completions of packages.
            node => below.add(path.replace("zsh/site-functions", "zsh/vendor-completions"), node.clone()),
        }
    }
    below.add("share/doc/gpushare/copyright", Node::data(source("xtask/packages/deb/copyright")?));
    let mut tree = below.below("usr");
    tree.add(CONFIGURATION, Node::data(source("scheduler/systemd/config.toml")?));
    Ok(tree)
}

fn compressed(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut compressed = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    compressed.write_all(bytes)?;
    Ok(compressed.finish()?)
}

fn size(node: &Node) -> usize {
    match node {
        Node::File { bytes, .. } => bytes.len(),
        Node::Link(_) => 0,
    }
}

fn fields(architecture: &str, bytes: usize) -> String {
    format!(
        "Package: gpushare\n\
         Version: {VERSION}\n\
         Architecture: {architecture}\n\
         Maintainer: The gpushare maintainers <maintainers@gpushare.invalid>\n\
         Installed-Size: {}\n\
         Depends: libc6 (>= {FLOOR}), libgcc-s1 | libgcc1\n\
         Section: admin\n\
         Priority: optional\n\
         Description: {SUMMARY}\n \
         A library that is preloaded into each program gives it a memory quota and its\n \
         turns on the card. The daemon gpushare-scheduler decides, and gpushare-ctl\n \
         starts programs and shows who holds the card.\n",
        bytes.div_ceil(1024)
    )
}
