//! Checks of the C library. If a preloaded library needs a newer one, the program runs unshared.

use std::fs;
use std::path::PathBuf;

use super::super::facts::Facts;
use super::super::model::Outcome;
use super::super::versions;

/// Folders in which distributions keep the C library.
const FOLDERS: [&str; 6] =
    ["/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib", "/lib"];

pub(super) fn version(facts: &Facts) -> Vec<Outcome> {
    let Ok(library) = &facts.library else {
        return vec![Outcome::skipped("there is no library to check; see preload.library")];
    };
    let needs = match versions::read(library) {
        Ok(linked) => linked.needs,
        Err(cause) => {
            return vec![Outcome::skipped(format!("{} cannot be read ({cause})", library.display()))];
        }
    };
    let Some(libc) = found(facts) else {
        return vec![Outcome::skipped("no glibc was found; see libc.musl")];
    };
    let has = versions::read(&libc).ok().and_then(|linked| linked.offers);
    vec![match (needs, has) {
        (Some(needs), Some(has)) if needs > has => Outcome::error(
            format!("libgpushare.so needs glibc {needs}, and {} is {has}", libc.display()),
            "install gpushare from its release, which needs glibc 2.17, or use a newer image",
        ),
        (Some(needs), Some(has)) => {
            Outcome::ok(format!("libgpushare.so needs glibc {needs}, and this system has {has}"))
        }
        (None, _) => Outcome::ok("libgpushare.so needs no glibc version"),
        (_, None) => Outcome::skipped(format!("{} has no version", libc.display())),
    }]
}

pub(super) fn musl(facts: &Facts) -> Vec<Outcome> {
    let loader = facts.root.list("/lib").into_iter().find(|name| name.starts_with("ld-musl-"));
    vec![match (loader, found(facts)) {
        (None, _) => Outcome::ok("no musl"),
        (Some(_), Some(_)) => {
            Outcome::ok("musl beside glibc: programs of glibc share, programs of musl do not")
        }
        (Some(_), None) => Outcome::error(
            "this system's C library is musl: libgpushare.so does not load, and a program with it in LD_PRELOAD crashes at its start",
            "use an image with glibc (Debian, Ubuntu, Rocky); NVIDIA's driver needs it too",
        ),
    }]
}

/// Returns the path of the C library: the file in use, else the first in the usual folders.
fn found(facts: &Facts) -> Option<PathBuf> {
    let used = || {
        let maps = fs::read_to_string("/proc/self/maps").ok()?;
        let paths = maps.lines().filter_map(|line| line.find('/').map(|start| &line[start..]));
        let is_libc = |path: &&str| path.ends_with("/libc.so.6") || path.contains("/libc-2.");
        paths.into_iter().find(is_libc).map(PathBuf::from)
    };
    let usual = || {
        FOLDERS
            .iter()
            .map(|folder| facts.root.at(folder).join("libc.so.6"))
            .find(|path| path.is_file())
    };
    facts.root.is_real().then(used).flatten().or_else(usual)
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::{Root, staged::compile};
    use super::super::super::model::Severity::{Error, Ok, Skipped};
    use super::*;

    #[test]
    fn a_library_that_needs_a_newer_glibc_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let (libc, library) = (root.path().join("lib64/libc.so.6"), root.path().join("libgpushare.so"));
        fs::create_dir(root.path().join("lib64")).unwrap();
        let libc_of = |versions: &str| {
            fs::write(root.path().join("versions"), versions).unwrap();
            let flags = ["-shared", "-fPIC", "-nostdlib", "-Wl,--version-script=../versions"];
            let name = ["-Wl,-soname,libc.so.6"];
            compile(&libc, "void f(void) {} void g(void) {}", &[&flags[..], &name].concat());
        };
        libc_of("GLIBC_2.2.5 { f; };\nGLIBC_2.17 { g; } GLIBC_2.2.5;\n");
        let source = "void g(void); void h(void) { g(); }";
        compile(&library, source, &["-shared", "-fPIC", "-nostdlib", libc.to_str().unwrap()]);
        let mut facts = Facts::bare(root.path());
        facts.library = Result::Ok(library.clone());
        let [outcome] = &version(&facts)[..] else { panic!() };
        assert_eq!(
            (outcome.severity, &*outcome.finding),
            (Ok, "libgpushare.so needs glibc 2.17, and this system has 2.17")
        );

        // The C library without its newer version.
        libc_of("GLIBC_2.2.5 { f; g; };\n");
        let [outcome] = &version(&facts)[..] else { panic!() };
        assert_eq!(outcome.severity, Error);
        assert!(outcome.finding.starts_with("libgpushare.so needs glibc 2.17, and "), "{outcome:?}");
        assert!(outcome.finding.ends_with("libc.so.6 is 2.2"), "{outcome:?}");
    }

    #[test]
    fn musl_alone_is_an_error_and_beside_glibc_it_is_none() {
        let root = tempfile::tempdir().unwrap();
        let mut facts = Facts::bare(root.path());
        assert_eq!(musl(&facts)[0].severity, Ok);
        fs::create_dir(root.path().join("lib")).unwrap();
        fs::write(root.path().join("lib/ld-musl-x86_64.so.1"), "").unwrap();
        assert_eq!(musl(&facts)[0].severity, Error);
        fs::create_dir(root.path().join("lib64")).unwrap();
        fs::write(root.path().join("lib64/libc.so.6"), "").unwrap();
        assert_eq!(musl(&facts)[0].severity, Ok);
        assert_eq!(version(&facts)[0].severity, Skipped);
        // On the real machine the library in use counts.
        facts.root = Root::new("/");
        facts.library = Result::Ok(found(&facts).unwrap());
        assert_ne!(version(&facts)[0].severity, Error);
    }
}
