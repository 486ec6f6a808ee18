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

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Endpoint, Server};
use tracing::{info, warn};

use crate::api::v1beta1::RegisterRequest;
use crate::api::v1beta1::device_plugin_server::DevicePluginServer;
use crate::api::v1beta1::registration_client::RegistrationClient;
use crate::api::{KUBELET_SOCKET, VERSION};
use crate::service::{OPTIONS, Plugin};
use crate::share::RESOURCE;
use crate::socket::{File, Socket};

/// File name of the plugin's socket.
const SOCKET: &str = "gpushare.sock";
/// Interval between two looks at the sockets.
const EVERY: Duration = Duration::from_millis(250);
/// Longest wait for the kubelet's answer to a registration.
const PATIENCE: Duration = Duration::from_secs(5);

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
    socket: Socket,
    registered: Option<File>,
    /// Last problem that was logged.
    said: Option<String>,
}

impl Registration {
    pub(crate) fn new(plugin: Plugin, folder: &Path) -> Self {
        Self {
            plugin,
            kubelet: folder.join(KUBELET_SOCKET),
            socket: Socket::new(folder.join(SOCKET)),
            registered: None,
            said: None,
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
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn step(&mut self) -> Result<Next, RegistrationError> {
        let next = next(&Sockets {
            kubelet: File::at(&self.kubelet),
            registered: self.registered,
            own: File::at(self.socket.path()),
            served: self.socket.served(),
        });
        match next {
            Next::Rest => {}
            Next::Wait => {
                self.forget_kubelet();
                return Err(RegistrationError::NoKubelet(self.kubelet.clone()));
            }
            Next::Serve => self.serve()?,
            Next::Register => self.register().await?,
        }
        Ok(next)
    }

    /// Makes the socket and listens at it. The kubelet that knew another file must be told again.
    fn serve(&mut self) -> Result<(), RegistrationError> {
        let services = Server::builder().add_service(DevicePluginServer::new(self.plugin.clone()));
        let path = self.socket.path().to_owned();
        let served = self.socket.serve(services);
        self.forget_kubelet();
        served.map_err(|cause| RegistrationError::Unserved { path, cause })
    }

    /// Forgets the kubelet that knew the plugin. The next one may ask for the same again, which is logged again.
    fn forget_kubelet(&mut self) {
        if self.registered.take().is_some() {
            self.plugin.notes.clear();
        }
    }

    async fn register(&mut self) -> Result<(), RegistrationError> {
        self.forget_kubelet();
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
        info!("registered {RESOURCE} with the kubelet at {}", self.kubelet.display());
        Ok(())
    }

    /// Logs a problem, unless it was the last one as well.
    fn say(&mut self, problem: &str) {
        if self.said.as_deref() != Some(problem) {
            warn!("{problem}");
            self.said = Some(problem.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64) -> Option<File> {
        Some(File::numbered(inode))
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
