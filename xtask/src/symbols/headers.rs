//! Functions that NVIDIA's headers list, and that libcudart asks for. The packages come from PyPI, at the
//! releases that are named here, below `target/`; nothing of them is kept in the repository.
//!
//! ```text
//! typedef CUresult (CUDAAPI *PFN_cuMemcpyHtoD_v7000_ptds)(CUdeviceptr_v2 dst, ...);
//!                                base name    version twin
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use gpushare_symbols::{Variant, by_base, is_driver_name};
use gpushare_tests::cargo;
use gpushare_tests::process::output_of;

use crate::tools;

/// Releases and the packages that have their headers.
const RELEASES: [(&str, &str); 4] = [
    ("12.0", "nvidia-cuda-runtime-cu12==12.0.146"),
    ("12.9", "nvidia-cuda-runtime-cu12==12.9.79"),
    ("13.0", "nvidia-cuda-runtime==13.0.96"),
    ("13.5", "nvidia-cuda-runtime==13.5.37"),
];

/// Functions that only the driver of another operating system has.
const NOT_ON_LINUX: [&str; 1] = ["cuWGLGetDevice"];

/// A function type of a header.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Listed {
    base: String,
    version: u32,
    per_thread: bool,
}

/// Functions that a release names.
#[derive(Debug, Default)]
pub(super) struct Release {
    /// The function types of its headers.
    pub(super) listed: Vec<Listed>,
    /// Names in its libcudart that look like the driver's.
    pub(super) asked: Vec<String>,
}

/// Each release; downloads what is missing.
pub(super) fn fetch() -> anyhow::Result<BTreeMap<&'static str, Release>> {
    let folder = cargo::workspace().join("target/cuda-headers");
    RELEASES
        .into_iter()
        .map(|(release, package)| {
            let folder = folder.join(release);
            if files_below(&folder)?.is_empty() {
                let mut pip = tools::pip(&tools::python()?);
                pip.args(["--no-deps", "--target"]).arg(&folder).arg(package);
                output_of(pip).with_context(|| format!("cannot get {package}"))?;
            }
            let mut found = Release::default();
            for file in files_below(&folder)? {
                let name = file.to_string_lossy();
                if name.ends_with("Typedefs.h") {
                    found.listed.extend(parse(&fs::read_to_string(&file)?));
                } else if name.contains("/libcudart.so") {
                    found.asked.extend(names_in(&fs::read(&file)?));
                }
            }
            found.listed.retain(|listed| !NOT_ON_LINUX.contains(&listed.base.as_str()));
            ensure!(
                found.listed.len() > 500 && found.asked.len() > 400,
                "the headers of CUDA {release} list only {} functions, and its libcudart names only {}",
                found.listed.len(),
                found.asked.len()
            );
            Ok((release, found))
        })
        .collect()
}

/// The files below a folder, which need not be there.
fn files_below(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    if folder.is_dir() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                files.extend(files_below(&path)?);
            } else {
                files.push(path);
            }
        }
    }
    Ok(files)
}

/// The texts in a library that look like names of driver functions.
fn names_in(library: &[u8]) -> impl Iterator<Item = String> {
    library
        .split(|&byte| byte == 0)
        .filter(|text| is_driver_name(text))
        .filter(|text| text.iter().all(|&byte| byte.is_ascii_alphanumeric() || byte == b'_'))
        .map(|text| String::from_utf8_lossy(text).into_owned())
}

fn parse(header: &str) -> impl Iterator<Item = Listed> {
    header.split("(CUDAAPI *PFN_").skip(1).filter_map(|rest| {
        let (name, _) = rest.split_once(')')?;
        let legacy = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds"));
        let (base, version) = legacy.unwrap_or(name).rsplit_once("_v")?;
        Some(Listed {
            base: base.to_owned(),
            version: version.parse().ok()?,
            per_thread: legacy.is_some(),
        })
    })
}

impl Listed {
    /// Whether this is the row's function.
    pub(super) fn is(&self, row: &Variant) -> bool {
        self.base == row.base && self.version == row.version.0 && self.per_thread == row.per_thread()
    }

    pub(super) fn has_row(&self) -> bool {
        by_base(&self.base).iter().any(|row| self.is(row))
    }
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let twin = if self.per_thread { " per thread" } else { "" };
        write!(f, "{} {}{twin}", self.base, self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_versions_and_twins_are_read() {
        let header = "typedef CUresult (CUDAAPI *PFN_cuInit_v2000)(unsigned int Flags);\n\
                      typedef CUresult (CUDAAPI *PFN_cuMemcpy_v7000_ptds)(CUdeviceptr_v2 dst);\n\
                      #define PFN_cuInit  PFN_cuInit_v2000\n";
        let listed: Vec<_> = parse(header).map(|listed| (listed.to_string(), listed.has_row())).collect();
        assert_eq!(listed, [("cuInit 2000".to_owned(), true), ("cuMemcpy 7000 per thread".to_owned(), true)]);
    }

    #[test]
    fn names_in_a_library_are_found() {
        let library = b"\x7fELF\0cuMemAlloc\0cudaMalloc\0cuMemAlloc failed\0cuLaunchKernel_ptsz\0";
        let names: Vec<_> = names_in(library).collect();
        assert_eq!(names, ["cuMemAlloc", "cuLaunchKernel_ptsz"]);
    }

    #[test]
    fn a_function_of_a_release_to_come_has_no_row() {
        let newer = parse("(CUDAAPI *PFN_cuLaunchKernel_v14000)(").next().unwrap();
        assert!(!newer.has_row());
    }
}
