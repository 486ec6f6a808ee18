//! Claims: prepared and released as the kubelet asks, and their memory and weight as limits of pods.

use std::fs;

use gpushare_inject::Spec;
use gpushare_kubelet::{DraVersion, Release};
use gpushare_tests::{Daemon, Part, Program, patience};
use serde_json::json;

use crate::dra::{CARDS, DraNode, NODE, allocation, configured};
use crate::groups::PodGroups;
use crate::node::Node;

const TRAIN: &str = "6f1c2a4e-0b9d-4c1f-9a53-2d1d4b7f0c11";
const OTHER: &str = "0e7d9b52-3c14-49f0-8a2b-7f6e5d4c3b2a";

/// Claim of namespace `ml` whose UID follows from its name.
fn named(name: &'static str) -> (&'static str, &'static str, &'static str) {
    let uid = match name {
        "card" => "c0000000-0000-4000-8000-000000000001",
        "second" => "c0000000-0000-4000-8000-000000000002",
        _ => "c0000000-0000-4000-8000-000000000003",
    };
    ("ml", name, uid)
}

impl DraNode {
    fn put(&self, name: &'static str, pods: &[(&str, &str)], devices: &serde_json::Value) {
        let (namespace, name, uid) = named(name);
        self.api.put_claim(namespace, name, uid, pods, devices);
    }

    /// Error of a claim that is not prepared.
    async fn refusal(
        &self,
        driver: &gpushare_kubelet::DraDriver,
        name: &'static str,
    ) -> anyhow::Result<String> {
        let answer = driver.prepare(&[named(name)]).await?.remove(named(name).2).unwrap();
        assert_eq!(answer.devices, []);
        Ok(answer.error)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_gets_the_cdi_device_of_its_card_until_it_is_released() -> anyhow::Result<()> {
    for version in [DraVersion::V1, DraVersion::V1Beta1] {
        let mut node = DraNode::new(Release::V1_36).await?;
        node.put("card", &[("train", TRAIN)], &allocation(CARDS[1], "64Mi"));
        let driver = node.register(version).await?;
        assert_eq!(driver.info.supported_versions, ["v1.DRAPlugin", "v1beta1.DRAPlugin"]);
        let claim = named("card");
        let answer = driver.prepare(&[claim]).await?.remove(claim.2).unwrap();
        assert_eq!(answer.error, "");
        let [device] = &answer.devices[..] else { panic!("{answer:?}") };
        assert_eq!(
            (device.request_names.as_slice(), device.pool_name.as_str()),
            (&["main".to_owned()][..], NODE)
        );
        assert_eq!((device.device_name.as_str(), device.share_id.as_deref()), (CARDS[1], Some(OTHER)));
        let spec = fs::read_to_string(node.node.path("cdi/gpushare.dev-share.json"))?;
        let spec: Spec = serde_json::from_str(&spec)?;
        let known: Vec<String> = spec.devices.iter().map(|device| spec.full_name(device)).collect();
        assert_eq!(device.cdi_device_ids, [format!("gpushare.dev/share={}", CARDS[1].replace("gpu", "GPU"))]);
        assert!(known.contains(&device.cdi_device_ids[0]), "{known:?}");

        // Asked again, by another kubelet and after a restart of the driver, without the API server.
        node.api.set_down(true);
        assert_eq!(driver.prepare(&[claim]).await?[claim.2], answer);
        node.restart()?;
        let driver = node.register(version).await?;
        assert_eq!(driver.prepare(&[claim]).await?[claim.2], answer);
        for _ in 0..2 {
            assert_eq!(driver.unprepare(&[claim, named("second")]).await?[claim.2], "");
        }
        assert!(node.refusal(&driver, "card").await?.contains("the API server does not"));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_cannot_be_met_says_why_and_harms_no_other() -> anyhow::Result<()> {
    let node = DraNode::new(Release::V1_36).await?;
    let driver = node.register(DraVersion::V1).await?;
    node.put("second", &[("other", OTHER)], &allocation(CARDS[0], "16Mi"));
    for (devices, wanted) in [
        (allocation(CARDS[0], "1Gi"), "it asks for 1GiB of memory on card GPU-73696d75"),
        (allocation("gpu-unknown", "64Mi"), "device gpu-unknown is none of this node's"),
        (
            configured(CARDS[0], &json!({"memory": "lots"})),
            "memory: `lots` is no size; write it like 8GiB or 50%",
        ),
        (configured(CARDS[0], &json!({"memroy": "8MiB"})), "unknown field `memroy`"),
    ] {
        node.put("card", &[("train", TRAIN)], &devices);
        for _ in 0..3 {
            let answers = driver.prepare(&[named("card"), named("second")]).await?;
            let said = &answers[named("card").2].error;
            assert!(said.starts_with("claim ml/card: ") && said.contains(wanted), "{said}");
            assert_eq!(answers[named("second").2].error, "");
        }
        assert_eq!(node.said(wanted), 1, "{}", node.driver.stderr());
    }
    node.put("card", &[], &allocation(CARDS[0], "64Mi"));
    assert!(node.refusal(&driver, "card").await?.contains("it is reserved for no pod"));
    node.api.delete_claim("ml", "card");
    assert!(node.refusal(&driver, "card").await?.contains("it is not in the cluster"));

    // Two shares: the third claim of a card gets none until another one ends.
    node.put("card", &[("train", TRAIN)], &allocation(CARDS[0], "64Mi"));
    assert_eq!(driver.prepare(&[named("card")]).await?[named("card").2].error, "");
    node.put("third", &[("late", "u3")], &allocation(CARDS[0], "64Mi"));
    let said = node.refusal(&driver, "third").await?;
    assert!(said.contains("all 2 shares of card GPU-73696d75"), "{said}");
    driver.unprepare(&[named("second")]).await?;
    assert_eq!(driver.prepare(&[named("third")]).await?[named("third").2].error, "");
    Ok(())
}

/// Node with a driver and a daemon whose sessions are those of pods.
async fn with_daemon() -> anyhow::Result<(DraNode, Daemon)> {
    let node = Node::new()?;
    let config = node.world.scheduler_config().expect("a simulated world has one");
    let scheduling = fs::read_to_string(&config)?;
    fs::write(&config, format!("pod_sessions = true\n{scheduling}"))?;
    let daemon = Daemon::start(&node.world, &[])?;
    Ok((DraNode::on(node, Release::V1_36).await?, daemon))
}

impl DraNode {
    /// Waits until a session has these terms: memory, compute, weight and priority.
    fn until_terms(&self, daemon: &Daemon, name: &str, wanted: &str) -> anyhow::Result<()> {
        let found = || {
            let sessions = daemon.status()?.sessions.into_iter();
            let mut terms = sessions
                .filter(|session| session.name == name)
                .map(|session| session.state.terms);
            let words = terms
                .next()
                .map(|it| format!("{}, {}, {}, {}", it.memory, it.compute, it.weight, it.priority));
            Ok((words.as_deref() == Some(wanted)).then_some(()))
        };
        patience::until(&format!("session {name} with {wanted}"), found)
            .map_err(|error| error.context(format!("{:?}\n{}", daemon.status(), self.driver.stderr())))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_and_weight_of_a_claim_are_the_limits_of_its_pod() -> anyhow::Result<()> {
    let (mut node, daemon) = with_daemon().await?;
    let driver = node.register(DraVersion::V1).await?;
    node.api.put_pod(NODE, "ml", "train", TRAIN, &[]);
    node.api.put_pod(NODE, "ml", "web", "no-claim", &[]);
    let mut devices = configured(CARDS[0], &json!({"weight": 50, "compute": "60%"}));
    devices["results"][0]["consumedCapacity"]["memory"] = json!("64Mi");
    node.put("card", &[("train", TRAIN)], &devices);
    assert_eq!(driver.prepare(&[named("card")]).await?[named("card").2].error, "");
    node.until_terms(&daemon, "ml/train", "64MiB, 60%, 50, normal")?;
    assert_eq!(daemon.status()?.sessions.len(), 1, "the other pod has no claim");

    // An annotation sets less, or is refused with an event; a claim is within the maxima as well.
    let memory =
        |text: &'static str| node.api.put_pod(NODE, "ml", "train", TRAIN, &[("gpushare.dev/memory", text)]);
    memory("32MiB");
    node.until_terms(&daemon, "ml/train", "32MiB, 60%, 50, normal")?;
    memory("128MiB");
    node.until_terms(&daemon, "ml/train", "64MiB, 60%, 50, normal")?;
    fs::write(node.node.path("pods.toml"), "[namespaces.ml]\nmemory = '48MiB'\nweight = 20")?;
    node.until_terms(&daemon, "ml/train", "48MiB, 60%, 20, normal")?;
    let events = node.api.until_events(3).await?;
    let said: Vec<&str> = events.iter().filter_map(|event| event["message"].as_str()).collect();
    for wanted in [
        "gpushare.dev/memory: 128MiB is above 64MiB, the memory of the pod's claim",
        "memory of the pod's claim: 64MiB is above 48MiB, the most for pods of this namespace",
        "weight of the pod's claim: 50 is above 20, the most for pods of this namespace",
    ] {
        assert!(said.iter().any(|said| said.starts_with(wanted)), "{said:?}");
        assert_eq!(node.said(wanted), 1, "{}", node.driver.stderr());
    }

    // A driver that starts anew knows the claims, and an end of the claim leaves the session until the pod is gone.
    node.restart()?;
    let driver = node.register(DraVersion::V1).await?;
    fs::write(node.node.path("pods.toml"), "[namespaces.ml]\nmemory = '40MiB'")?;
    node.until_terms(&daemon, "ml/train", "40MiB, 60%, 50, normal")?;
    driver.unprepare(&[named("card")]).await?;
    node.until_terms(&daemon, "ml/train", "40MiB, 60%, 50, normal")?;
    node.api.delete_pod("ml", "train");
    daemon.until("no session", |status| status.sessions.is_empty())?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_pod_of_a_shared_claim_gets_a_session_too() -> anyhow::Result<()> {
    let (node, daemon) = with_daemon().await?;
    let driver = node.register(DraVersion::V1).await?;
    node.api.put_pod(NODE, "ml", "train", TRAIN, &[]);
    node.api.put_pod(NODE, "ml", "other", OTHER, &[]);
    let devices = allocation(CARDS[0], "64Mi");
    node.put("card", &[("train", TRAIN)], &devices);
    assert_eq!(driver.prepare(&[named("card")]).await?[named("card").2].error, "");
    node.until_terms(&daemon, "ml/train", "64MiB, no limit, 100, normal")?;
    node.put("card", &[("train", TRAIN), ("other", OTHER)], &devices);
    node.until_terms(&daemon, "ml/other", "64MiB, no limit, 100, normal")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_of_a_pod_has_the_memory_of_its_claim() -> anyhow::Result<()> {
    let Some(groups) = PodGroups::new("claims") else { return Ok(()) };
    let (node, _daemon) = with_daemon().await?;
    let driver = node.register(DraVersion::V1).await?;
    node.api.put_pod(NODE, "ml", "train", TRAIN, &[]);
    node.put("card", &[("train", TRAIN)], &allocation(CARDS[0], "64Mi"));
    assert_eq!(driver.prepare(&[named("card")]).await?[named("card").2].error, "");
    let world = &node.node.world;
    let mut command = world.program("/bin/sh".as_ref());
    let script = r#"echo $$ > "$0" && exec env LD_PRELOAD="$1" "$2" "$3""#;
    command.args(["-c", script]).arg(groups.container(TRAIN)?);
    command.arg(world.path(Part::Library)).arg(world.path(Part::Workload));
    let mut program = Program::begin(command, world, "train")?;
    program.ready()?;
    program.must("alloc x 48MiB; fill x 7; check x 7")?;
    assert_eq!(program.ask("alloc y 32MiB")?.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    assert!(program.quit()?.success());
    Ok(())
}
