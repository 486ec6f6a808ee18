//! `jupyter install`: makes the copy of a kernel beside its final place and renames it, so that Jupyter
//! never sees half of a kernel.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gpushare_proto::lookup::check_name;
use gpushare_proto::session::FreezeAfter;
use gpushare_proto::{Nanos, names};
use serde_json::{Map, Value, json};

use super::JupyterError;
use super::extension::{self, Extension};
use super::folders::Folders;
use super::spec::{FILE, Kernel, MARK, Spec, is_name};
use crate::cli::InstallArgs;
use crate::exit::CtlError;
use crate::output;
use crate::run::{library, program};
use crate::table::{harmless, list};

/// Idle time after which a notebook is frozen if the user does not say otherwise.
const FREEZE_AFTER: FreezeAfter = FreezeAfter::Idle(Nanos::from_secs(600));
/// Largest depth of the folders in a kernel's folder.
const DEPTH: usize = 8;

pub(super) fn install(
    args: &InstallArgs,
    folders: &Folders,
    runtime_dir: Option<PathBuf>,
) -> Result<(), CtlError> {
    // A kernel without the library would not start.
    library::find().map_err(JupyterError::from)?;
    let original = find(folders, &args.kernel)?;
    let name = name(args, &original)?;
    let folder = match args.sys_prefix {
        true => folders.of_prefix(),
        false => folders.of_user(),
    };
    let kernels = folder.ok_or(JupyterError::NoFolder { sys_prefix: args.sys_prefix })?;
    let spec = original.read()?;
    if let Some(first) = spec.original() {
        let (kernel, first) = (original.name.clone(), harmless(first));
        return Err(JupyterError::Ours { kernel, original: first }.into());
    }
    let mut argv = argv(args, &name, &original, &spec, runtime_dir)?;
    let extension = extension::of(&argv);
    if extension == Extension::Installed {
        argv.push(extension::FLAG.to_owned());
    }
    let json = described(args, &name, &original, spec, &argv);
    let display_name = harmless(json["display_name"].as_str().unwrap_or(&name));
    let folder = write(&kernels, &name, &original, &json, args.replace)?;
    if args.json {
        output::print_json(&json!({
            "name": name,
            "original": original.name,
            "display_name": display_name,
            "folder": folder,
            "argv": argv,
            "extension": matches!(extension, Extension::Installed),
        }))?;
    } else {
        output::print(&format!(
            "installed kernel {name} in {}; choose \"{display_name}\" in Jupyter\n",
            folder.display()
        ))?;
        if let Extension::Missing(python) = extension {
            output::print(&format!(
                "its Python lacks gpushare-jupyter: `{} -m pip install {}`, then this command with --replace, adds \
                 %gpushare and Ctrl-C while a cell waits\n",
                harmless(&python),
                extension::package()
            ))?;
        }
    }
    Ok(())
}

/// Returns the kernel that Jupyter would start by this name.
fn find(folders: &Folders, name: &str) -> Result<Kernel, CtlError> {
    let all = folders.kernels();
    let known = || {
        let mut names: Vec<String> = all.iter().map(|kernel| harmless(&kernel.name)).collect();
        names.sort();
        names.dedup();
        match names.is_empty() {
            true => {
                "Jupyter's folders have none: activate the environment with ipykernel, or set JUPYTER_PATH"
                    .to_owned()
            }
            false => format!("there are {}", list(names)),
        }
    };
    let found = all.iter().find(|kernel| kernel.is_named(name));
    found
        .cloned()
        .ok_or_else(|| CtlError::NotFound { kind: "kernel", name: harmless(name), known: known() })
}

/// Returns the name of the new kernel, which is also the name of its sessions.
fn name(args: &InstallArgs, original: &Kernel) -> Result<String, JupyterError> {
    let name = match &args.name {
        Some(name) => name.to_lowercase(),
        None => format!("{}-gpushare", original.name),
    };
    match is_name(&name) && check_name(&name).is_ok() {
        true => Ok(name),
        false => Err(JupyterError::Name(harmless(&name))),
    }
}

/// Returns the command line of the new kernel.
fn argv(
    args: &InstallArgs,
    name: &str,
    original: &Kernel,
    spec: &Spec,
    runtime_dir: Option<PathBuf>,
) -> Result<Vec<String>, JupyterError> {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("gpushare-ctl"));
    let mut argv = vec![text(own)];
    if let Some(dir) = runtime_dir {
        argv.extend(["--runtime-dir".to_owned(), text(std::path::absolute(&dir).unwrap_or(dir))]);
    }
    argv.push("run".to_owned());
    match &args.session {
        Some(session) => argv.extend(["--session".to_owned(), session.clone()]),
        None => argv.extend(["--name".to_owned(), name.to_owned()]),
    }
    argv.extend(args.terms.flags());
    if args.session.is_none() && args.terms.freeze_after.is_none() {
        argv.extend(["--freeze-after".to_owned(), FREEZE_AFTER.to_string()]);
    }
    if let Some(gpu) = &args.gpu {
        argv.extend(["--gpu".to_owned(), gpu.to_string()]);
    }
    if let Some(backend) = args.backend {
        argv.extend(["--backend".to_owned(), backend.to_string()]);
    }
    if args.oversubscribe {
        argv.push("--oversubscribe".to_owned());
    }
    argv.push("--".to_owned());
    let (first, rest) = spec
        .argv
        .split_first()
        .map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    argv.push(started(original, first)?);
    argv.extend(rest.iter().cloned());
    Ok(argv)
}

/// Returns the path of a kernel's program. `python` is that of the kernel's environment, else the first in
/// PATH, where Jupyter would take the Python that Jupyter itself runs in.
fn started(original: &Kernel, program: &str) -> Result<String, JupyterError> {
    // A path, perhaps one with a name that Jupyter replaces, like `{resource_dir}`.
    if program.contains('/') {
        return Ok(program.to_owned());
    }
    let version = program.strip_prefix("python");
    let is_python =
        version.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'));
    if let (true, Some(prefix)) = (is_python, original.prefix()) {
        for name in [program, "python3", "python"] {
            if let Ok(found) = program::find(prefix.join("bin").join(name).as_os_str()) {
                return Ok(found.to_string_lossy().into_owned());
            }
        }
    }
    let names = if program == "python" { &["python", "python3"][..] } else { &[program] };
    let mut found = names.iter().map(|name| program::find(OsStr::new(name)));
    let first = found.next().unwrap_or_else(|| program::find(OsStr::new(program)));
    let path = first.or_else(|error| found.next().unwrap_or(Err(error)));
    let path = path.map_err(|cause| JupyterError::Program { kernel: original.name.clone(), cause })?;
    Ok(std::path::absolute(&path).unwrap_or(path).to_string_lossy().into_owned())
}

/// Returns the `kernel.json` of the new kernel, which keeps all that it does not change.
fn described(
    args: &InstallArgs,
    name: &str,
    original: &Kernel,
    spec: Spec,
    argv: &[String],
) -> Map<String, Value> {
    let memory = args.terms.memory.as_ref().map(|limit| limit.0.to_string());
    let display_name = args.display_name.clone().unwrap_or_else(|| {
        let plain = spec.display_name().unwrap_or(&original.name);
        match &memory {
            Some(memory) => format!("{plain}, shared GPU, {memory}"),
            None => format!("{plain}, shared GPU"),
        }
    });
    let mut json = spec.json;
    json.insert("argv".to_owned(), argv.into());
    let program = argv.first().cloned().unwrap_or_default();
    match json.entry("env").or_insert_with(|| json!({})) {
        Value::Object(variables) => drop(variables.insert(names::CTL.to_owned(), program.into())),
        other => *other = json!({ names::CTL: program }),
    }
    json.insert("display_name".to_owned(), display_name.into());
    let mark = json!({ "name": name, "kernel": original.name, "folder": original.folder, "memory": memory });
    match json.entry("metadata").or_insert_with(|| json!({})) {
        Value::Object(metadata) => drop(metadata.insert(MARK.to_owned(), mark)),
        other => *other = json!({ MARK: mark }),
    }
    json
}

/// Copies the files of `original` into a new kernel `name` with this specification; returns its folder.
fn write(
    kernels: &Path,
    name: &str,
    original: &Kernel,
    json: &Map<String, Value>,
    replace: bool,
) -> Result<PathBuf, JupyterError> {
    let folder = kernels.join(name);
    let unwritten = |path: &Path| {
        let path = path.to_owned();
        move |cause| JupyterError::Unwritten { path, cause }
    };
    if folder.symlink_metadata().is_ok() {
        match Kernel::at(folder.clone()).is_some_and(|kernel| kernel.is_ours()) {
            false => return Err(JupyterError::Foreign(folder)),
            true if !replace => return Err(JupyterError::Twice { name: name.to_owned(), folder }),
            true => {}
        }
    }
    fs::create_dir_all(kernels).map_err(unwritten(kernels))?;
    let beside = |what: &str| kernels.join(format!(".{name}.{what}-{}", std::process::id()));
    let new = Scratch(beside("new"));
    fs::create_dir(&new.0).map_err(unwritten(kernels))?;
    copy(&original.folder, &new.0, DEPTH)?;
    let text = serde_json::to_string_pretty(json).unwrap_or_default() + "\n";
    fs::write(new.0.join(FILE), text).map_err(unwritten(&new.0))?;
    put(&new.0, &folder, &beside("old"))?;
    Ok(folder)
}

/// Renames `new` to `folder`. What is there goes to `old` first, is removed after that, and comes back if the
/// new kernel cannot take its place.
fn put(new: &Path, folder: &Path, old: &Path) -> Result<(), JupyterError> {
    let unreplaced = |cause| JupyterError::Unreplaced { folder: folder.to_owned(), cause };
    if folder.symlink_metadata().is_err() {
        let path = folder.to_owned();
        return fs::rename(new, folder).map_err(|cause| JupyterError::Unwritten { path, cause });
    }
    fs::rename(folder, old).map_err(unreplaced)?;
    if let Err(cause) = fs::rename(new, folder) {
        return Err(match fs::rename(old, folder) {
            Ok(()) => unreplaced(cause),
            Err(_) => JupyterError::Displaced { folder: folder.to_owned(), cause, old: old.to_owned() },
        });
    }
    // What cannot be removed is no kernel that Jupyter starts by this name.
    let _ = fs::remove_dir_all(old);
    Ok(())
}

/// Folder that is removed at the end of the command, if it exists then.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // A renamed folder is gone. A failure leaves a folder that is no kernel's.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Copies a kernel's resource files, that is all but its specification, with the folders below `from`.
fn copy(from: &Path, to: &Path, depth: usize) -> Result<(), JupyterError> {
    let unread = |path: &Path, cause| JupyterError::Unread { path: path.to_owned(), cause };
    for entry in fs::read_dir(from).map_err(|cause| unread(from, cause))? {
        let entry = entry.map_err(|cause| unread(from, cause))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = source.metadata().map_err(|cause| unread(&source, cause))?;
        if kind.is_dir() {
            if depth == 0 {
                let cause = io::Error::other("its folders lie too deep");
                return Err(unread(&source, cause));
            }
            let made = fs::create_dir(&target);
            made.map_err(|cause| JupyterError::Unwritten { path: target.clone(), cause })?;
            copy(&source, &target, depth - 1)?;
        } else if kind.is_file() && entry.file_name() != FILE {
            let copied = fs::copy(&source, &target);
            copied.map_err(|cause| JupyterError::Unwritten { path: target.clone(), cause })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_comes_back_if_the_new_one_cannot_take_its_place() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir(at("kernel")).unwrap();
        fs::write(at("kernel/kernel.json"), "old").unwrap();
        let error = put(&at("missing"), &at("kernel"), &at("old")).unwrap_err().to_string();
        assert!(error.ends_with("; the kernel there is as it was"), "{error}");
        assert_eq!(fs::read_to_string(at("kernel/kernel.json")).unwrap(), "old");
        assert!(!at("old").exists());

        fs::create_dir(at("new")).unwrap();
        put(&at("new"), &at("kernel"), &at("old")).unwrap();
        assert_eq!(fs::read_dir(at("kernel")).unwrap().count(), 0);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }
}
