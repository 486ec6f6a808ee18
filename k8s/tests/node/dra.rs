//! Node whose cards are offered to claims: the driver's process, and a cluster and a kubelet that this process
//! plays.

use gpushare_kubelet::{ApiServer, DraDriver, DraVersion, PodResourcesService, Release, register_driver};
use gpushare_tests::{Process, patience};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::node::Node;

pub(crate) const NODE: &str = "node-1";
/// Names of the devices of the two simulated cards.
pub(crate) const CARDS: [&str; 2] =
    ["gpu-73696d75-6c61-7465-6420-636172642000", "gpu-73696d75-6c61-7465-6420-636172642001"];

/// Node with a driver.
pub(crate) struct DraNode {
    pub(crate) api: ApiServer,
    _resources: PodResourcesService,
    pub(crate) driver: Process,
    pub(crate) node: Node,
}

impl DraNode {
    /// Starts the driver beside an API server of a release. Each card has two shares.
    pub(crate) async fn new(release: Release) -> anyhow::Result<Self> {
        Self::on(Node::new()?, release).await
    }

    pub(crate) async fn on(node: Node, release: Release) -> anyhow::Result<Self> {
        let api = ApiServer::start().await?;
        api.set_release(release);
        api.write_config(&node.path("kubeconfig"))?;
        let resources = PodResourcesService::start(&node.path("pod-resources.sock"))?;
        let driver = start(&node)?;
        Ok(Self { api, _resources: resources, driver, node })
    }

    /// Registers the driver as a kubelet does.
    pub(crate) async fn register(&self, version: DraVersion) -> anyhow::Result<DraDriver> {
        let registered = register_driver(&self.node.path("registry"), version).await;
        registered.map_err(|error| error.context(self.driver.stderr()))
    }

    /// Ends the driver and starts another one.
    pub(crate) fn restart(&mut self) -> anyhow::Result<()> {
        self.driver.signal(Signal::TERM)?;
        self.driver.succeed()?;
        self.start_again()
    }

    /// Starts another driver after one that was killed.
    pub(crate) fn start_again(&mut self) -> anyhow::Result<()> {
        self.driver = start(&self.node)?;
        Ok(())
    }

    /// Waits until the driver has logged these words.
    pub(crate) fn until_said(&self, words: &str) -> anyhow::Result<()> {
        patience::until(words, || Ok(self.driver.stderr().contains(words).then_some(())))
            .map_err(|error| error.context(self.driver.stderr()))
    }

    /// Waits until the slices hold so many devices.
    pub(crate) fn until_devices(&self, count: usize) -> anyhow::Result<Vec<Value>> {
        let slices = || {
            let slices = self.api.slices();
            let devices = slices
                .iter()
                .filter_map(|slice| slice["spec"]["devices"].as_array())
                .map(Vec::len);
            Ok((devices.sum::<usize>() == count).then_some(slices))
        };
        patience::until(&format!("{count} devices"), slices)
            .map_err(|error| error.context(format!("{:?}\n{}", self.api.slices(), self.driver.stderr())))
    }

    /// Number of times that the driver has logged these words.
    pub(crate) fn said(&self, words: &str) -> usize {
        self.driver.stderr().matches(words).count()
    }
}

fn start(node: &Node) -> anyhow::Result<Process> {
    node.plugin(&["--offer", "dra", "--node", NODE, "--shares", "2"])
}

/// Allocation of one device, which consumes this memory.
pub(crate) fn allocation(device: &str, memory: &str) -> Value {
    let result = json!({
        "request": "main", "driver": "gpushare.dev", "pool": NODE, "device": device,
        "shareID": "0e7d9b52-3c14-49f0-8a2b-7f6e5d4c3b2a",
        "consumedCapacity": {"shares": "1", "memory": memory},
    });
    json!({"results": [result]})
}

/// Allocation of one device with parameters for gpushare.
pub(crate) fn configured(device: &str, parameters: &Value) -> Value {
    let mut parameters = parameters.clone();
    parameters["apiVersion"] = json!("gpushare.dev/v1");
    parameters["kind"] = json!("ShareParameters");
    let mut devices = allocation(device, "0");
    let opaque = json!({"driver": "gpushare.dev", "parameters": parameters});
    devices["config"] = json!([{"source": "FromClaim", "requests": ["main"], "opaque": opaque}]);
    devices
}
