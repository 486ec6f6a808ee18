//! Health of the shares, from NVML.

use gpushare_k8s::api::v1beta1::Device;
use gpushare_tests::patience;

use crate::node::{Node, next, watch};

/// Health of the shares of each of two cards.
fn health(devices: &[Device]) -> Vec<&str> {
    devices.iter().map(|device| device.health.as_str()).collect()
}

#[tokio::test]
async fn a_lost_card_is_unhealthy_until_it_answers_again() -> anyhow::Result<()> {
    let node = Node::new()?;
    let mut kubelet = node.kubelet()?;
    let process = node.plugin(&["--shares", "2"])?;
    let request = kubelet.registered().await?;
    let mut plugin = kubelet.connect(&request.endpoint).await?;
    let (devices, mut lists) = watch(&mut plugin).await?;
    assert_eq!(health(&devices), ["Healthy"; 4]);
    let card = node.world.card().expect("the world has a card");
    for _ in 0..2 {
        card.fall_off()?;
        assert_eq!(health(&next(&mut lists).await?), ["Unhealthy", "Unhealthy", "Healthy", "Healthy"]);
        card.reset()?;
        assert_eq!(health(&next(&mut lists).await?), ["Healthy"; 4]);
    }
    let said = process.stderr();
    assert_eq!(said.matches("takes no new pods: NVML cannot read it").count(), 2, "{said}");
    assert_eq!(said.matches("is healthy again").count(), 2, "{said}");
    Ok(())
}

#[tokio::test]
async fn an_xid_that_is_no_programs_fault_makes_a_card_unhealthy_for_a_while() -> anyhow::Result<()> {
    let node = Node::new()?;
    let mut kubelet = node.kubelet()?;
    let process = node.plugin(&["--shares", "1", "--xid-quiet", "2"])?;
    let request = kubelet.registered().await?;
    let mut plugin = kubelet.connect(&request.endpoint).await?;
    let (devices, mut lists) = watch(&mut plugin).await?;
    assert_eq!(health(&devices), ["Healthy"; 2]);
    let card = node.world.card().expect("the world has a card");
    // The first is a program's page fault.
    for (own, severe) in [(31, 48), (13, 95)] {
        // Again, as the plugin may not have listened to the first one.
        patience::until("the Xid in the log", || {
            card.xid(own)?;
            Ok(process.stderr().contains(&format!("reports Xid {own}")).then_some(()))
        })?;
        card.xid(severe)?;
        assert_eq!(health(&next(&mut lists).await?), ["Unhealthy", "Healthy"]);
        let said = process.stderr();
        assert!(said.contains(&format!("it reported Xid {severe}; healthy again after 2 s")), "{said}");
        assert!(!said.contains(&format!("it reported Xid {own}")), "{said}");
        assert_eq!(health(&next(&mut lists).await?), ["Healthy"; 2]);
    }
    Ok(())
}

/// NVML's set of events fails when one of its cards falls off.
#[tokio::test]
async fn xids_are_heard_again_after_a_card_fell_off() -> anyhow::Result<()> {
    let node = Node::new()?;
    let mut kubelet = node.kubelet()?;
    let process = node.plugin(&["--shares", "1", "--xid-quiet", "2"])?;
    let request = kubelet.registered().await?;
    let mut plugin = kubelet.connect(&request.endpoint).await?;
    let (_, mut lists) = watch(&mut plugin).await?;
    let card = node.world.card().expect("the world has a card");
    card.fall_off()?;
    assert_eq!(health(&next(&mut lists).await?), ["Unhealthy", "Healthy"]);
    card.reset()?;
    assert_eq!(health(&next(&mut lists).await?), ["Healthy"; 2]);
    patience::until("the Xid in the log", || {
        card.xid(79)?;
        Ok(process.stderr().contains("it reported Xid 79").then_some(()))
    })?;
    assert_eq!(health(&next(&mut lists).await?), ["Unhealthy", "Healthy"]);
    Ok(())
}
