//! Sockets in the kubelet's folders: listened at, recognised and removed.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::Router;
use tracing::warn;

/// Identity of a socket's file. A number of a file may be used again, so the time counts too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct File {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl File {
    /// Returns the identity of the file at a path; none if there is no file.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        let found = path.symlink_metadata().ok()?;
        Some(Self {
            device: found.dev(),
            inode: found.ino(),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }

    /// Returns a file with this number, for tests of decisions.
    #[cfg(test)]
    pub(crate) const fn numbered(inode: u64) -> Self {
        Self { device: 1, inode, changed: (0, 0) }
    }
}

/// Socket of this process. Dropping it ends its server and removes its file.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    served: Option<File>,
    server: Option<JoinHandle<()>>,
}

impl Socket {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, served: None, server: None }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file that this process listens at.
    pub(crate) fn served(&self) -> Option<File> {
        self.served
    }

    /// Returns whether the file at the path is the one that this process listens at.
    pub(crate) fn is_served(&self) -> bool {
        self.served.is_some() && File::at(&self.path) == self.served
    }

    /// Makes the file anew and listens at it.
    pub(crate) fn serve(&mut self, services: Router) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => return Err(cause),
            _ => {}
        }
        let listener = UnixListener::bind(&self.path)?;
        self.served = File::at(&self.path);
        let serving = services.serve_with_incoming(UnixListenerStream::new(listener));
        let path = self.path.clone();
        let server = tokio::spawn(async move {
            if let Err(cause) = serving.await {
                warn!("the socket {} fails: {cause}", path.display());
            }
        });
        if let Some(old) = self.server.replace(server) {
            old.abort();
        }
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            server.abort();
        }
        // A file of another process stays.
        if self.is_served() {
            let _ = fs::remove_file(&self.path);
        }
    }
}
