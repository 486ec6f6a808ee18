//! Token files, which hold a session's secret and which only the session's user can read.
//!
//! The program and its children find the file by `GPUSHARE_TOKEN_FILE`. The command `run` becomes the
//! program, so it cannot remove the file at the end. The file's name has the pid, and each `run` removes the
//! files of dead processes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use gpushare_proto::Token;
use gpushare_proto::lookup::SessionRef;
use gpushare_proto::names::RuntimeDir;
use gpushare_sys::folder::{self, FolderError};
use gpushare_sys::process;

use crate::exit::CommandError;
use crate::table::harmless;

/// Reason why a token file cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("{0} with --runtime-dir")]
    Folder(#[from] FolderError),
    #[error(
        "the token file {path} cannot be written: {cause}; free some space, or choose another folder with --runtime-dir"
    )]
    Unwritten { path: PathBuf, cause: io::Error },
    #[error("the token file {path} cannot be read: {cause}; check its path and its owner")]
    Unread { path: PathBuf, cause: io::Error },
    #[error("{0} does not contain a token; name the file that `gpushare-ctl session create` wrote")]
    NoToken(PathBuf),
    #[error(
        "this user has no token of a session {0}: it belongs to another user, was deleted or revoked, or never existed; make one with `gpushare-ctl session create`, or name the file with its token"
    )]
    None(String),
    #[error(
        "a session is joined by its name, but {0} is a number; see `gpushare-ctl session show {0}` for its name, or name the file with its token"
    )]
    Number(String),
}

impl CommandError for TokenError {}

/// Returns the token of the session with the name `which`, else the token in the file `which`. The session
/// comes first, so that no stray file is read.
pub(crate) fn find(dir: &RuntimeDir, which: &str) -> Result<(PathBuf, Token), TokenError> {
    let mut places = kept_places(dir, which).into_iter().chain([PathBuf::from(which)]);
    let path = places.find(|path| path.is_file()).ok_or_else(|| {
        let which = harmless(which);
        match SessionRef::parse(&which) {
            SessionRef::Number(_) => TokenError::Number(which),
            SessionRef::Name(_) => TokenError::None(which),
        }
    })?;
    // The program may change its working directory.
    let path = std::path::absolute(&path).unwrap_or(path);
    match fs::read_to_string(&path) {
        Ok(text) => Token::from_hex(&text)
            .map(|token| (path.clone(), token))
            .ok_or(TokenError::NoToken(path)),
        Err(cause) => Err(TokenError::Unread { path, cause }),
    }
}

/// File for the token of a session that will be created. Without a writable file no session is created.
#[derive(Debug)]
pub(crate) struct Draft {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
}

impl Draft {
    /// Creates the file for a token, at `path` or else under the session's name.
    pub(crate) fn new(dir: &RuntimeDir, name: &str, path: Option<&Path>) -> Result<Self, TokenError> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => {
                let state = dir.state_dir();
                folder::take(&state, 0o700)?;
                let folder = kept_in(&state);
                folder::take(&folder, 0o700)?;
                folder.join(kept_name(name))
            }
        };
        let mut temporary = path.clone().into_os_string();
        temporary.push(format!(".new-{}", std::process::id()));
        let temporary = PathBuf::from(temporary);
        let made = match path.is_dir() {
            true => Err(io::Error::from(ErrorKind::IsADirectory)),
            // Reserve the space that a token needs.
            false => create(&temporary, &Token([0; 32])).and_then(|()| {
                let file = OpenOptions::new().write(true).open(&temporary)?;
                file.sync_all()?;
                Ok(file)
            }),
        };
        match made {
            Ok(file) => Ok(Self { path, temporary, file }),
            Err(cause) => {
                let _ = fs::remove_file(&temporary);
                Err(TokenError::Unwritten { path, cause })
            }
        }
    }

    /// Writes the token to the created file and returns the path.
    pub(crate) fn keep(mut self, token: &Token) -> Result<PathBuf, TokenError> {
        let path = self.path.clone();
        let written = self
            .file
            .write_all(line(token).as_bytes())
            .and_then(|()| self.file.sync_all())
            .and_then(|()| fs::rename(&self.temporary, &path));
        match written {
            Ok(()) => Ok(path),
            Err(cause) => Err(TokenError::Unwritten { path, cause }),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // A written draft has been renamed, so this removes nothing.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Removes the token file of an ended session from the folder of token files.
pub(crate) fn forget(dir: &RuntimeDir, name: &str) {
    for path in kept_places(dir, name) {
        // The token of a file that remains is invalid.
        let _ = fs::remove_file(path);
    }
}

/// Returns the folder in the daemon's state folder for the tokens of created sessions.
fn kept_in(state: &Path) -> PathBuf {
    state.join("tokens")
}

/// Returns the path of a session's token file, and its path in versions without a state folder.
fn kept_places(dir: &RuntimeDir, session: &str) -> [PathBuf; 2] {
    [kept_in(&dir.state_dir()), dir.tokens_dir()].map(|folder| folder.join(kept_name(session)))
}

/// Returns the name of a session's token file, which differs from those of other sessions and of processes.
fn kept_name(session: &str) -> String {
    format!("{}.token", session.replace('/', "%2F"))
}

/// Writes the token of this process's session and returns the path.
pub(crate) fn write(dir: &RuntimeDir, token: &Token) -> Result<PathBuf, TokenError> {
    let folder = dir.tokens_dir();
    folder::take(dir.root(), 0o700)?;
    folder::take(&folder, 0o700)?;
    prune(&folder);
    let pid = std::process::id();
    // Without /proc the next run removes the file.
    let path = folder.join(name(pid, process::start_time(pid).unwrap_or(0)));
    create(&path, token).map_err(|cause| TokenError::Unwritten { path: path.clone(), cause })?;
    Ok(path)
}

fn create(path: &Path, token: &Token) -> io::Result<()> {
    // A `run` that was started by `run` is the same process: its new session replaces the old one.
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(line(token).as_bytes())
}

fn line(token: &Token) -> String {
    format!("{}\n", token.to_hex())
}

fn name(pid: u32, start_time: u64) -> String {
    format!("{pid}-{start_time}")
}

/// Removes the token files of dead processes and ignores failures.
fn prune(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        if entry.file_name().to_str().and_then(owner).is_some_and(|alive| !alive) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns whether the process that a token file is named after is alive; `None` for other files.
fn owner(file_name: &str) -> Option<bool> {
    let (pid, start_time) = file_name.split_once('-')?;
    let (pid, start_time) = (pid.parse().ok()?, start_time.parse().ok()?);
    Some(process::open(pid, start_time).is_some())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn the_file_is_private_and_a_second_one_of_the_same_process_replaces_it() {
        let root = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::new(root.path().join("gpushare"));
        let first = write(&dir, &Token([1; 32])).unwrap();
        assert_eq!(first.metadata().unwrap().mode() & 0o777, 0o600);
        let second = write(&dir, &Token([2; 32])).unwrap();
        assert_eq!(first, second);
        let kept = fs::read_to_string(second).unwrap();
        assert_eq!(Token::from_hex(&kept), Some(Token([2; 32])));
    }

    fn keep(dir: &RuntimeDir, name: &str, token: u8) -> PathBuf {
        let draft = Draft::new(dir, name, None).unwrap();
        draft.keep(&Token([token; 32])).unwrap()
    }

    #[test]
    fn the_token_of_a_session_is_found_by_its_name_or_its_file() {
        let root = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::new(root.path().join("gpushare"));
        let path = keep(&dir, "team/a", 3);
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        for which in ["team/a", path.to_str().unwrap()] {
            assert_eq!(find(&dir, which).unwrap(), (path.clone(), Token([3; 32])));
        }
        write(&dir, &Token([1; 32])).unwrap();
        assert!(path.exists(), "it is no process's file");
        assert!(matches!(find(&dir, "team/b"), Err(TokenError::None(_))));
        assert!(matches!(find(&dir, "s3"), Err(TokenError::Number(_))));
        fs::write(&path, "nothing").unwrap();
        assert!(matches!(find(&dir, "team/a"), Err(TokenError::NoToken(_))));
    }

    #[test]
    fn two_names_never_share_a_file() {
        let root = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::new(root.path().join("gpushare"));
        let (slash, line) = (keep(&dir, "a/b", 1), keep(&dir, "a_b", 2));
        assert_ne!(slash, line);
        assert_eq!(find(&dir, "a/b").unwrap().1, Token([1; 32]));
        assert_eq!(find(&dir, "a_b").unwrap().1, Token([2; 32]));
        forget(&dir, "a/b");
        assert!(!slash.exists() && line.exists());
    }

    #[test]
    fn tokens_are_where_the_daemon_keeps_what_lasts() {
        let root = tempfile::tempdir().unwrap();
        let (dir, state) = (RuntimeDir::new(root.path().join("run")), root.path().join("state"));
        fs::create_dir(dir.root()).unwrap();
        let before = keep(&dir, "team", 1);
        std::os::unix::fs::symlink(&state, dir.state_link()).unwrap();
        assert_eq!(find(&dir, "team").unwrap().0, before);
        let now = keep(&dir, "team", 2);
        assert_eq!(now, state.join("tokens/team.token"));
        assert_eq!(find(&dir, "team").unwrap(), (now.clone(), Token([2; 32])));
        forget(&dir, "team");
        assert!(!now.exists() && !before.exists());
    }

    #[test]
    fn a_file_that_is_not_filled_leaves_what_was_there() {
        let root = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::new(root.path().join("gpushare"));
        let path = keep(&dir, "team", 1);
        drop(Draft::new(&dir, "team", None).unwrap());
        assert_eq!(find(&dir, "team").unwrap(), (path.clone(), Token([1; 32])));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let folder = Draft::new(&dir, "team", Some(root.path()));
        assert!(matches!(folder, Err(TokenError::Unwritten { .. })), "{folder:?}");
    }

    #[test]
    fn files_of_dead_processes_go_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let alive = name(pid, process::start_time(pid).unwrap());
        let files = [alive.clone(), name(pid, 1), name(u32::MAX, 1), "notes".into()];
        for file in &files {
            fs::write(folder.path().join(file), "").unwrap();
        }
        prune(folder.path());
        let left = files.each_ref().map(|file| folder.path().join(file).exists());
        assert_eq!(left, [true, false, false, true]);
    }
}
