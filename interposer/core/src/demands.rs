//! What the machine's administrator demands of every process, in a file that the process's environment cannot lead away from:
//!
//! ```text
//! /etc/gpushare/client.toml     required = true                  no daemon, no GPU
//!                               runtime_dir = "/run/gpushare"    and it is looked for here only
//! ```
//!
//! The path is fixed. The file counts if it is root's and nobody else may write it; any other is none, with a line. In a user namespace
//! whose users root is not among, which anybody may make, the kernel shows root's file as nobody's: that counts too. What such a file
//! says and nobody understands is no leave to run: the process is refused, as with settings of its own that make no sense.
//! The format is what these two lines need of TOML, since nothing here shall need a parser.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use crate::notice;

/// More than it can need.
const MOST: u64 = 4096;

/// Whoever has no number in a user namespace has this one there (`/proc/sys/kernel/overflowuid`).
const UNMAPPED: u32 = 65534;

/// What is demanded; by default nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demands {
    /// Whether a process that finds no daemon must not run.
    pub required: bool,
    /// The daemon's folder, whatever the environment says.
    pub runtime_dir: Option<PathBuf>,
}

/// Why a file that counts says nothing.
#[derive(Debug, thiserror::Error)]
pub enum DemandsError {
    /// It cannot be read.
    #[error("cannot read {}: {cause}; ask the machine's administrator", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// A line that means nothing.
    #[error("{}: `{line}` is neither `required = true` nor `runtime_dir = \"/a/folder\"`; ask the machine's administrator", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The line.
        line: String,
    },
}

impl Demands {
    /// What the file says; nothing if there is none, or none that counts.
    ///
    /// # Errors
    /// It counts, and cannot be read or understood.
    pub fn read(path: &Path) -> Result<Self, DemandsError> {
        static SAID: AtomicBool = AtomicBool::new(false);
        let unreadable = |cause| DemandsError::Unreadable { path: path.to_owned(), cause };
        let file = match File::open(path) {
            Ok(file) => file,
            // Where there is no such file, or where the folder is no folder, nobody demands anything.
            Err(cause) if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Self::default());
            }
            Err(cause) => return Err(unreadable(cause)),
        };
        let what = file.metadata().map_err(unreadable)?;
        if !counts(&what) {
            notice::say_once(
                &SAID,
                format_args!(
                    "{} does not count: it must be a file of root's that nobody else may write",
                    path.display()
                ),
            );
            return Ok(Self::default());
        }
        let mut text = String::new();
        file.take(MOST + 1).read_to_string(&mut text).map_err(unreadable)?;
        // What is cut off may be the demand.
        if text.len() as u64 > MOST {
            return Err(unreadable(io::Error::other(format!("it is longer than {MOST} bytes"))));
        }
        Self::parse(&text).map_err(|line| DemandsError::Unknown { path: path.to_owned(), line })
    }

    /// What the text says, or the line that says nothing.
    fn parse(text: &str) -> Result<Self, String> {
        let mut demands = Self::default();
        for line in text.lines() {
            let said = without_comment(line);
            if said.is_empty() {
                continue;
            }
            let unknown = || said.to_owned();
            let (key, value) = said.split_once('=').ok_or_else(unknown)?;
            match (key.trim(), value.trim()) {
                ("required", "true") => demands.required = true,
                ("required", "false") => demands.required = false,
                ("runtime_dir", quoted) => {
                    let inner = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
                    let dir = inner.filter(|dir| dir.starts_with('/') && !dir.contains(['"', '\\']));
                    demands.runtime_dir = Some(dir.ok_or_else(unknown)?.into());
                }
                _ => return Err(unknown()),
            }
        }
        Ok(demands)
    }
}

/// A line without its comment; in quotes a `#` begins none.
fn without_comment(line: &str) -> &str {
    let mut quoted = false;
    let begins = |c| {
        quoted ^= c == '"';
        c == '#' && !quoted
    };
    line.split(begins).next().unwrap_or_default().trim()
}

/// Whether root, and nobody else, said it.
fn counts(file: &Metadata) -> bool {
    is_roots(file.is_file(), file.uid(), file.mode())
}

const fn is_roots(is_file: bool, uid: u32, mode: u32) -> bool {
    is_file && matches!(uid, 0 | UNMAPPED) && mode & 0o022 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_demands_are_read_and_comments_are_none() {
        let text = "# of this machine\n\n required=true\nruntime_dir = \"/run/gpushare\"\n";
        let runtime_dir = Some("/run/gpushare".into());
        assert_eq!(Demands::parse(text), Ok(Demands { required: true, runtime_dir }));
        assert_eq!(Demands::parse(""), Ok(Demands::default()));
        assert_eq!(Demands::parse("required = false"), Ok(Demands::default()));
    }

    #[test]
    fn what_the_documentation_shows_is_understood() {
        let page = include_str!("../../../docs/systemd.md");
        let block = page
            .split("```toml\n")
            .nth(1)
            .and_then(|rest| rest.split("```").next())
            .unwrap();
        let runtime_dir = Some("/run/gpushare".into());
        assert_eq!(Demands::parse(block), Ok(Demands { required: true, runtime_dir }));
        let odd = "runtime_dir = \"/run/a#b\"# required = true";
        assert_eq!(
            Demands::parse(odd),
            Ok(Demands { required: false, runtime_dir: Some("/run/a#b".into()) })
        );
    }

    #[test]
    fn a_demand_behind_much_else_is_not_overlooked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("client.toml");
        std::fs::write(&path, format!("# {}\nrequired = true\n", "x".repeat(4096))).unwrap();
        // Only root's file counts, whoever runs this test.
        match File::open(&path).unwrap().metadata().unwrap().uid() {
            0 => assert!(Demands::read(&path).unwrap_err().to_string().contains("longer than 4096 bytes")),
            _ => assert_eq!(Demands::read(&path).unwrap(), Demands::default()),
        }
    }

    #[test]
    fn a_line_that_says_nothing_is_named() {
        for line in [
            "required",
            "required = yes",
            "require = true",
            "runtime_dir = /run",
            "runtime_dir = \"run\"",
            "[client]",
        ] {
            assert_eq!(Demands::parse(&format!("required = true\n{line}")), Err(line.to_owned()));
        }
    }

    #[test]
    fn only_a_file_that_root_alone_may_write_counts() {
        assert!(is_roots(true, 0, 0o100_644) && is_roots(true, 0, 0o100_600));
        assert!(
            is_roots(true, UNMAPPED, 0o100_644) && !is_roots(true, UNMAPPED, 0o100_646),
            "in a user namespace"
        );
        assert!(!is_roots(true, 1000, 0o100_644), "a user's");
        assert!(!is_roots(true, 0, 0o100_664) && !is_roots(true, 0, 0o100_646), "others may write it");
        assert!(!is_roots(false, 0, 0o100_644), "a folder or a device");
    }

    #[test]
    fn where_there_is_no_file_nothing_is_demanded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("client.toml");
        assert_eq!(Demands::read(&path).unwrap(), Demands::default());
        assert_eq!(Demands::read(&path.join("x")).unwrap(), Demands::default());
        // It is a folder: root's, perhaps, and no file.
        assert_eq!(Demands::read(folder.path()).unwrap(), Demands::default());
    }
}
