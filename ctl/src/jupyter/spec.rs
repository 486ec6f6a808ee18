//! Kernel specifications: a folder with `kernel.json`, read without knowing all of its keys.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value};

use super::JupyterError;

/// Name of the file that makes a folder a kernel's.
pub(super) const FILE: &str = "kernel.json";
/// Key in a kernel's `metadata` with the mark of `install`: the kernel's own name, the name and folder of the
/// kernel that was copied, and the memory limit.
///
/// A copy that a user makes has the mark too, with the name of the kernel that it is a copy of. So a kernel is
/// gpushare's to list, replace and remove only if the mark has the name of its folder.
pub(super) const MARK: &str = "gpushare";

/// Folder of a kernel that Jupyter can start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    /// Name of the kernel, which is that of its folder in small letters.
    pub(super) name: String,
    pub(super) folder: PathBuf,
}

/// A kernel that `install` made, as `list` shows it.
#[derive(Debug, Serialize)]
pub(super) struct Installed {
    pub(super) name: String,
    /// Name of the kernel that was copied.
    pub(super) original: String,
    /// Memory limit of each notebook.
    pub(super) memory: Option<String>,
    pub(super) display_name: String,
    pub(super) folder: PathBuf,
    pub(super) argv: Vec<String>,
}

impl Kernel {
    /// Returns the kernel of a folder; none if Jupyter would not see one there.
    pub(super) fn at(folder: PathBuf) -> Option<Self> {
        let name = folder.file_name()?.to_str()?.to_lowercase();
        (is_name(&name) && folder.join(FILE).is_file()).then_some(Self { name, folder })
    }

    pub(super) fn is_named(&self, name: &str) -> bool {
        self.name == name.to_lowercase()
    }

    /// Reads the specification.
    pub(super) fn read(&self) -> Result<Spec, JupyterError> {
        let path = self.folder.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(cause) => return Err(JupyterError::Unread { path, cause }),
        };
        let invalid = |reason: String| JupyterError::Invalid { path: path.clone(), reason };
        let json: Map<String, Value> =
            serde_json::from_str(&text).map_err(|cause| invalid(cause.to_string()))?;
        let argv = json.get("argv").and_then(Value::as_array).into_iter().flatten();
        let argv: Option<Vec<String>> = argv.map(|word| word.as_str().map(str::to_owned)).collect();
        match argv {
            Some(argv) if !argv.is_empty() => Ok(Spec { json, argv }),
            _ => Err(invalid("its `argv` names no program".to_owned())),
        }
    }

    /// Returns whether `install` made this kernel.
    pub(super) fn is_ours(&self) -> bool {
        self.read().is_ok_and(|spec| self.is_made_as(&spec))
    }

    fn is_made_as(&self, spec: &Spec) -> bool {
        spec.marked("name").is_some_and(|name| self.is_named(name))
    }

    /// Returns the description of a kernel that `install` made.
    pub(super) fn installed(self) -> Option<Installed> {
        let spec = self.read().ok().filter(|spec| self.is_made_as(spec))?;
        let original = spec.original()?.to_owned();
        let memory = spec.marked("memory").map(str::to_owned);
        let display_name = spec.display_name().unwrap_or(&self.name).to_owned();
        Some(Installed {
            name: self.name,
            original,
            memory,
            display_name,
            folder: self.folder,
            argv: spec.argv,
        })
    }

    /// Returns the prefix of the Python environment that has this kernel,
    /// `PREFIX/share/jupyter/kernels/NAME`.
    pub(super) fn prefix(&self) -> Option<&Path> {
        let mut above = self.folder.ancestors();
        let is_standard = above.nth(1)?.ends_with("share/jupyter/kernels");
        is_standard.then(|| above.nth(2)).flatten()
    }
}

/// Contents of a kernel's `kernel.json`.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) json: Map<String, Value>,
    /// Program and arguments, at least one word.
    pub(super) argv: Vec<String>,
}

impl Spec {
    pub(super) fn display_name(&self) -> Option<&str> {
        self.json.get("display_name")?.as_str()
    }

    /// Returns the name of the kernel that `install` wrapped to make this one, or to make the one that this is
    /// a copy of; none for a kernel that does not share its GPUs.
    pub(super) fn original(&self) -> Option<&str> {
        self.marked("kernel")
    }

    fn marked(&self, key: &str) -> Option<&str> {
        self.json.get("metadata")?.get(MARK)?.get(key)?.as_str()
    }
}

/// Returns whether Jupyter takes `name` for a kernel's.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_of_a_kernel_is_that_of_its_environment() {
        let at = |folder: &str| Kernel { name: "python3".into(), folder: folder.into() };
        let venv = at("/venv/share/jupyter/kernels/python3");
        assert_eq!(venv.prefix(), Some(Path::new("/venv")));
        assert_eq!(at("/data/kernels/python3").prefix(), None);
    }

    #[test]
    fn a_folder_without_a_specification_is_no_kernel() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("Python3");
        fs::create_dir(&folder).unwrap();
        assert_eq!(Kernel::at(folder.clone()), None);
        for (text, reason) in [("", "EOF"), ("{}", "no program"), (r#"{"argv": [1]}"#, "no program")] {
            fs::write(folder.join(FILE), text).unwrap();
            let kernel = Kernel::at(folder.clone()).unwrap();
            assert_eq!(kernel.name, "python3");
            let error = kernel.read().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
