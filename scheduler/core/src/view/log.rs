//! Format of a recording: one JSON line per event, with a fingerprint of its effects.
//!
//! ```text
//!   {"line":{"header":{"format":2,"version":"0.1.0","generation":…,"expected":[],"started":…,"config":{…}}},"chain":"…"}
//!   {"line":{"handled":{"now":…,"event":{"GpuFound":{"gpu":0,"total":…}},"effects":"cbf29ce484222325"}},"chain":"…"}
//!   …                                                                                                        │
//!   {"line":{"end":{"reason":"the daemon ended"}},"chain":"…"}  ◀── of this line and of all before it ────────┘
//! ```
//!
//! A new machine gives the same effects for the same events, so the effects are not kept. A fingerprint of
//! eight bytes tells whether a replay still gives the same ones. Each line also has a fingerprint of
//! everything up to itself, so that an edited or missing line is found. It does not prove who wrote the file:
//! a chain can be computed anew. A recording has no names, pids, paths or tokens, since the machine never
//! learns them.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::Hasher as _;
use std::io;

use gpushare_proto::{ClientId, Nanos};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::events::{Effect, Event};
use crate::machine::Core;

/// Version of the format.
pub const FORMAT: u32 = 2;

/// Line of a recording with its place in the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Content of the line.
    pub line: Line,
    /// Fingerprint of this line and of all before it.
    pub chain: Chain,
}

impl Link {
    /// First bytes of every recording.
    pub const BEGINNING: &'static str = r#"{"line":{"header":{"format":"#;
}

/// Content of a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Line {
    /// First line: the start of the machine.
    Header(Box<Header>),
    /// Event that the machine handled.
    Handled(Handled),
    /// Last line, missing if the daemon was killed.
    End {
        /// Reason for the end, in words.
        reason: String,
    },
}

/// State with which the machine started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Version of the format: [`FORMAT`].
    pub format: u32,
    /// Version of the gpushare that recorded.
    pub version: String,
    /// Generation that was given to the machine: the boot clock in nanoseconds.
    pub generation: u64,
    /// Processes of the last daemon that the machine waited for.
    pub expected: BTreeSet<ClientId>,
    /// Whether processes that were not recorded could come back too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
    /// Clock of the machine at its start.
    pub started: Nanos,
    /// Time of the start, in seconds since 1970.
    pub unix_seconds: u64,
    /// Settings of the machine.
    pub config: Config,
}

impl Header {
    /// Creates a machine as it was at the start of the recording.
    #[must_use]
    pub fn machine(&self) -> Core {
        let (config, expected) = (self.config.clone(), self.expected.clone());
        let core = Core::new(config, self.generation, expected, self.started);
        match self.incomplete {
            true => core.expecting_others(),
            false => core,
        }
    }
}

/// One call of [`Core::handle`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handled {
    /// Time that came with the event.
    pub now: Nanos,
    /// Event that the machine took in.
    pub event: Event,
    /// Fingerprint of the effects; `None` if the machine never returned from the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effects: Option<Fingerprint>,
}

/// Hash of a list of effects: 64-bit FNV-1a of its JSON. It does not depend on the machine or the compiler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// Fingerprint of `effects`, which depends on their order.
    #[must_use]
    pub fn of(effects: &[Effect]) -> Self {
        let mut hash = Hash(fnv::FnvHasher::default());
        effects.iter().for_each(|effect| hash.add(effect));
        Self(hash.0.finish())
    }
}

/// Hash of a recording up to a line. A changed, missing, repeated or moved line changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Chain(Fingerprint);

impl Chain {
    /// Chain with one more line; the default is the chain of no line.
    #[must_use]
    pub fn with(self, line: &Line) -> Self {
        let mut hash = Hash(fnv::FnvHasher::default());
        hash.add(&self);
        hash.add(line);
        Self(Fingerprint(hash.0.finish()))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        u64::from_str_radix(&text, 16)
            .map(Self)
            .map_err(|_| format!("`{text}` is no fingerprint: it has 16 hexadecimal digits"))
    }
}

struct Hash(fnv::FnvHasher);

impl Hash {
    fn add(&mut self, thing: &impl Serialize) {
        // Neither can fail: recorded values are numbers, texts and enums, and the hash accepts every byte.
        let _ = serde_json::to_writer(self, thing);
    }
}

impl io::Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_their_form() {
        let line = Line::Handled(Handled {
            now: Nanos(7),
            event: Event::ClientGone { client: ClientId(3) },
            effects: Some(Fingerprint::of(&[])),
        });
        let text =
            r#"{"handled":{"now":7,"event":{"ClientGone":{"client":3}},"effects":"cbf29ce484222325"}}"#;
        assert_eq!(serde_json::to_string(&line).unwrap(), text);
        assert_eq!(serde_json::from_str::<Line>(text).unwrap(), line);

        let header = Header {
            format: FORMAT,
            version: "0.1.0".to_owned(),
            generation: 9,
            expected: [ClientId(4)].into(),
            incomplete: false,
            started: Nanos(5),
            unix_seconds: 1_700_000_000,
            config: Config::default(),
        };
        let line = Line::Header(Box::new(header));
        let text = serde_json::to_string(&line).unwrap();
        assert!(
            text.starts_with(
                r#"{"header":{"format":2,"version":"0.1.0","generation":9,"expected":[4],"started":5,"#
            ),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
        let chain = Chain::default().with(&line);
        let text = serde_json::to_string(&Link { line, chain }).unwrap();
        assert!(text.starts_with(Link::BEGINNING), "{text}");
    }

    #[test]
    fn a_chain_depends_on_every_line_and_their_order() {
        let [a, b, c] = ["a", "b", "c"].map(|reason| Line::End { reason: reason.to_owned() });
        let of = |lines: &[&Line]| lines.iter().fold(Chain::default(), |chain, line| chain.with(line));
        let whole = of(&[&a, &b, &c]);
        assert_eq!(serde_json::to_string(&whole).unwrap(), "\"fc328cbcf7773d24\"");
        for other in [&[&a, &c][..], &[&a, &b, &b, &c], &[&b, &a, &c], &[&a, &b, &c, &c], &[&c]] {
            assert_ne!(of(other), whole);
        }
    }

    #[test]
    fn a_fingerprint_depends_on_every_effect_and_their_order() {
        let [a, b] = [1, 2].map(|client| Effect::Kill { client: ClientId(client) });
        let of = |effects: &[&Effect]| Fingerprint::of(&effects.iter().copied().cloned().collect::<Vec<_>>());
        assert_eq!(of(&[&a, &b]), of(&[&a, &b]));
        assert_ne!(of(&[&a, &b]), of(&[&b, &a]));
        assert_ne!(of(&[&a]), of(&[&a, &a]));
        assert_eq!(of(&[&a]).to_string(), "1fcc55b0dd33cfdb");
    }
}
