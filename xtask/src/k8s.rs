//! Kubernetes: the chart with its manifests, the image of the nodes, and a node with a real kubelet.

pub(crate) mod chart;
mod image;
pub(crate) mod node;
