//! The daemon's folder and its two sockets.
//!
//! ```text
//!   <runtime>/                      locked (flock) by the one daemon that serves it
//!     admin.sock               0600
//!     tenant/scheduler.sock    0666 for the system's daemon, 0600 in a 0700 folder for a user's own
//! ```
//!
//! Sockets that were passed to the daemon (systemd's) are taken over instead, if they are what they should be. They stay
//! when it ends: connections queue up in them until the next daemon takes them over, and nobody sees a refusal.
//!
//! What lies in the way is replaced only if it is a socket that nobody answers on. The lock on the folder
//! settles who may look: of any number of daemons that start at once, one serves and the others name it.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use gpushare_proto::names::RuntimeDir;
use gpushare_sys::folder::{FolderError, is_at};
use gpushare_sys::{folder, peer};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};
use tracing::warn;

use crate::config::Owner;

/// The longest path that fits a socket's address, in bytes.
const MAX_PATH: usize = 107;

/// Why the sockets are not to be had.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The system refuses.
    #[error("cannot {what} {}: {cause}; look at who owns it, or choose another folder with --runtime-dir", path.display())]
    System {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The folder is not ours alone.
    #[error("{0} with --runtime-dir")]
    Folder(#[from] FolderError),
    /// The folder is not at its path any more.
    #[error(
        "{} was taken away or replaced under this daemon, which nobody finds any more; it ends, and the processes it \
         served run on and come back to the next one",
        .0.display()
    )]
    Gone(PathBuf),
    /// Something that is no socket is where the socket belongs.
    #[error("{} is not a socket; remove it or choose another folder with --runtime-dir", .0.display())]
    NoSocket(PathBuf),
    /// The path does not fit a socket's address.
    #[error(
        "the socket path {} has {length} bytes and may have {MAX_PATH}; choose a shorter --runtime-dir",
        path.display()
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        length: usize,
    },
    /// A socket that was passed to the daemon is not one of its two.
    #[error("the passed socket {name} {what}; see docs/systemd.md")]
    Passed {
        /// Its name, or its place.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// Another daemon serves this folder.
    #[error("a gpushare daemon{} already serves {}; use it, or stop it first", process(*pid), path.display())]
    Busy {
        /// The other one, if it answers.
        pid: Option<u32>,
        /// The folder.
        path: PathBuf,
    },
}

fn process(pid: Option<u32>) -> String {
    pid.map_or(String::new(), |pid| format!(" (pid {pid})"))
}

impl SocketError {
    /// Whether the cause is a lack of permission.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        match self {
            Self::System { cause, .. } => cause.kind() == io::ErrorKind::PermissionDenied,
            Self::Folder(error) => error.is_denied(),
            _ => false,
        }
    }

    fn system(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::System { what, path: path.to_owned(), cause }
    }
}

/// The folder, ours until drop or [`Folder::leave`].
#[derive(Debug)]
pub struct Folder {
    runtime: RuntimeDir,
    owner: Owner,
    made: bool,
    lock: File,
    /// Those of somebody else who keeps them: tenant's and administrator's.
    passed: [Option<UnixListener>; 2],
}

/// Both sockets, listening.
#[derive(Debug)]
pub struct Sockets {
    /// For sharing processes.
    pub tenant: UnixListener,
    /// For administration.
    pub admin: UnixListener,
}

impl Folder {
    /// Makes the folder if it is not there, checks it, and locks it.
    ///
    /// # Errors
    /// [`SocketError`] if it is not ours alone to write to, or another daemon serves it.
    pub fn take(runtime: &RuntimeDir, owner: Owner) -> Result<Self, SocketError> {
        for path in [runtime.tenant_socket(), runtime.admin_socket()] {
            let length = path.as_os_str().len();
            if length > MAX_PATH {
                return Err(SocketError::TooLong { path, length });
            }
        }
        let made = folder::take(runtime.root(), mode(owner))?;
        let lock = File::open(runtime.root()).map_err(SocketError::system("open", runtime.root()))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(SocketError::Busy {
                    pid: who_answers(&runtime.tenant_socket()).ok().flatten(),
                    path: runtime.root().to_owned(),
                });
            }
            Err(errno) => return Err(SocketError::system("lock", runtime.root())(errno.into())),
        }
        Ok(Self { runtime: runtime.clone(), owner, made, lock, passed: [None, None] })
    }

    /// Takes over sockets that the daemon was started with. Which is which their paths say.
    ///
    /// # Errors
    /// [`SocketError::Passed`] if one is not a listening socket at one of the two paths, both are at one, or the
    /// administrator's is open to others.
    pub fn adopt(&mut self, passed: Vec<(String, OwnedFd)>) -> Result<(), SocketError> {
        for (nth, (name, socket)) in passed.into_iter().enumerate() {
            let refuse = |what: String| SocketError::Passed {
                name: match name.as_str() {
                    "" | "unknown" => format!("number {nth}"),
                    name => format!("`{name}`"),
                },
                what,
            };
            let listens = sockopt::socket_acceptconn(&socket).is_ok_and(|listens| listens)
                && sockopt::socket_type(&socket) == Ok(SocketType::STREAM);
            let listener = UnixListener::from(socket);
            let address = listener.local_addr().ok().filter(|_| listens);
            let Some(path) = address.as_ref().and_then(|address| address.as_pathname()) else {
                return Err(refuse("is not a listening stream socket with a path".to_owned()));
            };
            let ours = [self.runtime.tenant_socket(), self.runtime.admin_socket()];
            let Some(which) = ours.iter().position(|own| is_same(own, path)) else {
                let [tenant, admin] = ours.map(|own| own.display().to_string());
                return Err(refuse(format!(
                    "is at {}, and this daemon's are {tenant} and {admin}",
                    path.display()
                )));
            };
            let found = fs::symlink_metadata(&ours[which]).map_err(SocketError::system("look at", path))?;
            let mode = found.permissions().mode() & 0o777;
            if ours[which] == self.runtime.admin_socket() && mode & 0o077 != 0 {
                return Err(refuse(format!(
                    "is the administrator's and has mode {mode:o}; give it SocketMode=0600"
                )));
            }
            if self.passed[which].is_some() {
                return Err(refuse(format!("is a second one at {}", path.display())));
            }
            listener.set_nonblocking(true).map_err(SocketError::system("listen on", path))?;
            self.passed[which] = Some(listener);
        }
        Ok(())
    }

    /// Binds the sockets that were not passed. From then on connections queue up.
    ///
    /// # Errors
    /// [`SocketError`] if something is in the way.
    pub fn listen(&self) -> Result<Sockets, SocketError> {
        folder::take(&self.runtime.tenant_dir(), mode(self.owner))?;
        let tenant_mode = match self.owner {
            Owner::System => 0o666,
            Owner::User => 0o600,
        };
        let [tenant, admin] = &self.passed;
        Ok(Sockets {
            admin: self.keep_or_bind(admin.as_ref(), &self.runtime.admin_socket(), 0o600)?,
            tenant: self.keep_or_bind(tenant.as_ref(), &self.runtime.tenant_socket(), tenant_mode)?,
        })
    }

    /// Whether the folder is still at its path.
    ///
    /// # Errors
    /// [`SocketError::Gone`] if it is not: nobody finds this daemon any more.
    pub fn check(&self) -> Result<(), SocketError> {
        match is_at(&self.lock, self.runtime.root()) {
            true => Ok(()),
            false => Err(SocketError::Gone(self.runtime.root().to_owned())),
        }
    }

    /// Whether `path` leads to this folder.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        fs::canonicalize(path).is_ok_and(|path| is_at(&self.lock, &path))
    }

    /// Says in the folder where the daemon's state folder is, if that is another one. Where it cannot be said, token files are
    /// kept here.
    pub(crate) fn say_where(&self, state: Option<&Path>) {
        let link = self.runtime.state_link();
        if fs::symlink_metadata(&link).is_ok_and(|found| found.is_symlink()) {
            let _ = fs::remove_file(&link);
        }
        let Some(state) = state.and_then(|state| fs::canonicalize(state).ok()) else {
            return;
        };
        if let Err(cause) = symlink(state, &link) {
            warn!("cannot make the link {}: {cause}", link.display());
        }
    }

    /// The folder itself, wherever it is by now.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.lock.as_fd().try_clone_to_owned()
    }

    /// Takes the sockets away, but for those that were passed. Unless `awaited` by somebody who will come back, the token
    /// files go too, and the folder with the registry unless something of `lasting` worth is in it, as usage that somebody may
    /// ask the next daemon for; a folder that was there before us stays.
    ///
    /// A folder that was taken away under us is left alone: what is at its path by now may be another
    /// daemon's.
    pub fn leave(self, awaited: bool, lasting: bool) {
        if !is_at(&self.lock, self.runtime.root()) {
            return;
        }
        // What is gone already, or still holds somebody else's file, is as it should be.
        let [tenant, admin] = &self.passed;
        if admin.is_none() {
            let _ = fs::remove_file(self.runtime.admin_socket());
        }
        if tenant.is_none() {
            let _ = fs::remove_file(self.runtime.tenant_socket());
        }
        let _ = fs::remove_dir(self.runtime.tenant_dir());
        if awaited {
            return;
        }
        let _ = fs::remove_dir_all(self.runtime.tokens_dir());
        if lasting {
            return;
        }
        let _ = fs::remove_file(self.runtime.registry());
        if self.made {
            self.say_where(None);
            let _ = fs::remove_dir(self.runtime.root());
        }
    }

    fn keep_or_bind(
        &self,
        passed: Option<&UnixListener>,
        path: &Path,
        mode: u32,
    ) -> Result<UnixListener, SocketError> {
        match passed {
            Some(listener) => listener.try_clone().map_err(SocketError::system("listen on", path)),
            None => self.bind(path, mode),
        }
    }

    fn bind(&self, path: &Path, mode: u32) -> Result<UnixListener, SocketError> {
        self.clear(path)?;
        let listener = UnixListener::bind(path).map_err(SocketError::system("listen on", path))?;
        fs::set_permissions(path, Permissions::from_mode(mode))
            .map_err(SocketError::system("set the permissions of", path))?;
        listener.set_nonblocking(true).map_err(SocketError::system("listen on", path))?;
        Ok(listener)
    }

    /// Removes a socket that nobody answers on.
    fn clear(&self, path: &Path) -> Result<(), SocketError> {
        match fs::symlink_metadata(path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(cause) => return Err(SocketError::system("look at", path)(cause)),
            Ok(found) if !found.file_type().is_socket() => {
                return Err(SocketError::NoSocket(path.to_owned()));
            }
            Ok(_) => {}
        }
        match who_answers(path).map_err(SocketError::system("connect to", path))? {
            Some(pid) => Err(SocketError::Busy { pid: Some(pid), path: self.runtime.root().to_owned() }),
            None => fs::remove_file(path).map_err(SocketError::system("replace", path)),
        }
    }
}

/// What others may do in the folders.
fn mode(owner: Owner) -> u32 {
    match owner {
        Owner::System => 0o755,
        Owner::User => 0o700,
    }
}

/// Whether a socket's address is this path, also through a link like `/var/run`.
fn is_same(own: &Path, address: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    own == address || (real(own).is_some() && real(own) == real(address))
}

/// The process that listens on a socket; none if nobody does.
fn who_answers(path: &Path) -> io::Result<Option<u32>> {
    match UnixStream::connect(path) {
        Ok(stream) => Ok(Some(peer::credentials(stream.as_fd())?.pid)),
        Err(cause) if cause.kind() == io::ErrorKind::ConnectionRefused => Ok(None),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime(root: &tempfile::TempDir) -> RuntimeDir {
        RuntimeDir::new(root.path().join("run"))
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_users_own_sockets_are_for_that_user() {
        let root = tempfile::tempdir().unwrap();
        let runtime = runtime(&root);
        let folder = Folder::take(&runtime, Owner::User).unwrap();
        let _sockets = folder.listen().unwrap();
        assert_eq!(mode(runtime.root()), 0o700);
        assert_eq!(mode(&runtime.tenant_dir()), 0o700);
        assert_eq!(mode(&runtime.tenant_socket()), 0o600);
        assert_eq!(mode(&runtime.admin_socket()), 0o600);
        folder.leave(false, false);
        assert!(!runtime.root().exists());
    }

    #[test]
    fn anyone_may_reach_the_systems_tenant_socket_only() {
        let root = tempfile::tempdir().unwrap();
        let runtime = runtime(&root);
        let folder = Folder::take(&runtime, Owner::System).unwrap();
        let _sockets = folder.listen().unwrap();
        assert_eq!(mode(&runtime.tenant_dir()), 0o755);
        assert_eq!(mode(&runtime.tenant_socket()), 0o666);
        assert_eq!(mode(&runtime.admin_socket()), 0o600);
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_living_one_is_not() {
        let root = tempfile::tempdir().unwrap();
        let runtime = runtime(&root);
        let folder = Folder::take(&runtime, Owner::User).unwrap();
        drop(folder.listen().unwrap());
        let _sockets = folder.listen().unwrap();

        let error = folder.listen().unwrap_err();
        assert!(matches!(error, SocketError::Busy { pid: Some(pid), .. } if pid == std::process::id()));
        let error = Folder::take(&runtime, Owner::User).unwrap_err().to_string();
        assert!(error.contains(&format!("(pid {})", std::process::id())), "{error}");
    }

    #[test]
    fn what_is_no_socket_stays() {
        let root = tempfile::tempdir().unwrap();
        let runtime = runtime(&root);
        let folder = Folder::take(&runtime, Owner::User).unwrap();
        fs::create_dir(runtime.admin_socket()).unwrap();
        assert!(matches!(folder.listen(), Err(SocketError::NoSocket(_))));
        assert!(runtime.admin_socket().is_dir());
    }

    #[test]
    fn a_folder_that_is_not_ours_alone_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let runtime = runtime(&root);
        fs::write(runtime.root(), "").unwrap();
        assert!(matches!(
            Folder::take(&runtime, Owner::User),
            Err(SocketError::Folder(FolderError::NoFolder(_)))
        ));

        fs::remove_file(runtime.root()).unwrap();
        fs::create_dir(runtime.root()).unwrap();
        fs::set_permissions(runtime.root(), Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(
            Folder::take(&runtime, Owner::User),
            Err(SocketError::Folder(FolderError::Open { .. }))
        ));

        let long = RuntimeDir::new(root.path().join("x".repeat(100)));
        assert!(matches!(Folder::take(&long, Owner::User), Err(SocketError::TooLong { .. })));
    }

    #[test]
    fn another_daemons_folder_at_the_same_path_stays() {
        let root = tempfile::tempdir().unwrap();
        let runtime = runtime(&root);
        let first = Folder::take(&runtime, Owner::User).unwrap();
        drop(first.listen().unwrap());
        fs::rename(runtime.root(), root.path().join("gone")).unwrap();
        let second = Folder::take(&runtime, Owner::User).unwrap();
        let _sockets = second.listen().unwrap();
        assert!(matches!(first.check(), Err(SocketError::Gone(_))));
        second.check().unwrap();
        first.leave(false, false);
        assert!(runtime.admin_socket().exists() && runtime.tenant_socket().exists());
        second.leave(false, false);
        assert!(!runtime.root().exists());
    }

    fn passed(socket: impl Into<OwnedFd>) -> Vec<(String, OwnedFd)> {
        vec![("mine".to_owned(), socket.into())]
    }

    #[test]
    fn a_passed_socket_is_served_and_stays() {
        let root = tempfile::tempdir().unwrap();
        let runtime = runtime(&root);
        let mut folder = Folder::take(&runtime, Owner::User).unwrap();
        let systemds = UnixListener::bind(runtime.admin_socket()).unwrap();
        fs::set_permissions(runtime.admin_socket(), Permissions::from_mode(0o600)).unwrap();
        let _queued = UnixStream::connect(runtime.admin_socket()).unwrap();
        folder.adopt(passed(systemds.try_clone().unwrap())).unwrap();
        let sockets = folder.listen().unwrap();
        sockets.admin.accept().unwrap();
        folder.leave(false, false);
        assert!(runtime.admin_socket().exists() && !runtime.tenant_socket().exists());
        drop(sockets);
        UnixStream::connect(runtime.admin_socket()).unwrap();
    }

    #[test]
    fn a_passed_socket_that_is_not_ours_is_named_with_what_is_wrong() {
        let root = tempfile::tempdir().unwrap();
        let runtime = runtime(&root);
        let mut folder = Folder::take(&runtime, Owner::User).unwrap();
        let refused =
            |folder: &mut Folder, socket: OwnedFd| folder.adopt(passed(socket)).unwrap_err().to_string();

        let file = File::open(root.path()).unwrap();
        let said = refused(&mut folder, file.into());
        assert!(said.contains("`mine` is not a listening stream socket"), "{said}");
        let (connected, _other) = UnixStream::pair().unwrap();
        assert!(refused(&mut folder, connected.into()).contains("is not a listening"));

        let elsewhere = UnixListener::bind(root.path().join("elsewhere")).unwrap();
        let said = refused(&mut folder, elsewhere.into());
        assert!(said.contains("elsewhere, and this daemon's are") && said.contains("admin.sock"), "{said}");

        let open = UnixListener::bind(runtime.admin_socket()).unwrap();
        fs::set_permissions(runtime.admin_socket(), Permissions::from_mode(0o666)).unwrap();
        let said = refused(&mut folder, open.try_clone().unwrap().into());
        assert!(said.contains("mode 666; give it SocketMode=0600"), "{said}");

        fs::set_permissions(runtime.admin_socket(), Permissions::from_mode(0o600)).unwrap();
        folder.adopt(passed(open.try_clone().unwrap())).unwrap();
        assert!(refused(&mut folder, open.into()).contains("is a second one at"));
    }

    #[test]
    fn what_somebody_will_come_back_for_stays() {
        let root = tempfile::tempdir().unwrap();
        let runtime = runtime(&root);
        let folder = Folder::take(&runtime, Owner::User).unwrap();
        drop(folder.listen().unwrap());
        fs::write(runtime.registry(), "{}").unwrap();
        folder.leave(true, false);
        assert!(runtime.registry().exists());
        assert!(!runtime.admin_socket().exists() && !runtime.tenant_dir().exists());
    }
}
