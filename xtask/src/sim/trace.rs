//! Traces: the sessions of a simulation, from a file (docs/simulator.md) or from one of those that come
//! with this command (`traces/`).
//!
//! Everything that is drawn is drawn here or from a session's own dice, never by who schedules, so that all
//! schedulers are given the same.

use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use gpushare_core::Config;
use gpushare_core::log::Link;
use gpushare_proto::page::MAX_GPUS;
use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, GpuId, Nanos, Percent};
use gpushare_tests::dice::Dice;
use serde::{Deserialize, Deserializer, de::Error};

use super::between::Between;
use super::recorded;
use super::tenant::{Program, Tenant, WEIGHT};

/// Built-in traces.
const BUILT_IN: [(&str, &str); 5] = [
    ("hogs", include_str!("traces/hogs.toml")),
    ("notebooks", include_str!("traces/notebooks.toml")),
    ("mixed", include_str!("traces/mixed.toml")),
    ("gangs", include_str!("traces/gangs.toml")),
    ("crowd", include_str!("traces/crowd.toml")),
];

/// Factor by which work takes longer where running sessions do not fit the card and take no turns: the
/// makespan of two programs that need 1.5 times the card, without gpushare, by that one after the other
/// (docs/results/scheduling.md; measured on the simulated card, since no real one was ever oversubscribed
/// here).
const THRASHING: f64 = 54.52 / 10.05;

/// Sessions and machine of a simulation.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    pub(super) name: String,
    /// The simulation ends then at the latest.
    pub(super) until: Nanos,
    pub(super) machine: Machine,
    /// Configuration of gpushare's core.
    pub(super) config: Config,
    /// In the order of their arrival.
    pub(super) tenants: Vec<Tenant>,
}

/// The cards, all alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Machine {
    pub(super) gpus: u8,
    /// Memory that may be resident at the same time on each card.
    pub(super) capacity: Bytes,
    /// To a card, a second.
    pub(super) bandwidth: Bytes,
    /// The most that is in flight when a gate closes.
    pub(super) window: Nanos,
    /// How much longer everything takes where what runs does not fit.
    pub(super) thrashing: f64,
    /// How much longer everything takes where several sessions have work, since the driver changes between them.
    pub(super) slicing: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    until: Text<Nanos>,
    #[serde(default)]
    seed: u64,
    #[serde(default = "one")]
    gpus: u8,
    memory: Text<Bytes>,
    bandwidth: Option<Text<Bytes>>,
    window: Option<Text<Nanos>>,
    thrashing: Option<f64>,
    slicing: Option<f64>,
    sessions: Vec<Group>,
}

/// Sessions that are alike.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    #[serde(default = "one")]
    count: u32,
    #[serde(default = "at_once")]
    arrives: Between<Nanos>,
    /// Number of cards of each session, dealt one after the other.
    #[serde(default = "one")]
    gpus: u8,
    /// Cards of each session, instead of `gpus`.
    on: Option<Vec<u8>>,
    memory: Between<Bytes>,
    #[serde(default = "weight")]
    weight: u32,
    #[serde(default)]
    priority: Priority,
    #[serde(default = "all")]
    compute: Text<Percent>,
    program: Program,
    work: Option<Between<Nanos>>,
}

/// A quantity as people write it.
struct Text<T>(T);

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(Error::custom)
    }
}

fn one<T: From<u8>>() -> T {
    T::from(1)
}

fn at_once() -> Between<Nanos> {
    Between::exactly(Nanos::ZERO)
}

fn weight() -> u32 {
    WEIGHT
}

fn all() -> Text<Percent> {
    Text(Percent(10_000))
}

impl Trace {
    /// One that comes with this command, a trace in a file, or what a daemon recorded.
    pub(super) fn load(name: &str) -> anyhow::Result<Self> {
        if let Some(text) = built_in(name) {
            return Self::parse(name, text);
        }
        let path = Path::new(name);
        let bytes = fs::read(path).with_context(|| {
            format!(
                "cannot read the trace {name}; give a file, or one of {}",
                Self::names().collect::<Vec<_>>().join(", ")
            )
        })?;
        if bytes.starts_with(Link::BEGINNING.as_bytes()) {
            return recorded::trace(path);
        }
        let text = String::from_utf8(bytes).with_context(|| format!("{name} is no text"))?;
        let stem = path.file_stem().map_or_else(|| name.into(), |stem| stem.to_string_lossy());
        Self::parse(&stem, &text)
    }

    /// Of those that come with this command.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// Content of a file.
    pub(super) fn parse(name: &str, text: &str) -> anyhow::Result<Self> {
        let file: File = toml::from_str(text).with_context(|| format!("the trace {name} does not read"))?;
        ensure!(
            (1..=MAX_GPUS).contains(&usize::from(file.gpus)),
            "the trace {name} has {} GPUs; a daemon has 1 to {MAX_GPUS}",
            file.gpus
        );
        let usual = Machine::of(file.memory.0);
        let machine = Machine {
            gpus: file.gpus,
            capacity: file.memory.0,
            bandwidth: file.bandwidth.map_or(usual.bandwidth, |text| text.0),
            window: file.window.map_or(usual.window, |text| text.0),
            thrashing: file.thrashing.unwrap_or(usual.thrashing),
            slicing: file.slicing.unwrap_or(usual.slicing),
        };
        ensure!(!machine.bandwidth.is_zero(), "in the trace {name} nothing can move: bandwidth is 0");
        ensure!(machine.thrashing >= 1.0, "in the trace {name} thrashing makes work faster");
        ensure!(machine.slicing >= 1.0, "in the trace {name} slicing makes work faster");
        let mut tenants = Vec::new();
        let mut dealt = 0;
        for group in &file.sessions {
            group
                .check(file.gpus)
                .with_context(|| format!("sessions {} of the trace {name}", group.name))?;
            for number in 0..group.count {
                let mut dice = Dice::for_part(file.seed, tenants.len() as u64);
                tenants.push(group.tenant(number, file.gpus, &mut dealt, &mut dice));
            }
        }
        ensure!(!tenants.is_empty(), "the trace {name} has no sessions");
        tenants.sort_by_key(|tenant| tenant.arrives);
        Ok(Self {
            name: name.to_owned(),
            until: file.until.0,
            machine,
            config: machine.config(),
            tenants,
        })
    }
}

impl Machine {
    /// One card of this capacity, as it is unless a trace says otherwise.
    pub(super) fn of(capacity: Bytes) -> Self {
        Self {
            gpus: 1,
            capacity,
            bandwidth: Bytes(50_000_000_000),
            window: Nanos::from_millis(10),
            thrashing: THRASHING,
            slicing: 1.0,
        }
    }

    /// Returns gpushare's configuration for such cards: the defaults, and the values that it would have
    /// measured.
    fn config(&self) -> Config {
        Config {
            capacity: Some(self.capacity),
            bandwidth_per_second: self.bandwidth,
            drain_target: self.window,
            ..Config::default()
        }
    }
}

impl Group {
    fn check(&self, gpus: u8) -> anyhow::Result<()> {
        ensure!(self.weight > 0, "a weight of 0");
        match &self.on {
            Some(on) if on.is_empty() || on.iter().any(|gpu| *gpu >= gpus) => {
                bail!("on {on:?}, where there are {gpus} GPUs, counted from 0");
            }
            None if self.gpus == 0 || self.gpus > gpus => bail!("{} GPUs of {gpus}", self.gpus),
            _ => Ok(()),
        }
    }

    /// The session of this number among them. Cards are dealt from `dealt` on.
    fn tenant(&self, number: u32, gpus: u8, dealt: &mut u8, dice: &mut Dice) -> Tenant {
        let cards = self.on.clone().unwrap_or_else(|| {
            let cards = (0..self.gpus).map(|n| (*dealt + n) % gpus).collect();
            *dealt = (*dealt + self.gpus) % gpus;
            cards
        });
        let mut cards: Vec<GpuId> = cards.into_iter().map(GpuId).collect();
        cards.sort_unstable();
        cards.dedup();
        Tenant {
            name: match self.count {
                1 => self.name.clone(),
                _ => format!("{}-{number}", self.name),
            },
            arrives: self.arrives.draw(dice),
            gpus: cards,
            memory: self.memory.draw(dice),
            weight: self.weight,
            priority: self.priority,
            compute: self.compute.0,
            program: self.program.clone(),
            work: self.work.map(|work| work.draw(dice)),
            seed: dice.throw(),
        }
    }
}

fn built_in(name: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
