//! Work of the two programs on this card.
//!
//! | | simulated | real |
//! |---|---|---|
//! | memory of each | ¾ of the card | 2 GiB, or half the managed limit if that is less |
//! | what may be resident | the card | two thirds of both together, by `--capacity` |
//! | managed limit | the daemon's | an eighth of what is free: never more managed memory than that |
//! | a step besides touching all memory | spins 20 ms, which costs the host nothing | about as long of real work |
//! | without gpushare | the programs ask for managed memory, as plain memory would be refused | plain memory |
//!
//! A real card is never oversubscribed: the small capacity makes the two take turns although both would fit.

use std::fmt;

use anyhow::{Context, ensure};
use gpushare_proto::Bytes;
use gpushare_tests::artifacts::{Artifacts, Part};
use gpushare_tests::process::output_of;
use gpushare_tests::program::Program;
use gpushare_tests::world::{Sharing, World};

/// The card that they run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Card {
    /// One process of ours.
    Simulated,
    /// The machine's.
    Real {
        /// An eighth of its free memory.
        managed_limit: Bytes,
    },
}

/// Sizes and lengths.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The card's name.
    pub(crate) gpu: String,
    pub(crate) card: Card,
    /// Memory of each program.
    pub(crate) memory: Bytes,
    /// Memory that may be resident at the same time.
    pub(crate) room: Bytes,
    /// Steps of each program.
    pub(crate) steps: u32,
    /// Work of each step besides touching all memory, as flags of `train`.
    pub(crate) work: [&'static str; 2],
    /// How long a turn is; the daemon's own choice if `None`.
    pub(crate) quantum: Option<&'static str>,
}

/// The simulated card's memory: small, so that a machine without a GPU holds it twice without noticing.
const SIMULATED_MEMORY: Bytes = Bytes::mib(256);
/// The most memory of one program on a real card.
const MOST_REAL_MEMORY: Bytes = Bytes::gib(2);

impl Plan {
    /// Picks the real card if there is one and the simulated one was not asked for.
    pub(crate) fn choose(artifacts: &Artifacts, simulated: bool) -> anyhow::Result<Self> {
        if !simulated && let Some(gpu) = real_card(artifacts)? {
            return Self::real(artifacts, gpu);
        }
        Ok(Self::simulated())
    }

    /// The plan for the simulated card: turns short enough to see many of them in few seconds.
    pub(crate) fn simulated() -> Self {
        Self {
            gpu: "simulated card".to_owned(),
            card: Card::Simulated,
            memory: Bytes(SIMULATED_MEMORY.0 / 4 * 3),
            room: SIMULATED_MEMORY,
            steps: 32,
            work: ["--compute", "20ms"],
            quantum: Some("250ms"),
        }
    }

    fn real(artifacts: &Artifacts, gpu: String) -> anyhow::Result<Self> {
        let managed_limit = Bytes(free_memory(artifacts)?.0 / 8);
        let memory = Bytes(managed_limit.0 / 2).min(MOST_REAL_MEMORY);
        ensure!(
            memory >= Bytes::mib(64),
            "only {managed_limit} of {gpu} may be used (an eighth of what is free); free some or use --simulated"
        );
        Ok(Self {
            gpu,
            card: Card::Real { managed_limit },
            memory,
            room: Bytes(memory.0 * 2 / 3 * 2),
            steps: 200,
            work: ["--passes", "100"],
            quantum: Some("250ms"),
        })
    }

    /// A world with a card of its own, or with the machine's.
    pub(crate) fn world(&self, artifacts: &Artifacts) -> anyhow::Result<World> {
        match self.card {
            Card::Simulated => World::simulated(artifacts, self.room),
            Card::Real { .. } => World::on_this_machine(artifacts),
        }
    }

    /// The daemon's flags.
    pub(crate) fn daemon_flags(&self) -> Vec<String> {
        let mut flags = Vec::new();
        if let Some(quantum) = self.quantum {
            flags.extend(["--quantum".to_owned(), quantum.to_owned()]);
        }
        if let Card::Real { managed_limit } = self.card {
            flags.extend(["--capacity".to_owned(), format!("0={}", self.room.0)]);
            flags.extend(["--managed-limit".to_owned(), managed_limit.0.to_string()]);
        }
        flags
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gpu, memory, room, steps, .. } = self;
        write!(
            f,
            "two programs of {memory} each on {gpu} with room for {room}: \
             {steps} steps, each over all of its memory"
        )
    }
}

/// The name of this machine's card, if it has a driver and one.
fn real_card(artifacts: &Artifacts) -> anyhow::Result<Option<String>> {
    let world = World::on_this_machine(artifacts)?;
    let mut probe = world.part(Part::Workload);
    probe.arg("probe");
    let Ok(line) = output_of(probe) else {
        return Ok(None);
    };
    let facts: serde_json::Value = serde_json::from_str(&line)?;
    Ok(facts["name"].as_str().map(str::to_owned))
}

/// Returns the free memory of this machine's card, as a program without gpushare sees it.
fn free_memory(artifacts: &Artifacts) -> anyhow::Result<Bytes> {
    let world = World::on_this_machine(artifacts)?;
    let mut program = Program::hold(&world, &Sharing::Native, "probe").context("cannot use the GPU")?;
    let free = program.must("mem-info")?.number("free_bytes");
    program.quit()?;
    Ok(Bytes(free))
}
