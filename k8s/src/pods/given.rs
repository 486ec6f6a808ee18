//! Cards of the node's pods, by shares of the device plugin or by claims.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use gpushare_proto::GpuUuid;

use super::plan::Pod;
use crate::dra::{PodClaims, Prepared};
use crate::pod_resources::{PodResourcesError, PodResourcesList, Shares};

/// Cards of pods with shares, by UID of the pod.
type Known = BTreeMap<String, Vec<GpuUuid>>;

/// Place that knows which cards pods have.
#[derive(Debug)]
pub(crate) enum Source {
    /// The kubelet, for shares of the device plugin, with what it listed so far.
    Kubelet { list: Box<PodResourcesList>, known: Known },
    /// This node's driver, for claims.
    Claims(Arc<Prepared>),
}

impl Source {
    /// Returns the kubelet that listens at a socket.
    pub(crate) fn kubelet(socket: &Path) -> Self {
        Self::Kubelet { list: Box::new(PodResourcesList::new(socket)), known: Known::new() }
    }

    /// Returns the cards of each of these pods.
    pub(super) async fn given(&mut self, pods: &[Pod]) -> Result<Given, PodResourcesError> {
        Ok(match self {
            Self::Kubelet { list, known } => {
                note(known, pods, &list.shares().await?);
                Given::Shares(known.clone())
            }
            Self::Claims(prepared) => Given::Claims(prepared.by_pod()),
        })
    }
}

/// Notes the kubelet's list. A pod that is not in it keeps its cards as long as the cluster has the pod: the
/// shares of a container never change, and a kubelet that has just started lists none.
fn note(known: &mut Known, pods: &[Pod], listed: &Shares) {
    known.retain(|uid, _| pods.iter().any(|pod| pod.uid == *uid));
    for pod in pods {
        if let Some(cards) = listed.get(&(pod.namespace.clone(), pod.name.clone())) {
            known.insert(pod.uid.clone(), cards.clone());
        }
    }
}

/// Cards that pods have, by UID of the pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Given {
    /// Shares of the device plugin.
    Shares(Known),
    /// Claims. Those of a pod that has ended are gone.
    Claims(BTreeMap<String, PodClaims>),
}

impl Default for Given {
    fn default() -> Self {
        Self::Shares(Known::new())
    }
}

impl Given {
    /// Returns the cards of a pod; none if it has none.
    pub(super) fn cards(&self, pod: &Pod) -> Option<Vec<GpuUuid>> {
        match self {
            Self::Shares(shares) => shares.get(&pod.uid).cloned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_the_kubelet_leaves_out_keeps_its_cards_while_it_exists() {
        let pod = |uid: &str| Pod {
            uid: uid.to_owned(),
            namespace: "ml".to_owned(),
            name: "train".to_owned(),
            annotations: BTreeMap::new(),
        };
        let cards = vec![GpuUuid::gpu([1; 16])];
        let listed = Shares::from([(("ml".to_owned(), "train".to_owned()), cards.clone())]);
        let mut known = Known::new();
        note(&mut known, &[pod("u1")], &listed);
        let first = Known::from([("u1".to_owned(), cards)]);
        assert_eq!(known, first);
        note(&mut known, &[pod("u1")], &Shares::new());
        assert_eq!(known, first);
        note(&mut known, &[pod("u2")], &Shares::new());
        assert_eq!(known, Known::new(), "another pod of the same name");
    }
}
