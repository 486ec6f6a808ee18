//! Driver functions that a process asked for and its library does not know.
//!
//! A newer driver has functions that the library cannot follow. A process that got one keeps its memory on
//! the card, and `status` names the functions.

use std::collections::BTreeSet;

use gpushare_proto::tenant::MAX_UNKNOWN;

use crate::operation::plain;

/// Names of one process's unknown functions, made safe for a log.
#[derive(Debug, Default)]
pub(crate) struct UnknownFunctions(BTreeSet<String>);

impl UnknownFunctions {
    /// Adds a function, up to [`MAX_UNKNOWN`]. Returns whether it is the process's first.
    pub(crate) fn add(&mut self, name: &str, version: u32) -> bool {
        let name = plain(name);
        let name = match version {
            0 => name,
            _ => format!("{name} ({}.{})", version / 1000, version % 1000 / 10),
        };
        let first = self.0.is_empty();
        if self.0.len() < MAX_UNKNOWN {
            self.0.insert(name);
        }
        first
    }

    pub(crate) fn list(&self) -> Vec<String> {
        self.0.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_functions_are_few_and_safe_in_a_log() {
        let mut unknown = UnknownFunctions::default();
        unknown.add("cuConjure\n", 0);
        unknown.add("cuConjure", 0);
        unknown.add("cuLaunchKernel", 13_060);
        for number in 0..100 {
            unknown.add(&format!("cuX{number}"), 0);
        }
        let list = unknown.list();
        assert_eq!(list.len(), MAX_UNKNOWN);
        assert_eq!(list[..2], ["cuConjure", "cuLaunchKernel (13.6)"]);
    }
}
