//! Objects of this node at the API server: its slices, and the claims that the kubelet names.

use std::error::Error;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Client;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, PostParams, WatchEvent, WatchParams,
};
use kube::core::GroupVersionKind;
use serde_json::json;
use tokio_stream::StreamExt as _;

use super::DRIVER;
use super::claim::Claim;
use super::objects::{Device, GROUP, SliceSpec, Version};
use super::slices::{Act, Published};
use crate::apiserver::{NoServer, client, words};

/// Longest wait for a claim; the kubelet waits for 45 s.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after a watch that ended without a change.
const PAUSE: Duration = Duration::from_millis(500);
/// Status of an object that is not there.
const NOT_FOUND: u16 = 404;
/// Status of a change of an object that was changed meanwhile.
const CONFLICT: u16 = 409;

/// Reason why the API server does not do what is asked of it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResourcesError {
    #[error(transparent)]
    Unknown(#[from] NoServer),
    #[error(
        "the API server has no {GROUP}/v1beta1 or newer; Kubernetes 1.34 has it, 1.32 and 1.33 with \
         --runtime-config={GROUP}/v1beta1=true. Use --offer device-plugin in this cluster"
    )]
    NoGroup,
    #[error("the API server does not answer: {0}")]
    Unanswered(String),
    #[error("the API server does not give node {node}: {cause}; it needs the right to get nodes")]
    NoNode { node: String, cause: String },
    #[error(
        "the API server does not list the slices of node {node}: {cause}; it needs the right to list and watch \
         resourceslices"
    )]
    Unlisted { node: String, cause: String },
    #[error(
        "the API server does not take the slices of node {node}: {cause}; it needs the right to create, update and \
         delete resourceslices"
    )]
    Unwritten { node: String, cause: String },
    #[error("the API server does not give the claim: {0}; it needs the right to get resourceclaims")]
    NoClaim(String),
}

/// Connection to the API server, made at the first use and again after an error.
#[derive(Debug)]
pub(crate) struct Connection {
    node: String,
    resources: Mutex<Option<Arc<Resources>>>,
}

impl Connection {
    pub(crate) fn of_node(node: &str) -> Self {
        Self { node: node.to_owned(), resources: Mutex::default() }
    }

    /// Returns the present connection, or a new one.
    pub(crate) async fn resources(&self) -> Result<Arc<Resources>, ResourcesError> {
        let present = self.resources.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match present {
            Some(resources) => Ok(resources),
            None => {
                let new = Arc::new(Resources::connect(&self.node).await?);
                *self.resources.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&new));
                Ok(new)
            }
        }
    }

    /// Forgets the connection: the server may have another version by now.
    pub(crate) fn forget(&self) {
        *self.resources.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns a claim; none if the cluster has none of that name.
    pub(crate) async fn claim(&self, namespace: &str, name: &str) -> Result<Option<Claim>, ResourcesError> {
        let asking = async { self.resources().await?.claim(namespace, name).await };
        let claim = match tokio::time::timeout(PATIENCE, asking).await {
            Ok(claim) => claim,
            Err(_) => Err(ResourcesError::Unanswered(format!("nothing within {PATIENCE:?}"))),
        };
        if claim.is_err() {
            self.forget();
        }
        claim
    }
}

/// Objects of one node, in the newest version that the server has.
pub(crate) struct Resources {
    client: Client,
    node: String,
    pub(crate) version: Version,
}

impl std::fmt::Debug for Resources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resources")
            .field("node", &self.node)
            .field("version", &self.version)
            .finish()
    }
}

impl Resources {
    async fn connect(node: &str) -> Result<Self, ResourcesError> {
        let client = client().await?;
        let groups = client.list_api_groups().await;
        let groups = groups.map_err(|cause| ResourcesError::Unanswered(words(&cause)))?.groups;
        let served = groups
            .into_iter()
            .filter(|group| group.name == GROUP)
            .flat_map(|group| group.versions);
        let names: Vec<String> = served.map(|version| version.version).collect();
        let newest = Version::ALL
            .into_iter()
            .rev()
            .find(|version| names.iter().any(|name| name == version.name()));
        let version = newest.ok_or(ResourcesError::NoGroup)?;
        Ok(Self { client, node: node.to_owned(), version })
    }

    fn kind(&self, kind: &str) -> ApiResource {
        ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, self.version.name(), kind))
    }

    fn slices(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &self.kind("ResourceSlice"))
    }

    fn selector(&self) -> String {
        format!("spec.nodeName={},spec.driver={DRIVER}", self.node)
    }

    fn unlisted(&self, cause: &dyn Error) -> ResourcesError {
        ResourcesError::Unlisted { node: self.node.clone(), cause: words(cause) }
    }

    fn unwritten(&self, cause: &dyn Error) -> ResourcesError {
        ResourcesError::Unwritten { node: self.node.clone(), cause: words(cause) }
    }

    /// Returns the slices of this node and driver, and the version of the list.
    pub(crate) async fn published(&self) -> Result<(Vec<Published>, String), ResourcesError> {
        let list = self.slices().list(&ListParams::default().fields(&self.selector())).await;
        let list = list.map_err(|cause| self.unlisted(&cause))?;
        let published = |slice: DynamicObject| {
            let spec = serde_json::from_value(slice.data.get("spec").cloned().unwrap_or_default()).ok();
            Some(Published { name: slice.metadata.name?, version: slice.metadata.resource_version?, spec })
        };
        let slices = list.items.into_iter().filter_map(published).collect();
        Ok((slices, list.metadata.resource_version.unwrap_or_default()))
    }

    /// Waits for a change of the slices after a version of the list, or for the end of the watch.
    pub(crate) async fn changed(&self, version: &str) -> Result<(), ResourcesError> {
        let params = WatchParams::default().fields(&self.selector());
        let slices = self.slices();
        let events = slices.watch(&params, version).await;
        let mut events = pin!(events.map_err(|cause| self.unlisted(&cause))?);
        while let Some(event) = events.next().await {
            match event.map_err(|cause| self.unlisted(&cause))? {
                WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Deleted(_) => return Ok(()),
                WatchEvent::Bookmark(_) => {}
                // The version is too old, and the next list has another one.
                WatchEvent::Error(_) => break,
            }
        }
        // A server that ends each watch at once must not be asked in a circle.
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    /// Asks, without a change, whether the server keeps what makes a device's capacity consumable. A server that
    /// does not know it, or has it switched off, drops it without a word.
    pub(crate) async fn keeps(&self, spec: &SliceSpec) -> Result<bool, ResourcesError> {
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let kept = self.slices().create(&params, &self.object(spec, ObjectMeta::default())).await;
        let kept = kept.map_err(|cause| self.unwritten(&cause))?;
        let kept: Option<SliceSpec> =
            serde_json::from_value(kept.data.get("spec").cloned().unwrap_or_default()).ok();
        let consumable = |device: &Device| device.traits().allow_multiple_allocations == Some(true);
        Ok(kept.is_some_and(|kept| kept.devices.iter().all(consumable)))
    }

    /// Carries out a change. One that somebody else made meanwhile is no error: the list shows it.
    pub(crate) async fn carry_out(&self, act: &Act) -> Result<(), ResourcesError> {
        let slices = self.slices();
        let done = match act {
            Act::Create(spec) => {
                let owner = self.owner().await?;
                slices.create(&PostParams::default(), &self.object(spec, owner)).await.map(drop)
            }
            Act::Update { name, version, spec } => {
                let metadata = ObjectMeta {
                    name: Some(name.clone()),
                    resource_version: Some(version.clone()),
                    ..self.owner().await?
                };
                let object = self.object(spec, metadata);
                slices.replace(name, &PostParams::default(), &object).await.map(drop)
            }
            Act::Delete { name } => slices.delete(name, &DeleteParams::default()).await.map(drop),
        };
        match done {
            Err(kube::Error::Api(status)) if matches!(status.code, NOT_FOUND | CONFLICT) => Ok(()),
            done => done.map_err(|cause| self.unwritten(&cause)),
        }
    }

    /// Returns the metadata of a slice, which the cluster deletes with the node.
    async fn owner(&self) -> Result<ObjectMeta, ResourcesError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get_metadata(&self.node).await;
        let node =
            node.map_err(|cause| ResourcesError::NoNode { node: self.node.clone(), cause: words(&cause) })?;
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.node.clone(),
            uid: node.metadata.uid.unwrap_or_default(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        Ok(ObjectMeta { owner_references: Some(vec![owner]), ..ObjectMeta::default() })
    }

    fn object(&self, spec: &SliceSpec, mut metadata: ObjectMeta) -> DynamicObject {
        if metadata.name.is_none() {
            // The server adds five characters, and cuts a name that is too long.
            metadata.generate_name = Some(format!("{}-{DRIVER}-", self.node));
        }
        let object = DynamicObject::new("", &self.kind("ResourceSlice"));
        DynamicObject { metadata, data: json!({ "spec": spec }), ..object }
    }

    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<Claim>, ResourcesError> {
        let claims: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &self.kind("ResourceClaim"));
        let found = claims
            .get_opt(name)
            .await
            .map_err(|cause| ResourcesError::NoClaim(words(&cause)))?;
        let Some(found) = found else { return Ok(None) };
        let status = found.data.get("status").cloned().unwrap_or_else(|| json!({}));
        let status = serde_json::from_value(status)
            .map_err(|cause| ResourcesError::NoClaim(format!("its status is of an unknown form: {cause}")))?;
        let owners = found.metadata.owner_references.unwrap_or_default();
        Ok(Some(Claim {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: found.metadata.uid.unwrap_or_default(),
            is_of_one_pod: owners.iter().any(|owner| owner.kind == "Pod" && owner.api_version == "v1"),
            status,
        }))
    }
}
