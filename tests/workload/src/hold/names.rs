//! The things that lines call by name. All threads share them; no lock is held while the driver is called.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A line that names what does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no {kind} `{name}`")]
pub(super) struct Unknown {
    kind: &'static str,
    name: String,
}

/// Things of one kind.
#[derive(Debug)]
pub(super) struct Names<T> {
    kind: &'static str,
    things: Mutex<BTreeMap<String, T>>,
}

impl<T: Clone> Names<T> {
    pub(super) fn new(kind: &'static str) -> Self {
        Self { kind, things: Mutex::default() }
    }

    /// Gives a thing a name, which may have been another's before.
    pub(super) fn put(&self, name: &str, thing: T) {
        self.lock().insert(name.to_owned(), thing);
    }

    pub(super) fn get(&self, name: &str) -> Result<T, Unknown> {
        self.lock().get(name).cloned().ok_or_else(|| self.unknown(name))
    }

    /// Takes the name away.
    pub(super) fn take(&self, name: &str) -> Result<T, Unknown> {
        self.lock().remove(name).ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> Unknown {
        Unknown { kind: self.kind, name: name.to_owned() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, T>> {
        self.things.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_unknown() {
        let names = Names::new("buffer");
        names.put("a", 1);
        assert_eq!(names.take("a"), Ok(1));
        assert_eq!(names.get("a").unwrap_err().to_string(), "there is no buffer `a`");
    }
}
