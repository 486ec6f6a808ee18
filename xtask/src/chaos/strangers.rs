//! Peers that no program of ours would be: cut and lost frames, noise, and peers that ask and never read.

use std::io::{self, Read as _};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, bail};
use gpushare_proto::admin::AdminRequest;
use gpushare_proto::codec::encode;
use gpushare_proto::names::RuntimeDir;
use gpushare_proto::tenant::{GpuInfo, Hello, Role, TenantRequest};
use gpushare_proto::{Bytes, GpuId, GpuUuid, RequestId, Token, names};
use gpushare_tests::peer::{Administrator, Tenant};
use gpushare_tests::process::Process;
use gpushare_tests::world::World;

use gpushare_tests::dice::Dice;

/// Peer that keeps a connection open until the value is dropped.
#[derive(Debug)]
#[expect(dead_code, reason = "kept for the connection that ends with it")]
pub(super) enum Lingering {
    Admin(Administrator),
    Tenant(Tenant),
    Process(Process),
}

/// How long a peer waits for room to write, and for an answer.
const MOMENT: Duration = Duration::from_millis(20);
/// How many questions fill every buffer on the way.
const QUESTIONS: usize = 20_000;

/// A process of its own that stops in the middle of a message, and ends when this value does. A daemon that
/// comes back waits for every client that lives, so none may live on in this process.
pub(super) fn half_a_frame(
    world: &World,
    token: &Path,
    card: GpuUuid,
    seed: u64,
    lingers: bool,
) -> anyhow::Result<Lingering> {
    let mut command = world.program(&env::current_exe()?);
    command
        .args(["chaos", "--stranger", &format!("{seed}:{card}:{}", u8::from(lingers))])
        .env(names::TOKEN_FILE, token)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut process = Process::start(command, world.folder(), "stranger")?;
    let mut said = [0];
    // The connection has ended if the daemon refused the peer.
    let _ = process.take_stdout().context("no stdout")?.read(&mut said)?;
    Ok(Lingering::Process(process))
}

/// That process: says all but the end of its last message, a byte on stdout, and waits for its death.
pub(super) fn be_one(what: &str) -> anyhow::Result<()> {
    let [seed, card, lingers] = what.split(':').collect::<Vec<_>>()[..] else {
        bail!("`{what}` is not SEED:CARD:LINGERS");
    };
    let runtime = RuntimeDir::new(env::var_os(names::RUNTIME_DIR).context("no folder")?);
    let token = fs::read_to_string(env::var_os(names::TOKEN_FILE).context("no token")?)?;
    let token = Token::from_hex(&token).context("no token")?;
    let _open = begin_a_frame(&runtime, token, card.parse()?, seed.parse()?, lingers == "1")?;
    println!();
    // The parent never writes, so this read ends with the parent.
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// With a token the peer is a client of that session before. One that lingers does not attach to a card: it
/// would have the session's lock and never answer for it, and is then stuck by design.
fn begin_a_frame(
    runtime: &RuntimeDir,
    token: Token,
    card: GpuUuid,
    seed: u64,
    lingers: bool,
) -> anyhow::Result<Lingering> {
    let mut dice = Dice::new(seed);
    if dice.one_in(3) {
        let mut peer = if dice.one_in(2) {
            Administrator::of(runtime)?
        } else {
            Administrator::at(runtime)?
        };
        peer.write(part(&encode(&AdminRequest::Hello(Hello::new(Role::Tool)))?, &mut dice))?;
        return Ok(Lingering::Admin(peer));
    }
    let mut peer = Tenant::at(runtime)?;
    let client = TenantRequest::Hello(Hello::new(Role::Client { token: Some(token), returning: None }));
    let attach =
        TenantRequest::Attach(GpuInfo { uuid: card, name: "half a frame".to_owned(), total: Bytes::gib(1) });
    let reserve = TenantRequest::Reserve { request: RequestId(1), gpu: GpuId(0), bytes: Bytes::mib(2) };
    let messages = [client, attach, reserve];
    let whole = dice.index(if lingers { 2 } else { messages.len() });
    for message in &messages[..whole] {
        peer.say(message)?;
    }
    peer.write(part(&encode(&messages[whole])?, &mut dice))?;
    Ok(Lingering::Tenant(peer))
}

/// At least a byte, and not all.
fn part<'f>(frame: &'f [u8], dice: &mut Dice) -> &'f [u8] {
    &frame[..1 + dice.index(frame.len() - 1)]
}

/// Bytes that are no message, with or without a hello before them.
pub(super) fn noise(runtime: &RuntimeDir, seed: u64) -> anyhow::Result<()> {
    let mut dice = Dice::new(seed);
    let scale = dice.below(14);
    let length = 1 + dice.index(8 << scale);
    let mut bytes = dice.bytes(length);
    if dice.one_in(2) && bytes.len() > 4 {
        // A length that is taken, so that the rest is decoded.
        let claimed = u32::try_from(bytes.len() - 4).unwrap_or(0);
        bytes[..4].copy_from_slice(&claimed.to_le_bytes());
    }
    let introduced = dice.one_in(2);
    if dice.one_in(2) {
        let mut peer = if introduced {
            Administrator::of(runtime)?
        } else {
            Administrator::at(runtime)?
        };
        peer.set_patience(MOMENT)?;
        peer.write(&bytes)?;
        let _ = peer.hear();
    } else {
        let mut peer = if introduced { Tenant::tool(runtime)? } else { Tenant::at(runtime)? };
        peer.set_patience(MOMENT)?;
        peer.write(&bytes)?;
        let _ = peer.hear();
    }
    Ok(())
}

/// Asks until nothing more fits into the socket, and reads nothing.
pub(super) fn asks_and_never_reads(runtime: &RuntimeDir, seed: u64) -> anyhow::Result<Lingering> {
    let mut dice = Dice::new(seed);
    match dice.below(3) {
        0 => {
            let mut peer = Administrator::of(runtime)?;
            peer.set_patience(MOMENT)?;
            peer.say(&AdminRequest::Watch)?;
            Ok(Lingering::Admin(peer))
        }
        1 => {
            let mut peer = Administrator::of(runtime)?;
            peer.set_patience(MOMENT)?;
            let asked = (0..QUESTIONS).try_for_each(|_| peer.say(&AdminRequest::Status));
            drop(asked);
            Ok(Lingering::Admin(peer))
        }
        _ => {
            let mut peer = Tenant::tool(runtime)?;
            peer.set_patience(MOMENT)?;
            let asked = (0..QUESTIONS).try_for_each(|_| peer.say(&TenantRequest::SessionMemory(None)));
            drop(asked);
            Ok(Lingering::Tenant(peer))
        }
    }
}
