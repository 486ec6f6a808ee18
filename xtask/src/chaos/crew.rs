//! The programs that share the card while things break, and what each of them really has.
//!
//! ```text
//!   thread per place:  start ─▶ alloc, fill, check, free, ... ─▶ killed? ─▶ start again
//!                        │ every answer within PATIENCE, or the program hangs
//!                        ▼
//!                      what it has, by its own answers  ◀── compared with the daemon's books, while all pause
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use gpushare_proto::admin::ClientView;
use gpushare_proto::{Bytes, Token, names};
use gpushare_tests::peer::Administrator;
use gpushare_tests::program::{Answer, Program};
use gpushare_tests::world::{Sharing, World};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use gpushare_tests::dice::Dice;

/// The longest that any answer may take: all that we stop is stopped for a second at most, and a daemon
/// waits for its clients no longer than that.
const PATIENCE: Duration = Duration::from_secs(20);
/// The memory of one buffer is a multiple of this, which every door gives out exactly.
const PIECE: Bytes = Bytes::mib(2);
const MOST_PIECES: u64 = 12;
const MOST_BUFFERS: usize = 5;
/// Number of a program's latest lines that are told when it fails.
const REMEMBERED: usize = 12;
const DOORS: [&str; 3] = ["mem", "managed", "handle"];

/// One program's place: its session, and who is in it now.
#[derive(Debug, Default)]
pub(crate) struct Place {
    pub(crate) session: usize,
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    process: Option<(u32, Arc<OwnedFd>)>,
    /// We killed it.
    killed: bool,
    held: BTreeMap<String, Buffer>,
}

#[derive(Clone, Copy, Debug)]
struct Buffer {
    bytes: Bytes,
    filled: Option<u64>,
}

/// Log of the answers of all programs.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) answers: AtomicU64,
    pub(crate) refusals: AtomicU64,
    pub(crate) corrupted: AtomicU64,
    pub(crate) hung: AtomicU64,
    /// Sentences for what should never happen.
    pub(crate) broken: Mutex<Vec<String>>,
}

/// All places, and the gate that they pass for every line.
#[derive(Debug)]
pub(crate) struct Crew {
    pub(crate) places: Vec<Place>,
    pub(crate) said: Said,
    /// Locked for reading while a line is under way, and for writing while all programs pause.
    pub(crate) gate: RwLock<()>,
    pub(crate) over: AtomicBool,
    /// The token file of each session.
    pub(crate) tokens: Vec<PathBuf>,
}

impl Place {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Program that runs in this place.
    pub(crate) fn process(&self) -> Option<(u32, Arc<OwnedFd>)> {
        self.now().process.clone()
    }

    /// Memory that the program has, by its own answers; nothing once it is killed.
    pub(crate) fn held(&self) -> Bytes {
        let now = self.now();
        let living = now.held.values().filter(|_| !now.killed);
        living.map(|buffer| buffer.bytes).sum()
    }

    /// Kills who is in it, as `kill -9` does.
    pub(crate) fn kill(&self) -> Option<(u32, Arc<OwnedFd>)> {
        let mut now = self.now();
        let process = now.process.clone()?;
        now.killed = true;
        drop(now);
        // The program may have been told to end just now.
        let _ = pidfd_send_signal(&process.1, Signal::KILL);
        Some(process)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some((_, pidfd)) = self.process() {
            let _ = pidfd_send_signal(&pidfd, signal);
        }
    }
}

impl Said {
    pub(crate) fn broke(&self, sentence: String) {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).push(sentence);
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Crew {
    /// Returns a crew with `each` places in each of the sessions that these tokens open.
    pub(crate) fn new(world: &World, tokens: &[Token], each: usize) -> anyhow::Result<Self> {
        let files = tokens.iter().enumerate().map(|(session, token)| {
            use std::os::unix::fs::OpenOptionsExt as _;
            let path = world.folder().join(format!("token-{session}"));
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&path)?;
            std::io::Write::write_all(&mut file, token.to_hex().as_bytes())?;
            Ok(path)
        });
        let place = |session| Place { session, ..Place::default() };
        Ok(Self {
            places: (0..tokens.len())
                .flat_map(|session| std::iter::repeat_with(move || place(session)).take(each))
                .collect(),
            said: Said::default(),
            gate: RwLock::default(),
            over: AtomicBool::new(false),
            tokens: files.collect::<anyhow::Result<_>>()?,
        })
    }

    /// Keeps a program in the place until all is over.
    pub(crate) fn keep(&self, world: &World, number: usize, mut dice: Dice) {
        let place = &self.places[number];
        while !self.over.load(Ordering::Relaxed) {
            match self.start(world, number) {
                Ok(mut program) => self.drive(world, number, &mut program, &mut dice),
                // Without a daemon it is refused, as it should be.
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
            *place.now() = Now::default();
        }
    }

    fn start(&self, world: &World, number: usize) -> anyhow::Result<Program> {
        let _pass = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        let place = &self.places[number];
        let mut program = self.begin(world, place.session, &format!("program-{number}"))?;
        let pid = program.process().pid();
        let pidfd = pidfd_open(Pid::from_raw(pid.cast_signed()).context("no pid")?, PidfdFlags::empty())?;
        place.now().process = Some((pid, Arc::new(pidfd)));
        let begun = Instant::now();
        let ready = program.ready_within(PATIENCE);
        if ready.is_err() && begun.elapsed() >= PATIENCE {
            count(&self.said.hung);
            let books = self.describe(world);
            self.said
                .broke(format!("program {number} (pid {pid}) was not ready within {PATIENCE:?}{books}"));
        }
        ready.map(|()| program)
    }

    /// A program in a session, which is not ready yet.
    pub(crate) fn begin(&self, world: &World, session: usize, name: &str) -> anyhow::Result<Program> {
        let mut command = world.workload(&Sharing::Preload);
        command.env(names::TOKEN_FILE, &self.tokens[session]);
        Program::begin(command, world, name)
    }

    /// Describes the sessions, gates and processes by the words of the daemon and the kernel, while a program hangs.
    fn describe(&self, world: &World) -> String {
        let status = Administrator::of(&world.runtime_dir()).and_then(|mut desk| desk.status());
        let status = match status {
            Ok(status) => status,
            Err(error) => return format!("; the daemon gives no status: {error:#}"),
        };
        let sessions = status.sessions.iter().map(|session| {
            let client = |client: &ClientView| (client.pid, client.gate, client.waiting);
            let clients: Vec<_> = session.clients.iter().map(client).collect();
            format!("{} {:?} {clients:?}", session.name, session.lock)
        });
        let sessions: Vec<_> = sessions.collect();
        let state = |(pid, _)| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            (pid, stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next()))
        };
        let states: Vec<_> = self.places.iter().filter_map(Place::process).map(state).collect();
        format!(
            "; the daemon runs since {}, {} processes have not returned; sessions: {}; states of processes: {states:?}",
            status.daemon.uptime_ns,
            status.daemon.recovering,
            sessions.join("; ")
        )
    }

    fn drive(&self, world: &World, number: usize, program: &mut Program, dice: &mut Dice) {
        let place = &self.places[number];
        let mut next = 0;
        let mut lines = VecDeque::new();
        while !self.over.load(Ordering::Relaxed) {
            let pass = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            let line = Line::choose(&place.now().held, &mut next, dice);
            let asked = Instant::now();
            match ask(program, &line) {
                Ok(answer) => {
                    count(&self.said.answers);
                    lines.push_back(line.text());
                    if lines.len() > REMEMBERED {
                        lines.pop_front();
                    }
                    if !self.note(place, &line, &answer) {
                        self.said.broke(format!(
                            "program {number} (pid {}) was answered {} after {lines:?}",
                            program.process().pid(),
                            answer.error().unwrap_or("nothing")
                        ));
                        return;
                    }
                }
                Err(_) if place.now().killed => return,
                Err(error) => {
                    let mut books = String::new();
                    if asked.elapsed() >= PATIENCE {
                        count(&self.said.hung);
                        books = self.describe(world);
                    }
                    self.said.broke(format!(
                        "program {number} (pid {}) at `{}` after {lines:?}: {error:#}{books}",
                        program.process().pid(),
                        line.text()
                    ));
                    return;
                }
            }
            drop(pass);
            thread::sleep(dice.millis(1, 15));
        }
    }

    /// Notes what the program has now; whether the answer was one that may come.
    fn note(&self, place: &Place, line: &Line, answer: &Answer) -> bool {
        let mut now = place.now();
        if let Some(error) = answer.error() {
            // A check takes a few bytes for its sum, which a full quota refuses.
            let takes_memory = matches!(line, Line::Allocate { .. } | Line::Check { .. });
            count(&self.said.refusals);
            return error == "CUDA_ERROR_OUT_OF_MEMORY" && takes_memory;
        }
        match line {
            Line::Allocate { name, bytes, .. } => {
                let (bytes, filled) = (*bytes, None);
                now.held.insert(name.clone(), Buffer { bytes, filled });
            }
            Line::Free { name } => drop(now.held.remove(name)),
            Line::Fill { name, value } => {
                if let Some(buffer) = now.held.get_mut(name) {
                    buffer.filled = Some(*value);
                }
            }
            Line::Check { .. } if !answer.flag("matches") => count(&self.said.corrupted),
            Line::Check { .. } | Line::Look => {}
        }
        true
    }
}

/// Tells a program something. What is freed is not in use any more: memory by handle is gone at once.
fn ask(program: &mut Program, line: &Line) -> anyhow::Result<Answer> {
    if matches!(line, Line::Free { .. }) {
        let done = program.tell("sync")?;
        program.answer_within(done, PATIENCE)?;
    }
    let ticket = program.tell(&line.text())?;
    program.answer_within(ticket, PATIENCE)
}

/// Line that a program is given.
#[derive(Debug)]
enum Line {
    Allocate { name: String, bytes: Bytes, door: &'static str },
    Free { name: String },
    Fill { name: String, value: u64 },
    Check { name: String, value: u64 },
    Look,
}

impl Line {
    fn choose(held: &BTreeMap<String, Buffer>, next: &mut u64, dice: &mut Dice) -> Self {
        let allocate = |next: &mut u64, dice: &mut Dice| {
            *next += 1;
            Self::Allocate {
                name: format!("b{next}"),
                bytes: Bytes(PIECE.0 * (1 + dice.below(MOST_PIECES))),
                door: DOORS[dice.index(DOORS.len())],
            }
        };
        let Some((name, buffer)) = held.iter().nth(dice.index(held.len())) else {
            return allocate(next, dice);
        };
        let name = name.clone();
        match (dice.below(10), buffer.filled) {
            (0..3, _) if held.len() < MOST_BUFFERS => allocate(next, dice),
            (0..4, _) => Self::Free { name },
            (4, _) => Self::Look,
            (5..8, Some(value)) => Self::Check { name, value },
            _ => Self::Fill { name, value: dice.below(1 << 20) },
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Allocate { name, bytes, door } => format!("alloc {name} {} --door {door}", bytes.0),
            Self::Free { name } => format!("free {name}"),
            Self::Fill { name, value } => format!("fill {name} {value}"),
            Self::Check { name, value } => format!("check {name} {value}"),
            Self::Look => "mem-info".to_owned(),
        }
    }
}
