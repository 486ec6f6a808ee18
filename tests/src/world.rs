//! A folder with everything that a run needs, and the rules of how programs start in it.
//!
//! ```text
//! /tmp/gpushare-XXXXXX/
//!   lib/libcuda.so.1 ──────> libsimcuda.so      only on a simulated card, and only for programs of this world
//!   lib/libnvidia-ml.so.1 ─> libsimnvml.so
//!   card.sock                                   SIMGPU_SOCKET
//!   scheduler.toml                              what a daemon must know of a card this small
//!   run/                                        GPUSHARE_RUNTIME_DIR: sockets of the daemon
//!   locks/                                      GPUSHARE_LOCK_DIR
//!   NAME.err                                    what each process said
//! ```
//!
//! Programs get this environment and none of the caller's gpushare, preload or library settings. Few worlds of
//! one test binary exist at once, so that tests do not compete for the machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use anyhow::Context;
use gpushare_proto::{Bytes, names};
use simgpu_card::constants::Constants;
use tempfile::TempDir;

use crate::artifacts::{Artifacts, Part};
use crate::card::Card;

/// Most worlds of one process at once. Their programs mostly wait, for each other and for the simulated card.
const WORLDS: usize = 2;

/// Number of worlds that exist in this process.
static TAKEN: Mutex<usize> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

/// The right to be one of this process's worlds.
#[derive(Debug)]
struct Turn;

impl Turn {
    fn wait() -> Self {
        let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        *FREED
            .wait_while(taken, |taken| *taken >= WORLDS)
            .unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        FREED.notify_one();
    }
}

const CONFIG: &str = "scheduler.toml";
const CARD_SOCKET: &str = "card.sock";

/// The daemon's defaults are those of a real card; a simulated one is smaller and slower.
fn config_of(card: &Constants) -> String {
    format!(
        "[scheduling]\ncontext_reserve = \"{}\"\nbandwidth_per_second = \"{}\"\n",
        card.context_memory, card.fault_in.0
    )
}

/// Way in which a program is started with gpushare, or without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Without gpushare.
    Native,
    /// By `LD_PRELOAD` alone, without a session of its own.
    Preload,
    /// By `gpushare-ctl run` with these flags.
    Run(Vec<String>),
}

impl Sharing {
    /// `gpushare-ctl run --name NAME`.
    pub fn session(name: &str) -> Self {
        Self::Run(vec!["--name".to_owned(), name.to_owned()])
    }

    /// `gpushare-ctl run --name NAME --memory LIMIT`.
    pub fn limited(name: &str, limit: Bytes) -> Self {
        let flags = ["--name", name, "--memory", &limit.0.to_string()];
        Self::Run(flags.map(str::to_owned).to_vec())
    }

    /// Adds flags of `gpushare-ctl run`; a program that runs without it stays as it is.
    pub fn and(self, flags: &[&str]) -> Self {
        match self {
            Self::Run(mut all) => {
                all.extend(flags.iter().map(|&flag| flag.to_owned()));
                Self::Run(all)
            }
            alone => alone,
        }
    }
}

/// The folder, the card in it, and the artifacts. It ends with its last clone.
#[derive(Clone, Debug)]
pub struct World(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    // Fields drop in this order: the card ends before its folder goes.
    card: Option<Card>,
    folder: TempDir,
    artifacts: Artifacts,
    _turn: Turn,
}

impl Parts {
    fn new(artifacts: &Artifacts) -> anyhow::Result<Self> {
        let turn = Turn::wait();
        let folder = tempfile::Builder::new()
            .prefix("gpushare-")
            .tempdir()
            .context("cannot make a temporary folder")?;
        for name in ["run", "locks"] {
            fs::create_dir(folder.path().join(name))?;
        }
        Ok(Self { card: None, folder, artifacts: artifacts.clone(), _turn: turn })
    }
}

impl World {
    /// A world with a simulated card of its own.
    pub fn simulated(artifacts: &Artifacts, memory: Bytes) -> anyhow::Result<Self> {
        Self::with_card_flags(artifacts, &["--memory", &memory.0.to_string()])
    }

    /// A card of 1 GiB whose contexts are so small and quick that hundreds of programs have one.
    pub fn for_crowds(artifacts: &Artifacts) -> anyhow::Result<Self> {
        let flags = ["--memory", "1GiB", "--context-memory", "64KiB", "--context-create-us", "100"];
        Self::with_card_flags(artifacts, &flags)
    }

    /// A world whose simulated card is started with these flags of `simgpu-card`.
    pub fn with_card_flags(artifacts: &Artifacts, flags: &[&str]) -> anyhow::Result<Self> {
        let mut parts = Parts::new(artifacts)?;
        let folder = parts.folder.path();
        let lib = folder.join("lib");
        fs::create_dir(&lib)?;
        symlink(&artifacts[Part::SimulatedCuda], lib.join("libcuda.so.1"))?;
        symlink(&artifacts[Part::SimulatedNvml], lib.join("libnvidia-ml.so.1"))?;
        fs::write(folder.join(CONFIG), config_of(&Constants::default()))?;
        parts.card = Some(Card::start(&artifacts[Part::Card], folder, &folder.join(CARD_SOCKET), flags)?);
        Ok(Self(Arc::new(parts)))
    }

    /// A world of the artifacts that `cargo test` built, with a simulated card of this size.
    pub fn of(memory: Bytes) -> anyhow::Result<Self> {
        Self::simulated(Artifacts::of_tests()?, memory)
    }

    /// A world on the real card of this machine.
    pub fn on_this_machine(artifacts: &Artifacts) -> anyhow::Result<Self> {
        Ok(Self(Arc::new(Parts::new(artifacts)?)))
    }

    /// Where everything of this world is.
    pub fn folder(&self) -> &Path {
        self.0.folder.path()
    }

    /// The folder of the daemon's sockets.
    pub fn runtime_dir(&self) -> names::RuntimeDir {
        names::RuntimeDir::new(self.folder().join("run"))
    }

    /// The simulated card, if this world has one.
    pub fn card(&self) -> Option<&Card> {
        self.0.card.as_ref()
    }

    /// The socket of the simulated card, if this world has one.
    pub fn card_socket(&self) -> PathBuf {
        self.folder().join(CARD_SOCKET)
    }

    /// The configuration that daemons of this world get, if there is one.
    pub fn scheduler_config(&self) -> Option<PathBuf> {
        self.0.card.as_ref().map(|_| self.folder().join(CONFIG))
    }

    /// Adds a line to the section `[scheduling]` of the configuration that daemons of this world get.
    pub fn add_setting(&self, setting: &str) -> anyhow::Result<()> {
        let config = self.scheduler_config().context("only a simulated card has a configuration")?;
        let usual = fs::read_to_string(&config)?;
        Ok(fs::write(&config, format!("{usual}{setting}\n"))?)
    }

    /// The file of one of our programs or libraries.
    pub fn path(&self, part: Part) -> &Path {
        &self.0.artifacts[part]
    }

    /// One of our programs, in this world's environment.
    pub fn part(&self, part: Part) -> Command {
        self.program(&self.0.artifacts[part])
    }

    /// Any program, in this world's environment but without gpushare in it.
    pub fn program(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        let foreign = std::env::vars_os().map(|(name, _)| name).filter(|name| {
            let name = name.to_string_lossy();
            name.starts_with("GPUSHARE_") || name.starts_with("SIMGPU_") || name == "LD_PRELOAD"
        });
        for name in foreign {
            command.env_remove(name);
        }
        if self.0.card.is_some() {
            command.env("LD_LIBRARY_PATH", self.folder().join("lib"));
            command.env("SIMGPU_SOCKET", self.card_socket());
            command.env(names::FREEZE_UNTRIED, "1");
        }
        command
            .env(names::RUNTIME_DIR, self.runtime_dir().root())
            .env(names::LOCK_DIR, self.folder().join("locks"))
            .env(names::LIBRARY, &self.0.artifacts[Part::Library])
            .env(names::SCHEDULER, &self.0.artifacts[Part::Scheduler])
            .env("XDG_RUNTIME_DIR", self.folder());
        command
    }

    /// Any program, sharing as said. Its arguments go after what is already there.
    pub fn sharing(&self, sharing: &Sharing, program: &Path) -> Command {
        match sharing {
            Sharing::Native => self.program(program),
            Sharing::Preload => {
                let mut command = self.program(program);
                command.env("LD_PRELOAD", &self.0.artifacts[Part::Library]);
                command
            }
            Sharing::Run(flags) => {
                let mut command = self.part(Part::Ctl);
                command.arg("run").args(flags).arg("--").arg(program);
                command
            }
        }
    }

    /// The CUDA program, sharing as said.
    pub fn workload(&self, sharing: &Sharing) -> Command {
        self.sharing(sharing, &self.0.artifacts[Part::Workload])
    }
}
