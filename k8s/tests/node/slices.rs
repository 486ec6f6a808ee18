//! Publication of the cards for claims.

use std::fs;
use std::path::Path;

use gpushare_kubelet::{ApiServer, PodResourcesService, Release};
use gpushare_tests::patience;
use serde_json::{Value, json};

use crate::dra::{CARDS, DraNode, NODE};
use crate::node::Node;

/// Compares a slice with a file. `GPUSHARE_BLESS=1` writes the file.
fn golden(name: &str, slice: &Value) {
    let mut slice = slice.clone();
    // The server's part.
    for field in ["name", "resourceVersion"] {
        slice["metadata"][field] = json!(field);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node/golden").join(name);
    let text = serde_json::to_string_pretty(&slice).unwrap() + "\n";
    if std::env::var_os("GPUSHARE_BLESS").is_some() {
        fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, fs::read_to_string(path).unwrap());
}

/// Names of all devices in slices.
fn names(slices: &[Value]) -> Vec<&str> {
    let devices = slices.iter().filter_map(|slice| slice["spec"]["devices"].as_array()).flatten();
    devices.filter_map(|device| device["name"].as_str()).collect()
}

fn generation(slices: &[Value]) -> u64 {
    slices[0]["spec"]["pool"]["generation"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_release_gets_the_devices_that_it_can_express() -> anyhow::Result<()> {
    for (release, file, devices) in [
        (Release::V1_32, "slice-1.32.json", 4),
        (Release::V1_33, "slice-1.33.json", 4),
        (Release::V1_34, "slice-1.34.json", 4),
        (Release::V1_36, "slice-1.36.json", 2),
    ] {
        let node = DraNode::new(release).await?;
        let slices = node.until_devices(devices)?;
        assert_eq!(slices.len(), 1, "{slices:?}");
        golden(file, &slices[0]);
        let each_share = node.said("each share is a device of its own");
        assert_eq!(each_share, usize::from(devices == 4), "{}", node.driver.stderr());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgraded_cluster_renames_no_device_until_the_driver_restarts() -> anyhow::Result<()> {
    let mut node = DraNode::new(Release::V1_34).await?;
    node.until_devices(4)?;
    node.api.set_down(true);
    node.until_said("the API server does not list the slices")?;
    node.api.set_release(Release::V1_36);
    node.api.set_down(false);
    node.api.wipe_slices();
    node.until_devices(4)?;
    node.restart()?;
    assert_eq!(names(&node.until_devices(2)?), CARDS);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_card_leaves_the_slices_until_it_answers_again() -> anyhow::Result<()> {
    let node = DraNode::new(Release::V1_36).await?;
    assert_eq!(names(&node.until_devices(2)?), CARDS);
    let card = node.node.world.card().expect("the world has a card");
    card.fall_off()?;
    let slices = node.until_devices(1)?;
    assert_eq!((names(&slices), generation(&slices)), (vec![CARDS[1]], 2));
    card.reset()?;
    let slices = node.until_devices(2)?;
    assert_eq!((names(&slices), generation(&slices)), (CARDS.to_vec(), 3));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_that_a_kubelet_deletes_are_made_again() -> anyhow::Result<()> {
    let node = DraNode::new(Release::V1_36).await?;
    node.until_devices(2)?;
    for _ in 0..2 {
        node.api.wipe_slices();
        node.until_devices(2)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_without_dra_is_said_once_and_waited_for() -> anyhow::Result<()> {
    let node = DraNode::new(Release::V1_31).await?;
    let complaint = "the API server has no resource.k8s.io/v1beta1 or newer";
    node.until_said(complaint)?;
    assert!(node.driver.stderr().contains("Use --offer device-plugin in this cluster"));
    node.api.set_release(Release::V1_32);
    node.until_devices(4)?;
    assert_eq!(node.said(complaint), 1, "{}", node.driver.stderr());

    node.api.set_down(true);
    let complaint = "the API server does not list the slices of node node-1";
    node.until_said(complaint)?;
    node.api.set_down(false);
    node.api.wipe_slices();
    node.until_devices(4)?;
    assert_eq!(node.said(complaint), 1, "{}", node.driver.stderr());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_with_shares_of_the_plugin_is_withheld_until_their_pods_end() -> anyhow::Result<()> {
    let node = Node::new()?;
    let driver = node.plugin(&["--offer", "dra", "--node", NODE])?;
    let api = ApiServer::start().await?;
    api.write_config(&node.path("kubeconfig"))?;
    let until = |words: &str| {
        patience::until(words, || Ok(driver.stderr().contains(words).then_some(())))
            .map_err(|error| error.context(driver.stderr()))
    };
    until("whether pods have shares of the device plugin is not known")?;
    assert_eq!(api.slices(), [] as [Value; 0]);

    let resources = PodResourcesService::start(&node.path("pod-resources.sock"))?;
    let id = format!("{}::0", CARDS[0].replace("gpu", "GPU"));
    resources.give("ml", "old", &[&id]);
    until("not offered to claims until pod ml/old ends")?;
    let offered = |wanted: &[&str]| {
        patience::until(&format!("{wanted:?}"), || Ok((names(&api.slices()) == wanted).then_some(())))
            .map_err(|error| error.context(driver.stderr()))
    };
    offered(&CARDS[1..])?;
    resources.take_back("ml", "old");
    offered(&CARDS)?;
    assert_eq!(driver.stderr().matches("until pod ml/old ends").count(), 1, "{}", driver.stderr());
    Ok(())
}
