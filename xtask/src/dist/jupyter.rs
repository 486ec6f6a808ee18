//! The wheel of `gpushare-jupyter`, for every Python and machine: the modules in `ctl/jupyter`, and metadata from
//! their `pyproject.toml`. All packages carry it in `share/gpushare`, since it is on no index.

use std::fs;
use std::io::Cursor;

use anyhow::{Context, ensure};
use gpushare_tests::cargo;
use toml::{Table, Value};

use super::contents::source;
use super::tree::{Node, Tree};
use super::{VERSION, wheel};

/// Folder of the package's source.
const FOLDER: &str = "ctl/jupyter";
/// Package of Python in that folder.
const MODULE: &str = "gpushare_jupyter";

/// Name of the wheel's file.
pub(crate) fn name() -> String {
    format!("{MODULE}-{VERSION}-py3-none-any.whl")
}

/// Path of the wheel below the prefix of an installation.
pub(super) fn path() -> String {
    format!("share/gpushare/{}", name())
}

/// Returns the contents of the wheel.
pub(crate) fn bytes() -> anyhow::Result<Vec<u8>> {
    let mut bytes = Cursor::new(Vec::new());
    wheel::archive(&tree()?, &dist_info(), &mut bytes)?;
    Ok(bytes.into_inner())
}

fn dist_info() -> String {
    format!("{MODULE}-{VERSION}.dist-info")
}

fn tree() -> anyhow::Result<Tree> {
    let mut tree = Tree::default();
    let modules = format!("{FOLDER}/{MODULE}");
    for entry in fs::read_dir(cargo::workspace().join(&modules))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".py") {
            tree.add(format!("{MODULE}/{name}"), Node::data(source(&format!("{modules}/{name}"))?));
        }
    }
    let own = String::from_utf8(source(&format!("{modules}/__init__.py"))?)?;
    let version = format!("__version__ = \"{VERSION}\"\n");
    ensure!(own.contains(&version), "{modules}/__init__.py does not say {version}");
    let dist_info = dist_info();
    tree.add(format!("{dist_info}/METADATA"), Node::data(metadata()?));
    let kind = "Wheel-Version: 1.0\nGenerator: gpushare-xtask\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
    tree.add(format!("{dist_info}/WHEEL"), Node::data(kind));
    tree.add(format!("{dist_info}/LICENSE"), Node::data(source("LICENSE")?));
    Ok(tree)
}

/// Returns METADATA: the fields of `pyproject.toml`, then the package's README.
fn metadata() -> anyhow::Result<String> {
    let file: Table = String::from_utf8(source(&format!("{FOLDER}/pyproject.toml"))?)?.parse()?;
    let project = file.get("project").context("pyproject.toml has no [project]")?;
    let text = |value: Option<&Value>, key: &str| {
        let text = value.and_then(Value::as_str).map(str::to_owned);
        text.with_context(|| format!("pyproject.toml has no text {key}"))
    };
    let mut fields = vec![("Metadata-Version", "2.1".to_owned()), ("Version", VERSION.to_owned())];
    for (field, key) in [("Name", "name"), ("Summary", "description"), ("Requires-Python", "requires-python")]
    {
        fields.push((field, text(project.get(key), key)?));
    }
    let license = project.get("license").and_then(|license| license.get("text"));
    fields.extend([("License", text(license, "license")?), ("License-File", "LICENSE".to_owned())]);
    for needed in project.get("dependencies").and_then(Value::as_array).into_iter().flatten() {
        fields.push(("Requires-Dist", text(Some(needed), "dependencies")?));
    }
    fields.push(("Description-Content-Type", "text/markdown".to_owned()));
    let head: String = fields.into_iter().map(|(field, value)| format!("{field}: {value}\n")).collect();
    Ok(format!("{head}\n{}", String::from_utf8(source(&format!("{FOLDER}/README.md"))?)?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Read as _;

    use super::*;

    #[test]
    fn the_wheel_has_all_modules_and_says_what_they_need() {
        let mut zip = zip::ZipArchive::new(Cursor::new(bytes().unwrap())).unwrap();
        let names: BTreeSet<String> = zip.file_names().map(str::to_owned).collect();
        for name in ["__init__", "extension", "facts", "interrupts", "library", "magic", "notice"] {
            assert!(names.contains(&format!("{MODULE}/{name}.py")), "{names:?}");
        }
        let mut metadata = String::new();
        let name = format!("{}/METADATA", dist_info());
        zip.by_name(&name).unwrap().read_to_string(&mut metadata).unwrap();
        for line in [
            "Name: gpushare-jupyter",
            &format!("Version: {VERSION}"),
            "Requires-Dist: ipython >=7",
            "Requires-Python: >=3.8",
        ] {
            assert!(metadata.lines().any(|found| found == line), "no {line} in {metadata}");
        }
        assert_eq!(bytes().unwrap(), bytes().unwrap());
    }
}
