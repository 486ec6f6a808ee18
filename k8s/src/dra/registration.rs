//! Registration with the kubelet: its plugin watcher finds the driver's socket, and asks who is there.
//!
//! ```text
//!   plugins/gpushare.dev/dra.sock             the driver's service, made first
//!   plugins_registry/gpushare.dev-reg.sock    the kubelet calls GetInfo, then NotifyRegistrationStatus
//! ```
//!
//! A kubelet that starts later finds the socket too. It forgets the driver when the socket is removed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tracing::info;

use super::DRIVER;
use super::service::Service;
use crate::api::dra::{PLUGIN_TYPE, V1, V1BETA1, v1, v1beta1};
use crate::api::pluginregistration::registration_server::{Registration as Calls, RegistrationServer};
use crate::api::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use crate::notes::Notes;
use crate::socket::Socket;

/// File name of the driver's socket.
const SOCKET: &str = "dra.sock";
/// Interval between two looks at the sockets.
const EVERY: Duration = Duration::from_millis(250);
/// Time after which the absence of a kubelet is logged.
const PATIENCE: Duration = Duration::from_secs(5);

/// Reason why the kubelet cannot find the driver.
#[derive(Debug, thiserror::Error)]
enum RegistrationError {
    #[error(
        "{0} does not exist; run this on a node, with the kubelet's folder mounted, or name the folder with \
         --registry-dir. Waiting for it"
    )]
    NoFolder(PathBuf),
    #[error(
        "{path} cannot be listened at: {cause}; run as root, and mount the kubelet's folders for writing"
    )]
    Unserved { path: PathBuf, cause: io::Error },
    #[error(
        "no kubelet has asked for {DRIVER} at {0}; see that it runs, and that this is the folder plugins_registry of \
         its --root-dir. Waiting for it"
    )]
    NoKubelet(PathBuf),
}

/// Driver in the kubelet's folders. Dropping it removes its sockets.
#[derive(Debug)]
pub(crate) struct Registration {
    // The kubelet must not find a driver without its service, so this one is dropped first.
    registry: Socket,
    driver: Socket,
    service: Service,
    is_known: Arc<AtomicBool>,
    /// Time at which the kubelet should have asked.
    due: Instant,
    notes: Arc<Notes>,
}

impl Registration {
    pub(crate) fn new(service: Service, registry: &Path, driver: &Path) -> Self {
        Self {
            registry: Socket::new(registry.join(format!("{DRIVER}-reg.sock"))),
            driver: Socket::new(driver.join(SOCKET)),
            service,
            is_known: Arc::default(),
            due: Instant::now() + PATIENCE,
            notes: Arc::default(),
        }
    }

    /// Keeps both sockets for ever. Problems are logged once, and tried again.
    pub(crate) async fn run(&mut self) {
        loop {
            if let Err(problem) = self.step() {
                self.notes.warn(&problem.to_string());
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    fn step(&mut self) -> Result<(), RegistrationError> {
        if !self.driver.is_served() {
            let services = Server::builder()
                .add_service(v1::dra_plugin_server::DraPluginServer::new(self.service.clone()))
                .add_service(v1beta1::dra_plugin_server::DraPluginServer::new(self.service.clone()));
            let folder = self.driver.path().parent().unwrap_or(Path::new("/"));
            let served = fs::create_dir_all(folder).and_then(|()| self.driver.serve(services));
            let path = self.driver.path().to_owned();
            served.map_err(|cause| RegistrationError::Unserved { path, cause })?;
        }
        if !self.registry.is_served() {
            let path = self.registry.path().to_owned();
            let folder = path.parent().unwrap_or(Path::new("/"));
            if !folder.is_dir() {
                return Err(RegistrationError::NoFolder(folder.to_owned()));
            }
            let calls = Introduction {
                endpoint: self.driver.path().to_string_lossy().into_owned(),
                is_known: Arc::clone(&self.is_known),
                notes: Arc::clone(&self.notes),
            };
            let services = Server::builder().add_service(RegistrationServer::new(calls));
            self.is_known.store(false, Ordering::Relaxed);
            self.due = Instant::now() + PATIENCE;
            self.registry
                .serve(services)
                .map_err(|cause| RegistrationError::Unserved { path, cause })?;
        }
        let is_late = Instant::now() > self.due && !self.is_known.load(Ordering::Relaxed);
        match is_late {
            true => Err(RegistrationError::NoKubelet(self.registry.path().to_owned())),
            false => Ok(()),
        }
    }
}

/// Answers to the plugin watcher.
#[derive(Debug)]
struct Introduction {
    /// Path of the driver's socket.
    endpoint: String,
    is_known: Arc<AtomicBool>,
    notes: Arc<Notes>,
}

#[tonic::async_trait]
impl Calls for Introduction {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        self.is_known.store(true, Ordering::Relaxed);
        Ok(Response::new(PluginInfo {
            r#type: PLUGIN_TYPE.to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: [V1, V1BETA1].map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = status.into_inner();
        match status.plugin_registered {
            true => {
                self.notes.clear();
                info!("the kubelet registered the driver {DRIVER}");
            }
            false => self
                .notes
                .warn(&format!("the kubelet did not register the driver {DRIVER}: {}", status.error)),
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
