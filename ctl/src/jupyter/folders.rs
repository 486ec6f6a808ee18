//! Folders in which Jupyter looks for kernels, in its order, found without Python.
//!
//! ```text
//!   JUPYTER_PATH                             each entry
//!   JUPYTER_DATA_DIR, $XDG_DATA_HOME/jupyter,
//!     else ~/.local/share/jupyter            the user's; after the next one if an environment is active
//!   PREFIX/share/jupyter                     the Python environment's
//!   /usr/local/share/jupyter, /usr/share/jupyter
//!   IPYTHONDIR, else ~/.ipython              the user's, from before Jupyter
//! ```
//!
//! Source: `jupyter_core.paths.jupyter_path` and `jupyter_client.kernelspec`. Jupyter runs in Python and
//! takes the prefix of that; here it is the active environment's, else that of `jupyter` and of `python3`
//! in PATH.

use std::env::split_paths;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::spec::Kernel;

/// Jupyter's folders for one user and one environment.
#[derive(Debug)]
pub(super) struct Folders {
    /// Folder of the user's own data; none without a home.
    user: Option<PathBuf>,
    /// Prefixes of Python environments, the active one first.
    prefixes: Vec<PathBuf>,
    /// Folders that contain kernels, in Jupyter's order.
    kernels: Vec<PathBuf>,
}

impl Folders {
    pub(super) fn of_environment() -> Self {
        Self::new(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    /// Returns the folders for an environment whose variables `variable` reads.
    fn new(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let path = |name| variable(name).map(PathBuf::from);
        let home = path("HOME");
        let in_home = |relative| home.as_ref().map(|home| home.join(relative));
        let user = path("JUPYTER_DATA_DIR")
            .or_else(|| path("XDG_DATA_HOME").map(|data| data.join("jupyter")))
            .or_else(|| in_home(".local/share/jupyter"));
        let active = path("VIRTUAL_ENV").or_else(|| path("CONDA_PREFIX"));
        let prefixes = prefixes(active.clone(), variable("PATH").as_ref());

        let environments = prefixes.iter().map(|prefix| prefix.join("share/jupyter"));
        let mut data: Vec<PathBuf> = variable("JUPYTER_PATH").iter().flat_map(split_paths).collect();
        let prefers = variable("JUPYTER_PREFER_ENV_PATH").map(|value| is_true(&value));
        match prefers.unwrap_or(active.is_some()) {
            true => data.extend(environments.chain(user.clone())),
            false => data.extend(user.clone().into_iter().chain(environments)),
        }
        data.extend(["/usr/local/share/jupyter", "/usr/share/jupyter"].map(PathBuf::from));
        let ipython = path("IPYTHONDIR").or_else(|| in_home(".ipython"));
        let all = data.into_iter().chain(ipython).map(|folder| folder.join("kernels"));
        let mut kernels = Vec::new();
        for folder in all {
            if folder.is_absolute() && !kernels.contains(&folder) {
                kernels.push(folder);
            }
        }
        Self { user, prefixes, kernels }
    }

    /// Returns the kernels of all folders, in Jupyter's order. Of two kernels with one name Jupyter takes
    /// the first.
    pub(super) fn kernels(&self) -> Vec<Kernel> {
        let mut found = Vec::new();
        for folder in &self.kernels {
            let mut here: Vec<Kernel> = std::fs::read_dir(folder)
                .into_iter()
                .flatten()
                .flatten()
                .filter_map(|entry| Kernel::at(entry.path()))
                .collect();
            here.sort_by(|a, b| a.name.cmp(&b.name));
            found.extend(here);
        }
        found
    }

    /// Returns the folder for the user's own kernels.
    pub(super) fn of_user(&self) -> Option<PathBuf> {
        self.user.as_ref().map(|user| user.join("kernels"))
    }

    /// Returns the folder for the kernels of the active Python environment.
    pub(super) fn of_prefix(&self) -> Option<PathBuf> {
        self.prefixes.first().map(|prefix| prefix.join("share/jupyter/kernels"))
    }
}

/// Returns the prefixes of the Python environments that a person at this shell means, without repetition.
fn prefixes(active: Option<PathBuf>, path: Option<&OsString>) -> Vec<PathBuf> {
    let of = |program: &str| {
        let mut folders = path.iter().flat_map(split_paths).filter(|folder| folder.ends_with("bin"));
        folders
            .find(|folder| folder.join(program).is_file())?
            .parent()
            .map(Path::to_owned)
    };
    let mut prefixes = Vec::new();
    for prefix in active
        .into_iter()
        .chain(["jupyter", "python3", "python"].into_iter().filter_map(of))
    {
        if !prefixes.contains(&prefix) {
            prefixes.push(prefix);
        }
    }
    prefixes
}

/// Returns whether Jupyter takes the value of a variable for true.
fn is_true(value: &OsString) -> bool {
    let value = value.to_string_lossy().to_lowercase();
    !["no", "n", "false", "off", "0", "0.0"].contains(&&*value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders(variables: &[(&str, &str)]) -> Folders {
        Folders::new(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    fn kernels(variables: &[(&str, &str)]) -> Vec<String> {
        let found = folders(variables).kernels;
        found.into_iter().map(|folder| folder.display().to_string()).collect()
    }

    const SYSTEM: [&str; 2] = ["/usr/local/share/jupyter/kernels", "/usr/share/jupyter/kernels"];

    #[test]
    fn the_users_folder_comes_before_those_of_the_system() {
        let expected =
            ["/home/a/.local/share/jupyter/kernels", SYSTEM[0], SYSTEM[1], "/home/a/.ipython/kernels"];
        assert_eq!(kernels(&[("HOME", "/home/a")]), expected);
        assert_eq!(kernels(&[]), SYSTEM);
    }

    #[test]
    fn an_active_environment_comes_before_the_users_folder() {
        let environment = [("HOME", "/h"), ("VIRTUAL_ENV", "/venv")];
        let found = kernels(&environment);
        assert_eq!(found[..2], ["/venv/share/jupyter/kernels", "/h/.local/share/jupyter/kernels"]);
        let [home, venv] = environment;
        let found = kernels(&[home, venv, ("JUPYTER_PREFER_ENV_PATH", "No")]);
        assert_eq!(found[..2], ["/h/.local/share/jupyter/kernels", "/venv/share/jupyter/kernels"]);
    }

    #[test]
    fn variables_of_jupyter_name_folders_in_front() {
        let found = kernels(&[
            ("HOME", "/h"),
            ("JUPYTER_PATH", "/one:/two"),
            ("JUPYTER_DATA_DIR", "/data"),
            ("XDG_DATA_HOME", "/xdg"),
        ]);
        assert_eq!(found[..3], ["/one/kernels", "/two/kernels", "/data/kernels"]);
        assert!(
            !found
                .iter()
                .any(|folder| folder.starts_with("/xdg") || folder.contains(".local"))
        );
    }

    #[test]
    fn the_environment_of_a_python_in_the_path_is_searched() {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        std::fs::write(bin.join("python3"), "").unwrap();
        let found = folders(&[("PATH", bin.to_str().unwrap())]);
        assert_eq!(found.of_prefix(), Some(root.path().join("share/jupyter/kernels")));
        assert_eq!(folders(&[("PATH", "/nowhere")]).of_prefix(), None);
    }
}
