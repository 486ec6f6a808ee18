//! Health of the shares, from NVML.

use gpushare_k8s::api::v1beta1::Device;

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
