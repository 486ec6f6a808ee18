//! Search for `libgpushare.so`, with a check that the loader can preload it. After a failed preload, the
//! loader only warns, and the program runs unshared.

use std::io;
use std::path::{Path, PathBuf};

use gpushare_proto::names::LIBRARY;

use super::elf::{Elf, Machine};
use crate::exit::CommandError;

const NAME: &str = "libgpushare.so";

/// Reason why `libgpushare.so` cannot be preloaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LibraryError {
    #[error(
        "{NAME} is neither beside gpushare-ctl nor in ../lib or ../lib/gpushare; set {LIBRARY} to its path"
    )]
    NotFound,
    #[error("{path} cannot be read: {cause}; set {LIBRARY} to the path of {NAME}")]
    Unreadable { path: PathBuf, cause: io::Error },
    #[error("{0} is not a shared library; set {LIBRARY} to the path of {NAME}")]
    NotALibrary(PathBuf),
    #[error(
        "{path} is built for {theirs} and this machine is {ours}; install gpushare for {ours}, or set {LIBRARY}"
    )]
    WrongMachine { path: PathBuf, theirs: Machine, ours: Machine },
    #[error(
        "the loader cannot preload {0}, because its path has a space, a colon or a `$`; install it elsewhere, or set {LIBRARY}"
    )]
    UnloadablePath(PathBuf),
}

impl CommandError for LibraryError {}

/// Returns the absolute path of `libgpushare.so`, which programs preload.
pub(crate) fn find() -> Result<PathBuf, LibraryError> {
    let path = match std::env::var_os(LIBRARY).filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => installed().ok_or(LibraryError::NotFound)?,
    };
    let path = std::path::absolute(&path).unwrap_or(path);
    check(&path)?;
    Ok(path)
}

/// Returns the path of the library that was installed together with this program.
fn installed() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let beside = program.parent()?;
    let lib = beside.parent().unwrap_or(beside).join("lib");
    [beside.join(NAME), lib.join(NAME), lib.join("gpushare").join(NAME)]
        .into_iter()
        .find(|path| path.exists())
}

fn check(path: &Path) -> Result<(), LibraryError> {
    let own = Path::new("/proc/self/exe");
    let read = |file: &Path| {
        Elf::of(file).map_err(|cause| LibraryError::Unreadable { path: file.to_owned(), cause })
    };
    let not_a_library = || LibraryError::NotALibrary(path.to_owned());
    let ours = read(own)?.ok_or_else(not_a_library)?.machine;
    let library = read(path)?.ok_or_else(not_a_library)?;
    if library.machine != ours {
        return Err(LibraryError::WrongMachine { path: path.to_owned(), theirs: library.machine, ours });
    }
    if !library.is_library {
        return Err(not_a_library());
    }
    let special = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b':' | b'$');
    match path.as_os_str().as_encoded_bytes().iter().any(special) {
        true => Err(LibraryError::UnloadablePath(path.to_owned())),
        false => Ok(()),
    }
}
