//! Image of a cluster's nodes: its Dockerfile is linted, and built by Debian's buildah without root.
//!
//! No registry is asked: the image under it is empty, and the programs are scripts. So this shows that the
//! Dockerfile works and where files land, and not that the programs run in the image.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use gpushare_tests::cargo;
use gpushare_tests::process::output_of;
use serde_json::Value;

use crate::debian::{self, Debian};
use crate::dist::node;
use crate::venv::Venv;

/// Release of Debian that buildah comes from.
const RELEASE: &str = "bookworm";
/// Buildah and the libraries that it loads.
const PACKAGES: [&str; 5] = ["buildah", "libassuan0", "libdevmapper1.02.1", "libgpgme11", "libseccomp2"];

/// Builds the image from `$CONTEXT` into `$RESULT`, with storage for one user in `$STORAGE`.
const SCRIPT: &str = r#"
buildah() { "$ROOT/usr/bin/buildah" --signature-policy "$POLICY" "$@"; }
empty=$(buildah from scratch)
buildah commit --quiet "$empty" localhost/base
buildah build --quiet --file "$DOCKERFILE" --tag node \
    --build-arg BASE=localhost/base --build-arg ARCHIVE="$ARCHIVE" "$CONTEXT"
buildah push --quiet --disable-compression localhost/node "dir:$RESULT"
"#;

/// Lints and builds the image. Files are made in `folder`.
pub(super) fn check(venv: &Venv, folder: &Path) -> anyhow::Result<()> {
    let dockerfile = cargo::workspace().join("k8s/image/Dockerfile");
    let mut hadolint = Command::new(venv.program("hadolint"));
    output_of({
        hadolint.arg(&dockerfile);
        hadolint
    })?;

    let context = folder.join("context");
    fs::create_dir(&context)?;
    let archive = node::stand_in(&context)?;
    let result = folder.join("image");
    let packages = PACKAGES.map(|name| format!("{name}:{}", debian::architecture()));
    let root = Debian::release(RELEASE).unpack("buildah", &packages.each_ref().map(String::as_str))?;
    let setting = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).map(|()| path)
    };
    let storage = setting("storage.conf", &settings(folder))?;
    // No image is fetched.
    let registries = setting("registries.conf", "unqualified-search-registries = []\n")?;
    let policy = setting("policy.json", r#"{"default": [{"type": "insecureAcceptAnything"}]}"#)?;
    let libraries = ["usr/lib", "lib"].map(|lib| {
        root.join(lib)
            .join(format!("{}-linux-gnu", std::env::consts::ARCH))
            .display()
            .to_string()
    });
    let mut build = Command::new("unshare");
    build
        .args(["--user", "--map-root-user", "--mount", "sh", "-euc", SCRIPT])
        .env("ROOT", &root)
        .env("DOCKERFILE", &dockerfile)
        .env("ARCHIVE", &archive)
        .env("CONTEXT", &context)
        .env("RESULT", &result)
        .env("HOME", folder)
        .env("XDG_RUNTIME_DIR", folder)
        .env("TMPDIR", folder)
        .env("LD_LIBRARY_PATH", libraries.join(":"))
        .env("CONTAINERS_CONF", "/dev/null")
        .env("CONTAINERS_STORAGE_CONF", &storage)
        .env("REGISTRIES_CONFIG_PATH", registries)
        .env("POLICY", policy)
        .env("BUILDAH_ISOLATION", "chroot")
        // The user namespace is made already; buildah would want a range of user ids for another.
        .env("_CONTAINERS_USERNS_CONFIGURED", "done");
    output_of(build).context("buildah cannot build the image; are user namespaces allowed?")?;
    is_complete(&result)
}

/// Settings of the storage: plain folders, all of one user.
fn settings(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "[storage]\ndriver = \"vfs\"\ngraphroot = \"{folder}/graph\"\nrunroot = \"{folder}/run\"\n\
         [storage.options.vfs]\nignore_chown_errors = \"true\"\n"
    )
}

/// Checks the files and the command of the image.
fn is_complete(image: &Path) -> anyhow::Result<()> {
    let read =
        |name: &str| -> anyhow::Result<Value> { Ok(serde_json::from_slice(&fs::read(image.join(name))?)?) };
    let file = |digest: &Value| digest.as_str().unwrap_or_default().replace("sha256:", "");
    let manifest = read("manifest.json")?;
    let config = read(&file(&manifest["config"]["digest"]))?;
    ensure!(
        config["config"]["Entrypoint"][0] == "/usr/bin/gpushare-k8s",
        "the image starts {}",
        config["config"]["Entrypoint"]
    );
    let mut programs = Vec::new();
    for layer in manifest["layers"].as_array().context("the image has no layers")? {
        let mut archive = tar::Archive::new(File::open(image.join(file(&layer["digest"])))?);
        for entry in archive.entries()? {
            let entry = entry?;
            if entry.header().entry_type().is_file() && entry.header().mode()? & 0o111 != 0 {
                programs.push(entry.path()?.display().to_string());
            }
        }
    }
    programs.sort();
    let wanted = [
        "usr/bin/gpushare-ctl",
        "usr/bin/gpushare-k8s",
        "usr/bin/gpushare-scheduler",
        "usr/lib/gpushare/libgpushare.so",
    ];
    ensure!(programs == wanted, "the programs of the image are {programs:?}");
    Ok(())
}
