//! Attacks with connections and messages: all on the last core, of another user than the daemon's.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use gpushare_proto::admin::AdminRequest;
use gpushare_proto::codec;
use gpushare_proto::names::RuntimeDir;
use gpushare_proto::tenant::{Hello, Role, TenantReply, TenantRequest};

use super::rights;
use crate::peer::Peer;

/// Number of connections that one user may have, less the two of its honest session.
const CONNECTIONS: usize = 254;
/// Number of questions that a connection asks before it hears an answer.
const AHEAD: usize = 8;
/// Number of connections that ask and never read.
const STALLED: usize = 32;
/// Number of tools that watch.
const WATCHERS: usize = 4;
/// Pause after a connection that failed, so that an attack which is held off does not spin.
const PAUSE: Duration = Duration::from_millis(1);

/// Attack with connections and messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Attack {
    /// As many connections as a user may have, which ask as fast as they can.
    Questions,
    /// Four watchers and a scraper. Watching is an administrator's, so these are the daemon's own user.
    Watchers,
    /// Connections that come and go as fast as they can.
    Flood,
    /// Bytes that are no message.
    Garbage,
    /// Connections that ask and read no answer.
    Stalled,
}

/// Attacks until it is killed.
pub(crate) fn attack(attack: Attack, dir: &RuntimeDir, metrics: SocketAddr) -> anyhow::Result<()> {
    rights::go_to_last_core()?;
    if attack != Attack::Watchers {
        rights::become_another_user()?;
    }
    let socket = dir.tenant_socket();
    match attack {
        Attack::Questions => ask(&socket),
        Attack::Watchers => watch(dir, metrics),
        Attack::Flood => flood(&socket),
        Attack::Garbage => send_garbage(&socket),
        Attack::Stalled => stall(&socket),
    }
}

fn ask(socket: &Path) -> anyhow::Result<()> {
    let connect = || Ok(Peer::greet(socket, Role::Tool)?.0);
    let mut peers = (0..CONNECTIONS).map(|_| connect()).collect::<anyhow::Result<Vec<_>>>()?;
    println!("ready");
    loop {
        for peer in &mut peers {
            if ask_ahead(peer).is_err()
                && let Ok(again) = connect()
            {
                *peer = again;
                let _ = ask_ahead(peer);
            }
        }
        for peer in &mut peers {
            let heard = (0..AHEAD).try_for_each(|_| peer.hear::<TenantReply>().map(drop));
            // The daemon hung up.
            if heard.is_err()
                && let Ok(again) = connect()
            {
                *peer = again;
            }
        }
    }
}

fn ask_ahead(peer: &mut Peer) -> anyhow::Result<()> {
    let questions = [TenantRequest::Gpus, TenantRequest::OwnSession];
    questions.iter().cycle().take(AHEAD).try_for_each(|question| peer.say(question))
}

fn watch(dir: &RuntimeDir, metrics: SocketAddr) -> anyhow::Result<()> {
    for _ in 0..WATCHERS {
        let mut peer = Peer::connect(&dir.admin_socket())?;
        peer.say(&AdminRequest::Hello(Hello::new(Role::Tool)))?;
        peer.say(&AdminRequest::Watch)?;
        thread::spawn(move || {
            while peer.read().is_ok() {
                peer.forget();
            }
        });
    }
    scrape(metrics).context("no metrics")?;
    println!("ready");
    loop {
        if scrape(metrics).is_err() {
            thread::sleep(PAUSE);
        }
    }
}

fn scrape(metrics: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(metrics)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
    io::copy(&mut stream, &mut io::sink()).map(drop)
}

fn flood(socket: &Path) -> anyhow::Result<()> {
    let hello = codec::encode(&TenantRequest::Hello(Hello::new(Role::Tool)))?;
    println!("ready");
    loop {
        let sent = UnixStream::connect(socket).and_then(|mut stream| stream.write_all(&hello));
        if sent.is_err() {
            thread::sleep(PAUSE);
        }
    }
}

/// Sends frames of random bytes: in place of the first message, and after it.
fn send_garbage(socket: &Path) -> anyhow::Result<()> {
    let hello = codec::encode(&TenantRequest::Hello(Hello::new(Role::Tool)))?;
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    println!("ready");
    for after in [false, true].into_iter().cycle() {
        let mut frame = if after { hello.clone() } else { Vec::new() };
        frame.extend(1024_u32.to_le_bytes());
        for _ in 0..128 {
            // A xorshift generator.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            frame.extend(state.to_le_bytes());
        }
        let sent = UnixStream::connect(socket).and_then(|mut stream| stream.write_all(&frame));
        if sent.is_err() {
            thread::sleep(PAUSE);
        }
    }
    Ok(())
}

fn stall(socket: &Path) -> anyhow::Result<()> {
    let mut frames = Vec::new();
    for _ in 0..64 {
        frames.extend(codec::encode(&TenantRequest::Gpus)?);
    }
    let connect = || -> anyhow::Result<UnixStream> {
        let mut stream = UnixStream::connect(socket)?;
        stream.write_all(&codec::encode(&TenantRequest::Hello(Hello::new(Role::Tool)))?)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    };
    let connections = (0..STALLED).map(|_| Ok((connect()?, 0)));
    let mut connections = connections.collect::<anyhow::Result<Vec<_>>>()?;
    println!("ready");
    loop {
        for (stream, sent) in &mut connections {
            match stream.write(&frames[*sent..]) {
                Ok(more) => *sent = (*sent + more) % frames.len(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The daemon hung up.
                Err(_) => {
                    if let Ok(again) = connect() {
                        (*stream, *sent) = (again, 0);
                    }
                }
            }
        }
        thread::sleep(PAUSE);
    }
}
