//! Command `env`: prints shell exports with which the programs that a shell starts share its GPUs.
//!
//! Lists of paths are extended, not replaced: their entries keep their order, and no entry appears twice.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use gpushare_proto::names::{BACKEND, RUNTIME_DIR, TOKEN_FILE};
use serde_json::{Map, Value};

use crate::cli::{EnvArgs, Shell};
use crate::exit::CtlError;
use crate::output;
use crate::places::Places;
use crate::run::{library, preload, token};

const PATH: &str = "PATH";
const PRELOAD: &str = "LD_PRELOAD";
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

pub(crate) fn env(args: &EnvArgs, places: &Places) -> Result<(), CtlError> {
    let library = library::find()?;
    let daemon = places.administered();
    let token = match &args.session {
        Some(which) => Some(token::find(places.secrets(daemon), which)?.0),
        None => None,
    };
    let variable = |name: &str| std::env::var_os(name);
    let folder = |path: &Path| path.parent().map(Path::to_owned).unwrap_or_default();
    let program = std::env::current_exe().unwrap_or_default();
    let listed = |name, folder: PathBuf| extended(variable(name), folder.as_os_str(), args.append);
    // A variable without a value is removed.
    let mut exports = vec![
        (RUNTIME_DIR, Some(daemon.root().as_os_str().to_owned())),
        (PRELOAD, Some(preload::with(&library, variable(PRELOAD), args.append))),
        (PATH, Some(listed(PATH, folder(&program)))),
        (LIBRARY_PATH, Some(listed(LIBRARY_PATH, folder(&library)))),
    ];
    if token.is_some() || variable(TOKEN_FILE).is_some() {
        exports.push((TOKEN_FILE, token.map(PathBuf::into_os_string)));
    }
    if let Some(backend) = args.backend {
        exports.push((BACKEND, Some(backend.to_string().into())));
    }
    if args.json {
        let text = |value: &Option<OsString>| match value {
            Some(value) => Value::from(value.to_string_lossy()),
            None => Value::Null,
        };
        let all: Map<String, Value> =
            exports.iter().map(|(name, value)| ((*name).to_owned(), text(value))).collect();
        output::print_json(&all)?;
    } else {
        let lines = exports.iter().flat_map(|(name, value)| match (value, args.shell) {
            (Some(value), shell) => line(shell, name, value),
            (None, Shell::Sh) => format!("unset {name}\n").into_bytes(),
            (None, Shell::Fish) => format!("set -e {name}\n").into_bytes(),
        });
        output::print(&OsString::from_vec(lines.collect()).to_string_lossy())?;
    }
    Ok(())
}

/// Returns a shell line that exports a variable with the quoted value.
fn line(shell: Shell, name: &str, value: &OsStr) -> Vec<u8> {
    let (start, quote) = match shell {
        Shell::Sh => (format!("export {name}='"), &b"'\\''"[..]),
        Shell::Fish => (format!("set -gx {name} '"), &b"\\'"[..]),
    };
    let mut line = start.into_bytes();
    for &byte in value.as_bytes() {
        match (byte, shell) {
            (b'\'', _) => line.extend_from_slice(quote),
            (b'\\', Shell::Fish) => line.extend_from_slice(b"\\\\"),
            _ => line.push(byte),
        }
    }
    line.extend_from_slice(b"'\n");
    line
}

/// Returns the colon-separated list `present` with `entry` added at the front, or at the end if `append`. A
/// list that has the entry already stays as it is.
fn extended(present: Option<OsString>, entry: &OsStr, append: bool) -> OsString {
    let present = present.unwrap_or_default();
    if present.is_empty() {
        return entry.to_owned();
    }
    if present
        .as_bytes()
        .split(|&byte| byte == b':')
        .any(|known| known == entry.as_bytes())
    {
        return present;
    }
    let parts = if append { [present.as_os_str(), entry] } else { [entry, present.as_os_str()] };
    parts.join(OsStr::new(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(present: &str, append: bool) -> OsString {
        extended(Some(present.into()), OsStr::new("/opt/gpushare"), append)
    }

    #[test]
    fn a_list_keeps_what_is_in_it_and_gets_an_entry_once() {
        assert_eq!(extended(None, OsStr::new("/a"), false), "/a");
        assert_eq!(list("", true), "/opt/gpushare");
        assert_eq!(list("/bin:/usr/bin", false), "/opt/gpushare:/bin:/usr/bin");
        assert_eq!(list("/bin:/usr/bin", true), "/bin:/usr/bin:/opt/gpushare");
        for append in [false, true] {
            assert_eq!(list("/bin:/opt/gpushare:/usr/bin", append), "/bin:/opt/gpushare:/usr/bin");
            assert_eq!(
                list("/bin::/usr/bin:", append).len(),
                "/bin::/usr/bin:".len() + ":/opt/gpushare".len()
            );
        }
    }

    #[test]
    fn a_library_is_preloaded_once_in_front_or_behind() {
        let ours = Path::new("/new/libgpushare.so");
        let present = || Some(OsString::from("/a.so /old/libgpushare.so"));
        assert_eq!(preload::with(ours, present(), false), "/new/libgpushare.so:/a.so");
        assert_eq!(preload::with(ours, present(), true), "/a.so:/new/libgpushare.so");
        assert_eq!(preload::with(ours, None, true), "/new/libgpushare.so");
    }

    #[test]
    fn a_value_is_one_word_to_the_shell_whatever_is_in_it() {
        let value = OsStr::new("/it's $HOME `x` \\ \n");
        for (shell, word) in [("sh", Shell::Sh), ("fish", Shell::Fish)] {
            let mut script = line(word, "A", value);
            script.extend_from_slice(b"printf %s \"$A\"");
            let script = OsStr::from_bytes(&script);
            // A machine may lack one of the shells.
            if let Ok(done) = std::process::Command::new(shell).arg("-c").arg(script).output() {
                assert_eq!(OsStr::from_bytes(&done.stdout), value, "{shell}");
            }
        }
    }
}
