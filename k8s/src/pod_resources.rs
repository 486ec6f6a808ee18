//! Cards of which pods have shares of the device plugin, from the kubelet.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpushare_proto::GpuUuid;
use tonic::transport::{Channel, Endpoint};

use crate::api::podresources::pod_resources_lister_client::PodResourcesListerClient;
use crate::api::podresources::{ContainerDevices, ListPodResourcesRequest, PodResources};
use crate::share::{RESOURCE, Share};

/// Longest wait for the kubelet.
const PATIENCE: Duration = Duration::from_secs(2);

/// Cards of which pods have shares, by namespace and name of the pod.
pub(crate) type Shares = BTreeMap<(String, String), Vec<GpuUuid>>;

/// Reason why the kubelet does not say which pods have shares.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PodResourcesError {
    #[error(
        "no kubelet answers at {path} ({cause}); mount the kubelet's folder, or name its socket with \
         --pod-resources"
    )]
    NoKubelet { path: PathBuf, cause: String },
    #[error("the kubelet at {path} does not list the pods of this node: {cause}")]
    Unlisted { path: PathBuf, cause: String },
}

/// Kubelet's list of pods with their devices.
#[derive(Debug)]
pub(crate) struct PodResourcesList {
    path: PathBuf,
    client: Option<PodResourcesListerClient<Channel>>,
}

impl PodResourcesList {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), client: None }
    }

    async fn client(&mut self) -> Result<&mut PodResourcesListerClient<Channel>, PodResourcesError> {
        let path = self.path.clone();
        let absent = |cause: &dyn std::error::Error| {
            // tonic's own text says only that the transport failed.
            let cause = std::iter::successors(Some(cause), |&cause| cause.source()).last();
            PodResourcesError::NoKubelet {
                path: path.clone(),
                cause: cause.map(ToString::to_string).unwrap_or_default(),
            }
        };
        if self.client.is_none() {
            let endpoint = Endpoint::from_shared(format!("unix://{}", path.display()));
            let endpoint = endpoint.map_err(|cause| absent(&cause))?;
            let channel = endpoint.connect_timeout(PATIENCE).timeout(PATIENCE).connect().await;
            // The kubelet's own limit for an answer.
            let client = PodResourcesListerClient::new(channel.map_err(|cause| absent(&cause))?);
            self.client = Some(client.max_decoding_message_size(16 << 20));
        }
        self.client
            .as_mut()
            .ok_or_else(|| absent(&std::io::Error::other("no connection")))
    }

    /// Returns the cards of each pod that has shares.
    pub(crate) async fn shares(&mut self) -> Result<Shares, PodResourcesError> {
        let answer = self.client().await?.list(ListPodResourcesRequest {}).await;
        match answer {
            Ok(answer) => Ok(shares(&answer.into_inner().pod_resources)),
            Err(cause) => {
                // A kubelet that restarts listens at another socket.
                self.client = None;
                let cause = cause.message().to_owned();
                Err(PodResourcesError::Unlisted { path: self.path.clone(), cause })
            }
        }
    }
}

/// Returns the cards of the pods that have shares. Ids that are no shares are skipped.
fn shares(pods: &[PodResources]) -> Shares {
    let mut all = Shares::new();
    for pod in pods {
        let devices = pod.containers.iter().flat_map(|container| &container.devices);
        let ours = devices.filter(|devices| devices.resource_name == RESOURCE);
        let ids = ours.flat_map(|ContainerDevices { device_ids, .. }| device_ids);
        let mut cards: Vec<_> =
            ids.filter_map(|id| id.parse::<Share>().ok()).map(|share| share.card).collect();
        cards.sort();
        cards.dedup();
        if !cards.is_empty() {
            all.insert((pod.namespace.clone(), pod.name.clone()), cards);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::podresources::ContainerResources;

    #[test]
    fn the_cards_of_all_containers_of_a_pod_count_once() {
        let container = |resource: &str, ids: &[String]| ContainerResources {
            name: "c".to_owned(),
            devices: vec![ContainerDevices { resource_name: resource.to_owned(), device_ids: ids.to_vec() }],
        };
        let (a, b) = (GpuUuid::gpu([1; 16]), GpuUuid::gpu([2; 16]));
        let pod = |name: &str, containers| PodResources {
            name: name.to_owned(),
            namespace: "ml".to_owned(),
            containers,
        };
        let listed = [
            pod(
                "two",
                vec![
                    container(RESOURCE, &[format!("{b}::1")]),
                    container(RESOURCE, &[format!("{a}::0"), format!("{b}::2"), "nonsense".to_owned()]),
                ],
            ),
            pod("other", vec![container("nvidia.com/gpu", &[format!("{a}::0")])]),
            pod("none", vec![]),
        ];
        assert_eq!(shares(&listed), Shares::from([(("ml".to_owned(), "two".to_owned()), vec![a, b])]));
    }
}
