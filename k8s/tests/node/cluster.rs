//! A node in a cluster: the daemon, the plugin, and the kubelet and the API server that this process plays.

use std::fs;
use std::path::Path;

use gpushare_k8s::api::v1beta1::{ContainerPreferredAllocationRequest, PreferredAllocationRequest};
use gpushare_kubelet::{ApiServer, Kubelet, Plugin, PodResourcesService, allocate};
use gpushare_proto::admin::SessionView;
use gpushare_tests::{Daemon, Part, Process, Program, patience};
use rustix::process::Signal;

use crate::containers::Answer;
use crate::groups::PodGroups;
use crate::node::{Node, watch};

/// Name of the node in the cluster.
pub(crate) const NODE: &str = "node-1";
/// Identities of two pods.
pub(crate) const TRAIN: &str = "6f1c2a4e-0b9d-4c1f-9a53-2d1d4b7f0c11";
pub(crate) const OTHER: &str = "0e7d9b52-3c14-49f0-8a2b-7f6e5d4c3b2a";

/// Node whose plugin knows the cluster, and its daemon.
pub(crate) struct Cluster {
    pub(crate) api: ApiServer,
    pub(crate) resources: PodResourcesService,
    pub(crate) daemon: Daemon,
    pub(crate) plugin: Process,
    /// Shares that no pod has, in the plugin's order.
    pub(crate) shares: Vec<String>,
    flags: Vec<String>,
    client: Plugin,
    kubelet: Kubelet,
    pub(crate) node: Node,
}

impl Cluster {
    /// A node of its own, as in [`Self::on`].
    pub(crate) async fn new() -> anyhow::Result<Self> {
        Self::on(Node::new()?).await
    }

    /// Two shares of each card, and a daemon with its defaults.
    pub(crate) async fn on(node: Node) -> anyhow::Result<Self> {
        Self::with(node, "pod_sessions = true\n", &[], &["--shares", "2"]).await
    }

    /// A daemon with these settings and flags, and a plugin with these flags.
    pub(crate) async fn with(
        node: Node,
        settings: &str,
        daemon_flags: &[&str],
        flags: &[&str],
    ) -> anyhow::Result<Self> {
        let config = node.world.scheduler_config().expect("a simulated world has one");
        let scheduling = fs::read_to_string(&config)?;
        fs::write(&config, format!("{settings}{scheduling}"))?;
        let daemon = Daemon::start(&node.world, daemon_flags)?;
        let api = ApiServer::start().await?;
        api.write_config(&node.path("kubeconfig"))?;
        let resources = PodResourcesService::start(&node.path("pod-resources.sock"))?;
        let mut kubelet = node.kubelet()?;
        let flags: Vec<String> = [&["--node", NODE], flags].concat().into_iter().map(str::to_owned).collect();
        let (plugin, client) = start(&node, &mut kubelet, &flags).await?;
        let (devices, _) = watch(&mut client.clone()).await?;
        let shares = devices.into_iter().map(|device| device.id).collect();
        Ok(Self { api, resources, daemon, plugin, shares, flags, client, kubelet, node })
    }

    /// Gives a pod of the node annotations. The pod may be there already.
    pub(crate) fn put(&self, name: &str, uid: &str, annotations: &[(&str, &str)]) {
        let named: Vec<(String, &str)> = annotations
            .iter()
            .map(|&(key, value)| (format!("gpushare.dev/{key}"), value))
            .collect();
        let named: Vec<(&str, &str)> = named.iter().map(|(key, value)| (key.as_str(), *value)).collect();
        self.api.put_pod(NODE, "ml", name, uid, &named);
    }

    /// Admits a pod as a kubelet does: gives it the share that the plugin prefers, and returns what the plugin
    /// answers for its container.
    pub(crate) async fn admit(
        &mut self,
        name: &str,
        uid: &str,
        annotations: &[(&str, &str)],
    ) -> anyhow::Result<Answer> {
        self.put(name, uid, annotations);
        let request = PreferredAllocationRequest {
            container_requests: vec![ContainerPreferredAllocationRequest {
                available_device_i_ds: self.shares.clone(),
                must_include_device_i_ds: Vec::new(),
                allocation_size: 1,
            }],
        };
        let preferred = self.client.get_preferred_allocation(request).await?.into_inner();
        let share = preferred.container_responses[0].device_i_ds[0].clone();
        let answer = allocate(&mut self.client, &[&share]).await?;
        self.shares.retain(|free| *free != share);
        self.resources.give("ml", name, &[&share]);
        Answer::new(share, &answer, &self.node)
    }

    /// Deletes a pod whose container has ended, and takes its share back.
    pub(crate) fn delete(&mut self, name: &str, answer: &Answer) {
        self.resources.take_back("ml", name);
        self.api.delete_pod("ml", name);
        self.shares.push(answer.share.clone());
    }

    /// Waits until a session has these terms: memory, compute, weight and priority.
    pub(crate) fn until(&self, name: &str, terms: &str) -> anyhow::Result<SessionView> {
        let found = patience::until(&format!("session {name} with {terms}"), || {
            let sessions = self.daemon.status()?.sessions;
            Ok(sessions
                .into_iter()
                .find(|session| session.name == name && words(session) == terms))
        });
        found.map_err(|error| error.context(self.plugin.stderr()))
    }

    /// Returns the terms of a session as [`Self::until`] writes them.
    pub(crate) fn terms(&self, name: &str) -> anyhow::Result<String> {
        Ok(words(&self.daemon.session(name)?))
    }

    /// Waits until the plugin has written these words.
    pub(crate) fn until_said(&self, words: &str) -> anyhow::Result<()> {
        patience::until(words, || Ok(self.plugin.stderr().contains(words).then_some(())))
            .map_err(|error| error.context(self.plugin.stderr()))
    }

    /// Returns the audit log of the daemon.
    pub(crate) fn audit(&self) -> String {
        let path = self.node.world.runtime_dir().root().join("audit.log");
        fs::read_to_string(path).unwrap_or_default()
    }

    /// Starts a program in the control group of a pod, and does not wait.
    pub(crate) fn begin(&self, groups: &PodGroups, uid: &str, name: &str) -> anyhow::Result<Program> {
        self.begin_in(&groups.container(uid)?, name)
    }

    /// Starts a program in the control group whose file of processes this is, and does not wait.
    pub(crate) fn begin_in(&self, processes: &Path, name: &str) -> anyhow::Result<Program> {
        let world = &self.node.world;
        let mut command = world.program("/bin/sh".as_ref());
        let script = r#"echo $$ > "$0" && exec env LD_PRELOAD="$1" "$2" "$3""#;
        command.args(["-c", script]).arg(processes);
        command.arg(world.path(Part::Library)).arg(world.path(Part::Workload));
        Program::begin(command, world, name)
    }

    /// Ends the plugin and the daemon, as the end of their pod does.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        self.plugin.signal(Signal::TERM)?;
        self.plugin.succeed()?;
        self.daemon.stop().map(drop)
    }

    /// Starts the daemon again with the state that it has kept, and the plugin with the node's library.
    pub(crate) async fn start_again(&mut self) -> anyhow::Result<()> {
        self.daemon.restart()?;
        (self.plugin, self.client) = start(&self.node, &mut self.kubelet, &self.flags).await?;
        Ok(())
    }
}

async fn start(node: &Node, kubelet: &mut Kubelet, flags: &[String]) -> anyhow::Result<(Process, Plugin)> {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let plugin = node.plugin(&flags)?;
    let request = kubelet.registered().await?;
    Ok((plugin, kubelet.connect(&request.endpoint).await?))
}

fn words(session: &SessionView) -> String {
    let terms = &session.state.terms;
    format!("{}, {}, {}, {}", terms.memory, terms.compute, terms.weight, terms.priority)
}
