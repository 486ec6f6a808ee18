//! Device nodes, libraries of the driver and CDI specs of a machine.
//!
//! All paths are those of the machine. A program in a container sees them below a root, such as `/host`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::edits::{Edits, Mount, Node};

/// Device nodes that every CUDA program opens besides its card's.
const CONTROL: [&str; 2] = ["/dev/nvidiactl", "/dev/nvidia-uvm"];
/// Device nodes that only profilers and debuggers open.
const OPTIONAL: [&str; 1] = ["/dev/nvidia-uvm-tools"];

/// Library of CUDA's driver, without which no program runs.
const LIBCUDA: &str = "libcuda.so.1";
/// Libraries of the driver that CUDA programs load.
const LIBRARIES: [&str; 6] = [
    LIBCUDA,
    "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4",
    "libcudadebugger.so.1",
    "libnvidia-opencl.so.1",
];
/// Programs of the driver.
const PROGRAMS: [&str; 1] = ["/usr/bin/nvidia-smi"];

/// Folders of libraries that are searched where the loader's cache names none.
const FOLDERS: [&str; 4] = [MULTIARCH, "/usr/lib64", "/usr/lib", "/run/opengl-driver/lib"];
/// Folder of libraries in Debian's images, which their loader searches without a cache.
const MULTIARCH: &str = match cfg!(target_arch = "aarch64") {
    true => "/usr/lib/aarch64-linux-gnu",
    false => "/usr/lib/x86_64-linux-gnu",
};
/// Folders in a container of which its loader searches one, in Debian's and Red Hat's images.
const TARGETS: [&str; 2] = [MULTIARCH, "/usr/lib64"];
/// Mark of this architecture's libraries in the output of `ldconfig -p`.
const MARK: &str = if cfg!(target_arch = "aarch64") { "AArch64" } else { "x86-64" };

/// Folders of CDI specs. A spec in a later folder counts more (`/var/run` is `/run`).
const SPECS: [&str; 2] = ["/etc/cdi", "/run/cdi"];

/// Reason why a container cannot get the driver of this machine.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A device node is missing.
    #[error("{0} does not exist; load the driver with `nvidia-modprobe -u -c 0`, or run a CUDA program once")]
    NoNode(PathBuf),
    /// CUDA's library is missing.
    #[error("{LIBCUDA} is in no folder of the loader; install NVIDIA's driver, then run `ldconfig`")]
    NoLibrary,
}

/// Machine whose files a container gets.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
}

/// Parts of the driver that a container needs for any card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Driver {
    nodes: Vec<PathBuf>,
    /// Path of each library on the machine, and its name for the loader.
    libraries: Vec<(PathBuf, &'static str)>,
    programs: Vec<PathBuf>,
}

impl Machine {
    /// Returns the machine whose files are below `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the place at which this process finds a file of the machine.
    pub fn seen(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns whether a file of the machine exists.
    pub fn has(&self, path: &Path) -> bool {
        // The link itself counts: its absolute target is the machine's.
        self.seen(path).symlink_metadata().is_ok()
    }

    /// Finds the parts of the driver.
    pub fn driver(&self) -> Result<Driver, MachineError> {
        let mut nodes: Vec<PathBuf> = CONTROL.map(PathBuf::from).to_vec();
        if let Some(missing) = nodes.iter().find(|node| !self.has(node)) {
            return Err(MachineError::NoNode(missing.clone()));
        }
        let existing = |paths: &[&str]| -> Vec<PathBuf> {
            paths.iter().map(PathBuf::from).filter(|path| self.has(path)).collect()
        };
        nodes.extend(existing(&OPTIONAL));
        let cached = self.cached_libraries();
        let found = |name: &str| {
            let listed = cached.iter().filter(|path| path.file_name().is_some_and(|file| file == name));
            let guessed = FOLDERS.map(|folder| Path::new(folder).join(name));
            listed.cloned().chain(guessed).find(|path| self.has(path))
        };
        let libraries: Vec<_> = LIBRARIES.iter().filter_map(|name| Some((found(name)?, *name))).collect();
        if !libraries.iter().any(|(_, name)| *name == LIBCUDA) {
            return Err(MachineError::NoLibrary);
        }
        Ok(Driver { nodes, libraries, programs: existing(&PROGRAMS) })
    }

    /// Returns the libraries in the cache of the machine's loader; none if it cannot be read.
    fn cached_libraries(&self) -> Vec<PathBuf> {
        let cache = self.seen(Path::new("/etc/ld.so.cache"));
        let output = ["/sbin/ldconfig", "ldconfig"].into_iter().find_map(|program| {
            let mut ldconfig = Command::new(program);
            ldconfig.arg("-p").arg("-C").arg(&cache);
            ldconfig.stdin(Stdio::null()).stderr(Stdio::null());
            ldconfig.output().ok().filter(|output| output.status.success())
        });
        output.map_or_else(Vec::new, |output| listed(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Returns the texts of all CDI specs, those that count more first.
    pub fn specs(&self) -> Vec<(PathBuf, String)> {
        let mut all: Vec<(PathBuf, String)> = SPECS
            .iter()
            .rev()
            .flat_map(|folder| spec_files(&self.seen(Path::new(folder))))
            .filter_map(|path| {
                let text = fs::read_to_string(&path).ok()?;
                Some((path, text))
            })
            .collect();
        // `/run/cdi` may be a link to `/etc/cdi`.
        all.dedup_by(|a, b| a.1 == b.1);
        all
    }

    /// Returns the folders of CDI specs.
    pub fn spec_folders(&self) -> Vec<PathBuf> {
        SPECS.iter().map(|folder| self.seen(Path::new(folder))).collect()
    }
}

/// Returns the paths of a folder's CDI specs, in the order of their names.
pub(crate) fn spec_files(folder: &Path) -> Vec<PathBuf> {
    let is_spec = |path: &PathBuf| {
        path.extension()
            .is_some_and(|end| end == "json" || end == "yaml" || end == "yml")
    };
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(is_spec)
        .collect();
    files.sort();
    files
}

/// Returns the paths of this architecture's libraries in the output of `ldconfig -p`.
fn listed(output: &str) -> Vec<PathBuf> {
    let lines = output.lines().filter_map(|line| line.split_once(" => "));
    lines
        .filter(|(name, _)| name.contains(MARK))
        .map(|(_, path)| path.trim().into())
        .collect()
}

impl Driver {
    /// Returns the edits for programs of any card. A library appears in two folders, since images differ in
    /// the one that their loader searches, and no cache of the loader is written.
    pub fn edits(&self) -> Edits {
        let libraries = self.libraries.iter().flat_map(|(path, name)| {
            TARGETS.map(|folder| Mount::read_only(path, Path::new(folder).join(name)))
        });
        let programs = self.programs.iter().map(|path| Mount::read_only(path, path));
        Edits {
            device_nodes: self.nodes.iter().map(Node::at).collect(),
            mounts: libraries.chain(programs).collect(),
            ..Edits::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[&str]) -> (tempfile::TempDir, Machine) {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::at(root.path());
        for file in files {
            let path = machine.seen(Path::new(file));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        (root, machine)
    }

    #[test]
    fn the_loaders_cache_is_read_for_this_architecture_only() {
        let other = if MARK == "x86-64" { "libc6,AArch64" } else { "libc6,x86-64" };
        let output = format!(
            "3 libs found in cache `/etc/ld.so.cache'\n\
             \tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1\n\
             \tlibcuda.so.1 (libc6,{MARK}) => /opt/nvidia/libcuda.so.1\n\
             \tlibcuda.so.1 ({other}) => /opt/other/libcuda.so.1\n"
        );
        assert_eq!(listed(&output), [Path::new("/opt/nvidia/libcuda.so.1")]);
    }

    #[test]
    fn a_driver_that_is_not_loaded_or_not_there_says_what_to_do() {
        let (_root, empty) = machine(&[]);
        let error = empty.driver().unwrap_err().to_string();
        assert!(error.contains("/dev/nvidiactl") && error.contains("nvidia-modprobe"), "{error}");
        let (_root, bare) = machine(&["/dev/nvidiactl", "/dev/nvidia-uvm"]);
        let error = bare.driver().unwrap_err().to_string();
        assert!(error.contains("install NVIDIA's driver"), "{error}");
    }

    #[test]
    fn a_library_is_mounted_where_either_loader_looks() {
        let (_root, machine) =
            machine(&["/dev/nvidiactl", "/dev/nvidia-uvm", "/usr/lib64/libcuda.so.1", "/usr/bin/nvidia-smi"]);
        let edits = machine.driver().unwrap().edits();
        let mounted: Vec<_> = edits
            .mounts
            .iter()
            .map(|mount| (mount.host_path.to_str().unwrap(), mount.container_path.to_str().unwrap()))
            .collect();
        let in_debian = format!("{MULTIARCH}/libcuda.so.1");
        assert_eq!(
            mounted,
            [
                ("/usr/lib64/libcuda.so.1", in_debian.as_str()),
                ("/usr/lib64/libcuda.so.1", "/usr/lib64/libcuda.so.1"),
                ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi"),
            ]
        );
    }
}
