//! Driver functions that a program looked up and that gpushare's symbol list lacks, because the driver is
//! newer.
//!
//! gpushare does not see calls of these functions. Memory that they allocate is not charged, and work that
//! they start does not pass the gate. The daemon reports their names in `gpushare-ctl status`.
//!
//! ```text
//!   dlsym, cuGetProcAddress ── note ──▶ sixteen slots ── link, before its next message ──▶ daemon
//! ```
//!
//! Recording a name takes no lock and no memory, because an allocator may call `dlsym`. The sixteen slots
//! keep the first names and ignore further ones.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

use gpushare_proto::tenant::{MAX_UNKNOWN, MAX_UNKNOWN_NAME};

/// Unknown driver functions that this process looked up. The child of a fork inherits its parent's list.
pub static UNKNOWN: Unknown = Unknown::new();

/// List of unknown driver functions, in the order in which the program looked them up.
#[derive(Debug)]
pub struct Unknown {
    slots: [Slot; MAX_UNKNOWN],
    taken: AtomicUsize,
}

/// Slot for one function name. A length other than zero says that the slot is filled.
#[derive(Debug)]
struct Slot {
    name: [AtomicU8; MAX_UNKNOWN_NAME],
    version: AtomicU32,
    length: AtomicUsize,
}

impl Unknown {
    pub(crate) const fn new() -> Self {
        Self { slots: [const { Slot::new() }; MAX_UNKNOWN], taken: AtomicUsize::new(0) }
    }

    /// Records a function name and the CUDA version in the lookup; version 0 stands for `dlsym`.
    pub fn note(&self, name: &[u8], version: u32) {
        let name = &name[..name.len().min(MAX_UNKNOWN_NAME)];
        let taken = self.taken.load(Ordering::Acquire);
        if taken >= MAX_UNKNOWN || self.slots[..taken].iter().any(|slot| slot.holds(name, version)) {
            return;
        }
        // Two threads that note the same name at once fill two slots. The daemon keeps one.
        if let Some(slot) = self.slots.get(self.taken.fetch_add(1, Ordering::AcqRel)) {
            slot.fill(name, version);
        }
    }

    /// Returns whether the program looked none up.
    pub fn is_empty(&self) -> bool {
        self.taken.load(Ordering::Acquire) == 0
    }

    /// Returns the function name and CUDA version in a slot; `None` while the slot is empty or being filled.
    pub fn get(&self, slot: usize) -> Option<(String, u32)> {
        let slot = self.slots.get(slot)?;
        let name: Vec<_> = slot.letters()?.collect();
        Some((String::from_utf8_lossy(&name).into_owned(), slot.version.load(Ordering::Relaxed)))
    }
}

impl Slot {
    const fn new() -> Self {
        Self {
            name: [const { AtomicU8::new(0) }; MAX_UNKNOWN_NAME],
            version: AtomicU32::new(0),
            length: AtomicUsize::new(0),
        }
    }

    fn fill(&self, name: &[u8], version: u32) {
        for (letter, &byte) in self.name.iter().zip(name) {
            letter.store(byte, Ordering::Relaxed);
        }
        self.version.store(version, Ordering::Relaxed);
        self.length.store(name.len(), Ordering::Release);
    }

    fn letters(&self) -> Option<impl Iterator<Item = u8>> {
        let length = self.length.load(Ordering::Acquire);
        (length > 0).then(|| self.name.iter().take(length).map(|letter| letter.load(Ordering::Relaxed)))
    }

    fn holds(&self, name: &[u8], version: u32) -> bool {
        self.version.load(Ordering::Relaxed) == version
            && self.letters().is_some_and(|letters| letters.eq(name.iter().copied()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(unknown: &Unknown) -> Vec<(String, u32)> {
        (0..).map_while(|slot| unknown.get(slot)).collect()
    }

    #[test]
    fn a_name_is_noted_once_for_each_version() {
        let unknown = Unknown::new();
        for (name, version) in [("cuA", 0), ("cuB", 13_060), ("cuA", 0), ("cuA", 14_000), ("cuB", 13_060)] {
            unknown.note(name.as_bytes(), version);
        }
        let expected =
            [("cuA", 0), ("cuB", 13_060), ("cuA", 14_000)].map(|(name, version)| (name.to_owned(), version));
        assert_eq!(all(&unknown), expected);
    }

    #[test]
    fn only_so_many_names_of_such_a_length_are_kept() {
        let unknown = Unknown::new();
        for number in 0..100 {
            unknown.note(format!("cu{}{number}", "X".repeat(number)).as_bytes(), 0);
        }
        assert_eq!(all(&unknown).len(), MAX_UNKNOWN);
        let long = Unknown::new();
        long.note("X".repeat(1000).as_bytes(), 1);
        assert_eq!(all(&long), [("X".repeat(MAX_UNKNOWN_NAME), 1)]);
    }

    #[test]
    fn threads_that_note_at_once_lose_nothing() {
        let unknown = Unknown::new();
        std::thread::scope(|scope| {
            for thread in 0..8_u32 {
                let unknown = &unknown;
                scope.spawn(move || unknown.note(format!("cu{thread}").as_bytes(), thread));
            }
        });
        let mut versions: Vec<_> = all(&unknown).into_iter().map(|(_, version)| version).collect();
        versions.sort_unstable();
        assert_eq!(versions, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
