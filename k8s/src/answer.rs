//! Answer to the kubelet: what a container with some shares gets.

use gpushare_inject::{Edits, Injection, KIND};
use gpushare_proto::GpuUuid;

use crate::api::v1beta1::{CdiDevice, ContainerAllocateResponse, DeviceSpec, Mount};
use crate::args::Way;
use crate::share::{self, BadShare, RESOURCE};

/// Reason why a container gets nothing.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error(transparent)]
    Share(#[from] BadShare),
    #[error("the container asks for no share; set `{RESOURCE}: 1` in its limits")]
    Nothing,
    #[error(
        "the container asks for {shares} shares of card {card}, and a second share of a card gives nothing; set \
         `{RESOURCE}: 1` in its limits, or use a node with more cards"
    )]
    Twice { card: GpuUuid, shares: usize },
    #[error("card {0} is none of this node's; restart the plugin after a change of cards")]
    Unknown(GpuUuid),
}

/// Returns the answer for a container that gets the shares with these ids.
pub(crate) fn answer(
    ids: &[String],
    way: Way,
    injection: &Injection,
) -> Result<ContainerAllocateResponse, AnswerError> {
    let mut cards: Vec<GpuUuid> = Vec::new();
    let shares = share::parse(ids)?;
    for share in &shares {
        if cards.contains(&share.card) {
            let shares = shares.iter().filter(|other| other.card == share.card).count();
            return Err(AnswerError::Twice { card: share.card, shares });
        }
        cards.push(share.card);
    }
    if cards.is_empty() {
        return Err(AnswerError::Nothing);
    }
    // The same cards in another order give the same answer.
    cards.sort();
    if let Some(unknown) = cards.iter().find(|card| !injection.cards().any(|known| known == **card)) {
        return Err(AnswerError::Unknown(*unknown));
    }
    match way {
        Way::Cdi => Ok(ContainerAllocateResponse {
            cdi_devices: cards.iter().map(|card| CdiDevice { name: format!("{KIND}={card}") }).collect(),
            ..ContainerAllocateResponse::default()
        }),
        Way::Mounts | Way::NvidiaRuntime => {
            Ok(injection.of_cards(&cards).as_ref().map(by_parts).unwrap_or_default())
        }
    }
}

/// Returns edits as the parts of the kubelet's own form.
fn by_parts(edits: &Edits) -> ContainerAllocateResponse {
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let variable = |variable: &String| {
        let (name, value) = variable.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    };
    ContainerAllocateResponse {
        envs: edits.env.iter().filter_map(variable).collect(),
        mounts: edits
            .mounts
            .iter()
            .map(|mount| Mount {
                container_path: text(&mount.container_path),
                host_path: text(&mount.host_path),
                read_only: mount.is_read_only(),
            })
            .collect(),
        devices: edits
            .device_nodes
            .iter()
            .map(|node| DeviceSpec {
                container_path: text(&node.path),
                host_path: text(&node.path),
                permissions: "rw".to_owned(),
            })
            .collect(),
        ..ContainerAllocateResponse::default()
    }
}
