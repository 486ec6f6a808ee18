//! A turn on a card that takes turns and is free: from a thread that sleeps at its gate to the open gate.
//!
//! ```text
//!   each round:  Wait ─▶ Gate{open}: this is timed ─▶ Released, of its own accord ─▶ a question, so that the daemon is done with it
//! ```
//!
//! The session's process has no memory, so none has to come in. It is alone, so this measures the way to a
//! decision and back, not its wait. The echo is of the same frame, in blocks between the rounds, so that a
//! slow minute of the machine is in both. All three processes are put on one processor (`cores.rs`).

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use gpushare_proto::tenant::{TenantReply, TenantRequest};
use gpushare_proto::{Bytes, GateState, Nanos};
use serde_json::{Value, json};

use crate::cores::put_together;
use crate::echo::Echo;
use crate::figures::microseconds;
use crate::peer::{Client, Registrar};

const BLOCKS: usize = 20;
/// Of each, in a block.
const TIMES: usize = 1000;

pub(crate) fn measure(socket: &Path, daemon: u32) -> anyhow::Result<Value> {
    put_together(daemon)?;
    // Its session ends with the registrar's connection.
    let mut registrar = Registrar::connect(socket)?;
    let token = registrar.register("grant", Bytes::gib(1))?;
    let mut client = Client::join(socket, &token)?;
    let folder = socket.parent().context("the socket is in no folder")?;
    let word = client.gate();
    let mut echo = Echo::start(folder, &TenantRequest::Wait { word })?;
    let (mut grants, mut echoes) = (Vec::new(), Vec::new());
    echo.measure(TIMES)?;
    for _ in 0..TIMES {
        turn(&mut client)?;
    }
    for _ in 0..BLOCKS {
        echoes.extend(echo.measure(TIMES)?);
        for _ in 0..TIMES {
            grants.push(turn(&mut client)?);
        }
    }
    let pairs = echoes.chunks_exact(2).map(|pair| pair.iter().sum()).collect();
    Ok(json!({
        "two_echoes_p99_us": microseconds(pairs, 99)?,
        "echo_p50_us": microseconds(echoes, 50)?,
        "grant_p50_us": microseconds(grants.clone(), 50)?,
        "grant_p99_us": microseconds(grants, 99)?,
    }))
}

/// One turn; how long it took to come.
fn turn(client: &mut Client) -> anyhow::Result<Duration> {
    let word = client.gate();
    ensure!(word.state() == GateState::Closed, "the gate is open before the turn");
    let begun = Instant::now();
    client.peer.say(&TenantRequest::Wait { word })?;
    let granted = client.peer.wait_for(|reply| match reply {
        TenantReply::Gate { word, .. } => Some(word),
        _ => None,
    })?;
    let took = begun.elapsed();
    ensure!(granted.state() == GateState::Open, "the turn came with {granted:?}");
    let word = client.set_gate(GateState::Closed);
    let released = TenantRequest::Released { word, drain: Nanos::ZERO };
    client.peer.say_both(&released, &TenantRequest::Gpus)?;
    client
        .peer
        .wait_for(|reply| matches!(reply, TenantReply::Gpus(_)).then_some(()))?;
    Ok(took)
}
