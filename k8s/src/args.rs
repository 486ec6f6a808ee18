//! Command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use gpushare_proto::names::SYSTEM_RUNTIME_DIR;

/// Shares of a node's cards for Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "gpushare-k8s", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    DevicePlugin(PluginArgs),
}

/// Offer shares of this node's cards to pods, as the resource gpushare.dev/gpu or to claims of DRA
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Environment: GPUSHARE_LOG (a filter like `debug`), NODE_NAME, KUBECONFIG. Ends by SIGTERM."
)]
pub(crate) struct PluginArgs {
    /// Interface by which pods get shares; one of them for all cards of the node
    #[arg(long, value_name = "INTERFACE", default_value = "device-plugin")]
    pub(crate) offer: Interface,
    /// Number of shares of each card; so many containers can have the card at the same time
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) shares: u16,
    /// Seconds without another Xid after which a card is healthy again
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub(crate) xid_quiet: u64,
    /// Way in which a container gets its share and its card
    #[arg(long, value_name = "WAY", default_value = "cdi")]
    pub(crate) inject: Way,
    /// Kubelet's folder for device plugins
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/device-plugins")]
    pub(crate) plugins_dir: PathBuf,
    /// Folder in which the container runtime looks for CDI specs
    #[arg(long, value_name = "DIR", default_value = "/run/cdi")]
    pub(crate) cdi_dir: PathBuf,
    /// Folder for the files that containers mount; the same path on the host and here
    #[arg(long, value_name = "DIR", default_value = "/var/lib/gpushare/share")]
    pub(crate) files: PathBuf,
    /// Runtime folder of the node's daemon; the same path on the host and here
    #[arg(long, value_name = "DIR", default_value = SYSTEM_RUNTIME_DIR)]
    pub(crate) runtime_dir: PathBuf,
    /// Folder in which this process sees the root of the host
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) host_root: PathBuf,
    /// Name of this node in the cluster. With it, pods have the limits that their annotations ask for
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub(crate) node: Option<String>,
    /// Socket at which the kubelet lists the devices of pods
    #[arg(long, value_name = "FILE", default_value = "/var/lib/kubelet/pod-resources/kubelet.sock")]
    pub(crate) pod_resources: PathBuf,
    /// File with the most that pods of each namespace may ask for; none is needed
    #[arg(long, value_name = "FILE", default_value = "/etc/gpushare/pods.toml")]
    pub(crate) maxima: PathBuf,
    /// With DRA: memory of each card that all claims may ask for together, in percent of the card
    #[arg(long, value_name = "PERCENT", default_value = "100", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) claim_memory: u16,
    /// With DRA: kubelet's folder for registrations of drivers
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/plugins_registry")]
    pub(crate) registry_dir: PathBuf,
    /// With DRA: folder of the driver's socket and of its prepared claims; the same path on the host and here
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/plugins/gpushare.dev")]
    pub(crate) driver_dir: PathBuf,
    /// Library to copy to the host [default: the one that is installed with this program]
    #[arg(long, value_name = "FILE")]
    pub(crate) library: Option<PathBuf>,
    /// Command line to copy to the host [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    pub(crate) ctl: Option<PathBuf>,
}

/// Way in which a container gets its share and its card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// By the name of a CDI device; containerd 1.7 or CRI-O 1.23, and Kubernetes 1.29, or newer
    Cdi,
    /// By mounts and device nodes, which any runtime knows
    Mounts,
    /// By mounts, and the card by NVIDIA's runtime (a runtime class of the pod)
    NvidiaRuntime,
}

/// Interface by which pods get shares of this node's cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Interface {
    /// The resource gpushare.dev/gpu
    DevicePlugin,
    /// Claims of the driver gpushare.dev (dynamic resource allocation); Kubernetes 1.32 or newer, and --inject cdi
    Dra,
}
