//! Command `jupyter`: installs, lists and removes Jupyter kernels that start through `gpushare-ctl run`.
//!
//! ```text
//!   kernels/python3/            kernel.json: ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
//!        │ install              logo-64x64.png …
//!        ▼
//!   kernels/python3-gpushare/   kernel.json: [".../gpushare-ctl", "run", …, "--", ".../bin/python", "-m", …]
//!                               logo-64x64.png …
//! ```
//!
//! `run` becomes the kernel, so the process that Jupyter started, interrupts and ends is the kernel itself.
//! Each start registers a session, so two notebooks with one kernel are two sessions of the same name.

mod extension;
mod folders;
mod install;
mod spec;

use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use serde_json::json;

use self::folders::Folders;
use self::spec::Kernel;
use crate::cli::JupyterCommand;
use crate::exit::{self, CommandError, CtlError};
use crate::output;
use crate::run::library::LibraryError;
use crate::run::program::ProgramError;
use crate::table::{harmless, list, table};

/// Reason why a kernel cannot be installed or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JupyterError {
    #[error(transparent)]
    Library(#[from] LibraryError),
    #[error("kernel `{kernel}` cannot be started: {cause}")]
    Program { kernel: String, cause: ProgramError },
    #[error("{path} cannot be read: {cause}; check the kernel with `jupyter kernelspec list`")]
    Unread { path: PathBuf, cause: io::Error },
    #[error("{path} is no kernel specification: {reason}; check the kernel with `jupyter kernelspec list`")]
    Invalid { path: PathBuf, reason: String },
    #[error("kernel `{kernel}` shares its GPUs already; name the kernel that it was made from, {original}")]
    Ours { kernel: String, original: String },
    #[error(
        "`{0}` cannot be a kernel's name; use letters, digits, `-`, `_` and `.`, and begin with a letter"
    )]
    Name(String),
    #[error(
        "kernel `{name}` is installed already in {folder}; replace it with --replace, or choose another --name"
    )]
    Twice { name: String, folder: PathBuf },
    #[error("{0} has another kernel of this name, which gpushare did not make; choose another --name")]
    Foreign(PathBuf),
    #[error(
        "no folder for kernels is known, since {0}; name one with {1}",
        if *.sys_prefix { "no Python environment is active" } else { "HOME is not set" },
        if *.sys_prefix { "VIRTUAL_ENV" } else { "JUPYTER_DATA_DIR" }
    )]
    NoFolder { sys_prefix: bool },
    #[error(
        "{path} cannot be written: {cause}; choose another folder with --user, --sys-prefix or JUPYTER_DATA_DIR"
    )]
    Unwritten { path: PathBuf, cause: io::Error },
    #[error("{path} cannot be removed: {cause}; run the command as the user who installed it")]
    Unremoved { path: PathBuf, cause: io::Error },
    #[error("the new kernel cannot be put in the place of {folder}: {cause}; the kernel there is as it was")]
    Unreplaced { folder: PathBuf, cause: io::Error },
    #[error(
        "the new kernel cannot be put in the place of {folder}: {cause}; the old one is now {old}, move it back"
    )]
    Displaced { folder: PathBuf, cause: io::Error, old: PathBuf },
    #[error("{0} was not made by gpushare; remove it with `jupyter kernelspec remove`")]
    NotOurs(PathBuf),
}

impl CommandError for JupyterError {
    fn code(&self) -> u8 {
        match self {
            Self::Unwritten { cause, .. } | Self::Unremoved { cause, .. }
                if cause.kind() == ErrorKind::PermissionDenied =>
            {
                exit::PERMISSION
            }
            Self::Name(_) => exit::USAGE,
            _ => exit::ERROR,
        }
    }
}

/// Runs the command. `runtime_dir` is the value of `--runtime-dir`, which installed kernels keep.
pub(crate) fn jupyter(command: &JupyterCommand, runtime_dir: Option<PathBuf>) -> Result<(), CtlError> {
    let folders = Folders::of_environment();
    match command {
        JupyterCommand::Install(args) => install::install(args, &folders, runtime_dir),
        JupyterCommand::List { json } => {
            let ours: Vec<_> = folders.kernels().into_iter().filter_map(Kernel::installed).collect();
            Ok(output::show(*json, &ours, || match ours.is_empty() {
                true => "no kernel shares its GPUs; `gpushare-ctl jupyter install` makes one\n".to_owned(),
                false => table(
                    &ours,
                    &[
                        ("KERNEL", |kernel| kernel.name.clone()),
                        ("MADE FROM", |kernel| kernel.original.clone()),
                        ("MEMORY", |kernel| kernel.memory.clone().unwrap_or_else(|| "no limit".to_owned())),
                        ("FOLDER", |kernel| kernel.folder.display().to_string()),
                    ],
                ),
            })?)
        }
        JupyterCommand::Remove { kernel, json } => remove(&folders, kernel, *json),
    }
}

fn remove(folders: &Folders, name: &str, json: bool) -> Result<(), CtlError> {
    let mut named: Vec<Kernel> =
        folders.kernels().into_iter().filter(|kernel| kernel.is_named(name)).collect();
    let ours = named.iter().position(Kernel::is_ours);
    let kernel = match (ours, named.is_empty()) {
        (Some(place), _) => named.swap_remove(place),
        (None, false) => return Err(JupyterError::NotOurs(named.swap_remove(0).folder).into()),
        (None, true) => {
            let ours = folders.kernels().into_iter().filter_map(Kernel::installed);
            let names = list(ours.map(|kernel| harmless(&kernel.name)));
            return Err(CtlError::NotFound {
                kind: "kernel",
                name: harmless(name),
                known: match names.is_empty() {
                    true => "gpushare has installed none".to_owned(),
                    false => format!("gpushare has installed {names}"),
                },
            });
        }
    };
    let path = kernel.folder.clone();
    fs::remove_dir_all(&path).map_err(|cause| JupyterError::Unremoved { path: path.clone(), cause })?;
    if json {
        output::print_json(&json!({ "name": kernel.name, "folder": path }))?;
    } else {
        output::print(&format!("removed kernel {} from {}\n", harmless(&kernel.name), path.display()))?;
    }
    Ok(())
}
