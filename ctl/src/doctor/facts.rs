//! Everything that the checks look at, gathered once before them: checks only judge.
//!
//! Files are looked for below a root folder, which is `/` unless a test stages another.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpushare_probe::{CudaFacts, NvmlFacts, Question};
use gpushare_proto::admin::Status;
use gpushare_proto::names::RuntimeDir;
use gpushare_sys::peer::Peer;

use super::child::{self, Asked};
use crate::cli::DoctorArgs;
use crate::client::{Admin, Client, ClientError, Tenant};
use crate::places::Places;
use crate::run::library::{self, LibraryError};
use crate::run::start;
use crate::status;

/// The folder that `/` means.
#[derive(Clone, Debug)]
pub(crate) struct Root(PathBuf);

impl Root {
    pub(super) fn new(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    /// Where an absolute path is.
    pub(super) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The text of a file, whatever its bytes.
    pub(super) fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(self.at(path))?).into_owned())
    }

    /// Whether there is something.
    pub(super) fn has(&self, path: impl AsRef<Path>) -> bool {
        self.at(path).symlink_metadata().is_ok()
    }

    /// The names in a folder, sorted; none if it is not there.
    pub(super) fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Whether it is the machine's own.
    pub(super) fn is_real(&self) -> bool {
        self.0 == Path::new("/")
    }
}

/// A daemon's folder and who answers there.
#[derive(Debug)]
pub(crate) struct DaemonFacts {
    pub(super) dir: RuntimeDir,
    /// The process behind the tenant socket, or why there is none.
    pub(super) tenant: Result<Peer, ClientError>,
    /// What the administrator's socket says.
    pub(super) admin: Result<Box<Status>, ClientError>,
}

impl DaemonFacts {
    fn of(dir: &RuntimeDir) -> Self {
        let tenant = Client::<Tenant>::connect(dir).map(|client| client.peer());
        let admin =
            Client::<Admin>::connect(dir).and_then(|mut client| status::fetch(&mut client).map(Box::new));
        Self { dir: dir.clone(), tenant, admin }
    }

    /// Whether neither socket has anybody behind it.
    pub(super) fn is_absent(&self) -> bool {
        matches!(self.tenant, Err(ClientError::Absent(_)))
            && matches!(self.admin, Err(ClientError::Absent(_)))
    }
}

/// Everything.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(super) root: Root,
    pub(super) env: BTreeMap<OsString, OsString>,
    pub(super) uid: u32,
    pub(super) cuda: Asked<CudaFacts>,
    pub(super) nvml: Asked<NvmlFacts>,
    /// The library to preload.
    pub(super) library: Result<PathBuf, LibraryError>,
    /// The files of a child that it was preloaded into; none without a library.
    pub(super) preloaded: Option<Asked<Vec<String>>>,
    /// The daemon's program, or the sentence why there is none.
    pub(super) scheduler: Result<PathBuf, String>,
    pub(super) daemons: Vec<DaemonFacts>,
    /// The program that was asked about.
    pub(super) program: Option<OsString>,
}

impl Facts {
    /// Asks everybody.
    pub(super) fn gather(args: &DoctorArgs, places: &Places) -> Self {
        let limit = Duration::from_nanos(args.timeout.0);
        let library = library::find();
        let preloaded = library
            .as_ref()
            .ok()
            .map(|library| child::ask(Question::Mapped, Some(library), limit));
        Self {
            root: Root::new(args.root.clone()),
            env: std::env::vars_os().collect(),
            uid: rustix::process::geteuid().as_raw(),
            cuda: child::ask(Question::Cuda, None, limit),
            nvml: child::ask(Question::Nvml, None, limit),
            library,
            preloaded,
            scheduler: start::scheduler().map_err(|error| error.to_string()),
            daemons: places.candidates().iter().map(DaemonFacts::of).collect(),
            program: args.program.clone(),
        }
    }

    /// A variable of the caller, if it is set and not empty.
    pub(super) fn var(&self, name: &str) -> Option<&OsStr> {
        self.env
            .get(OsStr::new(name))
            .map(OsString::as_os_str)
            .filter(|value| !value.is_empty())
    }

    /// Whether there is a sign of a driver: its library, or its kernel module.
    pub(super) fn has_driver(&self) -> bool {
        matches!(self.cuda.facts.library, Some(gpushare_probe::Loaded::From(_)))
            || self.root.has("/proc/driver/nvidia/version")
    }

    /// Whether `/proc` counts processes as this one does: pids of peers mean nothing in one of another PID namespace.
    pub(super) fn proc_is_ours() -> bool {
        let own = fs::read_link("/proc/self").ok();
        own.is_some_and(|link| link == Path::new(&std::process::id().to_string()))
    }

    /// The first daemon that answers on its tenant socket.
    pub(super) fn answering(&self) -> Option<(&DaemonFacts, Peer)> {
        self.daemons
            .iter()
            .find_map(|daemon| daemon.tenant.as_ref().ok().map(|peer| (daemon, *peer)))
    }

    /// The status of the first daemon that tells it.
    pub(super) fn status(&self) -> Option<&Status> {
        self.daemons
            .iter()
            .find_map(|daemon| daemon.admin.as_ref().ok().map(Box::as_ref))
    }
}

/// For tests: a machine on which nothing was found.
#[cfg(test)]
impl Facts {
    pub(super) fn bare(root: &Path) -> Self {
        Self {
            root: Root::new(root),
            env: BTreeMap::new(),
            uid: rustix::process::geteuid().as_raw(),
            cuda: Asked::nothing(),
            nvml: Asked::nothing(),
            library: Err(LibraryError::NotFound),
            preloaded: None,
            scheduler: Err("no scheduler; install one".to_owned()),
            daemons: Vec::new(),
            program: None,
        }
    }

    pub(super) fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.env.insert(name.into(), value.into());
    }
}

#[cfg(test)]
impl<F: Default> Asked<F> {
    pub(super) fn nothing() -> Self {
        Self::told(F::default())
    }

    pub(super) fn told(facts: F) -> Self {
        Self { facts, end: child::End::Finished, said: String::new() }
    }
}
