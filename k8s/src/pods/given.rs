//! Cards of the node's pods, from the kubelet.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpushare_proto::GpuUuid;
use tonic::transport::{Channel, Endpoint};

use super::plan::{Given, Pod};
use crate::api::podresources::pod_resources_lister_client::PodResourcesListerClient;
use crate::api::podresources::{ContainerDevices, ListPodResourcesRequest, PodResources};
use crate::share::{RESOURCE, Share};

/// Longest wait for the kubelet.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reason why the kubelet does not say which pods have shares.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GivenError {
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

    async fn client(&mut self) -> Result<&mut PodResourcesListerClient<Channel>, GivenError> {
        let path = self.path.clone();
        let absent = |cause: &dyn std::error::Error| {
            // tonic's own text says only that the transport failed.
            let cause = std::iter::successors(Some(cause), |&cause| cause.source()).last();
            GivenError::NoKubelet {
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
    pub(crate) async fn listed(&mut self) -> Result<Listed, GivenError> {
        let answer = self.client().await?.list(ListPodResourcesRequest {}).await;
        match answer {
            Ok(answer) => Ok(shares(&answer.into_inner().pod_resources)),
            Err(cause) => {
                // A kubelet that restarts listens at another socket.
                self.client = None;
                let cause = cause.message().to_owned();
                Err(GivenError::Unlisted { path: self.path.clone(), cause })
            }
        }
    }
}

/// Cards of which the kubelet says that pods have shares, by namespace and name of the pod.
pub(crate) type Listed = BTreeMap<(String, String), Vec<GpuUuid>>;

/// Notes the kubelet's list. A pod that is not in it keeps its cards as long as the cluster has the pod: the
/// shares of a container never change, and a kubelet that has just started lists none.
pub(crate) fn note(given: &mut Given, pods: &[Pod], listed: &Listed) {
    given.retain(|uid, _| pods.iter().any(|pod| pod.uid == *uid));
    for pod in pods {
        if let Some(cards) = listed.get(&(pod.namespace.clone(), pod.name.clone())) {
            given.insert(pod.uid.clone(), cards.clone());
        }
    }
}

/// Returns the cards of the pods that have shares. Ids that are no shares are skipped.
fn shares(pods: &[PodResources]) -> Listed {
    let mut given = Listed::new();
    for pod in pods {
        let devices = pod.containers.iter().flat_map(|container| &container.devices);
        let ours = devices.filter(|devices| devices.resource_name == RESOURCE);
        let ids = ours.flat_map(|ContainerDevices { device_ids, .. }| device_ids);
        let mut cards: Vec<_> =
            ids.filter_map(|id| id.parse::<Share>().ok()).map(|share| share.card).collect();
        cards.sort();
        cards.dedup();
        if !cards.is_empty() {
            given.insert((pod.namespace.clone(), pod.name.clone()), cards);
        }
    }
    given
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
        assert_eq!(shares(&listed), Listed::from([(("ml".to_owned(), "two".to_owned()), vec![a, b])]));
    }
    #[test]
    fn a_pod_that_the_kubelet_leaves_out_keeps_its_cards_while_it_exists() {
        let pod = |uid: &str| Pod {
            uid: uid.to_owned(),
            namespace: "ml".to_owned(),
            name: "train".to_owned(),
            annotations: BTreeMap::new(),
        };
        let cards = vec![GpuUuid::gpu([1; 16])];
        let listed = Listed::from([(("ml".to_owned(), "train".to_owned()), cards.clone())]);
        let mut given = Given::new();
        note(&mut given, &[pod("u1")], &listed);
        let known = Given::from([("u1".to_owned(), cards.clone())]);
        assert_eq!(given, known);
        note(&mut given, &[pod("u1")], &Listed::new());
        assert_eq!(given, known);
        note(&mut given, &[pod("u2")], &Listed::new());
        assert_eq!(given, Given::new(), "another pod of the same name");
    }
}
