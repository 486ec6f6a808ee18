//! Facts about the machine, which the doctor gathers once before the checks.
//!
//! Files are read below a root folder, which is `/` except in tests.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpushare_probe::{CudaFacts, NvmlFacts, Question};
use gpushare_proto::admin::{AdminReply, AdminRequest, FreezingView, FrostView, Status};
use gpushare_proto::names::RuntimeDir;
use gpushare_sys::peer::Peer;

use super::child::{self, Asked};
use crate::cli::DoctorArgs;
use crate::places::Places;
use crate::run::library::{self, LibraryError};
use crate::run::start;
use crate::status;
use gpushare_connection::{Admin, Client, ClientError, Tenant};

/// Folder that stands for `/`, so that tests can check an invented machine.
#[derive(Clone, Debug)]
pub(crate) struct Root(PathBuf);

impl Root {
    pub(super) fn new(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    /// Returns the path of a file of the machine below this folder.
    pub(super) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Reads a file of the machine as text; invalid UTF-8 is replaced.
    pub(super) fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(self.at(path))?).into_owned())
    }

    pub(super) fn has(&self, path: impl AsRef<Path>) -> bool {
        self.at(path).symlink_metadata().is_ok()
    }

    /// Returns the sorted names of the files in a folder; empty if the folder is missing.
    pub(super) fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Returns whether this folder is `/` itself.
    pub(super) fn is_real(&self) -> bool {
        self.0 == Path::new("/")
    }
}

/// Runtime folder of a daemon, with the daemon's answers on both sockets.
#[derive(Debug)]
pub(crate) struct DaemonFacts {
    pub(super) dir: RuntimeDir,
    /// Process that listens on the tenant socket, or the failure to connect.
    pub(super) tenant: Result<Peer, ClientError>,
    /// Status from the admin socket, or the failure to get it.
    pub(super) admin: Result<Box<Status>, ClientError>,
    /// Whether the daemon freezes sessions; none without its status, and from an older daemon.
    pub(super) freezing: Option<FreezingView>,
    /// Sessions with a process that something keeps from being frozen; empty where `freezing` is none.
    pub(super) kept_warm: Vec<KeptWarm>,
}

/// Session that something keeps from being frozen.
#[derive(Clone, Debug)]
pub(crate) struct KeptWarm {
    pub(super) name: String,
    pub(super) frost: FrostView,
}

impl DaemonFacts {
    fn of(dir: &RuntimeDir) -> Self {
        let tenant = Client::<Tenant>::connect(dir).map(|client| client.peer());
        let mut freezing = None;
        let mut kept_warm = Vec::new();
        let admin = Client::<Admin>::connect(dir).and_then(|mut client| {
            let status = status::fetch(&mut client).map(Box::new)?;
            if let Ok(AdminReply::Freezing(view)) = client.ask(&AdminRequest::Freezing) {
                freezing = Some(view);
                kept_warm = kept_warm_by(&mut client, &status);
            }
            Ok(status)
        });
        Self { dir: dir.clone(), tenant, admin, freezing, kept_warm }
    }

    /// Returns whether no daemon listens on either socket.
    pub(super) fn is_absent(&self) -> bool {
        matches!(self.tenant, Err(ClientError::Absent(_)))
            && matches!(self.admin, Err(ClientError::Absent(_)))
    }
}

/// Asks of each session with a process what keeps it from being frozen. A session that has just ended is left out.
///
/// One question about all of them would keep the daemon from everybody else while it reads the files of each process.
/// So there is one for each session, half a millisecond in a debug build.
fn kept_warm_by(client: &mut Client<Admin>, status: &Status) -> Vec<KeptWarm> {
    let mut kept_warm = Vec::new();
    for session in status.sessions.iter().filter(|session| !session.clients.is_empty()) {
        match client.ask(&AdminRequest::Frost { which: session.session.to_string() }) {
            Ok(AdminReply::Frost(frost)) if frost.obstacle.is_some() => {
                kept_warm.push(KeptWarm { name: session.name.clone(), frost });
            }
            Ok(_) | Err(ClientError::Refused(_)) => {}
            Err(_) => break,
        }
    }
    kept_warm
}

#[derive(Debug)]
pub(crate) struct Facts {
    pub(super) root: Root,
    pub(super) env: BTreeMap<OsString, OsString>,
    pub(super) uid: u32,
    pub(super) cuda: Asked<CudaFacts>,
    pub(super) nvml: Asked<NvmlFacts>,
    /// Path of `libgpushare.so`, or the reason why it cannot be preloaded.
    pub(super) library: Result<PathBuf, LibraryError>,
    /// Files mapped into a child process with the preloaded library; none without a library.
    pub(super) preloaded: Option<Asked<Vec<String>>>,
    /// Path of the daemon's program, or the reason why there is none.
    pub(super) scheduler: Result<PathBuf, String>,
    pub(super) daemons: Vec<DaemonFacts>,
    /// Program of `doctor --program`, which is checked too.
    pub(super) program: Option<OsString>,
}

impl Facts {
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

    /// Returns an environment variable of the caller; none for an empty one.
    pub(super) fn var(&self, name: &str) -> Option<&OsStr> {
        self.env
            .get(OsStr::new(name))
            .map(OsString::as_os_str)
            .filter(|value| !value.is_empty())
    }

    /// Returns whether the driver's library or kernel module is present.
    pub(super) fn has_driver(&self) -> bool {
        matches!(self.cuda.facts.library, Some(gpushare_probe::Loaded::From(_)))
            || self.root.has("/proc/driver/nvidia/version")
    }

    /// Returns whether `/proc` belongs to this PID namespace; otherwise pids of peers cannot be looked up in it.
    pub(super) fn proc_is_ours() -> bool {
        let own = fs::read_link("/proc/self").ok();
        own.is_some_and(|link| link == Path::new(&std::process::id().to_string()))
    }

    /// Returns the first daemon that answers on its tenant socket.
    pub(super) fn answering(&self) -> Option<(&DaemonFacts, Peer)> {
        self.daemons
            .iter()
            .find_map(|daemon| daemon.tenant.as_ref().ok().map(|peer| (daemon, *peer)))
    }

    /// Returns the status of the first daemon that reports it.
    pub(super) fn status(&self) -> Option<&Status> {
        self.daemons
            .iter()
            .find_map(|daemon| daemon.admin.as_ref().ok().map(Box::as_ref))
    }
}

#[cfg(test)]
pub(super) mod staged {
    use super::*;

    pub(in crate::doctor) fn compile(path: &Path, source: &str, flags: &[&str]) {
        let folder = path.parent().unwrap();
        fs::write(folder.join("source.c"), source).unwrap();
        let mut cc = std::process::Command::new("cc");
        cc.current_dir(folder).args(["source.c", "-o"]).arg(path).args(flags);
        assert!(cc.status().unwrap().success());
    }

    impl Facts {
        pub(in crate::doctor) fn bare(root: &Path) -> Self {
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

        pub(in crate::doctor) fn set(&mut self, name: &str, value: impl Into<OsString>) {
            self.env.insert(name.into(), value.into());
        }
    }

    impl<F: Default> Asked<F> {
        pub(in crate::doctor) fn nothing() -> Self {
            Self::told(F::default())
        }

        pub(in crate::doctor) fn told(facts: F) -> Self {
            Self { facts, end: child::End::Finished, said: String::new() }
        }
    }
}
