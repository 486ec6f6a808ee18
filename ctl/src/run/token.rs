//! The session's secret in a file that only this user reads, named after the process it was made for.
//!
//! The program and its children find it by `GPUSHARE_TOKEN_FILE`. Nobody is left to remove it when the
//! program ends, since we have become the program: each `run` removes the files of dead processes.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use gpushare_proto::Token;
use gpushare_proto::names::RuntimeDir;
use gpushare_sys::folder::{self, FolderError};
use gpushare_sys::process;

/// Why there is no token file.
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
    #[error("{0} holds no token; name the file that `gpushare-ctl session create` wrote")]
    NoToken(PathBuf),
    #[error(
        "there is no token of a session {0} here; make one with `gpushare-ctl session create`, or name the file with its token"
    )]
    None(String),
}

/// The token of a session that was made before: of the file of this name, else of the session of this name.
pub(crate) fn find(dir: &RuntimeDir, which: &str) -> Result<(PathBuf, Token), TokenError> {
    let named = PathBuf::from(which);
    // Where it is kept now, and where it was before there was a place that outlives the machine's restart.
    let ours = [dir.kept_tokens_dir(), dir.tokens_dir()].map(|folder| folder.join(kept_name(which)));
    let path = std::iter::once(named).chain(ours).find(|path| path.is_file());
    let path = path.ok_or_else(|| TokenError::None(which.to_owned()))?;
    // The program may change its folder.
    let path = std::path::absolute(&path).unwrap_or(path);
    match fs::read_to_string(&path) {
        Ok(text) => Token::from_hex(&text)
            .map(|token| (path.clone(), token))
            .ok_or(TokenError::NoToken(path)),
        Err(cause) => Err(TokenError::Unread { path, cause }),
    }
}

/// Writes the token of a session that lasts: to `path`, else under the session's name.
pub(crate) fn keep(
    dir: &RuntimeDir,
    name: &str,
    path: Option<&Path>,
    token: &Token,
) -> Result<PathBuf, TokenError> {
    let path = match path {
        Some(path) => path.to_owned(),
        None => {
            let folder = dir.kept_tokens_dir();
            folder::take(folder.parent().unwrap_or_else(|| dir.root()), 0o700)?;
            folder::take(&folder, 0o700)?;
            folder.join(kept_name(name))
        }
    };
    create(&path, token).map_err(|cause| TokenError::Unwritten {
        path: path.clone(),
        cause,
    })?;
    Ok(path)
}

/// The file of a session's token. It has an ending, so that it is never taken for that of a process.
fn kept_name(session: &str) -> String {
    format!("{}.token", session.replace('/', "_"))
}

/// Writes the token and says where.
pub(crate) fn write(dir: &RuntimeDir, token: &Token) -> Result<PathBuf, TokenError> {
    let folder = dir.tokens_dir();
    folder::take(dir.root(), 0o700)?;
    folder::take(&folder, 0o700)?;
    prune(&folder);
    let pid = std::process::id();
    // Without /proc the file is one that the next run removes.
    let path = folder.join(name(pid, process::start_time(pid).unwrap_or(0)));
    create(&path, token).map_err(|cause| TokenError::Unwritten {
        path: path.clone(),
        cause,
    })?;
    Ok(path)
}

fn create(path: &Path, token: &Token) -> io::Result<()> {
    // A `run` that was itself started by `run` is still the same process: its new session replaces the old.
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(format!("{}\n", token.to_hex()).as_bytes())
}

fn name(pid: u32, start_time: u64) -> String {
    format!("{pid}-{start_time}")
}

/// Removes the files of processes that are dead. What is in the way stays for the next time.
fn prune(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        if entry
            .file_name()
            .to_str()
            .and_then(owner)
            .is_some_and(|alive| !alive)
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether the process that a token file is named after is alive; `None` for other files.
fn owner(file_name: &str) -> Option<bool> {
    let (pid, start_time) = file_name.split_once('-')?;
    let (pid, start_time) = (pid.parse().ok()?, start_time.parse().ok()?);
    Some(process::start_time(pid) == Some(start_time) && !process::is_dead(pid))
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

    #[test]
    fn the_token_of_a_session_is_found_by_its_name_or_its_file() {
        let root = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::new(root.path().join("gpushare"));
        let path = keep(&dir, "team/a", None, &Token([3; 32])).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        for which in ["team/a", path.to_str().unwrap()] {
            assert_eq!(find(&dir, which).unwrap(), (path.clone(), Token([3; 32])));
        }
        write(&dir, &Token([1; 32])).unwrap();
        assert!(path.exists(), "it is no process's file");
        assert!(matches!(find(&dir, "team/b"), Err(TokenError::None(_))));
        fs::write(&path, "nothing").unwrap();
        assert!(matches!(find(&dir, "team/a"), Err(TokenError::NoToken(_))));
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
