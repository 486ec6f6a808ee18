//! Settings of the machine's administrator for every process, in a file that the environment cannot replace:
//!
//! ```text
//! /etc/gpushare/client.toml     required = true                  without a daemon no GPU
//!                               runtime_dir = "/run/gpushare"    folder of the daemon
//! ```
//!
//! The file is trusted if it belongs to root and no other user may write it; any other is ignored with a line
//! on stderr. In a user namespace without root, which any user may make, root's file has the uid 65534: it is
//! trusted too. A trusted file that is not understood refuses the GPU to the process. These two lines are all
//! the TOML that is parsed, since a guest process gets no parser.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use crate::process::stderr;

/// Largest size of a configuration file that is read, in bytes.
const MOST: u64 = 4096;

/// Uid in a user namespace of users who have none there (`/proc/sys/kernel/overflowuid`).
const UNMAPPED: u32 = 65534;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MachineConfig {
    /// Whether a process must not use the GPU when no daemon is there.
    pub required: bool,
    /// Folder of the daemon's sockets, which replaces the one that the environment names.
    pub runtime_dir: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum MachineConfigError {
    #[error("cannot read {}: {cause}; ask the machine's administrator", path.display())]
    Unreadable { path: PathBuf, cause: io::Error },
    #[error("{}: `{line}` is neither `required = true` nor `runtime_dir = \"/a/folder\"`; ask the machine's administrator", path.display())]
    Unknown { path: PathBuf, line: String },
}

impl MachineConfig {
    /// Reads the configuration file. A file that is missing or not trusted counts as empty.
    pub(crate) fn read(path: &Path) -> Result<Self, MachineConfigError> {
        static PRINTED: AtomicBool = AtomicBool::new(false);
        let unreadable = |cause| MachineConfigError::Unreadable { path: path.to_owned(), cause };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(cause) if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Self::default());
            }
            Err(cause) => return Err(unreadable(cause)),
        };
        let metadata = file.metadata().map_err(unreadable)?;
        if !is_written_by_root(metadata.is_file(), metadata.uid(), metadata.mode()) {
            let path = path.display();
            let must = "it must be a file that belongs to root and that no other user may write";
            stderr::print_once(&PRINTED, format_args!("{path} is ignored: {must}"));
            return Ok(Self::default());
        }
        let mut text = String::new();
        file.take(MOST + 1).read_to_string(&mut text).map_err(unreadable)?;
        // The part beyond could hold a setting.
        if text.len() as u64 > MOST {
            return Err(unreadable(io::Error::other(format!("it is longer than {MOST} bytes"))));
        }
        Self::parse(&text).map_err(|line| MachineConfigError::Unknown { path: path.to_owned(), line })
    }

    /// Parses the file's text; returns the first line that is no setting as the error.
    fn parse(text: &str) -> Result<Self, String> {
        let mut config = Self::default();
        for line in text.lines() {
            let line = without_comment(line);
            if line.is_empty() {
                continue;
            }
            let unknown = || line.to_owned();
            let (key, value) = line.split_once('=').ok_or_else(unknown)?;
            match (key.trim(), value.trim()) {
                ("required", "true") => config.required = true,
                ("required", "false") => config.required = false,
                ("runtime_dir", quoted) => {
                    let inner = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
                    let dir = inner.filter(|dir| dir.starts_with('/') && !dir.contains(['"', '\\']));
                    config.runtime_dir = Some(dir.ok_or_else(unknown)?.into());
                }
                _ => return Err(unknown()),
            }
        }
        Ok(config)
    }
}

fn without_comment(line: &str) -> &str {
    let mut quoted = false;
    let begins = |c| {
        quoted ^= c == '"';
        c == '#' && !quoted
    };
    line.split(begins).next().unwrap_or_default().trim()
}

const fn is_written_by_root(is_file: bool, uid: u32, mode: u32) -> bool {
    is_file && matches!(uid, 0 | UNMAPPED) && mode & 0o022 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_settings_are_read_without_comments() {
        let text = "# of this machine\n\n required=true\nruntime_dir = \"/run/gpushare\"\n";
        let runtime_dir = Some("/run/gpushare".into());
        assert_eq!(MachineConfig::parse(text), Ok(MachineConfig { required: true, runtime_dir }));
        assert_eq!(MachineConfig::parse(""), Ok(MachineConfig::default()));
        assert_eq!(MachineConfig::parse("required = false"), Ok(MachineConfig::default()));
    }

    #[test]
    fn the_example_of_the_documentation_is_understood() {
        let page = include_str!("../../../../docs/systemd.md");
        let block = page
            .split("```toml\n")
            .nth(1)
            .and_then(|rest| rest.split("```").next())
            .unwrap();
        let runtime_dir = Some("/run/gpushare".into());
        assert_eq!(MachineConfig::parse(block), Ok(MachineConfig { required: true, runtime_dir }));
        let odd = "runtime_dir = \"/run/a#b\"# required = true";
        assert_eq!(
            MachineConfig::parse(odd),
            Ok(MachineConfig { required: false, runtime_dir: Some("/run/a#b".into()) })
        );
    }

    #[test]
    fn a_file_that_is_too_long_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("client.toml");
        std::fs::write(&path, format!("# {}\nrequired = true\n", "x".repeat(4096))).unwrap();
        // Only a file of root's is trusted, and any user may run this test.
        match File::open(&path).unwrap().metadata().unwrap().uid() {
            0 => assert!(
                MachineConfig::read(&path)
                    .unwrap_err()
                    .to_string()
                    .contains("longer than 4096 bytes")
            ),
            _ => assert_eq!(MachineConfig::read(&path).unwrap(), MachineConfig::default()),
        }
    }

    #[test]
    fn a_line_that_is_no_setting_is_named() {
        for line in [
            "required",
            "required = yes",
            "require = true",
            "runtime_dir = /run",
            "runtime_dir = \"run\"",
            "[client]",
        ] {
            assert_eq!(MachineConfig::parse(&format!("required = true\n{line}")), Err(line.to_owned()));
        }
    }

    #[test]
    fn only_a_file_that_root_alone_may_write_is_trusted() {
        assert!(is_written_by_root(true, 0, 0o100_644) && is_written_by_root(true, 0, 0o100_600));
        assert!(
            is_written_by_root(true, UNMAPPED, 0o100_644) && !is_written_by_root(true, UNMAPPED, 0o100_646),
            "in a user namespace"
        );
        assert!(!is_written_by_root(true, 1000, 0o100_644), "a user's");
        assert!(
            !is_written_by_root(true, 0, 0o100_664) && !is_written_by_root(true, 0, 0o100_646),
            "others may write it"
        );
        assert!(!is_written_by_root(false, 0, 0o100_644), "a folder or a device");
    }

    #[test]
    fn without_a_file_nothing_is_set() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("client.toml");
        assert_eq!(MachineConfig::read(&path).unwrap(), MachineConfig::default());
        assert_eq!(MachineConfig::read(&path.join("x")).unwrap(), MachineConfig::default());
        assert_eq!(MachineConfig::read(folder.path()).unwrap(), MachineConfig::default());
    }
}
