//! Files of a package, with their paths below a prefix.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

/// A file or a link of a package.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// Contents of a file, and whether it is a program.
    File { bytes: Vec<u8>, is_program: bool },
    /// Path that a symbolic link holds.
    Link(String),
}

impl Node {
    pub(super) fn program(bytes: impl Into<Vec<u8>>) -> Self {
        Self::File { bytes: bytes.into(), is_program: true }
    }

    pub(super) fn data(bytes: impl Into<Vec<u8>>) -> Self {
        Self::File { bytes: bytes.into(), is_program: false }
    }

    /// Mode of the file, as any user may read it.
    pub(super) fn mode(&self) -> u32 {
        match self {
            Self::File { is_program: false, .. } => 0o644,
            Self::File { .. } => 0o755,
            Self::Link(_) => 0o777,
        }
    }
}

/// Files by their relative paths, in the order of the paths.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree(BTreeMap<String, Node>);

impl Tree {
    pub(super) fn add(&mut self, path: impl Into<String>, node: Node) {
        self.0.insert(path.into(), node);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.0.iter().map(|(path, node)| (path.as_str(), node))
    }

    /// Moves everything below a folder.
    pub(super) fn below(self, folder: &str) -> Self {
        Self(
            self.0
                .into_iter()
                .map(|(path, node)| (format!("{folder}/{path}"), node))
                .collect(),
        )
    }

    /// Adds everything of another tree.
    pub(super) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Folders of all files, outer ones first.
    pub(super) fn folders(&self) -> BTreeSet<String> {
        let outer = |path: &str| {
            let parts = path.match_indices('/').map(|(at, _)| path[..at].to_owned());
            parts.collect::<Vec<_>>()
        };
        self.0.keys().flat_map(|path| outer(path)).collect()
    }

    /// Writes everything into a folder.
    pub(super) fn write(&self, root: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(root)?;
        let own = std::iter::once(root.to_owned());
        for folder in own.chain(self.folders().into_iter().map(|folder| root.join(folder))) {
            fs::create_dir_all(&folder)?;
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
        }
        for (path, node) in self.iter() {
            let path = root.join(path);
            match node {
                Node::Link(to) => symlink(to, path)?,
                Node::File { bytes, .. } => {
                    fs::write(&path, bytes)?;
                    fs::set_permissions(path, fs::Permissions::from_mode(node.mode()))?;
                }
            }
        }
        Ok(())
    }
}
