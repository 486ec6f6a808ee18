//! IPython extension `gpushare_jupyter`, which a kernel of IPython loads if its Python has the package.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::table::harmless;

/// Argument by which a kernel of IPython loads the extension.
pub(super) const FLAG: &str = "--ext=gpushare_jupyter";
const NAME: &str = "gpushare-jupyter";
/// File of the package that all packages of gpushare carry.
const WHEEL: &str = concat!("gpushare_jupyter-", env!("CARGO_PKG_VERSION"), "-py3-none-any.whl");
/// Prints whether the package is there, without loading it.
const QUESTION: &str =
    "import importlib.util as u; print('there' if u.find_spec('gpushare_jupyter') else 'missing')";
/// Longest wait for Python's answer. A first start on a network file system is slow.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// State of the extension in the Python of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Extension {
    Installed,
    /// The kernel's Python, which lacks the package or does not answer.
    Missing(String),
    /// The kernel is none of IPython.
    Foreign,
}

/// Asks the Python of a kernel's command line, behind `--`, for the package.
pub(super) fn of(argv: &[String]) -> Extension {
    let mut kernel = argv.iter().skip_while(|word| *word != "--").skip(1);
    let Some(python) = kernel.next() else { return Extension::Foreign };
    let modules: Vec<&str> = kernel.map(String::as_str).collect();
    let is_module = |pair: &[&str]| matches!(pair, ["-m", "ipykernel_launcher" | "ipykernel"]);
    if !modules.windows(2).any(is_module) {
        return Extension::Foreign;
    }
    match answer(python).as_deref().map(str::trim) {
        Some("there") => Extension::Installed,
        _ => Extension::Missing(python.clone()),
    }
}

/// Returns what pip has to install: the wheel that came with this program, else the name of the package.
pub(super) fn package() -> String {
    let program = std::env::current_exe().ok();
    let wheel = program.as_deref().and_then(with_program);
    wheel.map_or_else(|| NAME.to_owned(), |wheel| harmless(&wheel.display().to_string()))
}

/// Returns the wheel that was installed together with a program; none if there is none.
fn with_program(program: &Path) -> Option<PathBuf> {
    let prefix = program.parent()?.parent()?;
    Some(prefix.join("share/gpushare").join(WHEEL)).filter(|wheel| wheel.is_file())
}

fn answer(python: &str) -> Option<String> {
    let mut child = Command::new(python)
        .args(["-c", QUESTION])
        // Python looks for packages in the present folder too.
        .current_dir("/")
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    if !ends(&mut child) {
        return None;
    }
    let mut said = String::new();
    child.stdout.take()?.take(64).read_to_string(&mut said).ok()?;
    Some(said)
}

/// Waits for the end of the process, and kills it after [`PATIENCE`].
fn ends(child: &mut Child) -> bool {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        match child.try_wait() {
            Ok(Some(_)) => return true,
            Ok(None) => thread::sleep(LOOK_EVERY),
            Err(_) => break,
        }
    }
    // Killed and waited for, so that no process stays; one that ended meanwhile is no error.
    let _ = child.kill();
    let _ = child.wait();
    false
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_wheel_that_came_with_the_program_is_installed() {
        let prefix = tempfile::tempdir().unwrap();
        let program = prefix.path().join("bin/gpushare-ctl");
        assert_eq!(with_program(&program), None);
        let share = prefix.path().join("share/gpushare");
        fs::create_dir_all(&share).unwrap();
        fs::write(share.join(WHEEL), "").unwrap();
        assert_eq!(with_program(&program), Some(share.join(WHEEL)));
    }
}
