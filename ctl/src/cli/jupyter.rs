//! Arguments of `jupyter`.

use clap::{Args, Subcommand};
use gpushare_proto::Backend;
use gpushare_proto::tenant::GpuChoice;

use super::TermsArgs;

/// Install Jupyter kernels that share their GPUs
///
/// `install` copies a kernel's specification and lets the copy start through `gpushare-ctl run`. Each
/// notebook with such a kernel has a session of its own, which is frozen after ten idle minutes unless --freeze-after
/// says otherwise. Kernels are found as Jupyter finds them; Python need not run.
#[derive(Debug, Subcommand)]
#[command(
    arg_required_else_help = false,
    after_long_help = "\
Examples:
  gpushare-ctl jupyter install
  gpushare-ctl jupyter install --memory 20GiB
  gpushare-ctl jupyter install --kernel ir --name r-shared --weight 50 --sys-prefix
  gpushare-ctl jupyter install --memory 10GiB --replace
  gpushare-ctl jupyter install --freeze-after off
  gpushare-ctl jupyter list
  gpushare-ctl jupyter remove python3-gpushare

Jupyter's folders: JUPYTER_PATH, JUPYTER_DATA_DIR or ~/.local/share/jupyter, share/jupyter of the active Python \
environment, /usr/local/share/jupyter, /usr/share/jupyter."
)]
pub(crate) enum JupyterCommand {
    /// Install a copy of a kernel that shares its GPUs
    Install(Box<InstallArgs>),
    /// List the kernels that `install` made
    List {
        /// Print a JSON array in place of a table
        #[arg(long)]
        json: bool,
    },
    /// Remove a kernel that `install` made
    Remove {
        /// Name of the kernel, as in `list`
        kernel: String,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

/// Arguments of `jupyter install`.
#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    /// Kernel to copy, as in `jupyter kernelspec list`
    #[arg(long, value_name = "KERNEL", default_value = "python3")]
    pub(crate) kernel: String,
    /// Name of the new kernel, and of the sessions of its notebooks: small letters, digits, `-`, `_` and
    /// `.` [default: KERNEL-gpushare]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Name of the new kernel in Jupyter's menus [default: that of the copied kernel, with `shared GPU` and
    /// the memory]
    #[arg(long, value_name = "TEXT")]
    pub(crate) display_name: Option<String>,
    #[command(flatten)]
    pub(crate) terms: TermsArgs,
    /// Let all notebooks join this session, as `run --session` does
    #[arg(long, value_name = "NAME-OR-FILE", conflicts_with_all = ["memory", "compute", "weight", "priority", "ttl", "freeze_after", "labels", "oversubscribe"])]
    pub(crate) session: Option<String>,
    /// Card of the notebooks, as for `run --gpu`
    #[arg(long, value_name = "GPU")]
    pub(crate) gpu: Option<GpuChoice>,
    /// Allow each notebook more memory than the card's capacity
    #[arg(long)]
    pub(crate) oversubscribe: bool,
    /// Kind of the notebooks' memory, as for `run --backend`
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<Backend>,
    /// Install for this user, which is the default
    #[arg(long)]
    pub(crate) user: bool,
    /// Install into the active Python environment (VIRTUAL_ENV, CONDA_PREFIX, or that of python3 in PATH)
    #[arg(long, conflicts_with = "user")]
    pub(crate) sys_prefix: bool,
    /// Replace a kernel of this name that `install` made before
    #[arg(long)]
    pub(crate) replace: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}
