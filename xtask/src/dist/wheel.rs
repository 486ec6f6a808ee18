//! The Python wheel: the programs and the library, for a user without root. It is a zip archive with a list
//! of its files and their checksums.
//!
//! ```text
//!   gpushare/                           entry point `gpushare`, which becomes gpushare-ctl
//!   gpushare-V.data/scripts/            to bin/ of the environment: gpushare-ctl, gpushare-scheduler
//!   gpushare-V.data/data/               to the environment: lib/gpushare/libgpushare.so, share/
//!   gpushare-V.dist-info/               METADATA, WHEEL, RECORD, entry_points.txt, LICENSE
//! ```

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use gpushare_tests::artifacts::Part;
use sha2::{Digest as _, Sha256};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::contents::{Binaries, for_people, source};
use super::tree::{Node, Tree};
use super::{Batch, SUMMARY, VERSION};
use crate::shipped::FLOOR;

/// Platform tags of PEP 600 and, for older versions of pip, of PEP 599.
fn platform(architecture: &str) -> String {
    let crate::shipped::elf::Version(major, minor) = FLOOR;
    format!("manylinux_{major}_{minor}_{architecture}.manylinux2014_{architecture}")
}

pub(super) fn write(batch: &Batch<'_>) -> anyhow::Result<String> {
    let tag = format!("py3-none-{}", platform(batch.architecture));
    let name = format!("gpushare-{VERSION}-{tag}.whl");
    let file = File::create(batch.folder.join(&name))?;
    archive(&tree(batch.binaries, batch.architecture)?, &dist_info(), file)?;
    Ok(name)
}

fn dist_info() -> String {
    format!("gpushare-{VERSION}.dist-info")
}

fn tree(binaries: &Binaries, architecture: &str) -> anyhow::Result<Tree> {
    let mut tree = for_people()?.below(&format!("gpushare-{VERSION}.data/data"));
    let mut add = |path: &str, node| tree.add(path.replace('V', VERSION), node);
    let module = String::from_utf8(source("xtask/packages/gpushare.py")?)?;
    add("gpushare/__init__.py", Node::data(module.replace("@VERSION@", VERSION)));
    add("gpushare/__main__.py", Node::data("from gpushare import main\n\nmain()\n"));
    add("gpushare-V.data/scripts/gpushare-ctl", binaries.get(Part::Ctl));
    add("gpushare-V.data/scripts/gpushare-scheduler", binaries.get(Part::Scheduler));
    add("gpushare-V.data/data/lib/gpushare/libgpushare.so", binaries.get(Part::Library));
    add("gpushare-V.dist-info/METADATA", Node::data(metadata()));
    add("gpushare-V.dist-info/WHEEL", Node::data(tags(architecture)));
    add("gpushare-V.dist-info/LICENSE", Node::data(source("LICENSE")?));
    let entry_points = "[console_scripts]\ngpushare = gpushare:main\n";
    add("gpushare-V.dist-info/entry_points.txt", Node::data(entry_points));
    Ok(tree)
}

fn metadata() -> String {
    format!(
        "Metadata-Version: 2.1\n\
         Name: gpushare\n\
         Version: {VERSION}\n\
         Summary: {SUMMARY}\n\
         License: Apache-2.0\n\
         License-File: LICENSE\n\
         Requires-Python: >=3.6\n\
         Classifier: Environment :: GPU :: NVIDIA CUDA\n\
         Classifier: Operating System :: POSIX :: Linux\n\
         Description-Content-Type: text/markdown\n\
         \n\
         `gpushare-ctl run -- python train.py` starts a program that shares its GPUs with the other programs\n\
         that are started in this way. A daemon of your own starts with the first program and ends after ten idle\n\
         minutes; root is not needed. `gpushare-ctl status` shows who holds the card. `gpushare` is a\n\
         short name for `gpushare-ctl`.\n"
    )
}

/// WHEEL: one tag for each platform.
fn tags(architecture: &str) -> String {
    let mut text = String::from("Wheel-Version: 1.0\nGenerator: gpushare-xtask\nRoot-Is-Purelib: false\n");
    for platform in platform(architecture).split('.') {
        let _ = writeln!(text, "Tag: py3-none-{platform}");
    }
    text
}

/// Writes a wheel that depends on nothing but the tree. The list of its files goes to the folder `dist_info`.
pub(super) fn archive(
    tree: &Tree,
    dist_info: &str,
    to: impl std::io::Write + std::io::Seek,
) -> anyhow::Result<()> {
    let mut archive = ZipWriter::new(to);
    let mut record = String::new();
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .last_modified_time(DateTime::default());
    for (path, node) in tree.iter() {
        let Node::File { bytes, .. } = node else {
            anyhow::bail!("a wheel has no links, and {path} is one")
        };
        archive.start_file(path, options.unix_permissions(node.mode()))?;
        archive.write_all(bytes)?;
        let sum = URL_SAFE_NO_PAD.encode(Sha256::digest(bytes));
        let _ = writeln!(record, "{path},sha256={sum},{}", bytes.len());
    }
    let path = format!("{dist_info}/RECORD");
    let _ = writeln!(record, "{path},,");
    archive.start_file(path, options.unix_permissions(0o644))?;
    archive.write_all(record.as_bytes())?;
    archive.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Read as _};

    use super::*;

    fn wheel(tree: &Tree) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        archive(tree, &dist_info(), &mut bytes).unwrap();
        bytes.into_inner()
    }

    #[test]
    fn a_wheel_lists_its_files_and_depends_on_them_alone() {
        let mut tree = Tree::default();
        tree.add("gpushare-0.data/scripts/tool", Node::program("hello"));
        let bytes = wheel(&tree);
        assert_eq!(bytes, wheel(&tree));

        let mut zip = zip::ZipArchive::new(Cursor::new(bytes)).unwrap();
        let mode = zip.by_name("gpushare-0.data/scripts/tool").unwrap().unix_mode().unwrap();
        assert_eq!(mode & 0o777, 0o755);
        let mut record = String::new();
        let name = format!("gpushare-{VERSION}.dist-info/RECORD");
        zip.by_name(&name).unwrap().read_to_string(&mut record).unwrap();
        // printf hello | openssl dgst -sha256 -binary | basenc --base64url
        let sum = "LPJNul-wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ";
        assert_eq!(record, format!("gpushare-0.data/scripts/tool,sha256={sum},5\n{name},,\n"));
    }

    #[test]
    fn both_names_of_the_platform_are_tags() {
        assert_eq!(platform("aarch64"), "manylinux_2_17_aarch64.manylinux2014_aarch64");
        assert!(
            tags("x86_64")
                .ends_with("Tag: py3-none-manylinux_2_17_x86_64\nTag: py3-none-manylinux2014_x86_64\n")
        );
    }
}
