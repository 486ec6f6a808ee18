//! Kubelet's side of dynamic resource allocation: the plugin watcher, and calls of a driver.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use gpushare_k8s::api::dra::v1::{
    Claim, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
};
use gpushare_k8s::api::dra::{PLUGIN_TYPE, V1, V1BETA1, v1, v1beta1};
use gpushare_k8s::api::pluginregistration::registration_client::RegistrationClient;
use gpushare_k8s::api::pluginregistration::{InfoRequest, PluginInfo, RegistrationStatus};
use tonic::transport::{Channel, Endpoint};

/// Longest wait for a driver on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval between two looks at the folder.
const EVERY: Duration = Duration::from_millis(20);

/// Version of the API by which a kubelet calls drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraVersion {
    /// Of Kubernetes 1.32 and 1.33.
    V1Beta1,
    /// Of Kubernetes 1.34 and newer.
    V1,
}

/// Driver that a kubelet has registered.
#[derive(Clone, Debug)]
pub struct DraDriver {
    /// Name, socket and versions of the driver, as it gave them.
    pub info: PluginInfo,
    version: DraVersion,
    channel: Channel,
}

/// Waits for the socket of a driver in the folder of registrations, and registers the driver.
pub async fn register_driver(registry: &Path, version: DraVersion) -> anyhow::Result<DraDriver> {
    let deadline = Instant::now() + PATIENCE;
    let channel = loop {
        // A driver that was killed leaves its socket.
        if let Some(socket) = socket_in(registry)
            && let Ok(channel) = connect(&socket).await
        {
            break channel;
        }
        ensure!(Instant::now() < deadline, "no driver answers in {}", registry.display());
        tokio::time::sleep(EVERY).await;
    };
    let mut registration = RegistrationClient::new(channel);
    let info = registration.get_info(InfoRequest {}).await?.into_inner();
    let taken = check(&info, version);
    let error = taken.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let status = RegistrationStatus { plugin_registered: taken.is_ok(), error };
    registration.notify_registration_status(status).await?;
    taken?;
    let channel = connect(Path::new(&info.endpoint)).await?;
    Ok(DraDriver { info, version, channel })
}

/// Tells a driver that it is not taken, for this reason.
pub async fn refuse_driver(registry: &Path, reason: &str) -> anyhow::Result<()> {
    let socket = socket_in(registry).context("there is no driver")?;
    let mut registration = RegistrationClient::new(connect(&socket).await?);
    registration.get_info(InfoRequest {}).await?;
    let status = RegistrationStatus { plugin_registered: false, error: reason.to_owned() };
    registration.notify_registration_status(status).await?;
    Ok(())
}

fn socket_in(registry: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(registry).into_iter().flatten().flatten();
    let mut sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    Some(sockets.next()?.path())
}

async fn connect(socket: &Path) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
    endpoint
        .connect()
        .await
        .with_context(|| format!("nobody answers at {}", socket.display()))
}

fn check(info: &PluginInfo, version: DraVersion) -> anyhow::Result<()> {
    let service = match version {
        DraVersion::V1 => V1,
        DraVersion::V1Beta1 => V1BETA1,
    };
    ensure!(info.r#type == PLUGIN_TYPE, "type {} is unknown", info.r#type);
    ensure!(Path::new(&info.endpoint).is_absolute(), "the endpoint {} is no path", info.endpoint);
    if !info.supported_versions.iter().any(|supported| supported == service) {
        bail!("none of {:?} is {service}", info.supported_versions);
    }
    Ok(())
}

impl DraDriver {
    /// Prepares claims, each of namespace, name and UID. Returns the answers by UID.
    pub async fn prepare(
        &self,
        claims: &[(&str, &str, &str)],
    ) -> anyhow::Result<BTreeMap<String, NodePrepareResourceResponse>> {
        let request = NodePrepareResourcesRequest { claims: named(claims) };
        let channel = self.channel.clone();
        let answer = match self.version {
            DraVersion::V1 => {
                v1::dra_plugin_client::DraPluginClient::new(channel)
                    .node_prepare_resources(request)
                    .await?
            }
            DraVersion::V1Beta1 => {
                v1beta1::dra_plugin_client::DraPluginClient::new(channel)
                    .node_prepare_resources(request)
                    .await?
            }
        };
        let answers = answer.into_inner().claims;
        ensure!(answers.len() == claims.len(), "the driver skipped claims: {answers:?}");
        Ok(answers)
    }

    /// Unprepares claims. Returns the errors by UID; empty ones for success.
    pub async fn unprepare(&self, claims: &[(&str, &str, &str)]) -> anyhow::Result<BTreeMap<String, String>> {
        let request = NodeUnprepareResourcesRequest { claims: named(claims) };
        let channel = self.channel.clone();
        let answer = match self.version {
            DraVersion::V1 => {
                v1::dra_plugin_client::DraPluginClient::new(channel)
                    .node_unprepare_resources(request)
                    .await?
            }
            DraVersion::V1Beta1 => {
                v1beta1::dra_plugin_client::DraPluginClient::new(channel)
                    .node_unprepare_resources(request)
                    .await?
            }
        };
        let answers = answer.into_inner().claims;
        ensure!(answers.len() == claims.len(), "the driver skipped claims: {answers:?}");
        Ok(answers.into_iter().map(|(uid, answer)| (uid, answer.error)).collect())
    }
}

fn named(claims: &[(&str, &str, &str)]) -> Vec<Claim> {
    let claim = |&(namespace, name, uid): &(&str, &str, &str)| Claim {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
    };
    claims.iter().map(claim).collect()
}
