//! Program: starts the log, collects the parts of the plugin, and serves until SIGTERM.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{CommandFactory as _, Parser as _};
use gpushare_inject::CardsError;
use gpushare_proto::names::{LOG, RuntimeDir};
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;
use tracing_subscriber::EnvFilter;

use crate::args::{Cli, Command, Interface, PluginArgs, Way};
use crate::dra::{Driver, Offer, OfferedCard, Prepared, PreparedError, Setup};
use crate::notes::Notes;
use crate::offer::{self, OfferError};
use crate::pods::{Agent, Source, Sources};
use crate::registration::Registration;
use crate::service::Plugin;
use crate::supply::{Supply, SupplyError};
use crate::upkeep::upkeep;
use crate::watch::Watch;

/// File of the prepared claims, in the driver's folder.
const CLAIMS: &str = "claims.json";

/// Reason why the program ends.
#[derive(Debug, thiserror::Error)]
enum ProgramError {
    #[error(transparent)]
    Cards(#[from] CardsError),
    #[error(transparent)]
    Supply(#[from] SupplyError),
    #[error(transparent)]
    Prepared(#[from] PreparedError),
    #[error(transparent)]
    Offer(#[from] OfferError),
    #[error("claims are prepared by CDI only; leave out --inject, or set it to `cdi`")]
    NotByCdi,
    #[error("--offer dra needs the name of this node in the cluster; set --node or NODE_NAME")]
    NoNode,
    #[error("cannot start: {0}; see the limits of processes and threads")]
    Start(#[from] io::Error),
}

/// Runs the program and returns its exit code.
pub fn main() -> ExitCode {
    let Cli { command: Command::DevicePlugin(args) } = Cli::parse();
    let filter = EnvFilter::try_from_env(LOG).unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_writer(io::stderr)
        .init();
    match plugin(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            let _ = writeln!(io::stderr(), "gpushare-k8s: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the definition of the command line, which tests compare with docs/kubernetes.md and the manifests.
pub fn command() -> clap::Command {
    Cli::command()
}

fn plugin(args: &PluginArgs) -> Result<(), ProgramError> {
    if args.offer == Interface::Dra && args.inject != Way::Cdi {
        return Err(ProgramError::NotByCdi);
    }
    let prepared = Arc::new(Prepared::read(&args.driver_dir.join(CLAIMS))?);
    let _right = offer::take(args.offer, &args.files, &prepared)?;
    let (nvml, cards) = gpushare_inject::load()?;
    let supply = Arc::new(Supply::new(args, cards)?);
    let offered = OfferedCard::all(&nvml, &supply.cards());
    let watch = Watch::start(nvml, &supply.cards(), Duration::from_secs(args.xid_quiet))?;
    let parts = Parts { supply, offered, watch, prepared, notes: Arc::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let result = runtime.block_on(serve(parts, args));
    // A question to a daemon that hangs must not delay the end.
    runtime.shutdown_background();
    result
}

/// Parts of which both interfaces are made.
struct Parts {
    supply: Arc<Supply>,
    offered: Vec<OfferedCard>,
    watch: Watch,
    prepared: Arc<Prepared>,
    notes: Arc<Notes>,
}

async fn serve(parts: Parts, args: &PluginArgs) -> Result<(), ProgramError> {
    let mut end = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let cards = match args.offer {
        Interface::DevicePlugin => Source::kubelet(&args.pod_resources),
        Interface::Dra => Source::Claims(Arc::clone(&parts.prepared)),
    };
    let sources = args.node.as_ref().map(|node| Sources {
        node: node.clone(),
        cards,
        maxima: args.maxima.clone(),
        daemon: RuntimeDir::new(&args.runtime_dir),
    });
    let upkeep = upkeep(Arc::clone(&parts.supply), parts.watch.clone(), Arc::clone(&parts.notes));
    tokio::select! {
        ended = offered(parts, args) => ended?,
        () = upkeep => {}
        () = limits(sources) => {}
        _ = end.recv() => info!("ending, as asked by SIGTERM"),
        _ = interrupt.recv() => info!("ending, as asked by SIGINT"),
    }
    Ok(())
}

/// Offers the cards for ever, by the interface of the switch.
async fn offered(parts: Parts, args: &PluginArgs) -> Result<(), ProgramError> {
    let Parts { supply, offered, watch, prepared, notes } = parts;
    let count = supply.cards().len();
    match args.offer {
        Interface::DevicePlugin => {
            info!("offering {} shares of each of {count} cards", args.shares);
            let daemon = RuntimeDir::new(&args.runtime_dir);
            let plugin = Plugin { supply, watch, way: args.inject, shares: args.shares, daemon, notes };
            Registration::new(plugin, &args.plugins_dir).run().await;
        }
        Interface::Dra => {
            let node = args.node.clone().ok_or(ProgramError::NoNode)?;
            info!("offering {} shares of each of {count} cards to claims", args.shares);
            let setup = Setup {
                node,
                cards: offered,
                offer: Offer { shares: args.shares, memory: args.claim_memory },
                supply,
                causes: watch.causes(),
                registry: &args.registry_dir,
                folder: &args.driver_dir,
                prepared,
                pod_resources: &args.pod_resources,
            };
            Driver::new(setup).run().await;
        }
    }
    Ok(())
}

/// Keeps the limits of the node's pods for ever; without sources it only waits.
async fn limits(sources: Option<Sources>) {
    match sources {
        Some(sources) => Agent::new(sources).run().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PAGE: &str = include_str!("../../docs/kubernetes.md");

    #[test]
    fn the_page_has_every_flag_with_its_default() {
        let mut all = command();
        all.build();
        let plugin = all.find_subcommand("device-plugin").expect("the command exists");
        let defaults = |arg: &clap::Arg| {
            arg.get_default_values()
                .iter()
                .map(|value| format!("`{}`", value.display()))
                .collect::<String>()
        };
        let own = plugin.get_arguments().filter_map(|arg| Some((arg.get_long()?, defaults(arg))));
        let flags: BTreeSet<String> = own
            .filter(|(name, _)| *name != "help")
            .map(|(name, default)| format!("| `--{name}` | {default}").trim_end().to_owned())
            .collect();
        let page: BTreeSet<String> = PAGE
            .lines()
            .skip_while(|line| !line.starts_with("| flag |"))
            .take_while(|line| line.starts_with('|'))
            .filter(|line| line.starts_with("| `--"))
            .map(|line| line.splitn(4, '|').take(3).collect::<Vec<_>>().join("|").trim_end().to_owned())
            .collect();
        assert_eq!(flags, page);
    }
}
