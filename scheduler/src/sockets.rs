//! The daemon's runtime folder and its two sockets.
//!
//! ```text
//!   <runtime>/
//!     lock                     0600, locked (flock) by the daemon that serves the folder
//!     admin.sock               0600
//!     tenant/scheduler.sock    0666 for the system's daemon, 0600 in a 0700 folder for a user's own
//! ```
//!
//! The daemon uses sockets that systemd passes instead, if they are at these paths. These stay when the
//! daemon ends. Connections queue up in them until the next daemon takes them over.
//!
//! A file at a socket's path is replaced only if it is a socket on which no process listens. The lock decides
//! between daemons that start together: one serves, and the others report its pid.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use gpushare_proto::names::RuntimeDir;
use gpushare_sys::folder::{FolderError, is_at};
use gpushare_sys::{folder, peer};
use rustix::net::{SocketType, sockopt};
use tracing::warn;

use crate::config::Owner;
use crate::errors::FileError;
use crate::lock::{holder, lock_private};

/// Advice for the user after a failed system call on the runtime folder.
const HINT: &str = "check its owner, or choose another folder with --runtime-dir";

/// Largest length of a path that fits a socket address, in bytes.
const MAX_PATH: usize = 107;

#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    #[error(transparent)]
    System(#[from] FileError),
    #[error("{0} with --runtime-dir")]
    Folder(#[from] FolderError),
    /// Runtime folder that was moved or replaced while the daemon served it.
    #[error(
        "{} was moved or replaced, so no process finds this daemon any more; the daemon ends, and the processes \
         that it served run on and connect to the next one",
        .0.display()
    )]
    Gone(PathBuf),
    #[error("{} is not a socket; remove it or choose another folder with --runtime-dir", .0.display())]
    NoSocket(PathBuf),
    #[error(
        "the socket path {} has {length} bytes and may have {MAX_PATH}; choose a shorter --runtime-dir",
        path.display()
    )]
    TooLong { path: PathBuf, length: usize },
    /// Socket passed by systemd that cannot be one of the daemon's two.
    #[error("passed socket {name} {what}; see docs/systemd.md")]
    Passed { name: String, what: String },
    /// Runtime folder that another daemon serves.
    #[error("a gpushare daemon{} already serves {}; use it, or stop it first", holder(*pid), path.display())]
    Busy { pid: Option<u32>, path: PathBuf },
}

#[derive(Debug)]
pub(crate) struct Folder {
    runtime: RuntimeDir,
    owner: Owner,
    /// Whether this daemon created the runtime folder.
    made: bool,
    folder: File,
    /// Locked file in the folder. Others can open the folder, and so lock it, but not this file.
    _lock: File,
    /// Tenant's and administrator's socket, if systemd passed them to the daemon.
    passed: [Option<UnixListener>; 2],
}

#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) tenant: UnixListener,
    pub(crate) admin: UnixListener,
}

impl Folder {
    /// Creates the runtime folder if it is missing, checks it, and locks it.
    pub(crate) fn take(runtime: &RuntimeDir, owner: Owner) -> Result<Self, SocketError> {
        for path in [runtime.tenant_socket(), runtime.admin_socket()] {
            let length = path.as_os_str().len();
            if length > MAX_PATH {
                return Err(SocketError::TooLong { path, length });
            }
        }
        let made = folder::take(runtime.root(), mode(owner))?;
        let failed = |what| FileError::of(what, runtime.root(), HINT);
        let folder = File::open(runtime.root()).map_err(failed("open"))?;
        let lock = lock_private(&lock_file(runtime)).map_err(failed("lock"))?;
        let lock = lock.ok_or_else(|| SocketError::Busy {
            pid: listening_process(&runtime.tenant_socket()).ok().flatten(),
            path: runtime.root().to_owned(),
        })?;
        Ok(Self { runtime: runtime.clone(), owner, made, folder, _lock: lock, passed: [None, None] })
    }

    /// Takes over sockets that systemd passed to the daemon. Their paths tell which socket is which.
    pub(crate) fn adopt(&mut self, passed: Vec<(String, OwnedFd)>) -> Result<(), SocketError> {
        for (number, (name, socket)) in passed.into_iter().enumerate() {
            let name = match name.as_str() {
                // systemd calls a socket without a name so.
                "" | "unknown" => format!("number {number}"),
                name => format!("`{name}`"),
            };
            let refuse = |what: String| SocketError::Passed { name: name.clone(), what };
            let listens = sockopt::socket_acceptconn(&socket) == Ok(true)
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
            let found = fs::symlink_metadata(&ours[which]).map_err(FileError::of("look at", path, HINT))?;
            let mode = found.permissions().mode() & 0o777;
            if ours[which] == self.runtime.admin_socket() && mode & 0o077 != 0 {
                return Err(refuse(format!(
                    "is the administrator's and has mode {mode:o}; give it SocketMode=0600"
                )));
            }
            if self.passed[which].is_some() {
                return Err(refuse(format!("is a second one at {}", path.display())));
            }
            listener.set_nonblocking(true).map_err(FileError::of("listen on", path, HINT))?;
            self.passed[which] = Some(listener);
        }
        Ok(())
    }

    /// Binds the sockets that systemd did not pass. Connections queue up from then on.
    pub(crate) fn listen(&self) -> Result<Sockets, SocketError> {
        folder::take(&self.runtime.tenant_dir(), mode(self.owner))?;
        let tenant_mode = if self.owner == Owner::System { 0o666 } else { 0o600 };
        let [tenant, admin] = &self.passed;
        Ok(Sockets {
            admin: self.keep_or_bind(admin.as_ref(), &self.runtime.admin_socket(), 0o600)?,
            tenant: self.keep_or_bind(tenant.as_ref(), &self.runtime.tenant_socket(), tenant_mode)?,
        })
    }

    pub(crate) fn check(&self) -> Result<(), SocketError> {
        match is_at(&self.folder, self.runtime.root()) {
            true => Ok(()),
            false => Err(SocketError::Gone(self.runtime.root().to_owned())),
        }
    }

    pub(crate) fn is_at(&self, path: &Path) -> bool {
        fs::canonicalize(path).is_ok_and(|path| is_at(&self.folder, &path))
    }

    /// Creates the link to the daemon's state folder, if that is another folder. Without the link, tools look
    /// for token files in the runtime folder.
    pub(crate) fn link_state(&self, state: Option<&Path>) {
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

    /// Opens the runtime folder again, even if it was moved.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.folder.as_fd().try_clone_to_owned()
    }

    /// Removes the sockets that systemd did not pass, and the files that no later daemon needs.
    ///
    /// All other files stay if clients of this daemon continue (`awaited`). The registry stays if it has
    /// usage (`lasting`). The folder stays if it existed before this daemon. The folder `tenant/` of the system's
    /// daemon always stays: containers have mounted it, and would not see another folder at its path. A folder
    /// that was replaced stays unchanged, because the one at the path may belong to another daemon.
    pub(crate) fn leave(self, awaited: bool, lasting: bool) {
        if !is_at(&self.folder, self.runtime.root()) {
            return;
        }
        // Errors mean that a file is gone already, or that a folder holds files of others.
        let [tenant, admin] = &self.passed;
        if admin.is_none() {
            let _ = fs::remove_file(self.runtime.admin_socket());
        }
        if tenant.is_none() {
            let _ = fs::remove_file(self.runtime.tenant_socket());
        }
        let _ = fs::remove_file(lock_file(&self.runtime));
        if awaited {
            return;
        }
        if self.owner == Owner::User {
            let _ = fs::remove_dir(self.runtime.tenant_dir());
        }
        let _ = fs::remove_dir_all(self.runtime.tokens_dir());
        if lasting {
            return;
        }
        let _ = fs::remove_file(self.runtime.registry());
        if self.made {
            self.link_state(None);
            let _ = fs::remove_dir(self.runtime.root());
        }
    }

    fn keep_or_bind(
        &self,
        passed: Option<&UnixListener>,
        path: &Path,
        mode: u32,
    ) -> Result<UnixListener, SocketError> {
        let failed = |what| FileError::of(what, path, HINT);
        if let Some(listener) = passed {
            return Ok(listener.try_clone().map_err(failed("listen on"))?);
        }
        self.clear(path)?;
        let listener = UnixListener::bind(path).map_err(failed("listen on"))?;
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed("set the permissions of"))?;
        listener.set_nonblocking(true).map_err(failed("listen on"))?;
        Ok(listener)
    }

    /// Removes a socket on which no process listens.
    fn clear(&self, path: &Path) -> Result<(), SocketError> {
        match fs::symlink_metadata(path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(cause) => return Err(FileError::of("look at", path, HINT)(cause).into()),
            Ok(found) if !found.file_type().is_socket() => {
                return Err(SocketError::NoSocket(path.to_owned()));
            }
            Ok(_) => {}
        }
        match listening_process(path).map_err(FileError::of("connect to", path, HINT))? {
            Some(pid) => Err(SocketError::Busy { pid: Some(pid), path: self.runtime.root().to_owned() }),
            None => Ok(fs::remove_file(path).map_err(FileError::of("replace", path, HINT))?),
        }
    }
}

fn lock_file(runtime: &RuntimeDir) -> PathBuf {
    runtime.root().join("lock")
}

fn mode(owner: Owner) -> u32 {
    match owner {
        Owner::System => 0o755,
        Owner::User => 0o700,
    }
}

/// Returns whether a socket's address is the path `own`, possibly through a link like `/var/run`.
fn is_same(own: &Path, address: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    own == address || (real(own).is_some() && real(own) == real(address))
}

fn listening_process(path: &Path) -> io::Result<Option<u32>> {
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
    fn a_users_own_sockets_are_closed_to_others() {
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
    fn the_systems_tenant_socket_is_open_to_all() {
        let root = tempfile::tempdir().unwrap();
        let runtime = runtime(&root);
        let folder = Folder::take(&runtime, Owner::System).unwrap();
        let _sockets = folder.listen().unwrap();
        assert_eq!(mode(&runtime.tenant_dir()), 0o755);
        assert_eq!(mode(&runtime.tenant_socket()), 0o666);
        assert_eq!(mode(&runtime.admin_socket()), 0o600);
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_served_one_is_not() {
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
    fn a_user_who_locks_the_folder_stops_no_daemon() {
        let root = tempfile::tempdir().unwrap();
        let runtime = runtime(&root);
        Folder::take(&runtime, Owner::System).unwrap();
        let theirs = File::open(runtime.root()).unwrap();
        rustix::fs::flock(&theirs, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        let folder = Folder::take(&runtime, Owner::System).unwrap();
        assert_eq!(mode(&lock_file(&runtime)), 0o600);
        folder.leave(false, false);
        assert!(!lock_file(&runtime).exists());
    }

    #[test]
    fn a_file_in_place_of_a_socket_stays() {
        let root = tempfile::tempdir().unwrap();
        let runtime = runtime(&root);
        let folder = Folder::take(&runtime, Owner::User).unwrap();
        fs::create_dir(runtime.admin_socket()).unwrap();
        assert!(matches!(folder.listen(), Err(SocketError::NoSocket(_))));
        assert!(runtime.admin_socket().is_dir());
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_refused() {
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
    fn a_wrong_passed_socket_is_refused_with_the_reason() {
        let root = tempfile::tempdir().unwrap();
        let runtime = runtime(&root);
        let mut folder = Folder::take(&runtime, Owner::User).unwrap();
        let refused =
            |folder: &mut Folder, socket: OwnedFd| folder.adopt(passed(socket)).unwrap_err().to_string();

        let file = File::open(root.path()).unwrap();
        let said = "passed socket `mine` is not a listening stream socket with a path; see docs/systemd.md";
        assert_eq!(refused(&mut folder, file.into()), said);
        let (connected, _other) = UnixStream::pair().unwrap();
        assert_eq!(refused(&mut folder, connected.into()), said);
        let unnamed = vec![("unknown".to_owned(), UnixStream::pair().unwrap().0.into())];
        assert!(
            folder
                .adopt(unnamed)
                .unwrap_err()
                .to_string()
                .starts_with("passed socket number 0 is not")
        );

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
    fn the_registry_stays_for_clients_that_will_return() {
        let root = tempfile::tempdir().unwrap();
        let runtime = runtime(&root);
        let folder = Folder::take(&runtime, Owner::User).unwrap();
        drop(folder.listen().unwrap());
        fs::write(runtime.registry(), "{}").unwrap();
        folder.leave(true, false);
        assert!(runtime.registry().exists());
        assert!(!runtime.admin_socket().exists() && !runtime.tenant_socket().exists());
    }

    /// A container that has mounted another folder would never find the next daemon.
    #[test]
    fn containers_find_the_next_daemon_in_the_folder_that_they_have_mounted() {
        for (owner, awaited) in [(Owner::System, false), (Owner::System, true), (Owner::User, true)] {
            let root = tempfile::tempdir().unwrap();
            let runtime = runtime(&root);
            let folder = Folder::take(&runtime, owner).unwrap();
            drop(folder.listen().unwrap());
            let mounted = File::open(runtime.tenant_dir()).unwrap();
            folder.leave(awaited, false);
            let next = Folder::take(&runtime, owner).unwrap();
            let _sockets = next.listen().unwrap();
            assert!(is_at(&mounted, &runtime.tenant_dir()), "{owner:?}, awaited: {awaited}");
        }
    }
}
