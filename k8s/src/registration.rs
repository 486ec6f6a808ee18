//! Life beside the kubelet: the plugin's socket, and the registration with each new kubelet.
//!
//! ```text
//!   our socket is gone or another's ──▶ Serve      a kubelet that starts removes all sockets of the folder
//!   kubelet.sock is another file    ──▶ Register
//!   no kubelet.sock                 ──▶ Wait, said once
//! ```
//!
//! The two files are looked at four times a second. That finds every change, whatever the order of the
//! kubelet's steps; an event of the file system would have to be confirmed in the same way.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Endpoint, Server};
use tracing::{info, warn};

use crate::api::v1beta1::RegisterRequest;
use crate::api::v1beta1::device_plugin_server::DevicePluginServer;
use crate::api::v1beta1::registration_client::RegistrationClient;
use crate::api::{KUBELET_SOCKET, VERSION};
use crate::service::{OPTIONS, Plugin};
use crate::share::RESOURCE;

/// File name of the plugin's socket.
const SOCKET: &str = "gpushare.sock";
/// Interval between two looks at the sockets.
const EVERY: Duration = Duration::from_millis(250);
/// Longest wait for the kubelet's answer to a registration.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval between two looks at the driver and NVIDIA's spec.
const RENEWAL: Duration = Duration::from_secs(30);

/// Reason why the plugin cannot be offered to the kubelet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistrationError {
    #[error(
        "no kubelet listens at {0}; run this on a node, with the kubelet's folder mounted, or name the folder with \
         --plugins-dir. Waiting for it"
    )]
    NoKubelet(PathBuf),
    #[error("{path} cannot be listened at: {cause}; run as root, and mount the kubelet's folder for writing")]
    Unserved { path: PathBuf, cause: io::Error },
    #[error("the kubelet at {path} did not register {RESOURCE}: {cause}. Trying again")]
    Unregistered { path: PathBuf, cause: String },
}

/// Identity of a socket's file. A number of a file may be used again, so the time counts too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct File {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl File {
    fn at(path: &Path) -> Option<Self> {
        let found = path.symlink_metadata().ok()?;
        Some(Self {
            device: found.dev(),
            inode: found.ino(),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

/// Files as they are, and as they were when the plugin last acted on them.
#[derive(Clone, Copy, Debug, Default)]
struct Sockets {
    /// Kubelet's socket now.
    kubelet: Option<File>,
    /// Kubelet's socket at which the plugin registered.
    registered: Option<File>,
    /// File at the path of the plugin's socket now.
    own: Option<File>,
    /// File that the plugin listens at.
    served: Option<File>,
}

/// Next act of the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Nothing to do.
    Rest,
    /// There is no kubelet.
    Wait,
    /// Make the socket and listen.
    Serve,
    /// Register with the kubelet.
    Register,
}

/// Decides the next act.
fn next(sockets: &Sockets) -> Next {
    match sockets {
        Sockets { own, served, .. } if own.is_none() || own != served => Next::Serve,
        Sockets { kubelet: None, .. } => Next::Wait,
        Sockets { kubelet, registered, .. } if kubelet != registered => Next::Register,
        _ => Next::Rest,
    }
}

/// Plugin in the kubelet's folder. Dropping it removes its socket.
#[derive(Debug)]
pub(crate) struct Registration {
    plugin: Plugin,
    kubelet: PathBuf,
    socket: PathBuf,
    registered: Option<File>,
    served: Option<File>,
    server: Option<JoinHandle<()>>,
    /// Last problem that was logged.
    said: Option<String>,
    next_renewal: Instant,
}

impl Registration {
    pub(crate) fn new(plugin: Plugin, folder: &Path) -> Self {
        Self {
            plugin,
            kubelet: folder.join(KUBELET_SOCKET),
            socket: folder.join(SOCKET),
            registered: None,
            served: None,
            server: None,
            said: None,
            next_renewal: Instant::now() + RENEWAL,
        }
    }

    /// Serves and registers for ever. Problems are logged once, and tried again.
    pub(crate) async fn run(&mut self) {
        loop {
            match self.step().await {
                Ok(Next::Serve | Next::Register) => continue,
                Ok(_) => {}
                Err(problem) => self.say(&problem.to_string()),
            }
            self.plugin.watch.check(Instant::now());
            self.renew().await;
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn step(&mut self) -> Result<Next, RegistrationError> {
        let next = next(&Sockets {
            kubelet: File::at(&self.kubelet),
            registered: self.registered,
            own: File::at(&self.socket),
            served: self.served,
        });
        match next {
            Next::Rest => {}
            Next::Wait => {
                self.registered = None;
                return Err(RegistrationError::NoKubelet(self.kubelet.clone()));
            }
            Next::Serve => self.serve()?,
            Next::Register => self.register().await?,
        }
        Ok(next)
    }

    /// Makes the socket and listens at it. The kubelet that knew another file must be told again.
    fn serve(&mut self) -> Result<(), RegistrationError> {
        let unserved = |cause| RegistrationError::Unserved { path: self.socket.clone(), cause };
        match fs::remove_file(&self.socket) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => return Err(unserved(cause)),
            _ => {}
        }
        let listener = UnixListener::bind(&self.socket).map_err(unserved)?;
        (self.served, self.registered) = (File::at(&self.socket), None);
        let serving = Server::builder()
            .add_service(DevicePluginServer::new(self.plugin.clone()))
            .serve_with_incoming(UnixListenerStream::new(listener));
        let server = tokio::spawn(async {
            if let Err(cause) = serving.await {
                warn!("the plugin's socket fails: {cause}");
            }
        });
        if let Some(old) = self.server.replace(server) {
            old.abort();
        }
        Ok(())
    }

    async fn register(&mut self) -> Result<(), RegistrationError> {
        // A kubelet that starts during the call is another one.
        let kubelet = File::at(&self.kubelet);
        let path = self.kubelet.clone();
        let unregistered = |cause: &dyn std::fmt::Display| RegistrationError::Unregistered {
            path: path.clone(),
            cause: cause.to_string(),
        };
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display()))
            .map_err(|cause| unregistered(&cause))?
            .connect_timeout(PATIENCE)
            .timeout(PATIENCE);
        let channel = endpoint
            .connect()
            .await
            .map_err(|_| RegistrationError::NoKubelet(path.clone()))?;
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: SOCKET.to_owned(),
            resource_name: RESOURCE.to_owned(),
            options: Some(OPTIONS),
        };
        let registered = RegistrationClient::new(channel).register(request).await;
        registered.map_err(|status| unregistered(&status.message()))?;
        self.registered = kubelet;
        self.said = None;
        self.plugin.notes.clear();
        info!("registered {RESOURCE} with the kubelet at {}", self.kubelet.display());
        Ok(())
    }

    /// Follows changes of the driver and of NVIDIA's spec.
    async fn renew(&mut self) {
        if Instant::now() < self.next_renewal {
            return;
        }
        self.next_renewal = Instant::now() + RENEWAL;
        let supply = std::sync::Arc::clone(&self.plugin.supply);
        // It runs `ldconfig` and reads files of the host.
        if let Ok(Err(problem)) = tokio::task::spawn_blocking(move || supply.renew()).await {
            self.plugin
                .notes
                .warn(&format!("new pods get what was known before: {problem}"));
        }
    }

    /// Logs a problem, unless it was the last one as well.
    fn say(&mut self, problem: &str) {
        if self.said.as_deref() != Some(problem) {
            warn!("{problem}");
            self.said = Some(problem.to_owned());
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // A file of another process stays.
        if self.served.is_some() && File::at(&self.socket) == self.served {
            let _ = fs::remove_file(&self.socket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64) -> Option<File> {
        Some(File { device: 1, inode, changed: (0, 0) })
    }

    #[test]
    fn a_socket_is_served_before_a_kubelet_is_told() {
        assert_eq!(next(&Sockets { kubelet: file(1), ..Sockets::default() }), Next::Serve);
        let served = Sockets { own: file(2), served: file(2), ..Sockets::default() };
        assert_eq!(next(&served), Next::Wait);
        let waiting = Sockets { kubelet: file(1), ..served };
        assert_eq!(next(&waiting), Next::Register);
        assert_eq!(next(&Sockets { registered: file(1), ..waiting }), Next::Rest);
    }

    #[test]
    fn a_new_kubelet_and_a_socket_that_is_gone_are_noticed() {
        let all = Sockets { kubelet: file(1), registered: file(1), own: file(2), served: file(2) };
        assert_eq!(next(&Sockets { kubelet: file(3), ..all }), Next::Register);
        assert_eq!(next(&Sockets { own: None, ..all }), Next::Serve);
        assert_eq!(next(&Sockets { own: file(9), ..all }), Next::Serve);
    }
}
