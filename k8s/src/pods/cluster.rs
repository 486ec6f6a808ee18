//! Pods of this node in the cluster, and events on them, by the API server.
//!
//! ```text
//!   list ──▶ all pods of the node, version V ──▶ watch from V ──▶ one change after another
//!     ▲                                             │ ended: watch again from the last version
//!     └── an error, or the version is too old ◀─────┘
//! ```
//!
//! Only the metadata of the pods is asked for: UID, namespace, name and annotations.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod as ApiPod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ListParams, PostParams, WatchEvent, WatchParams};
use kube::core::PartialObjectMeta;
use tokio::sync::{Mutex, watch};
use tokio_stream::StreamExt as _;
use tracing::info;

use super::plan::Pod;
use super::reading;
use crate::apiserver::{self, NoServer, words};
use crate::notes::Notes;

/// First pause after an error. Each further error doubles it.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest pause after an error.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Longest wait for the creation of an event.
const PATIENCE: Duration = Duration::from_secs(2);
/// Version that the API server no longer has.
const GONE: u16 = 410;

/// Reason why the API server cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    #[error(transparent)]
    Unknown(#[from] NoServer),
    #[error(
        "the API server does not list the pods of node {node}: {cause}; it needs the right to list and watch pods"
    )]
    Unlisted { node: String, cause: String },
    #[error("the API server takes no event on pod {pod}: {cause}; it needs the right to create events")]
    Unreported { pod: String, cause: String },
}

/// Pods of the node; none until the API server has listed them.
pub(crate) type Pods = Option<Vec<Pod>>;

/// API server of the cluster, asked for one node. Clones share one client.
#[derive(Clone)]
pub(crate) struct Cluster {
    node: String,
    client: Arc<Mutex<Option<Client>>>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Cluster {
    pub(crate) fn of_node(node: &str) -> Self {
        Self { node: node.to_owned(), client: Arc::default() }
    }

    /// Returns the client for the API server that a service account or KUBECONFIG names.
    async fn client(&self) -> Result<Client, ClusterError> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let new = apiserver::client().await?;
        Ok(client.insert(new).clone())
    }

    /// Returns an error in words. Drops the client if no API server answered, since it may be elsewhere by now.
    async fn failed(&self, error: &kube::Error) -> String {
        if !matches!(error, kube::Error::Api(_)) {
            *self.client.lock().await = None;
        }
        words(error)
    }

    async fn unlisted(&self, error: &kube::Error) -> ClusterError {
        ClusterError::Unlisted { node: self.node.clone(), cause: self.failed(error).await }
    }

    /// Follows the pods of the node for ever. After an error, those that are known stay.
    pub(crate) async fn follow(&self, pods: &watch::Sender<Pods>) {
        let (notes, mut pause) = (Notes::default(), PAUSE);
        loop {
            let listed = self.list_and_watch(pods, || {
                notes.clear();
                pause = PAUSE;
            });
            let Err(problem) = listed.await else {
                // A server whose lists are too old at once must not be asked in a circle.
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            notes.warn(&format!("pods keep the limits that are known: {problem}. Trying again"));
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Lists the pods, and follows their changes until the list must be made again. Calls `listed` after the
    /// list.
    async fn list_and_watch(
        &self,
        pods: &watch::Sender<Pods>,
        listed: impl FnOnce(),
    ) -> Result<(), ClusterError> {
        let api: Api<ApiPod> = Api::all(self.client().await?);
        let here = format!("spec.nodeName={}", self.node);
        let list = match api.list_metadata(&ListParams::default().fields(&here)).await {
            Ok(list) => list,
            Err(error) => return Err(self.unlisted(&error).await),
        };
        let mut version = list.metadata.resource_version.unwrap_or_default();
        let mut known: BTreeMap<String, Pod> = list.items.into_iter().filter_map(pod).collect();
        let publish = |known: &BTreeMap<String, Pod>| {
            let now: Vec<Pod> = known.values().cloned().collect();
            pods.send_if_modified(|pods| {
                let is_news = pods.as_ref() != Some(&now);
                *pods = Some(now);
                is_news
            });
        };
        if pods.borrow().is_none() {
            info!("following {} pods of node {}", known.len(), self.node);
        }
        publish(&known);
        listed();
        let params = WatchParams::default().fields(&here);
        loop {
            let mut events = match api.watch_metadata(&params, &version).await {
                Ok(events) => pin!(events),
                Err(error) => return Err(self.unlisted(&error).await),
            };
            let mut is_new = false;
            while let Some(event) = events.next().await {
                is_new = true;
                let event = match event {
                    Ok(event) => event,
                    Err(error) => return Err(self.unlisted(&error).await),
                };
                match event {
                    WatchEvent::Added(of) | WatchEvent::Modified(of) => {
                        follow_version(&mut version, of.metadata.resource_version.as_deref());
                        known.extend(pod(of));
                    }
                    WatchEvent::Deleted(of) => {
                        follow_version(&mut version, of.metadata.resource_version.as_deref());
                        known.remove(&of.metadata.uid.unwrap_or_default());
                    }
                    WatchEvent::Bookmark(mark) => version = mark.metadata.resource_version,
                    WatchEvent::Error(status) if status.code == GONE => return Ok(()),
                    WatchEvent::Error(status) => {
                        return Err(ClusterError::Unlisted {
                            node: self.node.clone(),
                            cause: status.message,
                        });
                    }
                }
                publish(&known);
            }
            // A server that ends each watch at once must not be asked in a circle.
            if !is_new {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Creates an event on a pod, which `kubectl describe pod` shows.
    pub(crate) async fn report(&self, pod: &Pod, message: &str) -> Result<(), ClusterError> {
        let now = Some(Time(Timestamp::now()));
        let event = Event {
            metadata: ObjectMeta {
                generate_name: Some(format!("{}.", pod.name)),
                namespace: Some(pod.namespace.clone()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(pod.name.clone()),
                namespace: Some(pod.namespace.clone()),
                uid: Some(pod.uid.clone()),
                ..ObjectReference::default()
            },
            type_: Some("Warning".to_owned()),
            reason: Some("GpushareAnnotation".to_owned()),
            message: Some(message.to_owned()),
            count: Some(1),
            first_timestamp: now.clone(),
            last_timestamp: now,
            source: Some(EventSource {
                component: Some("gpushare".to_owned()),
                host: Some(self.node.clone()),
            }),
            reporting_component: Some("gpushare.dev/node".to_owned()),
            reporting_instance: Some(self.node.clone()),
            ..Event::default()
        };
        let unreported =
            |cause| ClusterError::Unreported { pod: format!("{}/{}", pod.namespace, pod.name), cause };
        let api: Api<Event> = Api::namespaced(self.client().await?, &pod.namespace);
        let params = PostParams::default();
        match tokio::time::timeout(PATIENCE, api.create(&params, &event)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(unreported(self.failed(&error).await)),
            Err(_) => Err(unreported(format!("no answer within {PATIENCE:?}"))),
        }
    }
}

fn follow_version(version: &mut String, new: Option<&str>) {
    if let Some(new) = new {
        new.clone_into(version);
    }
}

/// Returns a pod with its UID; none for an object that lacks a part of its identity.
fn pod(of: PartialObjectMeta<ApiPod>) -> Option<(String, Pod)> {
    let ObjectMeta { uid, namespace, name, annotations, .. } = of.metadata;
    let uid = uid?;
    let pod = Pod {
        uid: uid.clone(),
        namespace: namespace?,
        name: name?,
        annotations: reading::kept(annotations.unwrap_or_default()),
    };
    Some((uid, pod))
}
