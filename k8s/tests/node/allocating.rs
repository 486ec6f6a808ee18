//! Choice of shares, and answers for containers.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use gpushare_inject::Spec;
use gpushare_k8s::api::v1beta1::{
    ContainerAllocateResponse, ContainerPreferredAllocationRequest, Device, PreferredAllocationRequest,
};
use gpushare_kubelet::{Plugin, allocate};
use gpushare_tests::{Daemon, Process, Program, Sharing, patience};
use serde_json::{Value, json};
use tonic::Code;

use crate::node::{Node, watch};

/// Plugin that is registered, with its devices.
struct Running {
    plugin: Plugin,
    devices: Vec<Device>,
    process: Process,
    _kubelet: gpushare_kubelet::Kubelet,
}

impl Running {
    async fn on(node: &Node, flags: &[&str]) -> anyhow::Result<Self> {
        let mut kubelet = node.kubelet()?;
        let process = node.plugin(flags)?;
        let request = kubelet.registered().await?;
        let mut plugin = kubelet.connect(&request.endpoint).await?;
        let (devices, _) = watch(&mut plugin).await?;
        Ok(Self { plugin, devices, process, _kubelet: kubelet })
    }

    fn id(&self, place: usize) -> &str {
        &self.devices[place].id
    }

    async fn refusal(&mut self, ids: &[&str]) -> String {
        let status = allocate(&mut self.plugin, ids).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        status.message().to_owned()
    }

    /// Cards of the shares that the plugin proposes.
    async fn preferred(&mut self, size: i32) -> anyhow::Result<Vec<String>> {
        let request = PreferredAllocationRequest {
            container_requests: vec![ContainerPreferredAllocationRequest {
                available_device_i_ds: self.devices.iter().map(|device| device.id.clone()).collect(),
                must_include_device_i_ds: Vec::new(),
                allocation_size: size,
            }],
        };
        let answer = self.plugin.get_preferred_allocation(request).await?.into_inner();
        let card = |id: &String| id.split("::").next().unwrap_or_default().to_owned();
        Ok(answer.container_responses[0].device_i_ds.iter().map(card).collect())
    }
}

fn as_json(answer: &ContainerAllocateResponse) -> Value {
    let mounts = answer.mounts.iter().map(|mount| {
        json!({"host": mount.host_path, "container": mount.container_path, "read_only": mount.read_only})
    });
    let devices = answer.devices.iter().map(|device| {
        json!({"host": device.host_path, "container": device.container_path, "permissions": device.permissions})
    });
    json!({
        "envs": answer.envs,
        "mounts": mounts.collect::<Vec<_>>(),
        "devices": devices.collect::<Vec<_>>(),
        "annotations": answer.annotations,
        "cdi_devices": answer.cdi_devices.iter().map(|device| &device.name).collect::<Vec<_>>(),
    })
}

/// Compares an answer with a file. `GPUSHARE_BLESS=1` writes the file.
fn golden(node: &Node, name: &str, answer: &ContainerAllocateResponse) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node/golden").join(name);
    let text = node.without_paths(&(serde_json::to_string_pretty(&as_json(answer)).unwrap() + "\n"));
    if std::env::var_os("GPUSHARE_BLESS").is_some() {
        fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, fs::read_to_string(path).unwrap());
}

#[tokio::test]
async fn a_container_gets_the_name_of_its_cards_cdi_device() -> anyhow::Result<()> {
    let node = Node::new()?;
    let mut running = Running::on(&node, &["--shares", "2"]).await?;
    let ids: Vec<&str> = running.devices.iter().map(|device| device.id.as_str()).collect();
    let cards: Vec<&str> = ids.iter().map(|id| id.split("::").next().unwrap()).collect();
    assert_eq!(ids[..2], [format!("{}::0", cards[0]), format!("{}::1", cards[0])]);
    assert!(cards[0] == cards[1] && cards[1] != cards[2]);

    let (first, third) = (running.id(0).to_owned(), running.id(2).to_owned());
    golden(&node, "cdi.json", &allocate(&mut running.plugin, &[&first]).await?);
    let both = allocate(&mut running.plugin, &[&third, &first]).await?;
    let spec: Spec = serde_json::from_str(&fs::read_to_string(node.path("cdi/gpushare.dev-share.json"))?)?;
    let known: Vec<String> = spec.devices.iter().map(|device| spec.full_name(device)).collect();
    assert_eq!(both.cdi_devices.len(), 2);
    assert!(both.cdi_devices.iter().all(|device| known.contains(&device.name)));
    for mount in &spec.container_edits.mounts {
        let is_ours = mount.host_path.starts_with(node.path("files"));
        assert!(!is_ours || mount.host_path.is_file(), "{}", mount.host_path.display());
    }
    assert_eq!(fs::read_to_string(node.path("files/ld.so.preload"))?, gpushare_inject::Share::PRELOAD);
    Ok(())
}

#[tokio::test]
async fn a_container_gets_its_card_by_mounts_or_by_nvidias_runtime() -> anyhow::Result<()> {
    for (way, file) in [("mounts", "mounts.json"), ("nvidia-runtime", "nvidia-runtime.json")] {
        let node = Node::new()?;
        let mut running = Running::on(&node, &["--shares", "2", "--inject", way]).await?;
        let id = running.id(2).to_owned();
        golden(&node, file, &allocate(&mut running.plugin, &[&id]).await?);
        assert_eq!(fs::read_dir(node.path("cdi"))?.count(), 0);
    }
    Ok(())
}

#[tokio::test]
async fn requests_that_cannot_be_met_are_answered_clearly_and_logged_once() -> anyhow::Result<()> {
    let node = Node::new()?;
    let mut running = Running::on(&node, &["--shares", "2"]).await?;
    let (first, second) = (running.id(0).to_owned(), running.id(1).to_owned());
    for _ in 0..3 {
        let twice = running.refusal(&[&first, &second]).await;
        assert!(twice.contains("asks for 2 shares of card GPU-"), "{twice}");
        assert!(twice.contains("set `gpushare.dev/gpu: 1` in its limits"), "{twice}");
    }
    let said = running.process.stderr();
    assert_eq!(said.matches("a pod is refused: the container asks for 2 shares").count(), 1, "{said}");
    let wrong = running.refusal(&["GPU-1"]).await;
    assert!(wrong.contains("`GPU-1` is no share of gpushare"), "{wrong}");
    let unknown = running.refusal(&["GPU-abababab-abab-abab-abab-abababababab::0"]).await;
    assert!(unknown.contains("none of this node's"), "{unknown}");
    let nothing = running.refusal(&[]).await;
    assert!(nothing.contains("asks for no share"), "{nothing}");
    // None of it disturbed the plugin.
    allocate(&mut running.plugin, &[&first]).await?;
    Ok(())
}

#[tokio::test]
async fn a_share_of_the_card_with_less_load_is_preferred() -> anyhow::Result<()> {
    let node = Node::new()?;
    let mut running = Running::on(&node, &["--shares", "2"]).await?;
    let cards: Vec<String> = [0, 2]
        .map(|place| running.id(place).split("::").next().unwrap_or_default().to_owned())
        .to_vec();
    // Without a daemon all cards count alike.
    assert_eq!(running.preferred(1).await?, cards[..1]);
    assert!(running.process.stderr().contains("without the load of the cards"));
    assert_eq!(running.preferred(2).await?, cards);

    let daemon = Daemon::start(&node.world, &[])?;
    let mut program = Program::hold(&node.world, &Sharing::session("a").and(&["--gpu", "0"]), "a")?;
    program.must("alloc x 16MiB; fill x 7")?;
    let loaded = daemon
        .until("memory on one card", |status| status.gpus.iter().any(|gpu| !gpu.allocated_bytes.is_zero()))?;
    let busy = loaded
        .gpus
        .iter()
        .find(|gpu| !gpu.allocated_bytes.is_zero())
        .unwrap()
        .uuid
        .to_string();
    assert_eq!(busy, cards[0]);
    // A daemon that answers late is not waited for.
    let deadline = Instant::now() + patience::PATIENCE;
    while running.preferred(1).await? != cards[1..] {
        assert!(Instant::now() < deadline, "the card with load is preferred");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
