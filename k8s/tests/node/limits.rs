//! Limits of pods by their annotations: a cluster and a kubelet that this process plays, the plugin, the
//! daemon, and programs in the control groups of pods.

use std::fs;

use gpushare_kubelet::{ApiServer, PodResourcesService};
use gpushare_tests::{Daemon, Part, Program, patience};

use crate::cluster::{Cluster, NODE};
use crate::groups::PodGroups;
use crate::node::{Node, watch};

const TRAIN: &str = "6f1c2a4e-0b9d-4c1f-9a53-2d1d4b7f0c11";
const OTHER: &str = "0e7d9b52-3c14-49f0-8a2b-7f6e5d4c3b2a";

/// Starts a program in the control group of a pod, and does not wait.
fn begin(cluster: &Cluster, groups: &PodGroups, uid: &str, name: &str) -> anyhow::Result<Program> {
    let world = &cluster.node.world;
    let mut command = world.program("/bin/sh".as_ref());
    let script = r#"echo $$ > "$0" && exec env LD_PRELOAD="$1" "$2" "$3""#;
    command.args(["-c", script]).arg(groups.container(uid)?);
    command.arg(world.path(Part::Library)).arg(world.path(Part::Workload));
    Program::begin(command, world, name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn annotations_limit_a_pod_while_it_runs() -> anyhow::Result<()> {
    let Some(groups) = PodGroups::new("limits") else { return Ok(()) };
    let cluster = Cluster::on(Node::new()?).await?;
    cluster.put("train", TRAIN, &[("memory", "64Mi"), ("weight", "50"), ("priority", "low")]);
    cluster.resources.give("ml", "train", &[&cluster.shares[0]]);
    let session = cluster.until("ml/train", "64MiB, no limit, 50, low")?;
    assert_eq!(session.state.terms.labels["pod"], "train");
    let mut program = begin(&cluster, &groups, TRAIN, "train")?;
    program.ready()?;
    program.must("alloc x 48MiB; fill x 7")?;
    assert_eq!(program.ask("alloc y 48MiB")?.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    assert_eq!(cluster.daemon.session("ml/train")?.clients.len(), 1);

    // Namespace and pod name the session wherever it appears.
    assert!(cluster.daemon.ctl(&["status"])?.contains("ml/train"));
    let audit = cluster.node.world.runtime_dir().root().join("audit.log");
    patience::until("a line of the audit log", || {
        let log = fs::read_to_string(&audit).unwrap_or_default();
        let mut created = log.lines().filter(|line| line.contains("session.create"));
        Ok(created.any(|line| line.contains("ml/train")).then_some(()))
    })?;

    // More memory, while it runs.
    cluster.put("train", TRAIN, &[("memory", "128MiB"), ("compute", "75%")]);
    cluster.until("ml/train", "128MiB, 75%, 100, normal")?;
    program.must("alloc y 48MiB; fill y 8; check x 7; check y 8")?;

    // What cannot be read keeps the last limit, and what is too much becomes the maximum.
    cluster.put("train", TRAIN, &[("memory", "lots"), ("compute", "150%"), ("weight", "500")]);
    let events = cluster.api.until_events(3).await?;
    let said: Vec<&str> = events.iter().filter_map(|event| event["message"].as_str()).collect();
    assert!(said[0].starts_with("gpushare.dev/memory: `lots` is no size"), "{said:?}");
    assert!(said[1].starts_with("gpushare.dev/compute: `150%` is above 100%"), "{said:?}");
    assert!(said[2].starts_with("gpushare.dev/weight: 500 is above 100"), "{said:?}");
    assert!(events.iter().all(|event| event["involvedObject"]["uid"] == TRAIN));
    cluster.until("ml/train", "128MiB, 75%, 100, normal")?;

    // Wider maxima count at once. A file that cannot be read changes nothing.
    let maxima = cluster.node.path("pods.toml");
    fs::write(&maxima, "[namespaces.ml]\nweight = 400\nmemory = '120MiB'")?;
    cluster.until("ml/train", "120MiB, 75%, 400, normal")?;
    fs::write(&maxima, "[namespaces.ml]\nweight = 'heavy'")?;
    let complaint = "the limits that hold do not change";
    patience::until("the complaint", || Ok(cluster.plugin.stderr().contains(complaint).then_some(())))?;
    cluster.until("ml/train", "120MiB, 75%, 400, normal")?;
    program.must("check x 7; check y 8")?;

    // The end of the pod ends its session, once its program has ended.
    cluster.api.delete_pod("ml", "train");
    assert!(program.quit()?.success());
    cluster
        .daemon
        .until("no session", |status| !status.sessions.iter().any(|session| session.name == "ml/train"))?;
    let log = cluster.plugin.stderr();
    for said in ["`lots` is no size", "`150%` is above 100%", "500 is above 100"] {
        assert_eq!(log.matches(said).count(), 1, "{said} in {log}");
    }
    assert_eq!(log.matches(complaint).count(), 1, "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_is_away_changes_no_limit() -> anyhow::Result<()> {
    let mut cluster = Cluster::on(Node::new()?).await?;
    cluster.put("train", TRAIN, &[("memory", "64MiB")]);
    cluster.resources.give("ml", "train", &[&cluster.shares[0]]);
    cluster.until("ml/train", "64MiB, no limit, 100, normal")?;

    // The changes are no longer kept: all pods are listed again.
    cluster.put("other", OTHER, &[("weight", "10")]);
    cluster.resources.give("ml", "other", &[&cluster.shares[0]]);
    cluster.until("ml/other", "no limit, no limit, 10, normal")?;
    cluster.api.forget_changes();
    cluster.api.delete_pod("ml", "other");
    cluster
        .daemon
        .until("no session", |status| !status.sessions.iter().any(|session| session.name == "ml/other"))?;

    cluster.api.set_down(true);
    let complaint =
        "pods keep the limits that are known: the API server does not list the pods of node node-1";
    patience::until("the complaint", || Ok(cluster.plugin.stderr().contains(complaint).then_some(())))?;
    cluster.put("train", TRAIN, &[("memory", "32MiB")]);
    cluster.until("ml/train", "64MiB, no limit, 100, normal")?;
    cluster.api.set_down(false);
    cluster.until("ml/train", "32MiB, no limit, 100, normal")?;

    // A daemon that restarts still has the sessions, and the plugin finds it again.
    cluster.daemon.kill()?;
    cluster.daemon.restart()?;
    cluster.put("train", TRAIN, &[("memory", "16MiB")]);
    cluster.until("ml/train", "16MiB, no limit, 100, normal")?;
    let log = cluster.plugin.stderr();
    assert_eq!(log.matches(complaint).count(), 1, "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_of_an_unknown_pod_waits_and_is_then_refused_with_a_reason() -> anyhow::Result<()> {
    let Some(groups) = PodGroups::new("unknown") else { return Ok(()) };
    let cluster = Cluster::on(Node::new()?).await?;
    let waits = |uid: &str| format!("waits for the session of its pod {uid}");
    let until_waiting = |uid: &str| {
        let said = || cluster.daemon.process().stderr().contains(&waits(uid));
        patience::until("a process that waits", || Ok(said().then_some(())))
    };
    let mut early = begin(&cluster, &groups, TRAIN, "early")?;
    until_waiting(TRAIN)?;
    cluster.resources.give("ml", "train", &[&cluster.shares[0]]);
    cluster.put("train", TRAIN, &[("memory", "64MiB")]);
    early.ready()?;
    assert_eq!(cluster.daemon.session("ml/train")?.clients.len(), 1);
    assert!(early.quit()?.success());

    // This one has no share, so it never gets a session.
    cluster.put("other", OTHER, &[]);
    let mut stranger = begin(&cluster, &groups, OTHER, "stranger")?;
    assert!(stranger.ready().is_err());
    let refused = stranger.process().stderr();
    assert!(refused.contains(&format!("has made no session for pod {OTHER}")), "{refused}");
    assert!(!cluster.daemon.status()?.sessions.iter().any(|session| session.implicit));
    stranger.kill()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sources_that_are_not_there_are_said_once_and_waited_for() -> anyhow::Result<()> {
    let node = Node::new()?;
    let plugin = node.plugin(&["--node", NODE])?;
    let until = |words: &str| {
        patience::until(words, || Ok(plugin.stderr().contains(words).then_some(())))
            .map_err(|error| error.context(plugin.stderr()))
    };
    until("no API server is known")?;
    let api = ApiServer::start().await?;
    api.put_pod(NODE, "ml", "train", TRAIN, &[]);
    api.write_config(&node.path("kubeconfig"))?;
    until("following 1 pods of node node-1")?;
    until("new pods get no session: no kubelet answers at")?;
    until("pods keep the limits that they have: no gpushare daemon answers at")?;

    let resources = PodResourcesService::start(&node.path("pod-resources.sock"))?;
    let mut kubelet = node.kubelet()?;
    let request = kubelet.registered().await?;
    let share = watch(&mut kubelet.connect(&request.endpoint).await?).await?.0[0].id.clone();
    resources.give("ml", "train", &[&share]);
    let daemon = Daemon::start(&node.world, &[])?;
    daemon.until("a session", |status| status.sessions.iter().any(|session| session.name == "ml/train"))?;
    let log = plugin.stderr();
    for said in ["no API server is known", "no kubelet answers at", "no gpushare daemon answers at"] {
        assert_eq!(log.matches(said).count(), 1, "{said} in {log}");
    }
    Ok(())
}
