//! Decision whether a preloaded library takes effect in a program, by the loader that the program uses.
//!
//! ```text
//!   script ─ #! ─▶ script ─ #! ─▶ ELF ─▶ its interpreter (PT_INTERP)
//!                                         ld-linux-*   glibc: takes LD_PRELOAD
//!                                         ld-musl-*    musl: fails on a library that needs glibc
//!                                         none         static: no loader reads LD_PRELOAD
//! ```
//!
//! In programs that gain rights at their start (setuid, setgid, capabilities), glibc ignores a preload by path. A file
//! that cannot be read or parsed is treated as an ordinary program, and the kernel decides.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::elf::Elf;

/// Maximum number of nested script interpreters that the kernel follows.
const SCRIPTS: usize = 5;
/// Maximum number of bytes of a script's first line that the kernel reads.
const FIRST_LINE: usize = 256;

/// Effect of a preloaded library (`LD_PRELOAD`) on a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Loaded,
    /// The program uses the C library musl and would fail at its start.
    Musl(PathBuf),
    /// The program is static: only dynamic programs that it starts load the library.
    Static(PathBuf),
    /// The program gains rights at its start, so the loader ignores the library.
    Privileged(PathBuf),
}

impl Reach {
    /// Returns the effect of a preloaded library on `program`.
    pub(crate) fn of(program: &Path) -> Self {
        let program = executed(program.to_owned());
        let gains = gains_rights(&program);
        let Some(loader) = loader(&program) else {
            return Self::Loaded;
        };
        match loader {
            Loader::None => Self::Static(program),
            Loader::Musl => Self::Musl(program),
            Loader::Glibc if gains => Self::Privileged(program),
            Loader::Glibc => Self::Loaded,
        }
    }

    /// Returns whether the program can start with the library in `LD_PRELOAD`.
    pub(crate) fn is_harmless(&self) -> bool {
        !matches!(self, Self::Musl(_))
    }
}

/// Warning for a program that does not share the GPU; empty for one that does.
impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loaded => Ok(()),
            Self::Musl(program) => write!(
                f,
                "{} is linked with musl, which cannot load CUDA or libgpushare.so: it runs without, and so does all \
                 that it starts; to share the GPU, run a program of a glibc system",
                program.display()
            ),
            Self::Static(program) => write!(
                f,
                "{} is linked statically, so nothing can be preloaded into it: it does not share the GPU itself; dynamic \
                 programs that it starts do",
                program.display()
            ),
            Self::Privileged(program) => write!(
                f,
                "{} gains rights when it starts (setuid, setgid or capabilities), so the loader ignores the preload: it \
                 does not share the GPU; run `gpushare-ctl run` inside of it instead",
                program.display()
            ),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loader {
    Glibc,
    Musl,
    None,
}

/// Returns the file that the kernel runs for `program`: for a script, its last interpreter.
fn executed(mut program: PathBuf) -> PathBuf {
    for _ in 0..SCRIPTS {
        match interpreter_of_script(&program) {
            Some(interpreter) => program = interpreter,
            None => break,
        }
    }
    program
}

fn interpreter_of_script(script: &Path) -> Option<PathBuf> {
    let mut line = [0; FIRST_LINE];
    let length = File::open(script).ok()?.read_at(&mut line, 0).ok()?;
    let line = line[..length].strip_prefix(b"#!")?;
    let line = line.split(|&byte| byte == b'\n' || byte == 0).next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t'));
    let interpreter = words.find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(interpreter)))
}

/// Returns the loader of `program`; `None` if it cannot be determined.
fn loader(program: &Path) -> Option<Loader> {
    Some(match Elf::of(program).ok()??.interpreter {
        Some(interpreter) => by_name(&interpreter).unwrap_or(Loader::Glibc),
        // A loader that is itself started as the program names none: `ld-linux-x86-64.so.2 ./program`.
        None => std::fs::canonicalize(program)
            .ok()
            .and_then(|file| by_name(&file))
            .or_else(|| by_name(program))
            .unwrap_or(Loader::None),
    })
}

/// Recognises a loader by its file name, like `ld-musl-x86_64.so.1`, `ld-linux-x86-64.so.2` or `ld-2.17.so`.
fn by_name(file: &Path) -> Option<Loader> {
    let name = file.file_name()?.to_string_lossy();
    if name.starts_with("ld-musl-") || name.starts_with("libc.musl-") {
        return Some(Loader::Musl);
    }
    let loader = name.starts_with("ld") && (name.contains(".so.") || name.ends_with(".so"));
    loader.then_some(Loader::Glibc)
}

/// Returns whether `program` starts with rights that the caller lacks.
fn gains_rights(program: &Path) -> bool {
    // With no_new_privs the bits have no effect.
    if rustix::thread::no_new_privs().unwrap_or(false) {
        return false;
    }
    let Ok(found) = program.metadata() else {
        return false;
    };
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    let with_capabilities = || {
        let size = rustix::fs::getxattr(program, "security.capability", &mut [0_u8; 0]);
        uid != 0 && size.is_ok_and(|size| size > 0)
    };
    by_mode(found.mode(), found.uid() != uid, found.gid() != gid) || with_capabilities()
}

/// Returns whether the file mode gives the program rights of another user or group.
fn by_mode(mode: u32, another_user: bool, another_group: bool) -> bool {
    (mode & 0o4000 != 0 && another_user) || (mode & 0o2010 == 0o2010 && another_group)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn we_are_loaded_by_glibc_and_so_are_scripts_for_us() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(Reach::of(&own), Reach::Loaded);
        let folder = tempfile::tempdir().unwrap();
        let (inner, outer) = (folder.path().join("inner"), folder.path().join("outer"));
        fs::write(&inner, format!("#!{} -x\n", own.display())).unwrap();
        fs::write(&outer, format!("#! {}", inner.display())).unwrap();
        assert_eq!(executed(outer.clone()), own);
        assert_eq!(Reach::of(&outer), Reach::Loaded);
    }

    #[test]
    fn a_script_for_itself_ends_the_search() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        fs::write(&script, format!("#!{}\n", script.display())).unwrap();
        assert_eq!(Reach::of(&script), Reach::Loaded);
    }

    #[test]
    fn what_is_no_program_is_left_to_the_kernel() {
        for file in ["/dev/null", "/proc/self/comm", "/nonexistent"] {
            assert_eq!(Reach::of(Path::new(file)), Reach::Loaded);
        }
    }

    #[test]
    fn loaders_are_known_by_their_names() {
        let known = |name: &str| by_name(Path::new(name));
        assert_eq!(known("/lib/ld-musl-aarch64.so.1"), Some(Loader::Musl));
        assert_eq!(known("/lib/libc.musl-x86_64.so.1"), Some(Loader::Musl));
        assert_eq!(known("/lib64/ld-linux-x86-64.so.2"), Some(Loader::Glibc));
        assert_eq!(known("/lib/x86_64-linux-gnu/ld-2.17.so"), Some(Loader::Glibc));
        assert_eq!(known("/usr/bin/ldconfig.real"), None);
        assert_eq!(known("/usr/bin/busybox"), None);
    }

    #[test]
    fn only_rights_that_we_have_not_are_gained() {
        assert!(by_mode(0o4755, true, true));
        assert!(!by_mode(0o4755, false, true));
        assert!(by_mode(0o2755, false, true));
        assert!(!by_mode(0o2755, true, false));
        assert!(!by_mode(0o2745, true, true));
        assert!(!by_mode(0o755, true, true));
    }

    #[test]
    fn only_what_would_end_of_a_preload_is_started_without() {
        let program = || PathBuf::from("/bin/program");
        assert!(!Reach::Musl(program()).is_harmless());
        for reach in [Reach::Static(program()), Reach::Privileged(program())] {
            assert!(reach.is_harmless());
            assert!(reach.to_string().starts_with("/bin/program "), "the line names the program");
        }
        assert_eq!(Reach::Loaded.to_string(), "");
    }
}
