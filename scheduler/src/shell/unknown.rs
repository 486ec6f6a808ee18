//! Functions of a newer driver that a process was handed: its memory stays where it is, and people are told why.

use std::collections::BTreeSet;

use gpushare_core::Event;
use gpushare_proto::ClientId;
use gpushare_proto::tenant::MAX_UNKNOWN;

use super::Shell;
use super::tenant::plain;
use crate::operation::Operation;

/// What one process told, as it may stand in a log.
#[derive(Debug, Default)]
pub(super) struct UnknownFunctions(BTreeSet<String>);

impl UnknownFunctions {
    /// Notes one of the first few.
    fn add(&mut self, name: &str, version: u32) {
        let name = plain(name);
        let name = match version {
            0 => name,
            _ => format!("{name} ({}.{})", version / 1000, version % 1000 / 10),
        };
        if self.0.len() < MAX_UNKNOWN {
            self.0.insert(name);
        }
    }

    /// By name.
    pub(super) fn list(&self) -> Vec<String> {
        self.0.iter().cloned().collect()
    }
}

impl Shell {
    pub(super) fn handed_unknown(&mut self, id: ClientId, name: &str, version: u32) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let first = client.unknown.0.is_empty();
        client.unknown.add(name, version);
        if first {
            let (pid, name) = (client.peer.pid, client.unknown.list().join(", "));
            let session = self.sessions.name(client.session);
            Operation::done("process.unknown_function")
                .of(client.session, &session)
                .process(pid)
                .user(client.peer.uid)
                .warn(format_args!(
                    "process {pid} of {session} was handed {name}, which this gpushare does not know: its memory stays \
                     on the card; update gpushare"
                ));
            self.feed(Event::Unevictable { client: id });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_few_names_of_a_process_are_kept_and_none_can_forge_a_line() {
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
