//! Program `gpushare-kubelet`: measures a device plugin, for `cargo xtask bench allocate`.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, ensure};
use clap::Parser;
use gpushare_k8s::api::v1beta1::Empty;
use gpushare_kubelet::{Kubelet, allocate};
use serde::Serialize;

/// Measures the calls of a device plugin that registers in a folder, and prints a line of JSON.
#[derive(Debug, Parser)]
struct Args {
    /// Folder of the kubelet's socket
    #[arg(long)]
    plugins_dir: PathBuf,
    /// Number of calls of Allocate
    #[arg(long, default_value = "2000")]
    calls: usize,
}

#[derive(Debug, Serialize)]
struct Measured {
    shares: usize,
    calls: usize,
    allocate_p50_us: f64,
    allocate_p99_us: f64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut kubelet = Kubelet::start(&args.plugins_dir)?;
    let request = kubelet.registered().await?;
    let mut plugin = kubelet.connect(&request.endpoint).await?;
    let mut lists = plugin.list_and_watch(Empty {}).await?.into_inner();
    let list = lists.message().await?.context("the plugin lists nothing")?;
    let ids: Vec<&str> = list.devices.iter().map(|device| device.id.as_str()).collect();
    ensure!(!ids.is_empty() && args.calls > 0, "there is nothing to allocate");
    let mut times = Vec::with_capacity(args.calls);
    for call in 0..args.calls {
        let id = ids[call % ids.len()];
        let start = Instant::now();
        allocate(&mut plugin, &[id]).await?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    let percentile = |percent: usize| times[(times.len() - 1) * percent / 100];
    let measured = Measured {
        shares: ids.len(),
        calls: args.calls,
        allocate_p50_us: percentile(50),
        allocate_p99_us: percentile(99),
    };
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}
