//! Search for the program by the rules of execvp(3), before a session is registered.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

/// Folders in which execvp(3) searches for a program if `PATH` is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Reason why the program cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error("no program `{0}` was found; check its name and PATH")]
    NotFound(String),
    #[error("`{program}` was found and cannot be executed: {cause}; check its mode (chmod +x)")]
    NotExecutable { program: PathBuf, cause: io::Error },
}

/// Returns the file of the program that `name` refers to.
pub(crate) fn find(name: &OsStr) -> Result<PathBuf, ProgramError> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from(DEFAULT_PATH));
    search(name, &path)
}

fn search(name: &OsStr, path: &OsStr) -> Result<PathBuf, ProgramError> {
    let candidates: Vec<PathBuf> = if name.as_encoded_bytes().contains(&b'/') {
        vec![PathBuf::from(name)]
    } else if name.is_empty() {
        Vec::new()
    } else {
        std::env::split_paths(path).map(|folder| folder.join(name)).collect()
    };
    let mut refused = None;
    for candidate in candidates {
        match executable(&candidate) {
            Ok(true) => return Ok(candidate),
            Ok(false) => {}
            // Like execvp: a later folder may have an executable file of this name.
            Err(cause) => {
                refused.get_or_insert(ProgramError::NotExecutable { program: candidate, cause });
            }
        }
    }
    Err(refused.unwrap_or_else(|| ProgramError::NotFound(name.to_string_lossy().into_owned())))
}

/// Returns whether the file exists. A file that cannot be executed is an error.
fn executable(candidate: &Path) -> io::Result<bool> {
    let Ok(found) = candidate.metadata() else {
        return Ok(false);
    };
    if found.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    accessat(CWD, candidate, Access::EXEC_OK, AtFlags::EACCESS)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_path_is_searched_in_order_past_what_cannot_be_executed() {
        let folder = tempfile::tempdir().unwrap();
        let (plain, good) = (folder.path().join("plain"), folder.path().join("good"));
        for (dir, mode) in [(&plain, 0o644), (&good, 0o755)] {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("tool"), "#!/bin/sh\n").unwrap();
            fs::set_permissions(dir.join("tool"), fs::Permissions::from_mode(mode)).unwrap();
        }
        let path = |dirs: &[&PathBuf]| std::env::join_paths(dirs).unwrap();
        let tool = OsStr::new("tool");
        assert_eq!(search(tool, &path(&[&plain, &good])).unwrap(), good.join("tool"));
        assert!(matches!(
            search(tool, &path(&[&plain])),
            Err(ProgramError::NotExecutable { program, .. }) if program == plain.join("tool")
        ));
        assert!(matches!(search(tool, &path(&[])), Err(ProgramError::NotFound(name)) if name == "tool"));
    }

    #[test]
    fn a_name_with_a_slash_is_a_path() {
        assert_eq!(search(OsStr::new("/bin/sh"), OsStr::new("")).unwrap(), Path::new("/bin/sh"));
        assert!(matches!(search(OsStr::new("/"), OsStr::new("")), Err(ProgramError::NotExecutable { .. })));
        assert!(matches!(search(OsStr::new(""), OsStr::new("/bin")), Err(ProgramError::NotFound(_))));
    }
}
