//! Grants of well-behaved sessions beside attacks of another user: a thousand sessions of an administrator, of
//! which seven always want the card, and one session of the attackers' user that wants it too.
//!
//! ```text
//!   core 0 …: daemon, well-behaved sessions, rival of another user         last core: attack
//!
//!   for each attack, three times:  honest rival ─▶ events | rival with the attack ─▶ events
//! ```
//!
//! Only one session fits the card, so all of them take turns. A session uses its turn until the daemon wants the
//! card back, and gives it back at once. An attack is one of connections and messages beside an honest rival
//! ([`Attack`]), or the rival itself lies ([`Lie`]) or has 64 sessions.
//!
//! A phase counts from the start of the rival until half a second after its death. Two times of the others'
//! grants are measured: from the request to the turn, and from one's turn to the next one's.

mod attack;
mod rights;
mod timeline;
mod turns;

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use std::{io, thread};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use gpushare_proto::admin::{AdminReply, AdminRequest, SessionRequest};
use gpushare_proto::names::RuntimeDir;
use gpushare_proto::session::{Binding, Terms};
use gpushare_proto::tenant::{GpuChoice, Hello, NewSession, Role};
use gpushare_proto::{Bytes, Token};
use gpushare_sys::clock;
use serde_json::{Value, json};

pub(crate) use attack::{Attack, attack};
pub(crate) use turns::Lie;

use crate::figures::microseconds;
use crate::peer::{Client, Peer, Registrar};
use timeline::{Moment, Timeline};
use turns::Turns;

/// Number of well-behaved sessions, each made by an administrator.
const SESSIONS: usize = 1000;
/// Number of these that always want the card; the others are idle.
const CONTENDERS: usize = 7;
/// Memory of a session that wants the card; two of them do not fit a capacity of 64 MiB.
const MEMORY: Bytes = Bytes::mib(40);
/// Number of sessions that the attackers' user may have.
const MANY: usize = 64;
/// Number of pairs of phases of each attack: without it and with it.
const PAIRS: usize = 3;
/// Time for which an attack lasts, and the time afterwards that still counts, since its end is a part of it.
const ATTACK: Duration = Duration::from_millis(2200);
const AFTER: Duration = Duration::from_millis(500);

/// Attack of a user, beside its honest session.
#[derive(Clone, Copy)]
struct Scheme {
    name: &'static str,
    sessions: usize,
    lie: Option<Lie>,
    attack: Option<Attack>,
}

const fn attacked(name: &'static str, attack: Attack) -> Scheme {
    Scheme { name, sessions: 1, lie: None, attack: Some(attack) }
}

const fn lying(name: &'static str, lie: Lie) -> Scheme {
    Scheme { name, sessions: 1, lie: Some(lie), attack: None }
}

const HONEST: Scheme = Scheme { name: "honest", sessions: 1, lie: None, attack: None };
const SCHEMES: [Scheme; 9] = [
    attacked("questions", Attack::Questions),
    Scheme { name: "sessions", sessions: MANY, ..HONEST },
    lying("contexts", Lie::Contexts),
    lying("drains", Lie::Drains),
    lying("moves", Lie::Moves),
    attacked("watchers", Attack::Watchers),
    attacked("flood", Attack::Flood),
    attacked("garbage", Attack::Garbage),
    attacked("stalled", Attack::Stalled),
];

/// Measures all attacks; the sessions live as long as this process.
pub(crate) fn measure(runtime: &Path, daemon: u32, metrics: SocketAddr) -> anyhow::Result<Value> {
    rights::raise_descriptor_limit()?;
    rights::keep_off_last_core(daemon)?;
    let dir = RuntimeDir::new(runtime);
    let mut admin = Peer::connect(&dir.admin_socket())?;
    admin.say(&AdminRequest::Hello(Hello::new(Role::Tool)))?;
    ensure!(matches!(admin.hear()?, AdminReply::Ready { .. }), "the daemon welcomes no administrator");
    let (mut idle, mut contenders) = (Vec::new(), Vec::new());
    for number in 0..SESSIONS {
        let token = create(&mut admin, &format!("good-{number}"))?;
        let mut client = Client::join(&dir.tenant_socket(), &token)?;
        if number < CONTENDERS {
            client.reserve(MEMORY)?;
            contenders.push(client);
        } else {
            idle.push(client);
        }
    }
    let (sender, moments) = channel();
    let turns = Turns::new(contenders, None)?;
    // Ends with the process.
    thread::spawn(move || {
        let ended = turns.take(|moment| Ok(sender.send(moment)?));
        eprintln!("the well-behaved sessions ended: {ended:?}");
    });
    let mut bench = Bench { dir, metrics, moments, past: Vec::new() };
    let rows = SCHEMES.into_iter().map(|scheme| bench.compare(scheme));
    let rows = rows.collect::<anyhow::Result<Vec<_>>>()?;
    drop(idle);
    Ok(json!({ "attacks": rows }))
}

fn create(admin: &mut Peer, name: &str) -> anyhow::Result<Token> {
    admin.say(&AdminRequest::Session(SessionRequest::Create {
        new: NewSession {
            name: Some(name.to_owned()),
            terms: Terms::with_memory(Some(MEMORY)),
            oversubscribe: false,
            gpu: GpuChoice::Auto,
        },
        binding: Binding::Token,
    }))?;
    match admin.hear()? {
        AdminReply::Created { token: Some(token), .. } => Ok(token),
        other => anyhow::bail!("no session was created: {other:?}"),
    }
}

struct Bench {
    dir: RuntimeDir,
    metrics: SocketAddr,
    /// Source of the next moments of the well-behaved sessions.
    moments: Receiver<Moment>,
    /// Moments that were received so far.
    past: Vec<Moment>,
}

/// Samples of all phases of one kind.
#[derive(Default)]
struct Samples {
    waits: Vec<Duration>,
    handovers: Vec<Duration>,
    /// Time that the attackers' user had the card, and the time that anybody had it, in seconds.
    rival: f64,
    all: f64,
}

impl Bench {
    fn compare(&mut self, scheme: Scheme) -> anyhow::Result<Value> {
        let (mut without, mut with) = (Samples::default(), Samples::default());
        for _ in 0..PAIRS {
            self.phase(HONEST, &mut without)?;
            self.phase(scheme, &mut with)?;
        }
        let row = json!({
            "attack": scheme.name,
            "without": without.figures()?,
            "with": with.figures()?,
        });
        eprintln!("{row}");
        Ok(row)
    }

    fn phase(&mut self, scheme: Scheme, samples: &mut Samples) -> anyhow::Result<()> {
        let from = clock::monotonic();
        let mut rival = Command::new(std::env::current_exe()?);
        rival.arg("rival").arg("--runtime").arg(self.dir.root());
        rival.arg("--sessions").arg(scheme.sessions.to_string());
        if let Some(lie) = scheme.lie.as_ref().and_then(Lie::to_possible_value) {
            rival.args(["--lie", lie.get_name()]);
        }
        let rival = Other::start(rival)?;
        let attack = match scheme.attack.as_ref().and_then(Attack::to_possible_value) {
            None => None,
            Some(attack) => {
                let mut command = Command::new(std::env::current_exe()?);
                command
                    .arg("attack")
                    .arg(attack.get_name())
                    .arg("--runtime")
                    .arg(self.dir.root());
                command.arg("--metrics").arg(self.metrics.to_string());
                Some(Other::start(command)?)
            }
        };
        thread::sleep(ATTACK);
        if let Some(attack) = attack {
            attack.end().context("the attack ended early")?;
        }
        let said = rival.end().context("the attackers' session ended early")?;
        thread::sleep(AFTER);
        self.past.extend(self.moments.try_iter());
        let timeline = Timeline::new(&self.past, &turns::parsed(&said)?, from..=clock::monotonic());
        // A session that no longer takes part would make the shares of the others too large.
        let granted = timeline.granted();
        ensure!(granted == CONTENDERS, "only {granted} of {CONTENDERS} well-behaved sessions had a turn");
        samples.waits.extend(timeline.waits());
        samples.handovers.extend(timeline.handovers());
        let (rival, all) = timeline.held();
        samples.rival += rival;
        samples.all += all;
        Ok(())
    }
}

impl Samples {
    fn figures(self) -> anyhow::Result<Value> {
        let entitled = 1.0 / (CONTENDERS + 1) as f64;
        Ok(json!({
            "grants": self.waits.len(),
            "wait_p99_us": microseconds(self.waits, 99)?,
            "handover_p99_us": microseconds(self.handovers, 99)?,
            "share": self.rival / self.all / entitled,
        }))
    }
}

/// Another process, which says a line when it is ready.
struct Other {
    child: Child,
    /// Everything that it says afterwards.
    said: thread::JoinHandle<io::Result<String>>,
}

impl Other {
    fn start(mut command: Command) -> anyhow::Result<Self> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut stdout = BufReader::new(child.stdout.take().context("no stdout")?);
        let mut ready = String::new();
        stdout.read_line(&mut ready)?;
        let said = thread::spawn(move || {
            let mut said = String::new();
            stdout.read_to_string(&mut said)?;
            Ok(said)
        });
        let mut other = Self { child, said };
        if ready != "ready\n" {
            let _ = other.child.kill();
            let status = other.child.wait()?;
            anyhow::bail!("{:?} was not ready: {status}", command.get_args());
        }
        Ok(other)
    }

    /// Kills it, and fails if it has ended before.
    fn end(mut self) -> anyhow::Result<String> {
        let early = self.child.try_wait()?;
        self.child.kill()?;
        self.child.wait()?;
        ensure!(early.is_none(), "{early:?}");
        Ok(self.said.join().map_err(|_| anyhow::anyhow!("its reader panicked"))??)
    }
}

/// Takes turns with sessions of the attackers' user, and prints what happens.
pub(crate) fn rival(dir: &RuntimeDir, sessions: usize, lie: Option<Lie>) -> anyhow::Result<()> {
    rights::become_another_user()?;
    let mut registrar = Registrar::connect(&dir.tenant_socket())?;
    let mut clients = Vec::new();
    for number in 0..sessions {
        let token = registrar.register(&format!("rival-{number}"), MEMORY)?;
        let mut client = Client::join(&dir.tenant_socket(), &token)?;
        client.reserve(MEMORY)?;
        clients.push(client);
    }
    let turns = Turns::new(clients, lie)?;
    println!("ready");
    turns.take(|moment| {
        println!("{moment}");
        Ok(())
    })
}
