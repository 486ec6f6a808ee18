//! Limits of pods by their annotations.

use std::fs;
use std::time::Instant;

use gpushare_kubelet::{ApiServer, PodResourcesService};
use gpushare_tests::{Daemon, patience};

use crate::cluster::{Cluster, NODE, OTHER, TRAIN};
use crate::groups::PodGroups;
use crate::node::{Node, watch};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn annotations_limit_a_pod_while_it_runs() -> anyhow::Result<()> {
    let Some(groups) = PodGroups::new("limits") else { return Ok(()) };
    let cluster = Cluster::new().await?;
    cluster.put("train", TRAIN, &[("memory", "64Mi"), ("weight", "50"), ("priority", "low")]);
    cluster.resources.give("ml", "train", &[&cluster.shares[0]]);
    let session = cluster.until("ml/train", "64MiB, no limit, 50, low")?;
    assert_eq!(session.state.terms.labels["pod"], "train");
    let mut program = cluster.begin(&groups, TRAIN, "train")?;
    program.ready()?;
    program.must("alloc x 48MiB; fill x 7")?;
    assert_eq!(program.ask("alloc y 48MiB")?.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    assert_eq!(cluster.daemon.session("ml/train")?.clients.len(), 1);

    // Namespace and pod name the session wherever it appears.
    assert!(cluster.daemon.ctl(&["status"])?.contains("ml/train"));
    patience::until("a line of the audit log", || {
        let log = cluster.audit();
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
    // The events follow the changes of the same look.
    assert_eq!(cluster.terms("ml/train")?, "128MiB, 75%, 100, normal");

    // Wider maxima count at once. A file that cannot be read changes nothing.
    let maxima = cluster.node.path("pods.toml");
    fs::write(&maxima, "[namespaces.ml]\nweight = 400\nmemory = '120MiB'")?;
    cluster.until("ml/train", "120MiB, 75%, 400, normal")?;
    fs::write(&maxima, "[namespaces.ml]\nweight = 'heavy'")?;
    let complaint = "the limits that hold do not change";
    cluster.until_said(complaint)?;
    // The next look has the new annotation, and still the maxima of before.
    cluster.put("train", TRAIN, &[("memory", "lots"), ("compute", "60%"), ("weight", "500")]);
    cluster.until("ml/train", "120MiB, 60%, 400, normal")?;
    program.must("check x 7; check y 8")?;

    // The end of the pod ends its session, once its program has ended.
    cluster.api.delete_pod("ml", "train");
    assert!(program.quit()?.success());
    cluster
        .daemon
        .until("no session", |status| !status.sessions.iter().any(|session| session.name == "ml/train"))?;
    let log = cluster.plugin.stderr();
    assert_eq!(log.matches("`lots` is no size").count(), 1, "{log}");
    assert_eq!(log.matches(complaint).count(), 1, "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_is_away_changes_no_limit() -> anyhow::Result<()> {
    let mut cluster = Cluster::new().await?;
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
    cluster.until_said(complaint)?;
    cluster.put("train", TRAIN, &[("memory", "32MiB")]);
    // A look at the pods that are known finds other maxima, and no other annotation.
    fs::write(cluster.node.path("pods.toml"), "[default]\nweight = 70")?;
    cluster.until("ml/train", "64MiB, no limit, 70, normal")?;
    cluster.api.set_down(false);
    cluster.until("ml/train", "32MiB, no limit, 70, normal")?;

    // A daemon that restarts still has the sessions, and the plugin finds it again.
    cluster.daemon.kill()?;
    cluster.daemon.restart()?;
    cluster.put("train", TRAIN, &[("memory", "16MiB")]);
    cluster.until("ml/train", "16MiB, no limit, 70, normal")?;
    let log = cluster.plugin.stderr();
    assert_eq!(log.matches(complaint).count(), 1, "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_that_lists_no_pods_changes_no_limit() -> anyhow::Result<()> {
    let cluster = Cluster::new().await?;
    fs::write(cluster.node.path("pods.toml"), "[default]\nmemory = '128MiB'")?;
    // The size of the card, 256 MiB, says that this is within the maximum.
    cluster.put("train", TRAIN, &[("memory", "25%")]);
    cluster.resources.give("ml", "train", &[&cluster.shares[0]]);
    cluster.until("ml/train", "25%, no limit, 100, normal")?;
    cluster.resources.forget();
    for weight in ["50", "60", "70"] {
        cluster.put("train", TRAIN, &[("memory", "25%"), ("weight", weight)]);
        cluster.until("ml/train", &format!("25%, no limit, {weight}, normal"))?;
    }
    assert_eq!(cluster.api.events().len(), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_delay_no_limit_and_share_one_connection() -> anyhow::Result<()> {
    let cluster = Cluster::new().await?;
    let bad = [("memory", "lots"), ("compute", "all"), ("weight", "heavy")];
    let put = |number: usize| {
        let name = format!("bad-{number}");
        cluster.put(&name, &format!("{number:08x}-0b9d-4c1f-9a53-2d1d4b7f0c11"), &bad);
        cluster.resources.give("ml", &name, &[&cluster.shares[0]]);
    };
    let began = Instant::now();
    (0..8).for_each(put);
    let events = cluster.api.until_events(8 * bad.len()).await?;
    // One lists the pods, one follows them, and one takes all events. An event that is not taken within two seconds costs
    // its connection.
    let connections = cluster.api.connections();
    let most = 3 + began.elapsed().as_secs() / 2;
    assert!(connections <= most, "{connections} connections for {} events", events.len());

    // An event may wait two seconds for the API server, and so many would take four minutes.
    cluster.api.hold_events(true);
    (8..48).for_each(put);
    cluster.api.until_held().await?;
    cluster.put("train", TRAIN, &[("memory", "64MiB")]);
    cluster.resources.give("ml", "train", &[&cluster.shares[0]]);
    cluster.until("ml/train", "64MiB, no limit, 100, normal")?;
    assert_eq!(cluster.api.events().len(), events.len());
    cluster.api.hold_events(false);
    cluster.api.until_events(events.len() + 1).await?;
    Ok(())
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
