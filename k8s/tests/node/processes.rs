//! Processes in the control groups of pods: whose sessions they join, and how they wait for those.

use std::fs;

use gpushare_tests::patience;

use crate::cluster::{Cluster, OTHER, TRAIN};
use crate::groups::PodGroups;

impl Cluster {
    /// Waits until a process waits for the session of a pod.
    fn until_waiting(&self, uid: &str) -> anyhow::Result<()> {
        let words = format!("waits for the session of its pod {uid}");
        let said = || self.daemon.process().stderr().contains(&words);
        patience::until("a process that waits", || Ok(said().then_some(())))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_of_an_unknown_pod_waits_and_is_then_refused_with_a_reason() -> anyhow::Result<()> {
    let Some(groups) = PodGroups::new("unknown") else { return Ok(()) };
    let cluster = Cluster::new().await?;
    let mut early = cluster.begin(&groups, TRAIN, "early")?;
    cluster.until_waiting(TRAIN)?;
    cluster.resources.give("ml", "train", &[&cluster.shares[0]]);
    cluster.put("train", TRAIN, &[("memory", "64MiB")]);
    early.ready()?;
    assert_eq!(cluster.daemon.session("ml/train")?.clients.len(), 1);
    assert!(early.quit()?.success());

    // This one has no share, so it never gets a session.
    cluster.put("other", OTHER, &[]);
    let mut stranger = cluster.begin(&groups, OTHER, "stranger")?;
    assert!(stranger.ready().is_err());
    let refused = stranger.process().stderr();
    assert!(refused.contains(&format!("has made no session for pod {OTHER}")), "{refused}");
    stranger.kill()?;
    // The daemon of these tests gives a session to whoever needs none, as to this one, and says so.
    let mut outside = cluster.begin_in(&groups.outside()?, "outside")?;
    outside.ready()?;
    let log = cluster.daemon.process().stderr();
    assert_eq!(log.matches("is the session of").count(), 1, "{log}");
    assert!(outside.quit()?.success());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_names_its_groups_like_a_pod_does_not_enter_the_pods_session() -> anyhow::Result<()> {
    let Some(groups) = PodGroups::new("pretender") else { return Ok(()) };
    let cluster = Cluster::new().await?;
    cluster.resources.give("ml", "train", &[&cluster.shares[0]]);
    cluster.put("train", TRAIN, &[]);
    cluster.until("ml/train", "no limit, no limit, 100, normal")?;
    let mut pretender = cluster.begin_in(&groups.pretender(TRAIN)?, "pretender")?;
    pretender.ready()?;
    let mut own = cluster.begin(&groups, TRAIN, "own")?;
    own.ready()?;
    let processes = |name: &str| cluster.daemon.session(name).map(|session| session.clients);
    let of_pod: Vec<u32> = processes("ml/train")?.iter().map(|client| client.pid).collect();
    assert_eq!(of_pod, [own.process().pid()]);
    assert!(pretender.quit()?.success() && own.quit()?.success());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_settings_and_other_sessions_end_the_wait_too() -> anyhow::Result<()> {
    let Some(groups) = PodGroups::new("waiting") else { return Ok(()) };
    let cluster = Cluster::new().await?;
    // A session of an administrator for the control group of a pod, without an agent.
    let mut early = cluster.begin(&groups, TRAIN, "early")?;
    cluster.until_waiting(TRAIN)?;
    cluster.daemon.ctl(&["session", "create", "mine", "--cgroup", &groups.path()])?;
    early.ready()?;
    assert_eq!(cluster.daemon.session("mine")?.clients.len(), 1);
    assert!(early.quit()?.success());
    cluster
        .daemon
        .until("no process", |status| status.sessions.iter().all(|session| session.clients.is_empty()))?;
    cluster.daemon.ctl(&["session", "delete", "mine"])?;

    let mut next = cluster.begin(&groups, OTHER, "next")?;
    cluster.until_waiting(OTHER)?;
    let config = cluster.node.world.scheduler_config().expect("a simulated world has one");
    fs::write(&config, fs::read_to_string(&config)?.replace("pod_sessions = true\n", ""))?;
    cluster.daemon.ctl(&["reload"])?;
    next.ready()?;
    assert!(next.quit()?.success());
    Ok(())
}
