//! A simulated node in a cluster: besides the plugin, the daemon, an API server and a kubelet that this process
//! plays, and programs in the control groups of pods.

use std::fs;
use std::path::Path;

use gpushare_kubelet::{ApiServer, Kubelet, PodResourcesService, allocate};
use gpushare_proto::admin::SessionView;
use gpushare_tests::{Daemon, Part, Process, Program, patience};

use crate::groups::PodGroups;
use crate::node::{Node, watch};

pub(crate) const NODE: &str = "node-1";
pub(crate) const TRAIN: &str = "6f1c2a4e-0b9d-4c1f-9a53-2d1d4b7f0c11";
pub(crate) const OTHER: &str = "0e7d9b52-3c14-49f0-8a2b-7f6e5d4c3b2a";

/// Node whose plugin knows the cluster, and its daemon.
pub(crate) struct Cluster {
    pub(crate) api: ApiServer,
    pub(crate) resources: PodResourcesService,
    pub(crate) daemon: Daemon,
    pub(crate) plugin: Process,
    /// Share of the first card.
    pub(crate) share: String,
    _kubelet: Kubelet,
    pub(crate) node: Node,
}

impl Cluster {
    pub(crate) async fn new() -> anyhow::Result<Self> {
        let node = Node::new()?;
        let config = node.world.scheduler_config().expect("a simulated world has one");
        let scheduling = fs::read_to_string(&config)?;
        fs::write(&config, format!("pod_sessions = true\n{scheduling}"))?;
        let daemon = Daemon::start(&node.world, &[])?;
        let api = ApiServer::start().await?;
        api.write_config(&node.path("kubeconfig"))?;
        let resources = PodResourcesService::start(&node.path("pod-resources.sock"))?;
        let mut kubelet = node.kubelet()?;
        let plugin = node.plugin(&["--shares", "2", "--node", NODE])?;
        let request = kubelet.registered().await?;
        let mut client = kubelet.connect(&request.endpoint).await?;
        let share = watch(&mut client).await?.0[0].id.clone();
        allocate(&mut client, &[&share]).await?;
        Ok(Self { api, resources, daemon, plugin, share, _kubelet: kubelet, node })
    }

    /// Gives a pod of the node a share and annotations, which may be those of a pod that is there.
    pub(crate) fn put(&self, name: &str, uid: &str, annotations: &[(&str, &str)]) {
        let named: Vec<(String, &str)> = annotations
            .iter()
            .map(|&(key, value)| (format!("gpushare.dev/{key}"), value))
            .collect();
        let named: Vec<(&str, &str)> = named.iter().map(|(key, value)| (key.as_str(), *value)).collect();
        self.api.put_pod(NODE, "ml", name, uid, &named);
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
}

fn words(session: &SessionView) -> String {
    let terms = &session.state.terms;
    format!("{}, {}, {}, {}", terms.memory, terms.compute, terms.weight, terms.priority)
}
