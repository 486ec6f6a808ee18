//! Arguments of `cdi`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Let Docker and Podman give containers a share of the cards
///
/// `generate` writes a spec of the Container Device Interface (CDI). A container then gets the library, the
/// daemon's socket and the cards by `--device gpushare.dev/share=default`, or one card by its UUID.
#[derive(Debug, Subcommand)]
#[command(
    arg_required_else_help = false,
    after_long_help = "\
Examples:
  gpushare-ctl cdi generate
  gpushare-ctl cdi generate --output ~/.config/cdi --json
  gpushare-ctl cdi list
  gpushare-ctl cdi remove

Then: docker run --rm --device gpushare.dev/share=default IMAGE nvidia-smi

docs/containers.md has Docker, Podman and Compose. Run `generate` again after a change of cards or driver."
)]
pub(crate) enum CdiCommand {
    /// Write the spec for the cards of this machine and the daemon that runs
    Generate(GenerateArgs),
    /// List the devices of specs that `generate` wrote
    List {
        #[command(flatten)]
        place: CdiPlace,
        /// Print a JSON array in place of a table
        #[arg(long)]
        json: bool,
    },
    /// Remove a spec that `generate` wrote
    Remove {
        /// Folder of the spec
        #[arg(long, value_name = "DIR", default_value = "/etc/cdi")]
        output: PathBuf,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

/// Arguments of `cdi generate`.
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// Folder in which the container runtime looks for specs
    #[arg(long, value_name = "DIR", default_value = "/etc/cdi")]
    pub(crate) output: PathBuf,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) place: Root,
}

/// Place of specs.
#[derive(Debug, Args)]
pub(crate) struct CdiPlace {
    /// Folder of specs, in place of /etc/cdi and /run/cdi
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) place: Root,
}

/// Root of the machine's files.
#[derive(Debug, Args)]
pub(crate) struct Root {
    /// Read files below this folder in place of those of the machine
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    pub(crate) root: PathBuf,
}
