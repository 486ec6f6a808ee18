//! IPython extension `gpushare_jupyter`, which a kernel of IPython loads if its Python has the package.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Argument by which a kernel of IPython loads the extension.
pub(super) const FLAG: &str = "--ext=gpushare_jupyter";
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
