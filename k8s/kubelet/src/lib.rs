//! A kubelet for tests: it registers device plugins and calls them as the real one does.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use gpushare_kubelet::Kubelet;
//!
//! let mut kubelet = Kubelet::start("/tmp/plugins".as_ref())?;
//! let request = kubelet.registered().await?;
//! let plugin = kubelet.connect(&request.endpoint).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`register_driver`] plays its side of dynamic resource allocation, [`PodResourcesService`] lists the devices of
//! pods, and [`ApiServer`] plays the cluster.
#![forbid(unsafe_code)]

mod api_server;
mod dra;
mod pod_resources;

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use gpushare_k8s::api::KUBELET_SOCKET;
use gpushare_k8s::api::v1beta1::device_plugin_client::DevicePluginClient;
use gpushare_k8s::api::v1beta1::registration_server::{Registration, RegistrationServer};
use gpushare_k8s::api::v1beta1::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse, Empty, RegisterRequest,
};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

pub use api_server::{ApiServer, Release};
pub use dra::{DraDriver, DraVersion, refuse_driver, register_driver};
pub use pod_resources::PodResourcesService;

/// Longest wait for a plugin on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Client of a plugin.
pub type Plugin = DevicePluginClient<Channel>;

/// A kubelet that runs in this process. Dropping it ends its server and leaves its socket, as a crash does.
#[derive(Debug)]
pub struct Kubelet {
    folder: PathBuf,
    server: JoinHandle<()>,
    requests: mpsc::UnboundedReceiver<RegisterRequest>,
}

struct Service(mpsc::UnboundedSender<RegisterRequest>);

#[tonic::async_trait]
impl Registration for Service {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let sent = self.0.send(request.into_inner());
        sent.map_err(|_| Status::unavailable("this kubelet has ended"))?;
        Ok(Response::new(Empty {}))
    }
}

impl Kubelet {
    /// Starts a kubelet in a folder. Like the real one, it first removes all sockets there.
    pub fn start(folder: &Path) -> anyhow::Result<Self> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_socket() {
                fs::remove_file(entry.path())?;
            }
        }
        let listener = UnixListener::bind(folder.join(KUBELET_SOCKET))?;
        let (sender, requests) = mpsc::unbounded_channel();
        let serving = Server::builder()
            .add_service(RegistrationServer::new(Service(sender)))
            .serve_with_incoming(UnixListenerStream::new(listener));
        let server = tokio::spawn(async {
            // A test sees from the missing registration that it failed.
            let _ = serving.await;
        });
        Ok(Self { folder: folder.to_owned(), server, requests })
    }

    /// Waits for the next registration.
    pub async fn registered(&mut self) -> anyhow::Result<RegisterRequest> {
        let request = tokio::time::timeout(PATIENCE, self.requests.recv()).await;
        request.context("no plugin registers")?.context("this kubelet has ended")
    }

    /// Connects to the socket of a plugin.
    pub async fn connect(&self, endpoint: &str) -> anyhow::Result<Plugin> {
        let path = self.folder.join(endpoint);
        let channel = Endpoint::from_shared(format!("unix://{}", path.display()))?.connect().await?;
        Ok(DevicePluginClient::new(channel))
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Allocates shares for one container.
pub async fn allocate(plugin: &mut Plugin, ids: &[&str]) -> Result<ContainerAllocateResponse, Status> {
    let devices_ids = ids.iter().map(|&id| id.to_owned()).collect();
    let request = AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids }] };
    let answer = plugin.allocate(request).await?.into_inner();
    let first = answer.container_responses.into_iter().next();
    first.ok_or_else(|| Status::internal("no answer for the container"))
}
