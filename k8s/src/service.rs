//! Device plugin as the kubelet calls it.

use std::pin::Pin;
use std::sync::Arc;

use gpushare_proto::names::RuntimeDir;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

use crate::api::v1beta1::device_plugin_server::DevicePlugin;
use crate::api::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device, DevicePluginOptions,
    Empty, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse,
};
use crate::api::{HEALTHY, UNHEALTHY};
use crate::args::Way;
use crate::notes::Notes;
use crate::share::{self, Share};
use crate::supply::Supply;
use crate::watch::{Causes, Watch};
use crate::{answer, choice, load};

/// Service on the plugin's socket. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct Plugin {
    pub(crate) supply: Arc<Supply>,
    pub(crate) watch: Watch,
    pub(crate) way: Way,
    /// Number of shares of each card.
    pub(crate) shares: u16,
    /// Runtime folder of the daemon, which knows the load.
    pub(crate) daemon: RuntimeDir,
    pub(crate) notes: Arc<Notes>,
}

/// Options that the plugin announces.
pub(crate) const OPTIONS: DevicePluginOptions =
    DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true };

/// Returns all shares of the cards with their health, in the order of the ids.
fn devices(causes: &Causes, shares: u16) -> Vec<Device> {
    let of_card = |(card, cause): (&_, &Option<_>)| {
        let card = *card;
        let health = if cause.is_none() { HEALTHY } else { UNHEALTHY };
        (0..shares).map(move |number| Device {
            id: Share { card, number }.to_string(),
            health: health.to_owned(),
            topology: None,
        })
    };
    causes.iter().flat_map(of_card).collect()
}

impl Plugin {
    /// Returns the error for the kubelet, which shows it as the reason of the pod, and logs it once.
    fn refused(&self, cause: &dyn std::error::Error) -> Status {
        self.notes.warn(&format!("a pod is refused: {cause}"));
        Status::invalid_argument(cause.to_string())
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(OPTIONS))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let shares = self.shares;
        let lists = WatchStream::new(self.watch.causes())
            .map(move |causes| Ok(ListAndWatchResponse { devices: devices(&causes, shares) }));
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let load = load::load(&self.daemon, &self.notes).await;
        let container_responses = request
            .into_inner()
            .container_requests
            .iter()
            .map(|asked| {
                let available = share::parse(&asked.available_device_i_ds);
                let required = share::parse(&asked.must_include_device_i_ds);
                let (available, required) = available
                    .and_then(|available| Ok((available, required?)))
                    .map_err(|cause| self.refused(&cause))?;
                let size = usize::try_from(asked.allocation_size).unwrap_or(0);
                let chosen = choice::choose(&available, &required, size, usize::from(self.shares), &load);
                Ok(ContainerPreferredAllocationResponse {
                    device_i_ds: chosen.iter().map(Share::to_string).collect(),
                })
            })
            .collect::<Result<_, Status>>()?;
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let injection = self.supply.injection();
        let container_responses = request
            .into_inner()
            .container_requests
            .iter()
            .map(|asked| answer::answer(&asked.devices_ids, self.way, &injection))
            .collect::<Result<_, _>>()
            .map_err(|cause| self.refused(&cause))?;
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
