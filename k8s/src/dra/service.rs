//! Driver as the kubelet calls it, in both versions of the API.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use gpushare_inject::KIND;
use gpushare_proto::GpuUuid;
use tonic::{Request, Response, Status};
use tracing::info;

use super::DRIVER;
use super::cards::Cards;
use super::claim::{self, ClaimError, Node, PreparedClaim};
use super::prepared::{Prepared, PreparedError};
use super::resources::{Connection, ResourcesError};
use crate::api::dra::v1::{
    Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use crate::api::dra::{v1, v1beta1};
use crate::notes::Notes;
use crate::pod_resources::{PodResourcesError, PodResourcesList, Shares};
use crate::supply::Supply;

/// Reason why a claim is not prepared.
#[derive(Debug, thiserror::Error)]
enum PrepareError {
    #[error("it is not in the cluster; delete the pod, or make the claim")]
    Unknown,
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    Resources(#[from] ResourcesError),
    #[error(transparent)]
    Prepared(#[from] PreparedError),
    #[error("whether pods have shares of the device plugin is not known: {0}")]
    Shares(#[from] PodResourcesError),
    #[error(
        "pod {pod} has a share of card {card} from the device plugin; delete that pod, or wait until it ends"
    )]
    OfPlugin { card: GpuUuid, pod: String },
    #[error(
        "card {0} is not in the CDI spec that containers get; restart the plugin after a change of cards"
    )]
    NoCdi(String),
}

/// Service on the driver's socket. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct Service(pub(super) Arc<State>);

/// State of the service.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) node: String,
    pub(super) cards: Arc<Cards>,
    /// Number of shares of each card.
    pub(super) shares: u16,
    pub(super) connection: Arc<Connection>,
    pub(super) supply: Arc<Supply>,
    pub(super) prepared: Arc<Prepared>,
    /// Kubelet's socket at which it lists the shares of the device plugin.
    pub(super) pod_resources: PathBuf,
    /// Held while a claim is prepared: two claims must not find the same share free.
    pub(super) turn: tokio::sync::Mutex<()>,
    pub(super) notes: Notes,
}

impl State {
    async fn prepare_all(&self, request: NodePrepareResourcesRequest) -> NodePrepareResourcesResponse {
        let mut claims = BTreeMap::new();
        for claim in request.claims {
            let answer = match self.prepare(&claim).await {
                Ok(devices) => NodePrepareResourceResponse { devices, error: String::new() },
                Err(problem) => {
                    let error = format!("claim {}/{}: {problem}", claim.namespace, claim.name);
                    self.notes.warn(&format!("a claim is refused: {error}"));
                    NodePrepareResourceResponse { devices: Vec::new(), error }
                }
            };
            claims.insert(claim.uid, answer);
        }
        NodePrepareResourcesResponse { claims }
    }

    async fn prepare(&self, asked: &Claim) -> Result<Vec<Device>, PrepareError> {
        // The kubelet asks again after its own restart, and needs no API server for that.
        if let Some(claim) = self.prepared.get(&asked.uid) {
            return self.devices(&claim);
        }
        let found = self.connection.claim(&asked.namespace, &asked.name).await?;
        let found = found.ok_or(PrepareError::Unknown)?;
        let of_plugin = PodResourcesList::new(&self.pod_resources).shares().await?;
        let _turn = self.turn.lock().await;
        let mut others = self.prepared.all();
        // Another call may have prepared it meanwhile.
        if let Some(claim) = others.remove(&asked.uid) {
            return self.devices(&claim);
        }
        let cards = self.cards.offered();
        let node = Node { name: &self.node, cards: &cards, shares: self.shares };
        let claim = claim::prepare(&found, &asked.uid, node, &others)?;
        beside_plugin(&claim, &of_plugin)?;
        let devices = self.devices(&claim)?;
        for card in claim.repeated() {
            self.notes.warn(&format!(
                "claim {}/{} has several shares of {card}: its pods get the card once, with the memory of all of \
                 them. For different cards, give it the constraint `distinctAttribute: {DRIVER}/uuid`",
                asked.namespace, asked.name
            ));
        }
        self.prepared.insert(&asked.uid, claim)?;
        let names: Vec<&str> = devices.iter().map(|device| device.device_name.as_str()).collect();
        info!("prepared claim {}/{}: {}", asked.namespace, asked.name, names.join(", "));
        Ok(devices)
    }

    /// Returns the devices of a claim for the container runtime.
    fn devices(&self, claim: &PreparedClaim) -> Result<Vec<Device>, PrepareError> {
        let injection = self.supply.injection();
        let device = |device: &claim::PreparedDevice| {
            if !injection.cards().any(|card| card == device.card) {
                return Err(PrepareError::NoCdi(device.card.to_string()));
            }
            Ok(Device {
                request_names: vec![device.request.clone()],
                pool_name: self.node.clone(),
                device_name: device.device.clone(),
                cdi_device_ids: vec![format!("{KIND}={}", device.card)],
                share_id: device.share_id.clone(),
            })
        };
        claim.devices.iter().map(device).collect()
    }

    /// Forgets claims. One that is not prepared is forgotten already.
    async fn unprepare_all(&self, request: NodeUnprepareResourcesRequest) -> NodeUnprepareResourcesResponse {
        let _turn = self.turn.lock().await;
        let mut claims = BTreeMap::new();
        for claim in request.claims {
            let error = match self.prepared.remove(&claim.uid) {
                Ok(true) => {
                    info!("claim {}/{} is no longer prepared", claim.namespace, claim.name);
                    String::new()
                }
                Ok(false) => String::new(),
                Err(problem) => {
                    self.notes.warn(&format!("a claim stays prepared: {problem}"));
                    problem.to_string()
                }
            };
            claims.insert(claim.uid, NodeUnprepareResourceResponse { error });
        }
        NodeUnprepareResourcesResponse { claims }
    }
}

/// Checks that no pod has a share of a claim's card from the device plugin.
fn beside_plugin(claim: &PreparedClaim, shares: &Shares) -> Result<(), PrepareError> {
    for device in claim.devices.iter().filter(|device| device.is_share) {
        if let Some(((namespace, name), _)) = shares.iter().find(|(_, cards)| cards.contains(&device.card)) {
            return Err(PrepareError::OfPlugin { card: device.card, pod: format!("{namespace}/{name}") });
        }
    }
    Ok(())
}

/// Implements a version of the kubelet's interface. All versions have the same messages.
macro_rules! serve {
    ($version:ident) => {
        #[tonic::async_trait]
        impl $version::dra_plugin_server::DraPlugin for Service {
            async fn node_prepare_resources(
                &self,
                request: Request<NodePrepareResourcesRequest>,
            ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
                Ok(Response::new(self.0.prepare_all(request.into_inner()).await))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<NodeUnprepareResourcesRequest>,
            ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
                Ok(Response::new(self.0.unprepare_all(request.into_inner()).await))
            }
        }
    };
}

serve!(v1);
serve!(v1beta1);
