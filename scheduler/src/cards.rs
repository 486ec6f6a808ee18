//! The cards of this daemon: their numbers, identities and settings.
//!
//! NVML lists the cards at the start. Without NVML a card is found when the first process announces it. A
//! card's number is its row in every shared page, so the number never changes.
//!
//! The first process defines the card for all. So the system's daemon asks NVML again when a tenant announces a
//! card, and without NVML believes only its own user and the configuration (`[gpus.GPU-…]`).

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use gpushare_core::{Event, Knobs};
use gpushare_proto::admin::{ConfigChange, Knob, Setting};
use gpushare_proto::page::MAX_GPUS;
use gpushare_proto::tenant::{Failure, FailureCode, GpuInfo};
use gpushare_proto::{Bytes, GpuId, GpuUuid, Nanos};

use crate::args::CardName;
use crate::config::{CardLimits, Settings};
use crate::knob::{name, words};
use crate::lock::{CardLock, LockError};

/// Shortest interval between two questions to NVML about the machine's cards.
const PAUSE: Nanos = Nanos::from_secs(1);

/// Reason why a process cannot use a card with this daemon.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CardError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(
        "this daemon has {MAX_GPUS} cards already and cannot take {0} as well; use one of those, or give the program \
         a daemon of its own with --runtime-dir"
    )]
    Full(GpuUuid),
    #[error("{0} says that it has no memory; is the driver healthy? `nvidia-smi` tells")]
    Empty(GpuUuid),
    #[error("{0} is none of this machine's cards; `nvidia-smi -L` lists them")]
    Unknown(GpuUuid),
    #[error(
        "the system's scheduler finds no NVML (`libnvidia-ml.so.1`) that lists {0}, and does not take a card from a \
         tenant; name it as `[gpus.{0}]` in the scheduler's configuration"
    )]
    Unconfirmed(GpuUuid),
}

impl From<CardError> for Failure {
    fn from(error: CardError) -> Self {
        let code = match error {
            CardError::Lock(_) | CardError::Full(_) | CardError::Unconfirmed(_) => FailureCode::Unavailable,
            CardError::Empty(_) => FailureCode::BadRequest,
            CardError::Unknown(_) => FailureCode::NotFound,
        };
        Self { code, message: error.to_string() }
    }
}

#[derive(Debug)]
pub(crate) struct Card {
    pub(crate) info: GpuInfo,
    knobs: Knobs,
    /// Default limit on the card's managed memory, in bytes.
    managed_limit: Bytes,
    _lock: CardLock,
}

impl Card {
    /// Returns the largest number of bytes that can ever be allocated on the card.
    pub(crate) fn most(&self) -> Bytes {
        self.knobs.managed_limit.unwrap_or(Bytes::ZERO).max(self.info.total)
    }
}

#[derive(Debug)]
pub(crate) struct Cards {
    all: Vec<Card>,
    /// Whether NVML listed all cards of the machine. If so, tenants cannot announce other cards.
    pub(crate) complete: bool,
    /// Point in monotonic time from which NVML may be asked for the cards again.
    next_question: Nanos,
    lock_dir: PathBuf,
    limits: BTreeMap<CardName, CardLimits>,
    /// Settings of cards that the configuration does not name.
    defaults: Knobs,
    /// Settings that the decision machine gives a new card by itself.
    told: Knobs,
}

impl Cards {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            all: Vec::new(),
            complete: false,
            next_question: Nanos::ZERO,
            lock_dir: settings.lock_dir.clone(),
            limits: settings.cards.clone(),
            defaults: defaults(settings),
            // The managed limit depends on the card, so it is sent for each card.
            told: Knobs { managed_limit: None, ..Knobs::new(&settings.core) },
        }
    }

    /// Returns the number of a card. For a new card, also returns the events that announce it.
    pub(crate) fn find_or_add(&mut self, info: &GpuInfo) -> Result<(GpuId, Vec<Event>), CardError> {
        if let Some(gpu) = self.by_uuid(info.uuid) {
            return Ok((gpu, Vec::new()));
        }
        if self.complete {
            return Err(CardError::Unknown(info.uuid));
        }
        if info.total.is_zero() {
            return Err(CardError::Empty(info.uuid));
        }
        let number = u8::try_from(self.all.len())
            .ok()
            .filter(|&number| usize::from(number) < MAX_GPUS)
            .ok_or(CardError::Full(info.uuid))?;
        let lock = CardLock::take(&self.lock_dir, info.uuid)?;
        let gpu = GpuId(number);
        let managed_limit = info.total + half_of_available_memory();
        let knobs = self.knobs(gpu, info, managed_limit);
        let set = |knob| Event::Set(Setting { gpu: Some(gpu), knob });
        let mut events = vec![Event::GpuFound { gpu, total: info.total }];
        events.extend(self.told.changes(&knobs).into_iter().map(set));
        self.all.push(Card { info: info.clone(), knobs, managed_limit, _lock: lock });
        Ok((gpu, events))
    }

    /// Returns whether to ask NVML for the machine's cards again: at most once a second, since it takes time.
    pub(crate) fn may_ask(&mut self, now: Nanos) -> bool {
        let may = now >= self.next_question;
        if may {
            self.next_question = now + PAUSE;
        }
        may
    }

    /// Returns whether the configuration names a card by its UUID.
    pub(crate) fn is_configured(&self, card: GpuUuid) -> bool {
        self.limits.contains_key(&CardName::Uuid(card))
    }

    pub(crate) fn get(&self, gpu: GpuId) -> Option<&Card> {
        self.all.get(usize::from(gpu.0))
    }

    /// Changes a setting of one card, or of all present and future cards. Returns the old and new value as
    /// text.
    pub(crate) fn set(&mut self, setting: Setting) -> (String, String) {
        let Setting { gpu, knob } = setting;
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for (number, card) in numbered(self.all.iter_mut()) {
            if gpu.is_none_or(|gpu| gpu == number) {
                old.push((number, words(&card.knobs, knob)));
                card.knobs.set(knob);
                new.push((number, words(&card.knobs, knob)));
            }
        }
        let before = words(&self.defaults, knob);
        if gpu.is_none() {
            self.defaults.set(knob);
            self.told.set(knob);
        }
        (summary(&old, before), summary(&new, words(&self.defaults, knob)))
    }

    /// Applies a configuration that was read again, and discards values set by `gpushare-ctl set`. Returns
    /// the changed settings of each card, and a description of the changes.
    pub(crate) fn reload(&mut self, settings: &Settings) -> (Vec<(GpuId, Knob)>, Vec<ConfigChange>) {
        self.limits.clone_from(&settings.cards);
        self.defaults = defaults(settings);
        let (mut changed, mut changes) = (Vec::new(), Vec::new());
        for number in (0..).map(GpuId).take(self.all.len()) {
            let Some(card) = self.get(number) else { continue };
            let new = self.knobs(number, &card.info, card.managed_limit);
            let old = card.knobs;
            for knob in old.changes(&new) {
                changed.push((number, knob));
                changes.push(ConfigChange {
                    key: format!("{} of {number}", name(knob)),
                    old: words(&old, knob),
                    new: words(&new, knob),
                    live: true,
                });
            }
            self.all[usize::from(number.0)].knobs = new;
        }
        (changed, changes)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (GpuId, &Card)> {
        numbered(self.all.iter())
    }

    pub(crate) fn by_uuid(&self, uuid: GpuUuid) -> Option<GpuId> {
        self.iter().find(|(_, card)| card.info.uuid == uuid).map(|(gpu, _)| gpu)
    }

    fn knobs(&self, gpu: GpuId, info: &GpuInfo, managed: Bytes) -> Knobs {
        let by = |name| self.limits.get(&name).copied().unwrap_or_default();
        let (uuid, index) = (by(CardName::Uuid(info.uuid)), by(CardName::Index(gpu.0)));
        let managed_limit = uuid.managed_limit.or(index.managed_limit).or(self.defaults.managed_limit);
        let window_target = uuid.window_target.or(index.window_target);
        let context_reserve = uuid.context_reserve.or(index.context_reserve);
        Knobs {
            capacity: uuid.capacity.or(index.capacity).or(self.defaults.capacity),
            managed_limit: managed_limit.or(Some(managed)),
            quantum: uuid.quantum.or(index.quantum).or(self.defaults.quantum),
            mode: uuid.mode.or(index.mode).or(self.defaults.mode),
            epsilon: uuid.epsilon.or(index.epsilon).unwrap_or(self.defaults.epsilon),
            window_target: window_target.unwrap_or(self.defaults.window_target),
            context_reserve: context_reserve.unwrap_or(self.defaults.context_reserve),
        }
    }
}

fn defaults(settings: &Settings) -> Knobs {
    Knobs { managed_limit: settings.managed_limit, ..Knobs::new(&settings.core) }
}

/// Returns the value that all cards share, else each card's value; `otherwise` if there is no card.
fn summary(values: &[(GpuId, String)], otherwise: String) -> String {
    let Some((_, first)) = values.first() else {
        return otherwise;
    };
    if values.iter().all(|(_, value)| value == first) {
        return first.clone();
    }
    let each: Vec<String> = values.iter().map(|(gpu, value)| format!("{gpu} {value}")).collect();
    each.join(", ")
}

fn numbered<T>(cards: impl Iterator<Item = T>) -> impl Iterator<Item = (GpuId, T)> {
    (0..).map(GpuId).zip(cards)
}

/// Returns the default limit on managed memory: half of the available host memory, in bytes.
fn half_of_available_memory() -> Bytes {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    Bytes(available(&text).unwrap_or(Bytes::ZERO).0 / 2)
}

fn available(meminfo: &str) -> Option<Bytes> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kib.saturating_mul(1024)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use gpushare_proto::admin::Mode;

    use super::*;
    use crate::args::Args;
    use crate::config::Environment;

    fn cards(lock_dir: &tempfile::TempDir, flags: &[&str]) -> Cards {
        let mut args = Args::parse_from(["x", "--user"].iter().chain(flags));
        args.lock_dir = Some(lock_dir.path().to_owned());
        Cards::new(&Settings::read(&args, &Environment::default()).unwrap())
    }

    fn info(n: u8, total: Bytes) -> GpuInfo {
        GpuInfo { uuid: GpuUuid::gpu([n; 16]), name: format!("card {n}"), total }
    }

    #[test]
    fn a_card_announced_twice_is_one_card() {
        let folder = tempfile::tempdir().unwrap();
        let mut cards = cards(&folder, &["--capacity=1=1GiB", "--managed-limit=2GiB"]);
        let (gpu, events) = cards.find_or_add(&info(5, Bytes::gib(8))).unwrap();
        assert_eq!((gpu, events.len()), (GpuId(0), 2));
        let (gpu, events) = cards.find_or_add(&info(5, Bytes::gib(80))).unwrap();
        assert_eq!((gpu, events), (GpuId(0), vec![]));

        let (gpu, events) = cards.find_or_add(&info(6, Bytes::gib(8))).unwrap();
        assert_eq!(gpu, GpuId(1));
        let set = |knob| Event::Set(Setting { gpu: Some(GpuId(1)), knob });
        assert_eq!(
            events[1..],
            [set(Knob::ManagedLimit(Bytes::gib(2))), set(Knob::Capacity(Some(Bytes::gib(1))))]
        );
    }

    #[test]
    fn impossible_and_unknown_cards_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut cards = cards(&folder, &[]);
        assert!(matches!(cards.find_or_add(&info(1, Bytes::ZERO)), Err(CardError::Empty(_))));
        for n in 0..16 {
            cards.find_or_add(&info(n, Bytes::gib(1))).unwrap();
        }
        assert!(matches!(cards.find_or_add(&info(99, Bytes::gib(1))), Err(CardError::Full(_))));
        cards.complete = true;
        assert!(matches!(cards.find_or_add(&info(99, Bytes::gib(1))), Err(CardError::Unknown(_))));
    }

    #[test]
    fn a_setting_says_what_it_was_and_is() {
        let folder = tempfile::tempdir().unwrap();
        let mut cards = cards(&folder, &["--quantum=2s"]);
        let fixed = |gpu, mode| Setting { gpu, knob: Knob::Mode(mode) };
        let said = cards.set(fixed(None, Some(Mode::Parallel)));
        assert_eq!(said, ("as memory fits".into(), "parallel".into()));
        cards.find_or_add(&info(1, Bytes::gib(1))).unwrap();
        cards.find_or_add(&info(2, Bytes::gib(1))).unwrap();
        let said = cards.set(fixed(Some(GpuId(1)), Some(Mode::Serialized)));
        assert_eq!(said, ("parallel".into(), "serialized".into()));
        let said = cards.set(fixed(None, None));
        assert_eq!(said, ("gpu0 parallel, gpu1 serialized".into(), "as memory fits".into()));
        let quantum = Setting { gpu: None, knob: Knob::Quantum(None) };
        let (old, new) = cards.set(quantum);
        assert_eq!((old.as_str(), new.as_str()), ("2s", "computed"));
    }

    #[test]
    fn a_reload_drops_what_was_set_before() {
        let folder = tempfile::tempdir().unwrap();
        let mut cards = cards(&folder, &["--quantum=2s"]);
        let (gpu, _) = cards.find_or_add(&info(1, Bytes::gib(1))).unwrap();
        let mut settings =
            Settings::read(&Args::parse_from(["x", "--quantum=2s"]), &Environment::default()).unwrap();
        assert_eq!(cards.reload(&settings), (vec![], vec![]), "the same as at the start");

        let knob = Knob::Quantum(Some(Nanos::from_secs(9)));
        cards.set(Setting { gpu: Some(gpu), knob });
        let own = CardLimits { mode: Some(Mode::Serialized), ..CardLimits::default() };
        settings.cards.insert(CardName::Index(0), own);
        let (changed, words) = cards.reload(&settings);
        let back = Knob::Quantum(Some(Nanos::from_secs(2)));
        assert_eq!(changed, [(gpu, back), (gpu, Knob::Mode(Some(Mode::Serialized)))]);
        let said: Vec<String> = words
            .iter()
            .map(|change| format!("{}: {} → {}", change.key, change.old, change.new))
            .collect();
        assert_eq!(said, ["quantum of gpu0: 9s → 2s", "mode of gpu0: as memory fits → serialized"]);

        let (gpu, events) = cards.find_or_add(&info(2, Bytes::gib(1))).unwrap();
        settings.cards.clear();
        assert_eq!((gpu, events.len()), (GpuId(1), 2), "its managed limit alone");
    }

    #[test]
    fn available_memory_is_read_from_the_kernel() {
        assert_eq!(available("MemFree: 3 kB\nMemAvailable:     16 kB\n"), Some(Bytes(16384)));
        assert!(half_of_available_memory() > Bytes::ZERO);
    }
}
