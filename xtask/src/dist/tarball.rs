//! The archive for any Linux: a folder that works where it is unpacked, with a script that installs it.

use std::fmt::Write as _;
use std::fs::File;

use flate2::{Compression, GzBuilder};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use super::contents::{source, tree};
use super::tree::{Node, Tree};
use super::{Batch, VERSION, checksum};

/// Name of the archive without its ending, and of the folder in it.
pub(super) fn name(architecture: &str) -> String {
    format!("gpushare-{VERSION}-{architecture}-linux")
}

pub(super) fn write(batch: &Batch<'_>) -> anyhow::Result<String> {
    let mut tree = tree(batch.binaries)?;
    for path in ["LICENSE", "README.md"] {
        tree.add(path, Node::data(source(path)?));
    }
    tree.add("share/gpushare/config.toml", Node::data(source("scheduler/systemd/config.toml")?));
    let script = String::from_utf8(source("xtask/packages/install.sh")?)?;
    let script = script
        .replace("@VERSION@", VERSION)
        .replace("@ARCHITECTURE@", batch.architecture);
    tree.add("install.sh", Node::program(script));
    tree.add("SHA256SUMS", Node::data(checksums(&tree)));

    let name = name(batch.architecture);
    let file = format!("{name}.tar.gz");
    archive(&tree.below(&name), batch.time, File::create(batch.folder.join(&file))?)?;
    Ok(file)
}

/// Checksums of all files, in the form of sha256sum(1).
fn checksums(tree: &Tree) -> String {
    let mut sums = String::new();
    for (path, node) in tree.iter() {
        if let Node::File { bytes, .. } = node {
            let _ = writeln!(sums, "{}  {path}", checksum(&Sha256::digest(bytes)));
        }
    }
    sums
}

/// Writes an archive that depends on nothing but the tree and the time.
pub(super) fn archive(tree: &Tree, time: u64, to: impl std::io::Write) -> anyhow::Result<()> {
    let mut archive = Builder::new(GzBuilder::new().mtime(0).write(to, Compression::best()));
    let header = |kind, mode, size| {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size);
        header.set_mtime(time);
        header.set_uid(0);
        header.set_gid(0);
        header.set_username("root")?;
        header.set_groupname("root")?;
        Ok::<_, anyhow::Error>(header)
    };
    for folder in tree.folders() {
        let mut header = header(EntryType::Directory, 0o755, 0)?;
        archive.append_data(&mut header, format!("{folder}/"), &[][..])?;
    }
    for (path, node) in tree.iter() {
        match node {
            Node::File { bytes, .. } => {
                let mut header = header(EntryType::Regular, node.mode(), bytes.len() as u64)?;
                archive.append_data(&mut header, path, &bytes[..])?;
            }
            Node::Link(to) => {
                let mut header = header(EntryType::Symlink, node.mode(), 0)?;
                archive.append_link(&mut header, path, to)?;
            }
        }
    }
    archive.into_inner()?.finish()?.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_depends_on_its_contents_and_time_alone() {
        let mut tree = Tree::default();
        tree.add("x/bin/tool", Node::program("#!/bin/sh\n"));
        tree.add("x/bin/alias", Node::Link("tool".to_owned()));
        let bytes = |time| {
            let mut bytes = Vec::new();
            archive(&tree, time, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(bytes(5), bytes(5));
        assert_ne!(bytes(5), bytes(6));

        let bytes = bytes(1_700_000_000);
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&bytes[..]));
        let entries: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                let owner = (header.uid().unwrap(), header.username().unwrap().unwrap().to_owned());
                assert_eq!(owner, (0, "root".to_owned()));
                assert_eq!(header.mtime().unwrap(), 1_700_000_000);
                format!("{:o} {}", header.mode().unwrap(), entry.path().unwrap().display())
            })
            .collect();
        assert_eq!(entries, ["755 x/", "755 x/bin/", "777 x/bin/alias", "755 x/bin/tool"]);
    }
}
