//! The switch between the device plugin and DRA, and the registration of the driver.

use std::fs;

use gpushare_kubelet::{DraVersion, Release, refuse_driver};
use gpushare_tests::output_of;

use crate::dra::{CARDS, DraNode, NODE, allocation};
use crate::node::Node;

const CLAIM: (&str, &str, &str) = ("ml", "card", "6f1c2a4e-0b9d-4c1f-9a53-2d1d4b7f0c11");

fn refusal(node: &Node, flags: &[&str]) -> String {
    output_of(node.command(flags)).unwrap_err().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cards_are_offered_by_the_plugin_or_by_dra_and_never_by_both() -> anyhow::Result<()> {
    let mut node = DraNode::new(Release::V1_36).await?;
    let driver = node.register(DraVersion::V1).await?;
    let plugin = ["--offer", "device-plugin"];
    let said = refusal(&node.node, &plugin);
    let holder = format!("offered by another process already (dra, pid {}", node.driver.pid());
    assert!(said.contains(&holder), "{said}");

    let (namespace, name, uid) = CLAIM;
    node.api
        .put_claim(namespace, name, uid, &[("train", "u1")], &allocation(CARDS[0], "64Mi"));
    assert_eq!(driver.prepare(&[CLAIM]).await?[uid].error, "");
    node.driver.kill()?;
    let said = refusal(&node.node, &plugin);
    assert!(said.contains("1 claims are prepared on this node, as ml/card"), "{said}");
    assert!(said.contains("kubectl drain"), "{said}");

    node.start_again()?;
    let driver = node.register(DraVersion::V1).await?;
    assert_eq!(driver.unprepare(&[CLAIM]).await?[uid], "");
    node.driver.kill()?;
    let mut kubelet = node.node.kubelet()?;
    let _plugin = node.node.plugin(&plugin)?;
    kubelet.registered().await?;
    Ok(())
}

#[test]
fn flags_that_dra_cannot_have_are_refused() -> anyhow::Result<()> {
    let node = Node::new()?;
    for (flags, wanted) in [
        (&["--offer", "dra", "--node", NODE, "--inject", "mounts"][..], "claims are prepared by CDI only"),
        (&["--offer", "dra"][..], "--offer dra needs the name of this node"),
        (&["--offer", "both"][..], "invalid value 'both' for '--offer <INTERFACE>'"),
    ] {
        let said = refusal(&node, flags);
        assert!(said.contains(wanted), "{said}");
    }
    fs::create_dir(node.path("driver"))?;
    fs::write(node.path("driver/claims.json"), "no claims")?;
    let said = refusal(&node, &["--offer", "dra", "--node", NODE]);
    assert!(said.contains("claims.json, which has the claims of running pods, is wrong"), "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_that_is_not_there_is_said_once_and_waited_for() -> anyhow::Result<()> {
    let node = Node::new()?;
    fs::remove_dir(node.path("registry"))?;
    let node = DraNode::on(node, Release::V1_36).await?;
    node.until_said("registry does not exist; run this on a node")?;
    fs::create_dir(node.node.path("registry"))?;
    let complaint = "no kubelet has asked for gpushare.dev at";
    node.until_said(complaint)?;
    refuse_driver(&node.node.path("registry"), "it is Monday").await?;
    node.until_said("the kubelet did not register the driver gpushare.dev: it is Monday")?;
    let driver = node.register(DraVersion::V1Beta1).await?;
    assert_eq!(driver.info.name, gpushare_k8s::DRIVER);
    for said in ["registry does not exist", complaint] {
        assert_eq!(node.said(said), 1, "{}", node.driver.stderr());
    }

    // Somebody removes the socket.
    let socket = node.node.path("registry/gpushare.dev-reg.sock");
    fs::remove_file(&socket)?;
    node.register(DraVersion::V1).await?;
    assert!(socket.exists());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_ends_leaves_no_sockets() -> anyhow::Result<()> {
    let mut node = DraNode::new(Release::V1_36).await?;
    node.register(DraVersion::V1).await?;
    node.driver.signal(rustix::process::Signal::TERM)?;
    node.driver.succeed()?;
    assert_eq!(fs::read_dir(node.node.path("registry"))?.count(), 0);
    assert!(!node.node.path("driver/dra.sock").exists());
    Ok(())
}
