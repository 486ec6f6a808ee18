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

use crate::args::{Cli, Command, PluginArgs};
use crate::notes::Notes;
use crate::pods::{Agent, Sources};
use crate::registration::Registration;
use crate::service::Plugin;
use crate::supply::{Supply, SupplyError};
use crate::watch::Watch;

/// Reason why the program ends.
#[derive(Debug, thiserror::Error)]
enum ProgramError {
    #[error(transparent)]
    Cards(#[from] CardsError),
    #[error(transparent)]
    Supply(#[from] SupplyError),
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
    let nvml = gpushare_nvml::load().map_err(CardsError::Nvml)?;
    let cards = gpushare_inject::cards(&nvml)?;
    let supply = Supply::new(args, cards)?;
    let watch = Watch::start(nvml, &supply.cards(), Duration::from_secs(args.xid_quiet))?;
    info!("offering {} shares of each of {} cards", args.shares, supply.cards().len());
    let plugin = Plugin {
        supply: Arc::new(supply),
        watch,
        way: args.inject,
        shares: args.shares,
        daemon: RuntimeDir::new(&args.runtime_dir),
        notes: Arc::new(Notes::default()),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let result = runtime.block_on(serve(plugin, args));
    // A question to a daemon that hangs must not delay the end.
    runtime.shutdown_background();
    result
}

async fn serve(plugin: Plugin, args: &PluginArgs) -> Result<(), ProgramError> {
    let mut end = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let sources = args.node.as_ref().map(|node| Sources {
        node: node.clone(),
        pod_resources: args.pod_resources.clone(),
        maxima: args.maxima.clone(),
        daemon: plugin.daemon.clone(),
    });
    let mut registration = Registration::new(plugin, &args.plugins_dir);
    tokio::select! {
        () = registration.run() => {}
        () = limits(sources) => {}
        _ = end.recv() => info!("ending, as asked by SIGTERM"),
        _ = interrupt.recv() => info!("ending, as asked by SIGINT"),
    }
    Ok(())
}

/// Keeps the limits of the node's pods for ever; without sources it only waits.
async fn limits(sources: Option<Sources>) {
    match sources {
        Some(sources) => Agent::new(&sources).run().await,
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
