//! Cards of the node's pods, by shares of the device plugin or by claims.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpushare_proto::GpuUuid;

use super::plan::Pod;
use crate::dra::{PodClaims, Prepared};
use crate::pod_resources::{PodResourcesError, PodResourcesList, Shares};

/// Place that knows which cards pods have.
#[derive(Debug)]
pub(crate) enum Source {
    /// The kubelet, for shares of the device plugin.
    Kubelet(PodResourcesList),
    /// This node's driver, for claims.
    Claims(Arc<Prepared>),
}

impl Source {
    /// Returns the cards of each pod.
    pub(super) async fn given(&mut self) -> Result<Given, PodResourcesError> {
        Ok(match self {
            Self::Kubelet(list) => Given::Shares(list.shares().await?),
            Self::Claims(prepared) => Given::Claims(prepared.by_pod()),
        })
    }
}

/// Cards that pods have.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Given {
    /// By namespace and name of the pod. The kubelet may forget the shares of a pod that has ended.
    Shares(Shares),
    /// By UID of the pod. The claims of a pod that has ended are gone.
    Claims(BTreeMap<String, PodClaims>),
}

impl Default for Given {
    fn default() -> Self {
        Self::Shares(Shares::new())
    }
}

impl Given {
    /// Returns the cards of a pod; none if it has none.
    pub(super) fn cards(&self, pod: &Pod) -> Option<Vec<GpuUuid>> {
        match self {
            Self::Shares(shares) => shares.get(&(pod.namespace.clone(), pod.name.clone())).cloned(),
            Self::Claims(_) => Some(self.claims(pod)?.memory.keys().copied().collect()),
        }
    }

    /// Returns what the claims of a pod ask for; none if it has no claims.
    pub(super) fn claims(&self, pod: &Pod) -> Option<&PodClaims> {
        match self {
            Self::Shares(_) => None,
            Self::Claims(claims) => claims.get(&pod.uid),
        }
    }

    /// Returns whether a session without cards follows its pod's annotations. A pod whose claims are gone has
    /// ended, and its session stays as it was.
    pub(super) fn follows_without_cards(&self) -> bool {
        matches!(self, Self::Shares(_))
    }
}
