//! Checks of the preloaded library. If the preload fails, the loader only warns, and programs run unshared.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::super::child::End;
use super::super::facts::Facts;
use super::super::model::Outcome;
use super::super::versions;
use crate::run::preload::entries;
use crate::run::program as programs;
use crate::run::reach::Reach;

const NAME: &str = "libgpushare.so";
const SYSTEM_PRELOAD: &str = "/etc/ld.so.preload";
/// Entry of a process's auxiliary vector; not zero if the process gained rights at its start.
const AT_SECURE: u64 = 23;

pub(super) fn library(facts: &Facts) -> Vec<Outcome> {
    vec![match &facts.library {
        Ok(path) => Outcome::ok(format!("{}", path.display())),
        Err(error) => Outcome::failure(error, "install gpushare again"),
    }]
}

pub(super) fn loads(facts: &Facts) -> Vec<Outcome> {
    let (Ok(library), Some(asked)) = (&facts.library, &facts.preloaded) else {
        return vec![Outcome::skipped("there is no library to load")];
    };
    if Reach::of(Path::new("/proc/self/exe")) != Reach::Loaded {
        return vec![Outcome::skipped("this gpushare-ctl is static, so it cannot try")];
    }
    let real = fs::canonicalize(library).unwrap_or_else(|_| library.clone());
    let is_there = asked.facts.iter().any(|file| Path::new(file) == real);
    vec![match (&asked.end, is_there) {
        (End::Finished, true) => Outcome::ok("the loader loads it"),
        (End::Finished, false) => Outcome::error(
            format!("the loader does not load it: {}", loaders_words(&asked.said)),
            "see libc.version; a folder that is mounted `noexec` is refused too",
        ),
        (End::Crashed { how, .. }, _) => Outcome::error(
            format!(
                "a program that it is preloaded into crashes at its start ({how}) {}",
                loaders_words(&asked.said)
            ),
            "see libc.musl; else install gpushare again and report this with `gpushare-ctl doctor --bundle FILE`",
        ),
        (End::Hung { .. }, _) => Outcome::error(
            "a program that it is preloaded into hangs at its start",
            "report this with `gpushare-ctl doctor --bundle FILE`",
        ),
        (End::Unstarted(cause), _) => Outcome::skipped(format!("no process can be started ({cause})")),
    }]
}

pub(super) fn build(facts: &Facts) -> Vec<Outcome> {
    let Ok(library) = &facts.library else {
        return vec![Outcome::skipped("there is no library to check")];
    };
    let own = env!("CARGO_PKG_VERSION");
    let hint = "install gpushare-ctl, gpushare-scheduler and libgpushare.so from one release";
    vec![match versions::own_version(library) {
        Ok(Some(theirs)) if theirs == own => Outcome::ok(format!("both are gpushare {own}")),
        Ok(Some(theirs)) => {
            Outcome::warning(format!("the library is gpushare {theirs}, and this is {own}"), hint)
        }
        Ok(None) => Outcome::warning("the library has no version: it is old, or not from gpushare", hint),
        Err(cause) => Outcome::skipped(format!("it cannot be read ({cause})")),
    }]
}

fn loaders_words(said: &str) -> &str {
    if said.is_empty() { "it reports nothing" } else { said }
}

fn is_ours(path: &Path) -> bool {
    path.file_name() == Some(OsStr::new(NAME))
}

/// Returns whether two paths refer to the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    match (one.metadata(), other.metadata()) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

/// Checks a list of preloaded libraries; `change` is advice on how to change the list.
fn judge(facts: &Facts, list: &[PathBuf], resolve: impl Fn(&Path) -> PathBuf, change: &str) -> Outcome {
    let ours: Vec<&PathBuf> = list.iter().filter(|path| is_ours(path)).collect();
    // The loader searches for a name without a slash, so its absence cannot be judged here.
    let gone = list
        .iter()
        .find(|path| path.as_os_str().as_bytes().contains(&b'/') && !resolve(path).exists());
    let other = facts.library.as_ref().ok().and_then(|library| {
        let file = |path: &&&PathBuf| !is_same(&resolve(path), library);
        ours.iter().find(file).map(|path| (path, library))
    });
    match (&ours[..], gone, other) {
        ([_, _, ..], ..) => Outcome::error(
            format!("it names {NAME} {} times: they would gate each other", ours.len()),
            format!("{change} so that one is left"),
        ),
        (_, Some(gone), _) => Outcome::warning(
            format!("{} is missing: the loader warns, and the program runs without it", gone.display()),
            format!("{change} so that it is not named"),
        ),
        (_, _, Some((path, library))) => Outcome::warning(
            format!(
                "{} is another file than {}, which `gpushare-ctl run` preloads",
                path.display(),
                library.display()
            ),
            format!("{change} so that one version is left, or set GPUSHARE_LIBRARY"),
        ),
        ([only], ..) => Outcome::ok(format!("it names {}", only.display())),
        ([], ..) if list.is_empty() => Outcome::ok("it is empty"),
        ([], ..) => Outcome::ok(format!("it names {} other files, which are loaded after ours", list.len())),
    }
}

pub(super) fn environment(facts: &Facts) -> Vec<Outcome> {
    let Some(list) = facts.var("LD_PRELOAD") else {
        return vec![Outcome::ok("LD_PRELOAD is not set; `gpushare-ctl run` sets it for the program")];
    };
    vec![judge(facts, &entries(list), Path::to_owned, "change LD_PRELOAD").of("LD_PRELOAD")]
}

pub(super) fn system(facts: &Facts) -> Vec<Outcome> {
    let Ok(text) = facts.root.read(SYSTEM_PRELOAD) else {
        return vec![Outcome::ok(format!("{SYSTEM_PRELOAD} is missing"))];
    };
    let text: String = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or("").replace('\t', " ") + " ")
        .collect();
    let list = entries(&OsString::from(text));
    let resolve = |path: &Path| facts.root.at(path);
    let ours = list.iter().find(|path| is_ours(path));
    let outcome = match ours {
        Some(ours) if !resolve(ours).exists() => Outcome::error(
            format!("{} is missing: the loader warns at the start of every program", ours.display()),
            format!("install it there, or remove the line from {SYSTEM_PRELOAD}"),
        ),
        Some(ours)
            if facts.var("LD_PRELOAD").is_some_and(|list| {
                entries(list).iter().any(|path| is_ours(path) && !is_same(path, &resolve(ours)))
            }) =>
        {
            Outcome::error(
                format!(
                    "it names {}, and LD_PRELOAD another {NAME}: they would gate each other",
                    ours.display()
                ),
                "keep one of the two",
            )
        }
        _ => judge(facts, &list, resolve, &format!("change {SYSTEM_PRELOAD}")),
    };
    vec![outcome.of(SYSTEM_PRELOAD)]
}

pub(super) fn secure_exec(_: &Facts) -> Vec<Outcome> {
    let vector = fs::read("/proc/self/auxv").unwrap_or_default();
    let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or(0);
    let mut pairs = vector.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..])));
    vec![match pairs.any(|(kind, value)| kind == AT_SECURE && value != 0) {
        true => Outcome::error(
            "this process was started with more rights than its caller: the loader ignores LD_PRELOAD",
            "take set-uid bits and file capabilities off gpushare-ctl (`setcap -r`), and run it as the user",
        ),
        false => Outcome::ok("not here; programs with set-uid bits or file capabilities ignore LD_PRELOAD"),
    }]
}

pub(super) fn program(facts: &Facts) -> Vec<Outcome> {
    let Some(name) = &facts.program else {
        return vec![Outcome::skipped("no program was named; `--program python` looks at one")];
    };
    let subject = name.to_string_lossy().into_owned();
    let outcome = match programs::find(name) {
        Ok(path) => reachable(&path),
        Err(error) => Outcome::failure(&error, "check its name and PATH"),
    };
    vec![outcome.of(subject)]
}

/// Checks whether a preloaded library takes effect in a program.
fn reachable(path: &Path) -> Outcome {
    match Reach::of(path) {
        Reach::Loaded => Outcome::ok(format!("a preload reaches {}", path.display())),
        Reach::Static(program) => Outcome::error(
            format!("{} is static: nothing can be preloaded into it", program.display()),
            "link it dynamically (a static libcudart is fine); dynamic programs that it starts share",
        ),
        Reach::Musl(program) => Outcome::error(
            format!("{} is linked with musl, which loads neither CUDA nor {NAME}", program.display()),
            "run a program of a glibc system",
        ),
        Reach::Privileged(program) => Outcome::error(
            format!(
                "{} gains rights when it starts (set-uid, set-gid or capabilities): the loader ignores LD_PRELOAD",
                program.display()
            ),
            "run `gpushare-ctl run` inside of it, or a copy without those rights",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::child::Asked;
    use super::super::super::facts::staged::compile;
    use super::super::super::model::Severity::{Error, Ok, Skipped, Warning};
    use super::*;

    struct Stage {
        root: tempfile::TempDir,
        facts: Facts,
    }

    impl Stage {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let mut facts = Facts::bare(root.path());
            for folder in ["new", "old", "etc"] {
                fs::create_dir(root.path().join(folder)).unwrap();
                fs::write(root.path().join(folder).join(NAME), folder).unwrap();
            }
            facts.library = Result::Ok(root.path().join("new").join(NAME));
            Self { root, facts }
        }

        fn path(&self, of: &str) -> String {
            self.root.path().join(of).display().to_string()
        }

        fn preloading(mut self, list: &[&str]) -> (super::super::super::model::Severity, String) {
            let list: Vec<String> = list.iter().map(|of| self.path(of)).collect();
            self.facts.set("LD_PRELOAD", list.join(":"));
            let outcome = environment(&self.facts).remove(0);
            (outcome.severity, outcome.finding)
        }
    }

    #[test]
    fn a_preload_of_the_caller_is_judged() {
        assert_eq!(environment(&Stage::new().facts)[0].severity, Ok);
        assert_eq!(Stage::new().preloading(&["new/libgpushare.so"]).0, Ok);
        let (severity, finding) = Stage::new().preloading(&["new/libgpushare.so", "old/libgpushare.so"]);
        assert_eq!(
            (severity, &*finding),
            (Error, "it names libgpushare.so 2 times: they would gate each other")
        );
        let (severity, finding) = Stage::new().preloading(&["new/libgpushare.so", "new/libgpushare.so"]);
        assert_eq!(severity, Error, "{finding}");
        let (severity, finding) = Stage::new().preloading(&["old/libgpushare.so"]);
        assert!(severity == Warning && finding.contains("is another file than"), "{finding}");
        let (severity, finding) = Stage::new().preloading(&["gone/libother.so"]);
        assert!(severity == Warning && finding.contains("is missing"), "{finding}");
    }

    #[test]
    fn the_systems_preloads_are_judged() {
        let of = |text: &str| {
            let stage = Stage::new();
            fs::write(stage.root.path().join("etc/ld.so.preload"), text).unwrap();
            system(&stage.facts)[0].severity
        };
        assert_eq!(system(&Stage::new().facts)[0].severity, Ok);
        assert_eq!(of("# nothing\n"), Ok);
        assert_eq!(of("/new/libgpushare.so\n"), Ok);
        assert_eq!(of("/old/libgpushare.so # ours\n"), Warning);
        assert_eq!(of("/gone/libgpushare.so\n"), Error);
        let mut stage = Stage::new();
        fs::write(stage.root.path().join("etc/ld.so.preload"), "/new/libgpushare.so").unwrap();
        stage.facts.set("LD_PRELOAD", stage.path("old/libgpushare.so"));
        assert_eq!(system(&stage.facts)[0].severity, Error);
    }

    #[test]
    fn the_loaders_own_answer_decides() {
        let mut stage = Stage::new();
        assert_eq!(loads(&stage.facts)[0].severity, Skipped);
        let real = fs::canonicalize(stage.path("new/libgpushare.so")).unwrap();
        let mut asked = Asked::told(vec![real.display().to_string()]);
        stage.facts.preloaded = Some(asked.clone());
        assert_eq!(loads(&stage.facts)[0].severity, Ok);
        asked.facts.clear();
        asked.said = "ERROR: ld.so: object '/x' from LD_PRELOAD cannot be preloaded".into();
        stage.facts.preloaded = Some(asked);
        let [outcome] = &loads(&stage.facts)[..] else { panic!() };
        assert!(outcome.severity == Error && outcome.finding.contains("ERROR: ld.so"), "{outcome:?}");
    }

    #[test]
    fn a_library_of_another_version_is_a_warning() {
        let root = tempfile::tempdir().unwrap();
        let mut facts = Facts::bare(root.path());
        assert_eq!(build(&facts)[0].severity, Skipped);
        let own = env!("CARGO_PKG_VERSION");
        for (source, severity) in [
            (format!("const char gpushare_version[] = \"{own}\";"), Ok),
            ("const char gpushare_version[] = \"0.0.1\";".to_owned(), Warning),
            ("int something_else;".to_owned(), Warning),
        ] {
            let library = root.path().join(NAME);
            compile(&library, &source, &["-shared", "-fPIC"]);
            facts.library = Result::Ok(library);
            assert_eq!(build(&facts)[0].severity, severity, "{:?}", build(&facts));
        }
    }

    #[test]
    fn a_missing_library_says_how_to_name_one() {
        let facts = Facts::bare("/nonexistent".as_ref());
        let [outcome] = &library(&facts)[..] else { panic!() };
        assert_eq!(outcome.severity, Error);
        assert_eq!(outcome.hint.as_deref(), Some("set GPUSHARE_LIBRARY to its path"));
    }

    #[test]
    fn a_program_that_no_preload_reaches_is_named() {
        let root = tempfile::tempdir().unwrap();
        let mut facts = Facts::bare(root.path());
        assert_eq!(program(&facts)[0].severity, Skipped);
        facts.program = Some("sh".into());
        assert_eq!(program(&facts)[0].severity, Ok);
        facts.program = Some("no-such-program".into());
        assert_eq!(program(&facts)[0].severity, Error);
        let musl = root.path().join("musl");
        let loader = "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1";
        compile(&musl, "int main(void) { return 0; }", &[loader]);
        assert!(reachable(&musl).severity == Error && reachable(&musl).finding.contains("musl"));
        let script = root.path().join("script");
        fs::write(&script, "#!/bin/sh\n").unwrap();
        assert_eq!(reachable(&script).severity, Ok);
    }

    #[test]
    fn this_process_has_no_more_rights_than_its_caller() {
        assert_eq!(secure_exec(&Facts::bare("/".as_ref()))[0].severity, Ok);
    }
}
