//! Kubelet's list of pods with their devices, as tests set it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use gpushare_k8s::RESOURCE;
use gpushare_k8s::api::podresources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use gpushare_k8s::api::podresources::{
    ContainerDevices, ContainerResources, ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Service that lists the devices of pods. Dropping it ends its server and leaves its socket, as a crash does.
#[derive(Debug)]
pub struct PodResourcesService {
    pods: Pods,
    server: JoinHandle<()>,
}

#[derive(Clone, Debug, Default)]
struct Pods(Arc<Mutex<Vec<PodResources>>>);

#[tonic::async_trait]
impl PodResourcesLister for Pods {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let pod_resources = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }
}

impl PodResourcesService {
    /// Listens at a socket, with no pods at first.
    pub fn start(socket: &Path) -> anyhow::Result<Self> {
        let pods = Pods::default();
        let listener = UnixListener::bind(socket)?;
        let serving = Server::builder()
            .add_service(PodResourcesListerServer::new(pods.clone()))
            .serve_with_incoming(UnixListenerStream::new(listener));
        let server = tokio::spawn(async {
            // A test sees from the missing sessions that it failed.
            let _ = serving.await;
        });
        Ok(Self { pods, server })
    }

    /// Gives a pod with one container the shares with these ids.
    pub fn give(&self, namespace: &str, name: &str, ids: &[&str]) {
        let devices = ContainerDevices {
            resource_name: RESOURCE.to_owned(),
            device_ids: ids.iter().map(|&id| id.to_owned()).collect(),
        };
        let container = ContainerResources { name: "main".to_owned(), devices: vec![devices] };
        let pod = PodResources {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            containers: vec![container],
        };
        self.pods.0.lock().unwrap_or_else(PoisonError::into_inner).push(pod);
    }

    /// Forgets a pod, as the kubelet does when it has ended.
    pub fn forget(&self, namespace: &str, name: &str) {
        let mut pods = self.pods.0.lock().unwrap_or_else(PoisonError::into_inner);
        pods.retain(|pod| (pod.namespace.as_str(), pod.name.as_str()) != (namespace, name));
    }
}

impl Drop for PodResourcesService {
    fn drop(&mut self) {
        self.server.abort();
    }
}
