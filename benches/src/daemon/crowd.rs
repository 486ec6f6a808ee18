//! A thousand clients of 500 sessions on one card that has room for one session at a time. All of them want
//! it always.
//!
//! ```text
//!   a turn:  Gate ─▶ both clients of the session: memory is in, the quota's rest and back ─▶ 5 ms are over
//!            ─▶ both let go ─▶ the next session's Gate: this is timed ─▶ both wait again, at the end of the queue
//! ```
//!
//! A grant's time is from the last word of those who let go to the last client of the next session that has
//! heard. One thread hears for all clients, as each library's link does for its own, and notes when.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, ensure};
use gpushare_proto::tenant::{TenantReply, TenantRequest};
use gpushare_proto::{Bytes, GateState, GateWord, Nanos};
use rustix::event::epoll;
use serde_json::{Value, json};

use crate::figures::microseconds;
use crate::peer::{Client, Member, Peer, Registrar};

const SESSIONS: usize = 500;
/// Clients of one session.
const EACH: usize = 2;
/// Memory of a client; the clients of two sessions do not fit a capacity of 64 MiB.
const MEMORY: Bytes = Bytes::mib(24);
const QUOTA: Bytes = Bytes::mib(56);
/// Rest of the quota beside the clients' memory. Each client takes it in its turn and leaves it unused, so the
/// daemon must take it back from that client's page for the next one.
const REST: Bytes = Bytes::mib(8);
const TURN: Duration = Duration::from_millis(5);
const TURNS: usize = 2000;
/// Longer than any grant takes; only a bench that fails waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Message that a client heard.
struct Heard {
    client: usize,
    at: Instant,
    what: What,
}

enum What {
    /// Its gate passes, or memory is to be brought in for that.
    Granted(GateWord),
    /// Memory.
    Reserved,
    /// Message that must not come here.
    Wrong(String),
}

pub(crate) fn measure(socket: &Path, daemon: u32) -> anyhow::Result<Value> {
    let mut crowd = Crowd::gather(socket, SESSIONS, EACH)?;
    let run = crowd.run(daemon, TURNS)?;
    Ok(json!({
        "sessions": SESSIONS,
        "clients": crowd.members.len(),
        "grant_p50_us": run.grant_p50_us,
        "grant_p99_us": run.grant_p99_us,
        "daemon_cpu": (run.daemon_cpu * 100.0).round() / 100.0,
        "daemon_rss_mb": resident(daemon)?,
    }))
}

/// Clients that hand the card around.
pub(crate) struct Crowd {
    members: Vec<Member>,
    heard: Receiver<Heard>,
    /// Clients of one session.
    each: usize,
    /// The session that let go last, and when it said so.
    let_go: Option<(usize, Instant)>,
}

/// Figures of a number of turns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) grant_p50_us: f64,
    pub(crate) grant_p99_us: f64,
    /// Processors that the daemon used.
    pub(crate) daemon_cpu: f64,
}

impl Crowd {
    /// Makes sessions with `each` clients, and hands the card around once.
    pub(crate) fn gather(socket: &Path, sessions: usize, each: usize) -> anyhow::Result<Self> {
        let mut registrar = Registrar::connect(socket)?;
        let (mut peers, mut members) = (Vec::new(), Vec::new());
        for session in 0..sessions {
            let token = registrar.register(&format!("crowd-{session}"), QUOTA)?;
            for _ in 0..each {
                let mut client = Client::join(socket, &token)?;
                client.reserve(MEMORY)?;
                let (peer, member) = client.split()?;
                peers.push(peer);
                members.push(member);
            }
        }
        let (sender, heard) = channel();
        thread::spawn(move || listen(peers, &sender));
        for member in &mut members {
            let word = member.gate();
            member.say(&TenantRequest::Wait { word })?;
        }
        let mut crowd = Self { members, heard, each, let_go: None };
        (0..sessions).try_for_each(|_| crowd.turn().map(drop))?;
        Ok(crowd)
    }

    /// Hands the card around so many times.
    pub(crate) fn run(&mut self, daemon: u32, turns: usize) -> anyhow::Result<Run> {
        let (busy, begun) = (cpu_time(daemon)?, Instant::now());
        let grants = (0..turns).map(|_| self.turn()).collect::<anyhow::Result<Vec<_>>>()?;
        let daemon_cpu = (cpu_time(daemon)? - busy).as_secs_f64() / begun.elapsed().as_secs_f64();
        Ok(Run {
            grant_p50_us: microseconds(grants.clone(), 50)?,
            grant_p99_us: microseconds(grants, 99)?,
            daemon_cpu,
        })
    }

    fn clients(&self, session: usize) -> std::ops::Range<usize> {
        session * self.each..(session + 1) * self.each
    }

    /// Waits for the next grant and lives through the turn; how long the grant took.
    fn turn(&mut self) -> anyhow::Result<Duration> {
        let mut last = Instant::now();
        let mut session = None;
        let mut words = Vec::new();
        while words.len() < self.each {
            let heard = self.hear()?;
            let What::Granted(word) = heard.what else { continue };
            let of = *session.get_or_insert(heard.client / self.each);
            ensure!(of == heard.client / self.each, "two sessions have the card");
            last = heard.at;
            words.push((heard.client, word));
        }
        let session = session.context("no session has the card")?;
        let took = self
            .let_go
            .map_or(Duration::ZERO, |(_, said)| last.saturating_duration_since(said));
        if let Some((before, _)) = self.let_go {
            for client in self.clients(before) {
                let word = self.members[client].gate();
                self.members[client].say(&TenantRequest::Wait { word })?;
            }
        }
        for (client, word) in words {
            self.members[client].set_gate(GateState::Open);
            self.members[client].say(&TenantRequest::Entered {
                word,
                moved: MEMORY,
                took: Nanos::from_millis(1),
            })?;
        }
        for client in self.clients(session) {
            let gpu = self.members[client].gpu;
            self.members[client].say(&Client::question(gpu, REST))?;
            while !matches!(self.hear()?.what, What::Reserved) {}
            self.members[client].free(REST);
        }
        thread::sleep(TURN.saturating_sub(last.elapsed()));
        let mut said = Instant::now();
        for client in self.clients(session) {
            let word = self.members[client].set_gate(GateState::Closed);
            said = Instant::now();
            self.members[client].say(&TenantRequest::Released { word, drain: Nanos::ZERO })?;
        }
        self.let_go = Some((session, said));
        Ok(took)
    }

    fn hear(&self) -> anyhow::Result<Heard> {
        let heard = self.heard.recv_timeout(PATIENCE).context("no client heard anything any more")?;
        match heard.what {
            What::Wrong(why) => anyhow::bail!("client {}: {why}", heard.client),
            _ => Ok(heard),
        }
    }
}

/// Hears for all clients.
fn listen(mut peers: Vec<Peer>, sender: &Sender<Heard>) {
    let wrong = |client, why: String| Heard { client, at: Instant::now(), what: What::Wrong(why) };
    if let Err((client, error)) = listen_until_it_fails(&mut peers, sender) {
        // The receiver is gone only when the bench is over.
        let _ = sender.send(wrong(client, format!("{error:#}")));
    }
}

fn listen_until_it_fails(peers: &mut [Peer], sender: &Sender<Heard>) -> Result<(), (usize, anyhow::Error)> {
    let all = |error: rustix::io::Errno| (0, error.into());
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(all)?;
    for (client, peer) in peers.iter().enumerate() {
        let data = epoll::EventData::new_u64(client as u64);
        epoll::add(&poll, peer, data, epoll::EventFlags::IN).map_err(all)?;
    }
    let mut events =
        [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 64];
    loop {
        let ready = epoll::wait(&poll, &mut events, None).map_err(all)?;
        for event in &events[..ready] {
            let client = event.data.u64() as usize;
            if let Err(error) = take_in(client, &mut peers[client], sender) {
                return Err((client, error));
            }
        }
    }
}

fn take_in(client: usize, peer: &mut Peer, sender: &Sender<Heard>) -> anyhow::Result<()> {
    peer.read()?;
    let at = Instant::now();
    while let Some(reply) = peer.heard()? {
        let what = match reply {
            TenantReply::Gate { word, .. } if word.state() != GateState::Closed => What::Granted(word),
            TenantReply::Reserved { .. } => What::Reserved,
            TenantReply::Queued { .. } => continue,
            other => What::Wrong(format!("unexpected: {other:?}")),
        };
        sender.send(Heard { client, at, what })?;
    }
    Ok(())
}

/// Returns the processor time of a process.
fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("the daemon ended")?;
    let (_, fields) = stat.rsplit_once(')').context("no stat")?;
    // User and system time, in hundredths of a second.
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let ticks = ticks.sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(ticks * 10))
}

/// The most that a process had in memory, in megabytes.
fn resident(pid: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: u64 = line.context("no VmHWM")?.trim().trim_end_matches(" kB").trim().parse()?;
    Ok((kib * 1024).div_ceil(1_000_000))
}
